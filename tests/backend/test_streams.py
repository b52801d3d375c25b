"""Stores past the caches: the same bits as plain ones, only where every vector is a whole line that nobody reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.program import executable, streams
from calque.backend.cpu.program.link import compile_schedule
from calque.base import config
from calque.kernel.interpret import interpret
from calque.kernel.schedule import Loop, Schedule
from calque.record import recorder
from tests.backend.cpu_cases import random_case
from tests.backend.test_cpu_kernels import assert_equal
from tests.fuzz.check import mode

pytestmark = pytest.mark.skipif(not current().masked, reason="lines are streamed whole: 512-bit registers")

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: x * 2 + 1,
    "rows": lambda x: (x - x.mean(1, keepdim=True)) * 3,
    "columns": lambda x: x - x.mean(0),
    "two results": lambda x: (x * 2, x.exp()),
    "softmax": lambda x: calque.softmax(x, 1),  # its memory holds the exponentials for a while
    "transposed": lambda x: (x.t() * 2).contiguous(),
    "narrow": lambda x: (x > 0).to(calque.int8),  # a vector is less than a line
    "padded": lambda x: calque.nn.functional.pad(x * 2, (16, 16)),
}


def _made(monkeypatch: pytest.MonkeyPatch, program: Callable[[Any], Any], array: np.ndarray) -> list[tuple[Schedule, list[Any], list[Any]]]:
    """The schedules of a program and what they run on."""
    found: list[tuple[Schedule, list[Any], list[Any]]] = []
    run = executable.CpuExecutable.run

    def watch(self: Any, inputs: Any, scalars: Any = (), *_: Any) -> Any:
        found.append((self.schedule, [a.copy() for a in inputs], list(scalars)))
        return run(self, inputs, scalars)

    with monkeypatch.context() as patch, mode("cpu"):
        patch.setattr(executable.CpuExecutable, "run", watch)
        y = program(calque.tensor(array))
        recorder.flush("test")
        calque.synchronize()
        del y
    return found


def _streamed(schedule: Schedule) -> list[int]:
    """How many results each loop streams."""
    return [len(streams.with_streams(schedule, step, current()).streams) for step in schedule.steps if isinstance(step, Loop)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    for shape in ((64, 48), (37, 1040), (9, 1043), (33, 50), (5, 7)):
        for schedule, inputs, scalars in _made(monkeypatch, PROGRAMS[name], rng.standard_normal(shape).astype(np.float32)):
            wanted = [a.copy() for a in compile_schedule(schedule).run([a.copy() for a in inputs], scalars)]
            monkeypatch.setattr(streams, "STREAM_BYTES", 0)
            monkeypatch.setattr(streams, "LONG_ROW", 1)
            for count in (1, 2, 5):
                monkeypatch.setattr(config.settings, "threads", count)
                for a, b in zip(compile_schedule(schedule).run([a.copy() for a in inputs], scalars), wanted, strict=True):
                    assert a.tobytes() == b.tobytes(), (name, shape, count)
            monkeypatch.undo()


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("elementwise", (64, 48), 1), ("elementwise", (5, 7), 1),  # one dim after merging: only the tail is no whole line
        ("rows", (64, 48), 1), ("rows", (33, 50), 0), ("rows", (5, 1043), 1), ("columns", (5, 1043), 0),
        ("two results", (64, 48), 2), ("softmax", (64, 48), 0), ("narrow", (64, 48), 0),
    ],
)  # fmt: skip
def test_what_is_streamed(name: str, shape: tuple[int, int], count: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(streams, "STREAM_BYTES", 0)
    ((schedule, _, _),) = _made(monkeypatch, PROGRAMS[name], rng.standard_normal(shape).astype(np.float32))
    assert sum(_streamed(schedule)) == count


def test_rows_that_begin_anywhere_are_streamed_from_their_first_line_on(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(streams, "STREAM_BYTES", 0)
    for columns, peeled in ((1040, False), (1043, True)):
        ((schedule, _, _),) = _made(monkeypatch, PROGRAMS["rows"], rng.standard_normal((5, columns)).astype(np.float32))
        (step,) = schedule.steps
        assert isinstance(step, Loop)
        kernel = streams.with_streams(schedule, step, current())
        assert kernel.streams and kernel.peeled == peeled


def _pool_gradient(x: Any) -> Any:
    y = calque.nn.functional.max_pool2d(x.requires_grad_(), 3, 2, 1)
    return calque.autograd.grad(y, x, y.detach() + 1)[0]


@pytest.mark.parametrize(("columns", "streamed"), [(16, 1), (32, 1), (48, 1), (112, 1), (24, 0), (33, 0), (34, 0)])
def test_two_vectors_that_fill_two_lines(columns: int, streamed: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """The gradient of a pool writes the elements of two turns with one store; rows must end with a whole line."""
    x = rng.integers(-3, 3, (3, 5, 6, columns)).astype(np.float32)
    found = _made(monkeypatch, _pool_gradient, x)
    wanted = [[a.copy() for a in compile_schedule(s).run([a.copy() for a in inputs], scalars)] for s, inputs, scalars in found]
    monkeypatch.setattr(streams, "STREAM_BYTES", 0)
    kernels = [streams.with_streams(s, step, current()) for s, _, _ in found for step in s.steps if isinstance(step, Loop)]
    assert sum(k.fixed == (2, 2) and bool(k.streams) for k in kernels) == streamed
    for count in (1, 2, 5):
        monkeypatch.setattr(config.settings, "threads", count)
        for (s, inputs, scalars), results in zip(found, wanted, strict=True):
            for a, b in zip(compile_schedule(s).run([a.copy() for a in inputs], scalars), results, strict=True):
                assert a.tobytes() == b.tobytes(), (columns, count)


def test_small_results_and_updates_in_place_are_not(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    x = rng.standard_normal((64, 48)).astype(np.float32)
    ((schedule, _, _),) = _made(monkeypatch, PROGRAMS["elementwise"], x)
    assert sum(_streamed(schedule)) == 0
    monkeypatch.setattr(streams, "STREAM_BYTES", 0)
    ((schedule, _, _),) = _made(monkeypatch, lambda t: t.mul_(2), x)
    assert any(b.donor >= 0 for b in schedule.buffers)
    assert sum(_streamed(schedule)) == 0


def test_launches_that_move_much_stream_smaller_results(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    x = rng.standard_normal((64, 48)).astype(np.float32)
    other = calque.tensor(x)
    index = calque.tensor(np.arange(4).repeat(12))
    programs: list[tuple[Callable[[Any], Any], int, int]] = [
        (lambda t: t * 2, 3, 0),  # moves two arrays
        (lambda t: t * other, 3, 1),
        (lambda t: (t * other).sum(1), 2, 0),  # the result is small
        (lambda t: t[index[:16]] * 2, 1, 0),  # of an operand that is gathered from, only what is read counts
    ]
    monkeypatch.setattr(streams, "PART_BYTES", x.nbytes // 4)
    for program, arrays, count in programs:
        monkeypatch.setattr(streams, "MOVED_BYTES", arrays * x.nbytes)
        ((schedule, _, _),) = _made(monkeypatch, program, x)
        assert sum(_streamed(schedule)) == count


@given(st.integers(0, 2**32 - 1))
def test_random_kernels_equal_the_interpreter(seed: int) -> None:
    case = random_case(seed)
    before, streams.STREAM_BYTES = streams.STREAM_BYTES, 0
    try:
        got = compile_schedule(case.schedule).run([a.copy() for a in case.inputs], case.scalars)
    finally:
        streams.STREAM_BYTES = before
    assert_equal(got, interpret(case.schedule, case.inputs, case.scalars, check=False), case)
