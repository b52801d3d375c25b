"""Backward passes that are recorded again without walking the graph do what the walk does: the same edges, programs, gradients and spent nodes."""

from __future__ import annotations

import gc
import signal
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from bench.models import JOBS
from calque import nn, optim
from calque.autograd.passes import PassDependencies
from calque.base.config import settings
from calque.base.errors import AutogradError
from calque.record import recorder
from calque.replay.macro import Macro
from calque.replay.stretches import StretchCounts
from calque.tensor import wrap
from tests.autograd.both_ways import compare, fresh  # noqa: F401

SLOW = ("gpt", "resnet18-32", "resnet18-224")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in JOBS])
def test_the_six_steps_are_the_steps_as_written(name: str) -> None:
    job = JOBS[name]
    steps = 8

    def run() -> list[np.ndarray]:
        calque.manual_seed(0)
        model = job.model(calque)
        optimizer = job.optimizer(calque, model)
        rng = np.random.default_rng(0)
        losses = []
        for k in range(steps):
            x, y = (calque.tensor(a) for a in job.batch(rng, job.small))
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
            loss = job.step(calque, model, optimizer, x, y)
            losses.append(loss.item() if k % 2 else loss)
        found = [np.array([loss if isinstance(loss, float) else loss.item() for loss in losses])]
        return [*found, *(v.numpy().copy() for v in model.state_dict().values())]

    compare(run, 2 * (steps - 3))


def batch(k: int) -> Any:
    return calque.tensor(np.random.default_rng(k).normal(size=(4, 6)).astype(np.float32))


class Net(nn.Module):
    """Views, a norm, an activation, a value used twice, a constant that stands for a run-time number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(6, 8), nn.Linear(8, 3), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        h = self.norm(nn.functional.gelu(self.first(x)))
        a, b = h.split(4, 1)
        h = calque.cat([b, a], 1) + h * 0.3
        return self.second(h.view(2, 2, 8)[:, 1]).transpose(0, 1)


class Loop:
    """One model in training; a change is called between its backward and its update."""

    def __init__(self) -> None:
        calque.manual_seed(0)
        self.model = Net()
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self.found: list[np.ndarray] = []

    def loss(self, k: int) -> Any:
        return (self.model(batch(k)) ** 2).mean()

    def step(self, k: int, change: Callable[[Loop, int], Any]) -> None:
        self.optimizer.zero_grad()
        change(self, k)
        self.optimizer.step()

    def run(self, change: Callable[[Loop, int], Any], steps: int = 10) -> list[np.ndarray]:
        for k in range(steps):
            self.step(k, change)
        grads = [p.grad.numpy().copy() for p in self.model.parameters() if p.grad is not None]
        return [*self.found, *grads, *(p.detach().numpy().copy() for p in self.model.parameters())]


def plain(loop: Loop, k: int) -> None:
    loop.loss(k).backward()


def read_before(loop: Loop, k: int) -> None:
    loss = loop.loss(k)
    loop.found.append(np.array(loss.item()))
    loss.backward()


def accumulate(loop: Loop, k: int) -> None:
    for i in range(3):
        (loop.loss(3 * k + i) / 3).backward()


def accumulate_into_held(loop: Loop, k: int) -> None:
    loop.model.first.weight.grad = calque.ones(8, 6)
    loop.loss(k).backward()


def two_losses(loop: Loop, k: int) -> None:
    y = loop.model(batch(k))
    calque.autograd.backward([y.sum(), (y * y).mean()])


def given(loop: Loop, k: int) -> None:
    y = loop.model(batch(k))
    y.backward(calque.full((3, 2), float(k)))


def retained(loop: Loop, k: int) -> None:
    loss = loop.loss(k)
    loss.backward(retain_graph=True)
    loss.backward()


def with_hook(loop: Loop, k: int) -> None:
    y = loop.model(batch(k))
    if k > 4:
        y.register_hook(lambda g: g * 2)
    y.sum().backward()


def with_leaf_hook(loop: Loop, k: int) -> None:
    if k == 5:
        loop.model.first.weight.register_hook(lambda g: g * 2)
    plain(loop, k)


def with_retained_gradient(loop: Loop, k: int) -> None:
    y = loop.model(batch(k))
    y.retain_grad()
    y.sum().backward()
    loop.found.append(y.grad.numpy().copy())


def frozen(loop: Loop, k: int) -> None:
    loop.model.first.weight.requires_grad_(k < 5)
    plain(loop, k)


def changing_constant(loop: Loop, k: int) -> None:
    (loop.loss(k) * (1.0 if k < 4 else 0.1 * k)).backward()


def changing_path(loop: Loop, k: int) -> None:
    y = loop.model(batch(k))
    (y.sum() if k % 2 else y.mean()).backward()


def detached(loop: Loop, k: int) -> None:
    y = loop.model(batch(k))
    (y * (y.detach() if k > 4 else y)).sum().backward()


def create_graph(loop: Loop, k: int) -> None:
    x = batch(k).requires_grad_()
    (g,) = calque.autograd.grad(loop.model(x).sum(), x, create_graph=True)
    (g * g).sum().backward()


def clipped(loop: Loop, k: int) -> None:
    plain(loop, k)
    nn.utils.clip_grad_norm_(list(loop.model.parameters()), 0.1)


def other_data(loop: Loop, k: int) -> None:
    if k == 5:
        loop.model.first.weight.data = calque.ones(9, 6)[1:]
    plain(loop, k)


def gradients_of_inputs(loop: Loop, k: int) -> None:
    x = batch(k).requires_grad_()
    loop.model(x).sum().backward()
    loop.found.append(x.grad.numpy().copy())


def zeros_kept(loop: Loop, k: int) -> None:
    plain(loop, k)
    loop.optimizer.step()
    loop.optimizer.zero_grad(set_to_none=False)
    plain(loop, k + 1)


def in_place_between(loop: Loop, k: int) -> None:
    y = loop.model.first(batch(k))
    z = y * 2
    z.add_(1.0)
    if k > 5:
        z[0] = 0.0
    z.sum().backward()


CHANGES = [
    plain, read_before, accumulate, accumulate_into_held, two_losses, given, retained, with_hook, with_leaf_hook, with_retained_gradient, frozen,
    changing_constant, changing_path, detached, create_graph, clipped, other_data, gradients_of_inputs, zeros_kept, in_place_between,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_is_unusual_is_seen(change: Any) -> None:
    compare(lambda: Loop().run(change), 1)


def test_random_sequences(seed: int) -> None:
    def run() -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        plan = [CHANGES[rng.integers(len(CHANGES))] for _ in range(4)]
        order = [plan[rng.integers(4)] if rng.random() < 0.5 else plain for _ in range(40)]
        return Loop().run(lambda loop, k: order[k](loop, k), 40)

    compare(run, 10)


def test_a_spent_graph_says_so() -> None:
    loop = Loop()
    for k in range(4):
        loss = loop.loss(k)
        loss.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    with pytest.raises(AutogradError, match=r"a second time.*test_replay.py"):
        loss.backward()


def test_overwritten_values_are_refused() -> None:
    w = calque.ones(3, requires_grad=True)
    for k in range(6):
        y = w * 2.0
        z = y * y
        if k == 5:
            y.add_(1.0)
            with pytest.raises(AutogradError, match="modified by an inplace operation"):
                z.sum().backward()
            return
        z.sum().backward()
        recorder.flush("test")


def test_functions_of_the_users_are_called() -> None:
    calls: list[int] = []

    class Double(calque.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            calls.append(1)
            return g * 2

    w = calque.ones(3, requires_grad=True)
    for _ in range(6):
        Double.apply(w).sum().backward()
        recorder.flush("test")
    assert len(calls) == 6


def test_nothing_is_kept_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        loop = Loop()
        before = StretchCounts.replays
        refs: list[Any] = []
        for k in range(8):
            x = batch(k)
            y = loop.model(x)
            loss = (y * y).mean()
            loss.backward()
            refs = [weakref.ref(t) for t in (x, x._storage, y, y._storage, loss, loss._grad_fn, loop.model.first.weight.grad)]
            loop.optimizer.step()
            loop.optimizer.zero_grad()
            del x, y, loss
            calque.synchronize()
            assert [ref() for ref in refs] == [None] * len(refs)
        assert StretchCounts.replays >= before + 8
        model = weakref.ref(loop.model.first.weight)
        del loop
        assert model() is None
    finally:
        gc.enable()


def test_leaves_of_other_classes() -> None:
    class Own(calque.Tensor):
        pass

    for k in range(6):
        leaf = wrap(calque.ones(2)._storage, calque.ones(2)._layout, Own)
        leaf._requires_grad = True
        calque.mul(calque.ones(2, requires_grad=True), float(k)).add(leaf.view(2)).sum().backward()
        np.testing.assert_array_equal(leaf.grad.numpy(), np.ones(2, np.float32))
        recorder.flush("test")


def test_a_place_whose_offset_has_become_an_argument_is_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of the first recording is retired then, and what follows would record another."""
    monkeypatch.setattr(settings, "verify", True)
    monkeypatch.setattr(settings, "eager", False)
    w = calque.ones(3, requires_grad=True)
    for k in range(12):
        x, w.grad = calque.ones(3, requires_grad=k in (7, 9)), None  # its gradient is another slice of the same one
        (calque.cat([x, w]) ** 2).sum().backward()
        assert w.grad.sum().item() == 6


