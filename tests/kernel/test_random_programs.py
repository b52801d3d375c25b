"""Random programs: the reference interpreter, the fused and planned schedule, the unfused one and the unplanned one agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calque.backend.ref.interpret import interpret as reference
from calque.base.config import settings
from calque.base.dtypes import DType, bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from calque.ir.program import Program
from calque.kernel.interpret import interpret
from calque.run.pipeline import compile_program
from tests.kernel.random_programs import random_program

MIXED = (float16, bfloat16, float32, float64, uint8, int32, bool_)
PLAIN = (float32, float32, int64)


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass is checked by the verifier."""
    monkeypatch.setattr(settings, "verify", True)


def tolerance(program: Program) -> float:
    """Rounding of the narrowest float in the program, times a margin for chains of operations."""
    floats = {n.dtype for n in program.nodes if n.dtype.category == 2}
    eps = max((2.0**-8 if d is bfloat16 else float(np.finfo(d.np).eps) for d in floats), default=0.0)
    return min(8, len(program.nodes)) * 16 * min(eps, 1e-3) + (8 * eps if eps > 1e-3 else 0)


def assert_agree(program: Program, arrays: list[Any], scalars: list[Any], **options: bool) -> list[Any]:
    schedule = compile_program(program, **options)
    results = interpret(schedule, arrays, scalars)
    wanted = reference(program, arrays, scalars)
    allowed = tolerance(program)
    for number, (x, y) in enumerate(zip(results, wanted, strict=True)):
        assert x.dtype == y.dtype
        close = {"rtol": allowed, "atol": allowed, "err_msg": f"output {number} of\n{program}"}
        np.testing.assert_allclose(x.reshape(y.shape).astype(np.float64), y.astype(np.float64), **close)
    return results


def run(seed: int, steps: int, dtypes: tuple[DType, ...]) -> None:
    program, arrays, scalars = random_program(seed, steps, dtypes)
    assert_agree(program, arrays, scalars, fusion=False, reuse=False)
    planned = assert_agree(program, arrays, scalars)
    unplanned = assert_agree(program, arrays, scalars, reuse=False)
    for x, y in zip(planned, unplanned, strict=True):
        np.testing.assert_array_equal(x, y)  # the same kernels in other memory: the same bits


@given(st.integers(0, 10**9))
def test_short_programs(seed: int) -> None:
    """Eight random operations on float32 and int64."""
    run(seed, 8, PLAIN)


@given(st.integers(0, 10**9))
def test_long_programs(seed: int) -> None:
    """Twenty-five random operations on float32 and int64."""
    run(seed, 25, PLAIN)


@given(st.integers(0, 10**9))
def test_mixed_dtypes(seed: int) -> None:
    """All element types and casts between them."""
    run(seed, 12, MIXED)


@given(st.integers(0, 10**9))
def test_donated_inputs_hold_the_outputs(seed: int) -> None:
    """An output with a donor is the donor's array, and no other input changes."""
    program, arrays, scalars = random_program(seed, 12, PLAIN)
    schedule = compile_program(program)
    given_arrays = [np.array(a) for a in arrays]
    results = interpret(schedule, given_arrays, scalars, copy_inputs=False)
    donors = {b.donor for b in schedule.buffers if b.donor >= 0}
    assert donors <= set(program.donated)
    for index, (before, after) in enumerate(zip(arrays, given_arrays, strict=True)):
        if index not in program.donated:
            np.testing.assert_array_equal(before, after)
    for number, buffer in enumerate(schedule.outputs):
        donor = schedule.buffers[buffer].donor
        if donor >= 0:
            assert np.shares_memory(results[number], given_arrays[donor]) or not results[number].size
