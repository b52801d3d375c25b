"""Calls at places of a trace where they were never recorded: several in a step, behind other work, of parts of a network. They give the bits of the
step as written, and no program begins anew for them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.record.recorder import Counters
from calque.run import dispatch
from tests.hybrid.common import batch, perceptron, replays
from tests.hybrid.test_random_loops import WAYS, as_written, fresh


@pytest.mark.parametrize("interpret", [0, dispatch.INTERPRET_WORK], ids=["compiled", "as usual"])
@pytest.mark.parametrize("prepare", WAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", [32, 47, 58, *(pytest.param(k, marks=pytest.mark.slow) for k in range(60) if k not in (32, 47, 58))])
def test_random_networks(seed: int, prepare: Callable[[Any, int], None], interpret: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", interpret)
    expected = fresh(seed, as_written, spread=False)
    assert fresh(seed, prepare, spread=False) == expected


def test_a_call_elsewhere_takes_the_edges_of_the_call_as_written() -> None:
    """And no Python, and no program of its own."""
    runs: list[int] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.norm = nn.LayerNorm(4)

        def forward(self, x: Any, rate: float) -> Any:
            note()
            y = self.norm(self.layer(x[:, 1:5])) * rate
            y[0] = x[0, :4].tanh()
            return (y + 3.0).t()

    def note() -> None:
        runs.append  # noqa: B018 - reached by the guards, changed by nobody
        sum(1 for _ in ())

    calque.manual_seed(1)
    net, twin = Net(), Net()
    twin.load_state_dict(net.state_dict())
    net.hybridize()
    x = calque.tensor(np.random.default_rng(0).standard_normal((5, 6), dtype=np.float32))
    for _ in range(4):
        net(x, 0.7).tolist()

    def later(module: Any) -> list[Any]:
        a = (x * 2.0).exp()
        b = module(a, 0.7)
        c = module(a.flip(0), 0.7)
        d = module(x, 0.7)
        return [b.tolist(), c.tolist(), d.tolist()]

    flushes = Counters.reasons.get("hybridize", 0)
    assert replays(lambda: later(net)) == 3
    assert Counters.reasons.get("hybridize", 0) == flushes
    edges = Counters.edges
    assert later(twin) == later(net)
    assert Counters.edges == edges


def test_a_call_elsewhere_keeps_no_memory() -> None:
    """What is overwritten in place must have one owner, without the garbage collector's help."""
    net = perceptron().hybridize()
    x = batch(0)
    for _ in range(4):
        net(x).tolist()
    buffer = x._storage.buffer
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(buffer)
        for _ in range(3):
            (net(x * 2.0) + net(x * 3.0)).tolist()
        assert sys.getrefcount(buffer) == before
    finally:
        gc.enable()
