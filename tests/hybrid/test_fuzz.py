"""Random training sessions, as written and hybridized: losses, parameters, statistics and gradients are equal bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.record import recorder, trie

ACTIONS = ["train"] * 8 + ["big", "eval", "read", "two", "accumulate", "rate", "write", "load", "values", "flush", "freeze", "evict"]


class Session:
    """One network and optimizer; every action is a method."""

    def __init__(self, seed: int, optimizer: str, style: str) -> None:
        calque.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3))
        self.optimizer = getattr(calque.optim, optimizer)(self.net.parameters(), lr=0.05)
        self.rng, self.found, self.style = np.random.default_rng(seed), [], style
        self.call: Any = calque.compile(self.step) if style == "step" else self.step
        if style == "module":
            self.net.hybridize()

    def batch(self, rows: int = 4) -> Any:
        return calque.tensor(self.rng.standard_normal((rows, 4), dtype=np.float32))

    def step(self, x: Any) -> Any:
        self.optimizer.zero_grad()
        loss = (self.net(x) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self) -> None:
        self.found.append(self.call(self.batch()))

    def big(self) -> None:
        self.found.append(self.call(self.batch(6)))

    def eval(self) -> None:
        self.net.eval()
        self.found.append(self.net(self.batch()).sum())
        self.net.train()

    def read(self) -> None:
        loss = self.net(self.batch()).sum()
        self.found.append(loss.item())
        loss.backward()
        self.optimizer.step()

    def two(self) -> None:
        first, second = self.net(self.batch()), self.net(self.batch())
        (second.sum() * 2.0 + (first * first).sum()).backward()
        self.optimizer.step()

    def accumulate(self) -> None:
        self.net(self.batch()).sum().backward()

    def rate(self) -> None:
        self.optimizer.param_groups[0]["lr"] *= 0.7

    def write(self) -> None:
        with calque.no_grad():
            self.net[0].weight.mul_(0.9)

    def load(self) -> None:
        self.net.load_state_dict({name: value.clone() for name, value in self.net.state_dict().items()})

    def values(self) -> None:
        with calque.no_grad():
            self.found.append(self.net(self.batch()).exp().sum())

    def flush(self) -> None:
        recorder.flush("test")

    def freeze(self) -> None:
        self.net[4].bias.requires_grad_(not self.net[4].bias.requires_grad)

    def evict(self) -> None:
        if self.style:
            trie.evict()

    def state(self) -> tuple[list[float], list[Any]]:
        tensors = [*self.net.state_dict().values(), *(p.grad for p in self.net.parameters() if p.grad is not None)]
        return [x if isinstance(x, float) else x.item() for x in self.found], [t.numpy().copy() for t in tensors]


@pytest.mark.parametrize("number", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 40))])
def test_random_sessions(number: int, seed: int) -> None:
    choice = random.Random(1000 * seed + number)
    optimizer = choice.choice(["SGD", "Adam", "AdamW", "RMSprop"])
    actions = [choice.choice(ACTIONS) for _ in range(60)]
    results = []
    for style in ("", "module", "step"):
        session = Session(number, optimizer, style)
        for action in actions:
            getattr(session, action)()
        results.append(session.state())
    for losses, tensors in results[1:]:
        assert losses == results[0][0], (optimizer, actions)
        for a, b in zip(tensors, results[0][1], strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{optimizer} {actions}")
