"""Random networks of blocks, on two devices and with values that they read and go by, or on one device and with neither, in random training loops:
hybridized in any way, they give the bits of the loop as written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.nn import functional as F
from calque.record import recorder
from calque.record.trie import forget
from calque.run import dispatch

DEVICES = ("cpu:0", "cpu:1")
pytestmark = pytest.mark.usefixtures("two_devices")


class Block(nn.Module):
    """One of several kinds of layers, perhaps followed by something that depends on a value. `sends`: it brings its input to its device itself;
    `back`: and its result to where the input was. `spread`: over the devices, with values that are read."""

    def __init__(self, rng: np.random.Generator, width: int, spread: bool) -> None:
        super().__init__()
        self.kind, self.reading = int(rng.integers(5 if spread else 6)), int(rng.integers(8)) * spread
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.norm: Any = nn.BatchNorm1d(width) if self.kind == 3 else nn.LayerNorm(width)
        self.drop = nn.Dropout(0.3)
        self.conv: Any = nn.Conv1d(1, 1, 3, padding=1) if self.kind == 5 else None
        self.register_buffer("seen", calque.zeros(width))
        self.limit = float(rng.normal()) * width
        self.sends, self.back = (bool(k) for k in rng.integers(0, 2, 2))
        self.place = DEVICES[int(rng.integers(2)) * spread]
        self.to(self.place)

    def layers(self, x: Any) -> Any:
        if self.kind == 0:
            return x + F.gelu(self.first(x))
        if self.kind == 1:
            return self.second(self.drop(F.relu(self.first(x))))
        if self.kind == 2:
            return self.first(self.norm(x)).tanh()
        if self.kind == 3:
            return self.norm(self.first(x)).sigmoid()
        if self.kind == 5:
            return F.gelu(self.conv(x.unsqueeze(1))).flatten(1)
        if self.training:
            self.seen += x.detach().mean(0)
        return self.second(x).softmax(1) + self.seen * 0.01

    def value(self, x: Any) -> Any:
        if self.reading == 1 and x.sum() > self.limit:
            return x * 0.5 - 0.1
        if self.reading == 2:
            return x / (1.0 + x.abs().mean().item())
        if self.reading == 3:
            turns = 0
            while turns < 3 and x.abs().sum() > abs(self.limit):
                x, turns = self.second(x) * 0.6, turns + 1
        if self.reading == 4:
            return x + 0.1 if x.detach().max().item() > 0.8 else x.neg()
        return x

    def forward(self, x: Any) -> Any:
        came = x.device
        if self.sends:
            x = x.to(self.place)
        x = self.value(self.layers(x))
        return x.to(came) if self.sends and self.back else x


class Random(nn.Module):
    """Calls its blocks in a random order, some of them several times."""

    def __init__(self, seed: int, spread: bool) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.width = int(rng.choice([5, 8, 19, 33]))
        self.blocks = nn.ModuleList([Block(rng, self.width, spread) for _ in range(int(rng.integers(1, 4)))])
        self.order = tuple(int(k) for k in rng.integers(0, len(self.blocks), int(rng.integers(2, 5))))
        self.joins = tuple(int(k) for k in rng.integers(0, 3, len(self.order)))

    def forward(self, x: Any) -> Any:
        for k, join in zip(self.order, self.joins, strict=True):
            block = self.blocks[k]
            if not block.sends:
                x = x.to(block.place)
            y = block(x)
            x = x.to(y.device)
            x = y if join == 0 else x + y if join == 1 else x * y.sigmoid() - 0.3
        return x.to("cpu:0")


def _loss(net: Any, x: Any, way: int, rng: np.random.Generator) -> Any:
    if way == 0:
        return net(x).pow(2).mean()
    if way == 1:
        return (net(x) * net(x.flip(0)).sigmoid()).mean()
    if way == 2:
        return net(net(x * 1.5) * 0.5 + x).abs().mean() + 0.01 * sum(p.pow(2).sum().to("cpu:0") for p in net.parameters())
    return sum(net(x * float(rng.random())).mean() for _ in range(3)) / 3


class Loop:
    """A training loop: losses, gradients, statistics, and what is left at the end. `prepare(net, step)` may hybridize what it likes."""

    def __init__(self, seed: int, prepare: Callable[[Any, int], None], spread: bool) -> None:
        calque.manual_seed(seed)
        self.net, self.prepare, self.rng = Random(seed, spread), prepare, np.random.default_rng(seed)
        self.way, self.clip, self.reads = int(self.rng.integers(4)), bool(self.rng.integers(2)), int(self.rng.integers(3))
        self.rows = [int(k) for k in self.rng.integers(3, 40, 2)]
        kind = calque.optim.Adam if self.rng.integers(3) else calque.optim.SGD
        self.optimizer = kind(self.net.parameters(), lr=0.01)
        self.flips = [(int(self.rng.integers(2, 9)), int(self.rng.integers(3))) for _ in range(2)]
        self.found: list[Any] = []

    def run(self, steps: int) -> list[Any]:
        for k in range(steps):
            self.prepare(self.net, k)
            self._flip(k)
            self._step(k)
        return [*self.found, [v.tolist() for v in self.net.state_dict().values()], calque.rand(2).tolist()]

    def _flip(self, step: int) -> None:
        for where, what in self.flips:
            if step == where and what == 0:
                self.net.train(not self.net.training)
            elif step == where and what == 1:
                self.net.blocks[0].first.weight.requires_grad_(not self.net.blocks[0].first.weight.requires_grad)
            elif step == where and what == 2:
                with calque.no_grad():
                    self.found.append(self.net(calque.ones(4, self.net.width, device="cpu:0")).sum(1).tolist())

    def _step(self, step: int) -> None:
        net = self.net
        values = self.rng.standard_normal((self.rows[step % 4 == 3], net.width), dtype=np.float32)
        x = calque.tensor(values, device="cpu:0", requires_grad=self.way == 1)
        self.optimizer.zero_grad()
        loss = _loss(net, x, self.way, self.rng)
        if self.reads == 1 or (self.reads == 2 and step % 3 == 2):
            self.found.append(loss.item())
        loss.backward()
        if self.clip:
            self.found.append(nn.utils.clip_grad_norm_(net.parameters(), 1.0).item())
        self.optimizer.step()
        grads = [None if p.grad is None else p.grad.tolist() for p in net.parameters()]
        self.found += [loss.item(), grads, None if x.grad is None else x.grad.tolist()]


def as_written(net: Any, step: int) -> None:
    pass


def whole(net: Any, step: int) -> None:
    if step == 0:
        net.hybridize()


def parts(net: Any, step: int) -> None:
    if step == 0:
        for block in net.blocks[::2]:
            block.hybridize()


def nested(net: Any, step: int) -> None:
    if step == 0:
        net.blocks[0].hybridize()
        calque.jit.script(net)


def on_and_off(net: Any, step: int) -> None:
    net.hybridize(step % 5 < 3)


WAYS = (whole, parts, nested, on_and_off)


def fresh(seed: int, prepare: Callable[[Any, int], None], steps: int = 14, spread: bool = True) -> list[Any]:
    """The loop as in a new process: how often a small program was seen decides whether it is interpreted, so none of earlier loops may be known."""
    recorder.flush("test")
    calque.synchronize()
    forget()
    return Loop(seed, prepare, spread).run(steps)


@pytest.mark.parametrize("seed", [0, 3, 131, *(pytest.param(k, marks=pytest.mark.slow) for k in range(4, 304) if k != 131)])
def test_random_loops(seed: int) -> None:
    expected = fresh(seed, as_written)
    for prepare in WAYS:
        assert fresh(seed, prepare) == expected, prepare.__name__


@pytest.mark.parametrize("seed", [5, *(pytest.param(k, marks=pytest.mark.slow) for k in range(400, 440))])
def test_random_loops_with_small_programs_interpreted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 16_384)
    expected = fresh(seed, as_written)
    for prepare in WAYS:
        assert fresh(seed, prepare) == expected, prepare.__name__


def test_another_way_is_taken_up_by_python_elsewhere() -> None:
    """A moved call comes to a value that goes another way: nothing is done twice, and what Python records there goes on from the moved part."""

    def branch(x: Any, state: Any) -> Any:
        state.add_(1.0)
        y = x * 3.0
        if y.sum() > 0:
            return y + state
        return y - state

    hybrid = calque.compile(branch)
    one = calque.ones(3)
    found = []
    for function in (branch, hybrid):
        state = calque.zeros(3)
        values = [function(one, state).tolist() for _ in range(4)]
        for k in range(6):
            a = one * float(k + 2)
            values += [function(a.exp(), state).tolist(), function(a.neg() if k % 2 else a.exp() + 1.0, state).tolist()]
        found.append((values, state.tolist()))
    assert found[0] == found[1]


def test_a_step_with_something_behind_it_is_taken_elsewhere() -> None:
    """What enters the trace in the middle of an operation enters it there wherever the call is, and the first stretch of several is not moved."""
    w, count = calque.zeros(3, requires_grad=True), calque.zeros(())
    optimizer = calque.optim.SGD([w], lr=1.0)

    @calque.compile
    def step(x: Any) -> Any:
        count.add_(x[0])
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()
        return x - 1.0

    total = 0.0
    for k in (0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 2, 0, 1):
        x = calque.ones(3)
        calque.synchronize()
        for _ in range(k):
            x = x * 2.0
        assert step(x).tolist() == [2.0**k - 1.0] * 3
        total += 2.0**k
    assert count.item() == total and w.tolist() == [-total] * 3
