"""State is overwritten where it lies, and never what a program still holds: random writes, with clones, views, copies and arrays kept aside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque

pytestmark = pytest.mark.device


class Machine:
    """Writes to a few tensors of a device and to their twins in NumPy; `held` is what somebody keeps, and what it should hold."""

    def __init__(self, device: Any, rng: np.random.Generator) -> None:
        self.device, self.rng = device, rng
        self.twins = [rng.integers(-4, 5, (2, 3)).astype(np.float32) for _ in range(3)]
        self.state = [calque.tensor(twin).to(device) for twin in self.twins]
        self.held: list[tuple[Any, Any]] = []
        self.weight, self.known = calque.nn.Parameter(calque.ones(2, 3, device=device)), np.ones((2, 3), np.float32)
        self.optimizer = calque.optim.SGD([self.weight], lr=0.5)

    def write(self) -> None:
        i, j = self.rng.integers(0, 3, 2)
        (x, a), (y, b) = (self.state[i], self.twins[i]), (self.state[j], self.twins[j])
        kind = self.rng.integers(0, 6)
        if kind == 0:
            x.add_(1)
            a += 1
        elif kind == 1:
            x.mul_(y).clamp_(-9, 9)
            np.clip(a * b, -9, 9, out=a)
        elif kind == 2:
            x[:, 1] = y[:, 0]
            a[:, 1] = b[:, 0]
        elif kind == 3:
            x.copy_(y)
            a[...] = b
        elif kind == 4:
            x.zero_()
            a[...] = 0
        else:
            self.optimizer.zero_grad()
            (self.weight * x.detach()).sum().backward()
            self.optimizer.step()
            self.known = self.known - np.float32(0.5) * a

    def hold(self) -> None:
        i = self.rng.integers(0, 3)
        x, a = self.state[i], self.twins[i]
        choices = (
            lambda: (x.clone(), a.copy()), lambda: (x.detach(), a), lambda: (x[0], a[0]), lambda: (x + 0, a + 0), lambda: (x.to("cpu"), a.copy()),
            lambda: (x.numpy(force=True), a.copy()), lambda: (self.weight.detach().clone(), self.known.copy()), lambda: (x.t()[1:], a.T[1:]),
        )  # fmt: skip
        self.held.append(choices[self.rng.integers(0, len(choices))]())

    def check(self, found: Any, wanted: Any) -> None:
        np.testing.assert_array_equal(found if isinstance(found, np.ndarray) else np.array(found.tolist(), np.float32), wanted)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.hold() if self.rng.random() < 0.3 else self.write()
            if self.rng.random() < 0.1:
                calque.synchronize()
            if self.held and self.rng.random() < 0.15:
                self.check(*self.held.pop(int(self.rng.integers(len(self.held)))))
        for found, wanted in [*self.held, *zip(self.state, self.twins, strict=True), (self.weight.detach(), self.known)]:
            self.check(found, wanted)


@pytest.mark.parametrize("number", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 40))])
def test_what_is_held_is_never_overwritten(number: int, device: Any, seed: int) -> None:
    Machine(device, np.random.default_rng([seed, number])).run(40)


def test_memory_stays_the_same_over_many_steps(device: Any) -> None:
    model = calque.nn.Sequential(calque.nn.Linear(20, 64), calque.nn.ReLU(), calque.nn.Linear(64, 5)).to(device)
    optimizer = calque.optim.Adam(model.parameters())
    in_use = []
    for _ in range(4):
        for _ in range(50):
            optimizer.zero_grad()
            x, y = calque.randn(16, 20).to(device), calque.randint(0, 5, (16,)).to(device)
            calque.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.zero_grad()
        del x, y
        calque.synchronize()
        in_use.append(calque.memory_stats(device)["in_use"])
    assert max(in_use[1:]) - min(in_use[1:]) < 2000, in_use
