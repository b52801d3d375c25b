"""When a loop may run part by part behind a contraction, and that the loop over (batch, rows, columns) is the same loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calque.ir.program import Program
from calque.kernel import epilogue
from calque.kernel.cost import routine_flops
from calque.kernel.epilogue import Epilogue, Refusal, follow
from calque.kernel.interpret import allocate, run_contract, run_loop
from calque.kernel.schedule import Contract, Loop, Schedule
from calque.run.pipeline import compile_program
from tests.kernel.programs import Build

ROWS, COLUMNS = 120, 320


def plus(b: Build, x: int, y: int) -> int:
    return Build.add(b, "add", x, y)


def programs() -> dict[str, Callable[[Build, int], tuple[int, ...]]]:
    """Loops behind a product (ROWS, COLUMNS), by what is to be said about them: "" for an epilogue."""

    def bias(b: Build, y: int) -> int:
        return plus(b, y, b.view(b.input((COLUMNS,)), (1, COLUMNS), (COLUMNS, 1)))

    def by_row(b: Build, y: int) -> int:
        return b.mul(y, b.view(b.input((ROWS,)), (ROWS, 1), (1, 1)))

    return {
        "": lambda b, y: (b.relu(by_row(b, bias(b, y))),),
        "it reduces": lambda b, y: (b.sum(bias(b, y), attrs=((1,), False)),),
        "its result lies elsewhere": lambda b, y: (bias(b, y), y),
        "beside the result": lambda b, y: (plus(b, bias(b, y), b.input((ROWS, COLUMNS))),),
        "positions or addresses": lambda b, y: (plus(b, y, b.cast(b.iota(attrs=((COLUMNS,), b.nodes[y].dtype)), attrs=(b.nodes[y].dtype,))),),
    }


def refusal(contract: Contract, loop: Loop, schedule: Schedule, grid: tuple[int, int, int]) -> str:
    """Why a loop is no epilogue."""
    return str(follow(contract, loop, schedule.buffers, grid, routine_flops(contract)))


def behind(make: Callable[[Build, int], tuple[int, ...]], depth: int = 40) -> tuple[Program, Schedule, Contract, Loop]:
    b = Build()
    y = b.matmul(b.input((ROWS, depth)), b.input((depth, COLUMNS)))
    program = b.program(*make(b, y))
    schedule = compile_program(program)
    contract, loop = schedule.steps[:2]
    assert isinstance(contract, Contract) and isinstance(loop, Loop)
    return program, schedule, contract, loop


@pytest.mark.parametrize("reason", [*programs()])
def test_what_becomes_an_epilogue_and_why_not(reason: str) -> None:
    _, schedule, contract, loop = behind(programs()[reason])
    found = follow(contract, loop, schedule.buffers, (1, ROWS, COLUMNS), routine_flops(contract))
    assert reason in str(found) if isinstance(found, Refusal) else not reason


def test_further_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    _, schedule, contract, loop = behind(programs()[""])
    whole = (1, ROWS, COLUMNS)
    elsewhere = replace(loop, operands=(contract.operands[0],) * len(loop.operands))
    assert refusal(contract, elsewhere, schedule, whole) == "it does not read the result"
    assert refusal(contract, loop, schedule, (1, ROWS, 8)) == f"it has {ROWS * COLUMNS} points over a result of 1 x 120 x 8"
    monkeypatch.setattr(epilogue, "MOST_WORDS", 3)
    assert refusal(contract, loop, schedule, whole) == "it has too many operands"
    monkeypatch.setattr(epilogue, "LEAST_BYTES", 1 << 20)
    assert refusal(contract, loop, schedule, whole) == f"the result ({4 * ROWS * COLUMNS} bytes) stays in the cache anyway"
    _, schedule, contract, loop = behind(programs()[""], depth=epilogue.MOST_DEPTH + 1)
    assert refusal(contract, loop, schedule, whole) == "the contraction takes much longer than one pass over its result"


def test_a_loop_in_another_order_is_no_epilogue() -> None:
    _, schedule, contract, loop = behind(programs()[""])
    assert refusal(contract, loop, schedule, (1, COLUMNS, ROWS)) == "it walks through the result in another order"


@pytest.mark.parametrize("grid", [(1, ROWS, COLUMNS), (4, ROWS // 4, COLUMNS), (ROWS, 1, COLUMNS), (ROWS // 2, 2, COLUMNS)], ids=str)
def test_parts_of_the_loop_make_the_whole(grid: tuple[int, int, int], rng: np.random.Generator) -> None:
    """Run on every part with shifted offsets, as the native launcher does it."""
    program, schedule, contract, loop = behind(lambda b, y: (b.relu(plus(b, y, b.view(b.input((COLUMNS,)), (1, COLUMNS), (COLUMNS, 1)))),))
    found = follow(contract, loop, schedule.buffers, grid, routine_flops(contract))
    assert isinstance(found, Epilogue)
    arrays: list[Any] = [rng.standard_normal(n.shape).astype(np.float32) for n in program.nodes if n.op.name == "input"]
    whole, cut = (allocate(schedule, arrays) for _ in range(2))
    for flat in (whole, cut):
        run_contract(contract, [flat[k] for k in contract.operands], ())
    run_loop(loop, [whole[k] for k in loop.operands], (), check=True)
    steps = [rng.integers(1, e + 1) for e in grid]
    corners = [(n, r, c) for n in range(grid[0]) for r in range(0, grid[1], steps[1]) for c in range(0, grid[2], steps[2])]
    for n, r, c in corners:
        params = list(found.loop.params)
        params[:3] = 1, min(steps[1], grid[1] - r), min(steps[2], grid[2] - c)
        at = 3
        for k, access in enumerate(found.loop.kernel.accesses):
            params[at] += sum(step[k] * index for step, index in zip(found.steps, (n, r, c), strict=True))
            at += 1 + access.strides.count("s")
        run_loop(replace(found.loop, params=tuple(params)), [cut[k] for k in loop.operands], (), check=True)
    np.testing.assert_array_equal(cut[schedule.outputs[0]], whole[schedule.outputs[0]])
