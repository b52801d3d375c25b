"""A small network and its inputs, and what hybridized calls counted while something was done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import calque
from calque import nn
from calque.record import recorder


def counts() -> dict[str, Any]:
    """The counters of hybridized calls."""
    found: dict[str, Any] = calque.stats()["hybridize"]
    return found


def replays(action: Callable[[], Any]) -> int:
    """Replays during an action."""
    before = counts()["replays"]
    action()
    return int(counts()["replays"]) - before


def learned(action: Callable[[], Any]) -> int:
    """Replays of an action that was done before, always from the beginning of a trace."""
    for _ in range(4):
        recorder.flush("test")
        action()
    recorder.flush("test")
    return replays(action)


def reasons(action: Callable[[], Any]) -> str:
    """Why calls were not replayed during an action."""
    before = counts()["reasons"]
    action()
    return "; ".join(r for r, n in counts()["reasons"].items() if n > before.get(r, 0))


def perceptron() -> Any:
    """A network of two layers, always with the same weights."""
    calque.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(k: int, rows: int = 4) -> Any:
    """Inputs number k of the network."""
    return calque.tensor(np.random.default_rng(k).standard_normal((rows, 6), dtype=np.float32))


def same(a: Any, b: Any) -> None:
    """Fail unless the values are equal bit for bit."""
    np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
