"""What is said when memory has run out: operation, shape, line, the variables that hold most, and what would fit."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.backend.cpu.team.memory import POOL, Pool
from calque.base.config import settings
from calque.base.errors import OutOfMemoryError
from calque.record.path import ALWAYS
from calque.record.recorder import flush, local, record_from_here


@pytest.fixture
def little_memory() -> Iterator[None]:
    """80 MiB more than are in use."""
    gc.collect()
    calque.synchronize()
    for pool in POOL._family:  # those of other devices count, too, and earlier tests may have left something there
        pool.release_cached()
    before, settings.memory_limit = settings.memory_limit, POOL._held() + (80 << 20)
    yield
    settings.memory_limit = before


def train(model: Any, rows: int) -> None:
    history = []
    x = calque.randn(rows, 500)
    x.sum().item()
    for _ in range(50):
        out = model(x)
        out.square().mean().backward()
        history.append(out.detach())
        history[-1].sum().item()


def test_the_message(little_memory: None) -> None:
    model = nn.Sequential(nn.Linear(500, 900), nn.ReLU(), nn.Linear(900, 500))
    for _ in range(2):  # and nothing of the first failure stays
        with pytest.raises(OutOfMemoryError) as caught:
            train(model, 4000)
        text = str(caught.value)
        start = r"\[\w+\] expected [\d.]+ (\wi)?B of free memory for a value of shape \(\d+, \d+\) and \S+, recorded at \S*test_out_of_memory.py:\d+"
        assert re.match(start, text), text
        assert re.search(r"most of it `history` \(\d+ tensors, [\d.]+ MiB\), `x` \(\(4000, 500\), 7.6 MiB\)", text), text
        share = re.search(r"about (\d+) % of its batch would fit \(calque.memory.fit", text)
        assert share and 5 < int(share[1]) < 100
        del caught
        gc.collect()
        assert POOL.stats().in_use < settings.memory_limit - (60 << 20)  # frames that met the error are gone, and what they held
    before = POOL.stats().in_use
    model.zero_grad()
    model(calque.randn(100, 500)).square().mean().backward()  # a smaller batch goes
    assert model[0].weight.grad is not None and POOL.stats().in_use <= before + (8 << 20)


@pytest.fixture(params=[pytest.param(0, marks=pytest.mark.slow), 1])
def eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Whether small operations are computed where they are written."""
    flush("test")
    monkeypatch.setattr(settings, "eager", request.param)
    local.state.trace.recorded = not request.param
    yield request.param
    record_from_here(local.state, "test")
    local.state.trace.recorded = ALWAYS


def test_r15_any_allocation_of_a_step_may_fail(monkeypatch: pytest.MonkeyPatch, eager: int) -> None:
    """OutOfMemoryError whichever allocation of a new step fails; each value of the model is as before or as after the step, or says so when it is
    read; then training goes on as if nothing had happened, and nothing of the failures stays."""
    model = nn.Sequential(nn.Linear(40, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 8))
    optimizer = calque.optim.Adam(model.parameters(), lr=0.01)
    calls, fails, block, arena = 0, -1, Pool._block, Pool.arena

    def step(x: Any, y: Any) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    def counted(real: Any) -> Any:
        def allocate(pool: Any, nbytes: int) -> Any:
            nonlocal calls
            calls += 1
            if calls == fails:
                pool._refuse(nbytes, 0)
            return real(pool, nbytes)

        return allocate

    for _ in range(3):
        step(calque.randn(64, 40), calque.arange(64) % 8)
    start, state = deepcopy(model.state_dict()), deepcopy(optimizer.state_dict())

    def at_the_start() -> None:
        model.load_state_dict(start)
        optimizer.load_state_dict(deepcopy(state))
        calque.synchronize()

    def values() -> dict[str, Any]:
        return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}

    at_the_start()
    before = values()
    monkeypatch.setattr(Pool, "_block", counted(block))
    monkeypatch.setattr(Pool, "arena", counted(arena))
    used, failed, left = [], 0, 0
    for k in range(1, 200):
        x, y = calque.randn(64 + k, 40), calque.arange(64 + k) % 8  # another size each time: what is planned and allocated is new
        at_the_start()
        calque.synchronize()
        calls, fails = 0, k
        try:
            step(x, y)
            calque.synchronize()
        except OutOfMemoryError as error:
            failed += 1
            assert isinstance(error, MemoryError) and "of free memory" in str(error)
        fails = -1
        found = {}
        for name, value in model.state_dict().items():
            try:
                found[name] = value.detach().numpy().copy()
            except OutOfMemoryError:
                left += 1
        if calls < k:
            break
        at_the_start()
        step(x, y)
        after = values()
        for name, content in found.items():
            assert np.array_equal(content, before[name]) or np.allclose(content, after[name], 1e-5, 1e-7), (k, name)
        at_the_start()
        step(x, y)
        assert all(np.allclose(value, after[name], 1e-5, 1e-7) for name, value in values().items()), k
        optimizer.zero_grad()
        gc.collect()
        used.append(POOL.stats().in_use)
    print(f"{failed} failures, {left} values that could not be read after them")
    assert failed > 5 and used[-1] - used[len(used) // 2] < 1 << 20, (failed, used)
