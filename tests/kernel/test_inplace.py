"""Which launches may overwrite what they read, and that such plans compute the right values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calque.backend.cpu.program.link import compile_schedule
from calque.backend.ref.interpret import interpret as reference
from calque.base.dtypes import float32, int64
from calque.kernel.inplace import may_overwrite
from calque.kernel.interpret import interpret
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.lower import Launch
from calque.run.pipeline import compile_program
from tests.kernel.programs import Build


def launch(stages: tuple[Stage, ...], accesses: tuple[Access, ...], params: tuple[int, ...], dynamic: Any = ()) -> Launch:
    """A launch that reads node 7 (operand 0) and writes node 8 (operand 1) over P = 1, R = 1."""
    operands = (Operand(float32), Operand(float32, True))
    return Launch(LoopKernel(1, 1, operands, accesses, stages, "r"), (7, 8), params, (), dynamic, ())


def load(access: int) -> Instr:
    return Instr("load", float32, (), access)


ROWS = (Access(0, ("s", "1")), Access(1, ("s", "1")))
MAXIMUM = Stage("reduce", 0, (load(0), Instr("reduce", float32, (0,), "max")))
SHIFT = Stage("map", 2, (load(0), Instr("sub", float32, (2, 1)), Instr("store", float32, (3,), 1)))
SIZES = (4, 10)


def test_elements_and_earlier_passes_over_the_row() -> None:
    assert may_overwrite(launch((MAXIMUM, SHIFT), ROWS, (*SIZES, 0, 10, 0, 10)), 7, 8)


def test_a_later_stage_must_not_read_what_was_stored() -> None:
    late = Stage("reduce", 5, (load(0), Instr("reduce", float32, (5,), "sum")))
    assert not may_overwrite(launch((MAXIMUM, SHIFT, late), ROWS, (*SIZES, 0, 10, 0, 10)), 7, 8)


@pytest.mark.parametrize("params", [(0, 10, 1, 10), (0, 20, 0, 10), (10, 10, 0, 10)])
def test_other_elements(params: tuple[int, ...]) -> None:
    assert not may_overwrite(launch((MAXIMUM, SHIFT), ROWS, (*SIZES, *params)), 7, 8)


def test_run_time_offsets_must_be_the_same() -> None:
    params = (*SIZES, 0, 10, 0, 10)
    assert not may_overwrite(launch((MAXIMUM, SHIFT), ROWS, params, ((2, 0, 1),)), 7, 8)
    assert may_overwrite(launch((MAXIMUM, SHIFT), ROWS, params, ((2, 0, 1), (4, 0, 1))), 7, 8)


CHOICES = [(1, 10, "point", True), (1, 11, "point", False), (2, 10, "point", False), (1, 10, "map", False)]


@pytest.mark.parametrize(("stride", "limit", "stage", "fits"), CHOICES)
def test_a_chosen_entry_of_the_row_before_the_stage_that_stores(stride: int, limit: int, stage: str, fits: bool) -> None:
    accesses = (*ROWS, Access(0, ("s", "0"), True))
    chosen = (Instr("const", int64, (), 3), Instr("load_at", float32, (2,), 2))
    if stage == "point":
        stages = (MAXIMUM, Stage("point", 2, chosen), Stage("map", 4, (load(0), Instr("sub", float32, (4, 3)), Instr("store", float32, (5,), 1))))
    else:
        stages = (MAXIMUM, Stage("map", 2, (*chosen, Instr("sub", float32, (3, 1)), Instr("store", float32, (4,), 1))))
    assert may_overwrite(launch(stages, accesses, (*SIZES, 0, 10, 0, 10, 0, 10, stride, limit)), 7, 8) is fits


def classifier(rows: int, classes: int) -> tuple[Build, Any]:
    """Scores that are returned, and the gradient of their cross entropy: the product, the scores and the row's chosen entry in one kernel."""
    b = Build()
    x, w, bias, label = b.input((rows, 32)), b.input((32, classes)), b.input((classes,)), b.input((rows, 1), int64)
    scores = b.add("add", b.matmul(x, w), bias)
    top = b.amax(scores, attrs=((1,), True))
    e = b.exp(b.sub(scores, top))
    total = b.sum(e, attrs=((1,), True))
    chosen = b.gather(scores, label, attrs=(1,))
    loss = b.sub(b.log(total), b.sub(chosen, top))
    return b, b.program(scores, b.div(e, total), loss)


def test_a_product_lives_in_the_output_that_is_computed_from_it() -> None:
    _, program = classifier(64, 1000)
    schedule = compile_program(program)
    assert schedule.arena_bytes == 0
    assert [s.operands[2] for s in schedule.steps if hasattr(s, "spec")] == [schedule.outputs[0]]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((64, 32), (32, 1000), (1000,))] + [rng.integers(0, 1000, (64, 1))]
    wanted = reference(program, arrays, [])
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    for results in (interpret(schedule, arrays, []), compile_schedule(schedule).run(flat)):
        for found, expected in zip(results, wanted, strict=True):
            np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=2e-4, atol=1e-4)


def test_a_value_kept_in_an_output_forbids_what_is_read_later() -> None:
    """The exponentials of a row lie in the output: its memory may be that of the scores only when no later stage reads them."""
    accesses = (Access(0, ("s", "1")), Access(1, ("s", "1")))
    first = Stage("reduce", 0, (load(0), Instr("exp", float32, (0,)), Instr("reduce", float32, (1,), "sum"), Instr("store", float32, (1,), 1)))
    last = Stage("map", 4, (load(1), Instr("div", float32, (4, 2)), Instr("store", float32, (5,), 1)))
    again = Stage("map", 4, (load(0), load(1), Instr("div", float32, (5, 2)), Instr("sub", float32, (6, 4)), Instr("store", float32, (7,), 1)))
    assert may_overwrite(launch((first, last), accesses, (*SIZES, 0, 10, 0, 10)), 7, 8)
    assert not may_overwrite(launch((first, again), accesses, (*SIZES, 0, 10, 0, 10)), 7, 8)
