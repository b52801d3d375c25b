"""The memory plan is kept: what a schedule predicts is exactly what its run holds, on the training steps and on random programs.

Measured is the growth of the pool's memory in use, from just before a run to its highest value during the run (inputs are the caller's and do not
count). Predicted is `predicted_peak` with the pool's block sizes, less the inputs.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import calque
from bench.models import JOBS
from calque.backend.base import CheckFailed
from calque.backend.cpu.backend import CpuBackend
from calque.backend.cpu.program.executable import CpuExecutable, KeptMemory
from calque.backend.cpu.program.link import compile_schedule
from calque.backend.cpu.team.memory import POOL, rounded
from calque.base.config import settings
from calque.kernel.memory import predicted_peak
from calque.kernel.schedule import Schedule
from calque.run.pipeline import compile_program
from tests.kernel.programs import Build
from tests.kernel.random_programs import random_program

pytestmark = pytest.mark.usefixtures("nothing_forgotten")



def predicted(schedule: Schedule) -> int:
    """Bytes that a run adds to the memory in use."""
    inputs = sum(rounded(b.nbytes) for b in schedule.buffers if b.kind == "input")
    return predicted_peak(schedule, rounded) - inputs


class Watch:
    """Notes, for every run of a compiled schedule, how much the memory in use grew at most."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []  # (predicted, measured)

    def run(self, original: Any, form: CpuExecutable, *arguments: Any) -> Any:
        before = POOL.stats().in_use
        POOL.reset_peak()
        result = original(form, *arguments)
        self.seen.append((predicted(form.schedule), POOL.stats().peak - before))
        return result


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, nothing_kept: None) -> Watch:
    monkeypatch.setattr(settings, "sync", True)  # else the program's Python goes on meanwhile, and gives up memory that was in use before
    found = Watch()
    original = CpuExecutable.run
    monkeypatch.setattr(CpuExecutable, "run", lambda form, *arguments: found.run(original, form, *arguments))
    return found


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18-32", pytest.param("resnet18-224", marks=pytest.mark.slow), "lstm", "gpt"])
def test_the_six_steps_hold_what_was_predicted(name: str, watch: Watch) -> None:
    job = JOBS[name]
    gc.collect()  # what earlier tests have left, and what their programs keep for their next run, would be freed while a program is watched
    KeptMemory.empty()
    calque.manual_seed(0)
    model = job.model(calque)
    optimizer = job.optimizer(calque, model)
    x, y = (calque.tensor(a) for a in job.batch(np.random.default_rng(0), job.small))
    for _ in range(3):
        job.step(calque, model, optimizer, x, y).item()
    calque.synchronize()  # the loss is there before its program has ended
    steps = [pair for pair in watch.seen if pair[0] > 1 << 16]
    assert len(steps) >= 3
    assert all(expected == measured for expected, measured in steps), steps


@given(st.integers(0, 10**9))
@example(799123)  # a product whose result is returned twice: no arena, and no workspace either
def test_random_programs_hold_what_was_predicted(seed: int) -> None:
    program, arrays, scalars = random_program(seed, 20)
    schedule = compile_program(program, workspace_bytes=CpuBackend().workspace_bytes)
    found = Watch()
    flat = [np.ascontiguousarray(a).reshape(-1).copy() for a in arrays]
    found.run(CpuExecutable.run, compile_schedule(schedule), flat, scalars)
    expected, measured = found.seen[0]
    assert expected == measured


@pytest.mark.parametrize("rows", [3, 40])
def test_a_contraction_without_a_workspace_takes_no_arena(rows: int) -> None:
    b = Build()
    x, w = b.input((rows, 6)), b.input((6, 5))
    y = b.matmul(x, w)
    schedule = compile_program(b.program(y, y), workspace_bytes=CpuBackend().workspace_bytes)
    assert schedule.arena_bytes == 0
    assert compile_schedule(schedule).needed_bytes == predicted(schedule) == 2 * rounded(4 * rows * 5)


@given(st.integers(0, 10**9))
def test_the_plan_changes_no_bit(seed: int) -> None:
    """The same native kernels in memory of their own, and in planned memory."""
    program, arrays, scalars = random_program(seed, 16)
    results = []
    for reuse in (True, False):
        schedule = compile_program(program, reuse=reuse, workspace_bytes=CpuBackend().workspace_bytes)
        flat = [np.ascontiguousarray(a).reshape(-1).copy() for a in arrays]
        try:
            results.append([a.tobytes() for a in compile_schedule(schedule).run(flat, scalars)])
        except CheckFailed as failure:
            results.append([str(failure).encode()])
    assert results[0] == results[1]


def test_two_programs_in_turn_share_their_arenas() -> None:
    """What is held is at most what was in use at one time, and nothing grows while they take turns."""
    gc.collect()
    POOL.release_cached()
    x = calque.randn(300, 300)

    def first() -> Any:
        return ((x @ x).relu() @ x).sum(0)

    def second() -> Any:
        return ((x[:200] @ x).exp() @ x).sum(1)

    for _ in range(12):  # interpreted programs come first, and then those whose weights are not packed yet
        first().numpy()
        second().numpy()
    POOL.reset_peak()
    held = set()
    for _ in range(3):
        for step in (first, second):
            step().numpy()
            now = POOL.stats()
            held.add(now.in_use + now.cached)
    assert len(held) == 1 and held.pop() <= POOL._most


def test_workspaces_lie_in_the_arena() -> None:
    asked: list[str] = []

    def workspace(kind: str, spec: Any, dtype: Any) -> int:
        asked.append(kind)
        return 1000

    b = Build()
    x, w = b.input((32, 32)), b.input((32, 32))
    for _ in range(3):
        x = b.matmul(x, w)
    schedule = compile_program(b.program(x), workspace_bytes=workspace)
    assert asked == ["matmul"] * 3
    places = [schedule.buffers[step.workspace] for step in schedule.steps]  # type: ignore[union-attr]
    assert all(p.kind == "arena" and p.numel == 1000 and p.index + 1000 <= schedule.arena_bytes for p in places)
    for step, place in zip(schedule.steps, places, strict=True):
        for k in step.operands:  # type: ignore[union-attr]
            other = schedule.buffers[k]
            assert other.kind != "arena" or other.index + other.nbytes <= place.index or place.index + 1000 <= other.index
