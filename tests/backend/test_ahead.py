"""Rows that are asked for before their turn: where the loops over a row take long, and never with another result."""

from __future__ import annotations

import numpy as np
import pytest

from calque.backend.cpu.compile.target import current
from calque.backend.cpu.loops.emit import emit_kernel
from calque.backend.cpu.loops.emit_plan import make_plan
from calque.backend.cpu.program import link
from calque.base.dtypes import DType, bfloat16, float32, float64, int64
from calque.kernel.interpret import interpret
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.schedule import Buffer, Loop, Schedule


def _kernel(function: str) -> LoopKernel:
    """out[p] = sum over r of function(x[p, r] - max over r of x[p, r])."""
    stages = (
        Stage("reduce", 0, (Instr("load", float32, (), 0), Instr("reduce", float32, (0,), "max"))),
        Stage("reduce", 2, (
            Instr("load", float32, (), 0), Instr("sub", float32, (2, 1)), Instr(function, float32, (3,)), Instr("reduce", float32, (4,), "sum"),
        )),
        Stage("point", 6, (Instr("store", float32, (5,), 1),)),
    )  # fmt: skip
    return LoopKernel(1, 1, (Operand(float32), Operand(float32, True)), (Access(0, ("s", "1")), Access(1, ("1", "0"))), stages, "r")


def _down(function: str, loops: int = 1) -> LoopKernel:
    """out[p] = sum over r of function(x[r, p]), in panels, and what is stored on the way: y[r, p] = function(x[r, p])."""
    summed = Stage("reduce", 0, (
        Instr("load", float32, (), 0), Instr(function, float32, (0,)), Instr("reduce", float32, (1,), "sum"), Instr("store", float32, (1,), 1),
    ))  # fmt: skip
    again = Stage("map", 4, (Instr("load", float32, (), 0), Instr("sub", float32, (4, 2)), Instr("store", float32, (5,), 1)))
    first = 4 if loops == 1 else 7
    stages = (summed, *((again,) if loops == 2 else ()), Stage("point", first, (Instr("store", float32, (2,), 2),)))
    accesses = (Access(0, ("1", "s")), Access(1, ("1", "s")), Access(2, ("1", "0")))
    return LoopKernel(1, 1, (Operand(float32), Operand(float32, True), Operand(float32, True)), accesses, stages, "p", panels=True)


def test_panels_ask_for_the_next_row_of_their_only_loop() -> None:
    assert make_plan(_down("exp"), current()).ahead == (0,)
    assert make_plan(_down("neg"), current()).ahead == (0,)
    assert make_plan(_down("exp", 2), current()).ahead == ()  # the panel stays in the cache for its second loop
    assert "llvm.prefetch" in emit_kernel(_down("exp"), current(), "k")
    assert "llvm.prefetch" in emit_kernel(_down("neg"), current(), "k")
    assert "llvm.prefetch" not in emit_kernel(_down("neg", 2), current(), "k")


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 15), (5, 16), (7, 513), (50, 1041)])
def test_results_of_panels_do_not_change(rows: int, columns: int, rng: np.random.Generator) -> None:
    buffers = (Buffer("input", 0, float32, rows * columns), Buffer("output", 0, float32, rows * columns), Buffer("output", 1, float32, columns))
    schedule = Schedule(buffers, (Loop(_down("exp"), (0, 1, 2), (columns, rows, 0, columns, 0, columns, 0)),), (1, 2), 0, ())
    inputs = [rng.standard_normal(rows * columns).astype(np.float32)]
    got = link.compile_schedule(schedule).run(inputs)
    for a, b in zip(got, interpret(schedule, inputs, (), check=False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_only_where_a_row_takes_long() -> None:
    assert make_plan(_kernel("exp"), current()).ahead == (0,)
    assert make_plan(_kernel("neg"), current()).ahead == ()
    assert "llvm.prefetch" in emit_kernel(_kernel("exp"), current(), "k")
    assert "llvm.prefetch" not in emit_kernel(_kernel("neg"), current(), "k")


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 15), (5, 16), (7, 513), (2, 70_001)])
def test_results_do_not_change(rows: int, columns: int, rng: np.random.Generator) -> None:
    kernel = _kernel("exp")
    buffers = (Buffer("input", 0, float32, rows * columns), Buffer("output", 0, float32, rows))
    schedule = Schedule(buffers, (Loop(kernel, (0, 1), (rows, columns, 0, columns, 0)),), (1,), 0, ())
    inputs = [rng.standard_normal(rows * columns).astype(np.float32)]
    (got,) = link.compile_schedule(schedule).run(inputs)
    (wanted,) = interpret(schedule, inputs, (), check=False)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def _looked_up(written: bool = False) -> LoopKernel:
    """out[p, q] = table[index[p], q]; if `written`, the index is a result of the kernel itself."""
    store = (Instr("load", int64, (), 0), Instr("store", int64, (0,), 3)) if written else ()
    first = len(store)
    row = (Instr("load", int64, (), 3 if written else 0), Instr("load_at", float32, (first,), 1), Instr("store", float32, (first + 1,), 2))
    operands = (Operand(int64), Operand(float32), Operand(float32, True), *((Operand(int64, True),) if written else ()))
    accesses = (Access(0, ("s", "0")), Access(1, ("0", "1"), True), Access(2, ("s", "1")), *((Access(3, ("s", "0")),) if written else ()))
    return LoopKernel(2, 0, operands, accesses, (Stage("point", 0, (*store, *row)),), "p")


