"""Gradients do not depend on where in their memory operands and given gradients lie: what was learned of one place holds at another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
import calque.functional as F
from calque.autograd import grad
from calque.base.config import settings
from calque.base.dtypes import complex128, float64
from calque.ops import OpDef, get
from calque.ops.opdef import Sample
from tests.ops.cases import evaluate
from tests.ops.test_gradients import cases, drawn, moving

PLACES = 6  # how a rule is recorded again is learned from the second time, and generalised after that


def placed(x: Any, wanted: bool) -> list[Any]:
    """The same values at several places of one memory."""
    whole = calque.tensor(np.stack([x] * PLACES))
    return [whole[k].detach().requires_grad_(wanted) for k in range(PLACES)]


def check(op: OpDef, sample: Sample, xs: list[Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [k for k in moving(op, sample) if np.asarray(xs[k]).dtype.kind in "fc"]
    result = evaluate(op, xs, sample.attrs)
    given = rng.standard_normal((PLACES, *result.shape)).astype(result.dtype)
    if result.dtype.kind == "c":
        given = given + 1j * rng.standard_normal(given.shape)
    places = [placed(x, k in wanted) for k, x in enumerate(xs)]
    gradients = calque.tensor(given)
    for k in range(PLACES):
        ts = [place[k] for place in places]
        got = grad(F.prim(op.name, *ts, *sample.attrs), [ts[j] for j in wanted], gradients[k], allow_unused=True)
        with monkeypatch.context() as patch:
            patch.setattr(settings, "macros", False)
            again = [calque.tensor(x, requires_grad=j in wanted) for j, x in enumerate(xs)]
            expected = grad(F.prim(op.name, *again, *sample.attrs), [again[j] for j in wanted], calque.tensor(given[k]), allow_unused=True)
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)


BETWEEN = ("view_as", "update_as", "hosted", "cast")  # dtypes
REAL = list({p.values[0]: p for p in reversed(cases(1)) if all(0 not in shape for shape in p.values[1].shapes)}.values())  # a sample for each
COMPLEX = [p for p in REAL if p.values[0].complex and p.values[0].name not in BETWEEN]
COMPLEX.append(pytest.param(get("complex"), get("complex").samples[0], id="complex"))


@pytest.mark.parametrize("eager", [0, 1])
@pytest.mark.parametrize(("op", "sample"), REAL)
def test_real_numbers(op: OpDef, sample: Sample, eager: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "eager", eager)
    check(op, sample, drawn(op, sample, rng), rng, monkeypatch)


@pytest.mark.parametrize("eager", [0, 1])
@pytest.mark.parametrize(("op", "sample"), COMPLEX)
def test_complex_numbers(op: OpDef, sample: Sample, eager: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "eager", eager)
    constant = {position for position, _ in sample.integers}
    real = drawn(op, sample, rng)
    xs = [x if k in constant or op.name == "complex" else x + 0.5j * rng.permutation(x.reshape(-1)).reshape(x.shape) for k, x in enumerate(real)]
    check(op, sample, xs, rng, monkeypatch)


def test_parts_of_gradients_at_other_places() -> None:
    """The real part of a gradient is a view of it whose elements are counted twice as fast."""
    a, b = calque.ones(2, 2, dtype=float64, requires_grad=True), calque.ones(2, 2, dtype=float64, requires_grad=True)
    z = calque.complex(a, b)
    given = calque.arange(32.0, dtype=float64).view(8, 2, 2).to(complex128) * (1 + 2j)
    for k in range(8):
        of_a, of_b = grad(z, (a, b), given[k], retain_graph=True)
        assert calque.equal(of_a, given[k].real.clone()) and calque.equal(of_b, given[k].imag.clone())
    together = grad(z, (a, b), given, is_grads_batched=True)
    assert calque.equal(together[0], given.real.clone()) and calque.equal(together[1], given.imag.clone())
