"""Random complex programs against NumPy, and their gradients against differences along random directions."""

from __future__ import annotations

import numpy as np
import pytest

import calque
from tests.fuzz.complex_programs import STEPS, Program, program


def gradients(p: Program) -> tuple[float, list[np.ndarray]]:
    leaves = [calque.tensor(a, requires_grad=True) for a in p.leaves]
    loss = p.by_tensors(calque, leaves)
    loss.backward()
    return loss.item(), [np.zeros_like(a) if t.grad is None else t.grad.numpy() for t, a in zip(leaves, p.leaves, strict=True)]


def check(p: Program, rng: np.random.Generator) -> None:
    """The value is NumPy's; the gradient times a direction is the slope there; the third time, from a replay, both are the same."""
    loss, grads = gradients(p)
    assert loss == pytest.approx(float(p.by_arrays(list(p.leaves))), rel=1e-9), str(p)
    ways = [rng.standard_normal(a.shape) + (1j * rng.standard_normal(a.shape) if np.iscomplexobj(a) else 0) for a in p.leaves]
    slope = sum((g.conj() * d).sum().real for g, d in zip(grads, ways, strict=True))
    sides = [float(p.by_arrays([a + h * d for a, d in zip(p.leaves, ways, strict=True)])) for h in (1e-6, -1e-6)]
    assert slope == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4, abs=1e-4), str(p)
    for _ in range(2):
        again, repeated = gradients(p)
        assert again == pytest.approx(loss, rel=1e-12), str(p)
        for g, h in zip(grads, repeated, strict=True):
            np.testing.assert_allclose(h, g, rtol=1e-9, atol=1e-12, err_msg=str(p))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_each_step(step: object, rng: np.random.Generator) -> None:
    p = program(rng, 0)
    places = [0 if kind == "c" else 2 for kind in step.takes]  # type: ignore[attr-defined]
    if places[1:] == [0]:
        places[1] = 1
    check(Program(p.leaves, ((step, tuple(places)),)), rng)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", range(25))
def test_random_programs(number: int, rng: np.random.Generator) -> None:
    rng = np.random.default_rng([number, int(rng.integers(1 << 30))])
    check(program(rng, int(rng.integers(2, 12))), rng)