def test_ctrl_c_inside_a_replay_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        loop = Loop()
        expected = Loop()
        for k in range(6):
            plain(loop, k), loop.optimizer.step(), loop.optimizer.zero_grad()
            plain(expected, k), expected.optimizer.step(), expected.optimizer.zero_grad()
        real = Macro.replay

        def interrupted(self: Any, *args: Any) -> Any:
            created = real(self, *args)
            signal.raise_signal(signal.SIGINT)
            return created

        plain(loop, 6)
        monkeypatch.setattr(Macro, "replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.optimizer.step()
        monkeypatch.undo()
        plain(expected, 6)
        expected.optimizer.step()
        for a, b in zip(loop.model.parameters(), expected.model.parameters(), strict=True):
            np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_loop_behind_sizes_that_never_come_again_is_replayed_from_its_third_pass_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes at new places are only counted then, and the next one at a place is recorded all the same."""
    weight = nn.Parameter(calque.randn(200, 150))

    def step(rows: int) -> int:
        before = StretchCounts.replays
        weight.grad = None
        (calque.ones(rows, 200) @ weight).square().mean().backward()
        assert weight.grad is not None
        weight.grad.sum().item()
        return StretchCounts.replays - before

    assert [step(rows) for rows in range(300, 312)] == [0] * 12
    calls = []
    read = PassDependencies.read

    def counted(self: PassDependencies, *args: Any) -> bool:
        calls.append(self)
        return read(self, *args)

    monkeypatch.setattr(PassDependencies, "read", counted)
    assert [step(rows) for rows in (320, 321, 322)] == [0] * 3 and not calls  # nobody looks at graphs that do not come again
    assert [step(400) for _ in range(5)] == [0, 0, 1, 1, 1]
