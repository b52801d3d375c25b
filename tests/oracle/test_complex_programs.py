"""Random complex programs against PyTorch: values and gradients, in double and in single precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import calque
from tests.fuzz.complex_programs import Program, program

pytestmark = pytest.mark.oracle


def outcome(lib: Any, p: Program, single: bool) -> tuple[float, list[Any]]:
    leaves = [lib.tensor(a.astype(np.complex64 if np.iscomplexobj(a) else np.float32) if single else a, requires_grad=True) for a in p.leaves]
    loss = p.by_tensors(lib, leaves)
    loss.backward()
    return loss.item(), [None if t.grad is None else t.grad.resolve_conj().numpy() for t in leaves]


@pytest.mark.parametrize("single", [False, True], ids=["double", "single"])
@pytest.mark.parametrize("number", range(40))
def test_random_programs(number: int, single: bool, rng: np.random.Generator) -> None:
    p = program(np.random.default_rng([number, int(rng.integers(1 << 30))]), 3 + number % 10)
    (want, gradients), (got, found) = outcome(torch, p, single), outcome(calque, p, single)
    tolerance = 2e-3 if single else 1e-9
    assert got == pytest.approx(want, rel=tolerance), str(p)
    for g, w in zip(found, gradients, strict=True):
        assert (g is None) is (w is None), str(p)
        if w is not None:
            assert g.dtype == w.dtype
            np.testing.assert_allclose(g, w, rtol=tolerance * 10, atol=tolerance * max(1.0, float(np.abs(w).max())), err_msg=str(p))
