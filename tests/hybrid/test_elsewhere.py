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
from calque.nn import functional as F
from calque.record.recorder import Counters
from calque.run import dispatch
from tests.hybrid.common import batch, perceptron, replays


class Branchy(nn.Module):
    """Goes different ways, uses a layer several times and keeps statistics."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("seen", calque.zeros(width))

    def forward(self, x: Any, times: int = 1) -> Any:
        for _ in range(times):
            x = x + F.gelu(self.first(x))
        if self.training:
            self.seen += x.detach().mean(0)
        return self.norm(self.second(x) * 0.7)


def _block(rng: np.random.Generator, width: int) -> Any:
    kind = int(rng.integers(6))
    if kind == 0:
        return Branchy(width)
    if kind == 1:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(2 * width, width))
    if kind == 2:
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh())
    if kind == 3:
        return nn.Sequential(nn.Unflatten(1, (1, width)), nn.Conv1d(1, 3, 3, padding=1), nn.GELU(), nn.Conv1d(3, 1, 1), nn.Flatten())
    if kind == 4:
        return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width, momentum=0.3), nn.Sigmoid())
    return nn.Sequential(nn.Linear(width, width), nn.Softmax(dim=1), nn.Linear(width, width))


class Random(nn.Module):
    """A network that calls its blocks in a random order, some of them several times."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.width = int(rng.choice([5, 8, 19, 33]))
        self.blocks = nn.ModuleList([_block(rng, self.width) for _ in range(int(rng.integers(1, 4)))])
        self.order = tuple(int(k) for k in rng.integers(0, len(self.blocks), int(rng.integers(2, 5))))
        self.joins = tuple(int(k) for k in rng.integers(0, 3, len(self.order)))

    def forward(self, x: Any) -> Any:
        for k, join in zip(self.order, self.joins, strict=True):
            y = self.blocks[k](x)
            x = y if join == 0 else x + y if join == 1 else x * y.sigmoid() - 0.3
        return x


def _loss(net: Any, x: Any, rng: np.random.Generator, way: int) -> Any:
    if way == 0:
        return net(x).pow(2).mean()
    if way == 1:
        return (net(x) * net(x.flip(0)).sigmoid()).mean()
    if way == 2:
        return net(net(x * 1.5) * 0.5 + x).abs().mean() + 0.01 * sum(p.pow(2).sum() for p in net.parameters())
    return sum(net(x * float(rng.random())).mean() for _ in range(3)) / 3


def _train(seed: int, prepare: Callable[[Any, int], None], steps: int = 9) -> list[Any]:
    calque.manual_seed(seed)
    net = Random(seed)
    optimizer = calque.optim.Adam(net.parameters(), lr=0.01)
    rng = np.random.default_rng(seed)
    way = int(rng.integers(4))
    rows = [int(rng.integers(3, 40)), int(rng.integers(3, 40))]
    found: list[Any] = []
    for k in range(steps):
        prepare(net, k)
        x = calque.tensor(rng.standard_normal((rows[k % 4 == 3], net.width), dtype=np.float32))
        x.requires_grad_(bool(seed % 2))
        optimizer.zero_grad()
        loss = _loss(net, x, rng, way)
        if k % 3 == 2:
            found.append(loss.item())
        loss.backward()
        optimizer.step()
        found += [loss.item(), [None if p.grad is None else p.grad.tolist() for p in net.parameters()], None if x.grad is None else x.grad.tolist()]
        if k % 4 == 0:
            with calque.no_grad():
                net.eval()
                found.append(net(x).sum(1).tolist())
                net.train()
    return [*found, [v.tolist() for v in net.state_dict().values()], calque.rand(2).tolist()]


def _whole(net: Any, step: int) -> None:
    if step == 0:
        net.hybridize()


def _parts(net: Any, step: int) -> None:
    if step == 0:
        for block in net.blocks[::2]:
            block.hybridize()


def _nested(net: Any, step: int) -> None:
    if step == 0:
        net.blocks[0].hybridize()
        calque.jit.script(net)


def _on_and_off(net: Any, step: int) -> None:
    net.hybridize(step % 5 < 3)


@pytest.mark.parametrize("interpret", [0, dispatch.INTERPRET_WORK], ids=["compiled", "as usual"])
@pytest.mark.parametrize("prepare", [_whole, _parts, _nested, _on_and_off], ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("seed", [32, 47, 58, *(pytest.param(k, marks=pytest.mark.slow) for k in range(60) if k not in (32, 47, 58))])
def test_random_networks(seed: int, prepare: Callable[[Any, int], None], interpret: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", interpret)
    expected = _train(seed, lambda net, step: None)
    assert _train(seed, prepare) == expected


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
