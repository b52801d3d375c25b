"""Launches that take turns: which do, and that nothing but their speed depends on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.cpu.program import executable, interleave, link
from calque.base import config
from calque.record import recorder
from calque.run.pipeline import compile_program
from tests.kernel.programs import Build


def _captured(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, norms: int = 1) -> tuple[Any, list[Any], list[Any]]:
    """The compiled backward pass of some layer norms and what it runs on."""
    found: list[tuple[Any, list[Any], list[Any]]] = []
    run = executable.CpuExecutable.run

    def watch(self: Any, inputs: Any, scalars: Any = (), *_: Any) -> Any:
        found.append((self, list(inputs), list(scalars)))
        return run(self, inputs, scalars)

    operands, results = [], []
    for _ in range(norms):
        x, w, b, g = (calque.randn(*s) for s in ((rows, columns), (columns,), (columns,), (rows, columns)))
        for t in (x, w, b):
            t.requires_grad_()
        y = calque.nn.functional.layer_norm(x, (columns,), w, b)
        y.sum().item()
        operands.append([x, w, b])
        results.append((y, g))
    monkeypatch.setattr(executable.CpuExecutable, "run", watch)
    for _ in range(4):  # compiled when it comes back
        gradients = [calque.autograd.grad(y, o, g, retain_graph=True) for o, (y, g) in zip(operands, results, strict=True)]
        recorder.flush("test")
        calque.synchronize()
        del gradients
    monkeypatch.setattr(executable.CpuExecutable, "run", run)
    return found[-1]


def _flags(compiled: Any) -> list[int]:
    return [int(f) for f in compiled.linked.records[:, 2]]


def test_the_gradients_of_a_layer_norm_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, inputs, scalars = _captured(monkeypatch, 2048, 512)
    words = _flags(compiled)
    assert any((f >> 1) & 127 == 1 and f >> 8 > 1 for f in words), words
    with monkeypatch.context() as patch:
        patch.setattr(interleave, "flags", lambda schedule, steps, barriers, starts: list(barriers))
        apart = executable.CpuExecutable(compiled.schedule, link.link(compiled.schedule))
    assert max(_flags(apart)) <= 1
    wanted = [a.copy() for a in apart.run(inputs, scalars)]
    threads = config.settings.threads
    try:
        for count in (1, 2, 3, 4):
            calque.set_num_threads(count)
            for a, b in zip(compiled.run(inputs, scalars), wanted, strict=True):
                assert np.array_equal(a, b)
        timed, seconds = compiled.run_timed(inputs, scalars)  # one launch at a time: no turns
        assert len(seconds) == len(words)
        assert all(np.array_equal(a, b) for a, b in zip(timed, wanted, strict=True))
    finally:
        calque.set_num_threads(threads)


def test_barriers_stand_in_front_of_launches_that_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second norm's sums take the memory of the first one's: the barrier that this needs does not part them from the rows before."""
    compiled, inputs, scalars = _captured(monkeypatch, 2048, 512, norms=2)
    words = _flags(compiled)
    assert sum(f >> 8 > 1 for f in words) == 2, words
    with monkeypatch.context() as patch:
        patch.setattr(interleave, "flags", lambda schedule, steps, barriers, starts: [1] * len(barriers))
        apart = executable.CpuExecutable(compiled.schedule, link.link(compiled.schedule))
    wanted = [a.copy() for a in apart.run(inputs, scalars)]
    for _ in range(3):
        for a, b in zip(compiled.run(inputs, scalars), wanted, strict=True):
            assert np.array_equal(a, b)


def test_small_operands_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, _, _ = _captured(monkeypatch, 512, 64)
    assert max(_flags(compiled)) <= 1


def test_an_optimizer_is_one_native_call_without_barriers() -> None:
    """Updates of different parameters touch no common memory: every thread goes through all of them at its own pace."""
    b = Build()
    updates, outputs = [], []
    for shape in [(64, 32), (64,), (16, 64, 3, 3), (16,), (1,)] * 6:
        parameter, momentum, gradient = (b.input(shape) for _ in range(3))
        moved = b.add("add", b.mul(momentum, b.constant(0.9)), gradient)
        for old, new in ((parameter, b.sub(parameter, b.mul(moved, b.constant(0.1)))), (momentum, moved)):
            updates.append((len(outputs), b.nodes[old].attrs[0]))
            outputs.append(new)
    program = b.program(*outputs, donated={index for _, index in updates}, updates=tuple(updates))
    linked = link.link(compile_program(program))
    assert len(linked.stretches) == 1 and linked.stretches[0].count == 30
    assert not any(linked.records[:, 2] & 1)