def test_rows_that_an_index_chooses_are_asked_for() -> None:
    assert make_plan(_looked_up(), current()).lookups == ((1, 0),)
    assert make_plan(_looked_up(written=True), current()).lookups == ()  # the next index may not be there yet
    assert "llvm.prefetch" in emit_kernel(_looked_up(), current(), "k")


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 15), (5, 16), (7, 513), (2, 70_001)])
def test_rows_that_were_looked_up_do_not_change(rows: int, columns: int, rng: np.random.Generator) -> None:
    words = 11
    sizes = (("input", 0, int64, rows), ("input", 1, float32, words * columns), ("output", 0, float32, rows * columns))
    parameters = (rows, columns, 0, 1, 0, columns, words, 0, columns)
    schedule = Schedule(tuple(Buffer(*b) for b in sizes), (Loop(_looked_up(), (0, 1, 2), parameters),), (2,), 0, ())
    index, table = rng.integers(-2, words + 2, rows), rng.standard_normal((words, columns)).astype(np.float32)
    (got,) = link.compile_schedule(schedule).run([index, table.reshape(-1)])
    np.testing.assert_array_equal(got.reshape(rows, columns), table[np.clip(index, 0, words - 1)])


def _channels(dtype: DType) -> LoopKernel:
    """out[p, r, q] = x[p, r, q] - the sum over r and q of x[p, r, q]."""
    stages = (
        Stage("reduce", 0, (Instr("load", dtype, (), 0), Instr("reduce", dtype, (0,), "sum"))),
        Stage("map", 2, (Instr("load", dtype, (), 0), Instr("sub", dtype, (2, 1)), Instr("store", dtype, (3,), 1))),
    )
    return LoopKernel(1, 2, (Operand(dtype), Operand(dtype, True)), (Access(0, ("s", "s", "1")), Access(1, ("s", "s", "1"))), stages, "r")


def test_channels_of_images_ask_for_the_next_one() -> None:
    assert make_plan(_channels(float32), current()).ahead == (0,)
    assert "llvm.prefetch" in emit_kernel(_channels(float32), current(), "k")


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16])
@pytest.mark.parametrize(("images", "channels", "points"), [(1, 1, 1), (2, 3, 15), (3, 5, 49), (2, 4, 196), (1, 3, 16), (2, 2, 9001)])
def test_channels_that_begin_anywhere_in_a_line(dtype: DType, images: int, channels: int, points: int, rng: np.random.Generator) -> None:
    """What lies before the first whole line is written once, whatever the size of an element."""
    count = images * channels * points
    buffers = (Buffer("input", 0, dtype, count), Buffer("output", 0, dtype, count))
    params = (channels, images, points, 0, points, channels * points, 0, points, channels * points)
    schedule = Schedule(buffers, (Loop(_channels(dtype), (0, 1), params),), (1,), 0, ())
    inputs = [rng.standard_normal(count).astype(dtype.np)]
    (got,) = link.compile_schedule(schedule).run(inputs)
    (wanted,) = interpret(schedule, inputs, (), check=False)
    tolerance = {"float32": 1e-4, "float64": 1e-12, "bfloat16": 0.5}[dtype.name]
    np.testing.assert_allclose(got.astype(np.float64), np.asarray(wanted).astype(np.float64), rtol=tolerance / 10, atol=tolerance)
