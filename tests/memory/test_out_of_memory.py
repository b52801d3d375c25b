"""What is said when memory has run out: operation, shape, line, the variables that hold most, and what would fit."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any

import pytest

import calque
from calque import nn
from calque.backend.cpu.memory import POOL
from calque.base.config import settings
from calque.base.errors import OutOfMemoryError


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
