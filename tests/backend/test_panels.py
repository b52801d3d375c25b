"""Reductions down columns, walked row by row: the same bits as with the sums in registers, and chosen where operands outgrow the caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.loops import emit_panel
from calque.backend.cpu.loops.emit import emit_kernel
from calque.backend.cpu.loops.emit_plan import make_plan
from calque.backend.cpu.loops.emit_reduce import BLOCK
from calque.backend.cpu.program import executable, link
from calque.base import config
from calque.kernel import lower
from calque.kernel.schedule import Loop, Schedule
from calque.record import recorder
from tests.fuzz.check import mode

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(0),
    "mean of squares": lambda x: (x * x).mean(0) + 1,
    "softmax": lambda x: calque.softmax(x, 0),
    "standardised": lambda x: (x - x.mean(0)) / (((x - x.mean(0)) ** 2).mean(0) + 1e-5).sqrt(),
    "largest and smallest": lambda x: x.amax(0) - x.amin(0),
    "place of the largest": lambda x: x.argmax(0),
}


def _compiled(monkeypatch: pytest.MonkeyPatch, program: Callable[[Any], Any], array: np.ndarray) -> tuple[Any, list[Any], list[Any]]:
    """The executable of a program and what it runs on."""
    found: list[tuple[Any, list[Any], list[Any]]] = []
    run = executable.CpuExecutable.run

    def watch(self: Any, inputs: Any, scalars: Any = (), *_: Any) -> Any:
        found.append((self, list(inputs), list(scalars)))
        return run(self, inputs, scalars)

    x = calque.tensor(array)
    with monkeypatch.context() as patch, mode("cpu"):
        patch.setattr(executable.CpuExecutable, "run", watch)
        y = program(x)
        recorder.flush("test")
        calque.synchronize()
        del y
    return found[-1]


def _with(schedule: Schedule, panels: bool) -> Schedule:
    steps = [dataclasses.replace(s, kernel=dataclasses.replace(s.kernel, panels=panels)) for s in schedule.steps if isinstance(s, Loop)]
    assert len(steps) == len(schedule.steps)
    return dataclasses.replace(schedule, steps=tuple(steps))


@pytest.mark.parametrize("target", ["", "avx2", "sse2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_both_forms_give_the_same_bits(name: str, target: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(config.settings, "cpu_target", target)
    threads = config.settings.threads
    for rows, columns in ((37, 133), (70, 1100), (300, 260)):
        made, inputs, scalars = _compiled(monkeypatch, PROGRAMS[name], rng.standard_normal((rows, columns)).astype(np.float32))
        old, new = (link.compile_schedule(_with(made.schedule, panels)) for panels in (False, True))
        kernels = [s.kernel for s in new.schedule.steps if isinstance(s, Loop)]
        assert any(emit_panel.suits(k, make_plan(k, current())) for k in kernels)
        wanted = [a.copy() for a in old.run(inputs, scalars)]
        try:
            for count in (1, 2, 5):
                config.settings.threads = count
                for a, b in zip(new.run(inputs, scalars), wanted, strict=True):
                    assert a.tobytes() == b.tobytes(), (name, rows, columns, count)
        finally:
            config.settings.threads = threads


def test_only_what_no_cache_holds_goes_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in (100, lower.PANEL_BYTES // 4 // 512):
        made, _, _ = _compiled(monkeypatch, lambda x: x.sum(0), np.ones((rows, 512), np.float32))
        assert any(s.kernel.panels for s in made.schedule.steps if isinstance(s, Loop)) is (rows > 100)


@pytest.mark.parametrize(("name", "written_out"), [("sum", True), ("mean of squares", True), ("largest and smallest", False)])
def test_blocks_of_rows_are_written_out_for_cheap_sums(
    name: str, written_out: bool, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(lower, "PANEL_BYTES", 0)
    found, _, _ = _compiled(monkeypatch, PROGRAMS[name], rng.standard_normal((40, 200)).astype(np.float32))
    kernels = [s.kernel for s in found.schedule.steps if isinstance(s, Loop) and s.kernel.panels]
    assert kernels
    for kernel in kernels:
        assert (emit_kernel(kernel, current(), "k").count("call void @llvm.prefetch") >= BLOCK) == written_out
