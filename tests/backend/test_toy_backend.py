"""A backend is one class: the toy below runs whole tensor programs (docs/architecture.md, `backend/base.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.base import Array, Backend, CheckFailed, Executable, MemoryStats, Scalar
from calque.base import config
from calque.kernel.interpret import allocate, run_contract, run_host, run_loop
from calque.kernel.schedule import Contract, Loop, Schedule
from calque.run.backends import register_backend


class ToyExecutable(Executable):
    """Interprets the schedule, step after step."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def run(self, inputs: Sequence[Array], scalars: Sequence[Scalar] = ()) -> list[Array]:
        schedule, flat = self.schedule, allocate(self.schedule, inputs, copy_inputs=False)
        for number, step in enumerate(schedule.steps):
            operands = [flat[k] for k in step.operands]
            if isinstance(step, Loop):
                run_loop(step, operands, scalars)
            elif isinstance(step, Contract):
                run_contract(step, operands, scalars)
            else:
                run_host(step, operands, flat[step.output], scalars)
            if number + 1 == schedule.check_steps:
                for check, buffer in enumerate(schedule.checks):
                    if int(flat[buffer][0]) != -1:
                        raise CheckFailed(check, int(flat[buffer][0]))
        return [flat[k] for k in schedule.outputs]


class ToyBackend(Backend):
    """Memory from NumPy, no accounting."""

    name = "toy"
    compiled = 0

    def compile(self, schedule: Schedule) -> Executable:
        self.compiled += 1
        return ToyExecutable(schedule)

    def empty(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def memory(self) -> MemoryStats:
        return MemoryStats(0, 0, 0)

    def reset_peak(self) -> None:
        pass

    def release_cached(self) -> int:
        return 0


@pytest.fixture
def toy(monkeypatch):
    backend = ToyBackend()
    register_backend("toy", backend)
    monkeypatch.setattr(config.settings, "backend", "toy")
    return backend


def test_a_training_step_runs_on_the_toy_backend(toy):
    x, target = calque.arange(12.0).reshape(3, 4) / 12, calque.ones(3, 2)
    weight = calque.full((4, 2), 0.1, requires_grad=True)
    losses = []
    for _ in range(8):  # what runs once or twice is interpreted, then compiled
        loss = ((x @ weight - target) ** 2).mean()
        loss.backward()
        with calque.no_grad():
            weight -= 0.5 * weight.grad
        weight.grad = None
        losses.append(loss.item())
    assert toy.compiled > 0
    assert losses == sorted(losses, reverse=True)
    a, w = np.arange(12.0).reshape(3, 4) / 12, np.full((4, 2), 0.1)
    for loss in losses:
        error = a @ w - 1
        assert loss == pytest.approx(float((error**2).mean()), rel=1e-5)
        w -= 0.5 * a.T @ error * 2 / error.size
