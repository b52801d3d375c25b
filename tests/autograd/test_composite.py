"""Composite functions that are recorded again without running them: the same edges, programs and bits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.config import settings
from calque.record import recorder
from calque.replay.stretches import StretchCounts
from tests.autograd.both_ways import compare, fresh  # noqa: F401

F = nn.functional


def values(rng: np.random.Generator, *shape: int) -> Any:
    return calque.tensor(rng.normal(size=shape).astype(np.float32))


def labels(k: int) -> Any:
    return calque.tensor(np.random.default_rng(k).integers(0, 6, 4))


WEIGHT = calque.tensor(np.linspace(0.5, 1.5, 6).astype(np.float32))
CASES: dict[str, Callable[[Any, int], Any]] = {
    "layer norm": lambda x, k: F.layer_norm(x, (6,), WEIGHT, WEIGHT),
    "layer norm of a view": lambda x, k: F.layer_norm(x.t().reshape(4, 6)[1:], (6,)),
    "rms norm": lambda x, k: F.rms_norm(x, (6,), WEIGHT),
    "group norm": lambda x, k: F.group_norm(x, 3, WEIGHT, None),
    "instance norm": lambda x, k: F.instance_norm(x.view(2, 2, 6)),
    "batch norm": lambda x, k: F.batch_norm(x, None, None, WEIGHT, WEIGHT, True),
    "gelu": lambda x, k: F.gelu(x) + F.gelu(x, approximate="tanh"),
    "cross entropy": lambda x, k: F.cross_entropy(x, labels(k)),
    "cross entropy, smoothed": lambda x, k: F.cross_entropy(x, labels(k), WEIGHT, label_smoothing=0.1, ignore_index=k % 2),
    "cross entropy, of each": lambda x, k: F.cross_entropy(x, labels(k), reduction="none"),
    "nll": lambda x, k: F.nll_loss(F.log_softmax(x, 1), labels(k)),
    "pooling": lambda x, k: F.max_pool2d(x.view(1, 1, 4, 6), 2) + F.max_pool2d(x.view(1, 1, 4, 6), 3, 1).sum(),
    "attention": lambda x, k: F.scaled_dot_product_attention(x.view(1, 2, 2, 6), x.view(1, 2, 2, 6), x.view(1, 2, 2, 6), is_causal=k % 4 < 3),
    "softplus and others": lambda x, k: F.softplus(x) + F.softmax(x, 1) + F.silu(x) + F.elu(x),
    "a changing number": lambda x, k: F.layer_norm(x, (6,), eps=1e-5 * (1 + k // 4)),
    "normalised twice": lambda x, k: F.layer_norm(F.layer_norm(x, (6,)), (6,), WEIGHT),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("grad", [True, False])
def test_the_same_with_and_without_gradients(name: str, grad: bool, seed: int) -> None:
    def run() -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        found = []
        for k in range(8):
            x = values(rng, 4, 6).requires_grad_(grad)
            y = CASES[name](x, k)
            if grad:
                (y * y).sum().backward()
                found.append(x.grad.numpy().copy())
            found.append(y.detach().numpy().copy())
        return found

    compare(run, 3 if grad else 0)


class Images(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, **options), nn.Conv2d(4, 2, 3)

    def forward(self, x: Any) -> Any:
        return self.second(calque.relu(self.norm(self.first(x))))


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"momentum": 0.5, "affine": False}, {"track_running_stats": False}], ids=str)
def test_running_statistics(options: dict[str, Any], seed: int) -> None:
    def run() -> list[np.ndarray]:
        calque.manual_seed(0)
        rng = np.random.default_rng(seed)
        model, found = Images(**options), []
        for k in range(12):
            model.train(k % 5 != 4)
            with calque.set_grad_enabled(k % 3 > 0):
                y = model(values(rng, 2, 2, 6, 6))
                if k % 3:
                    y.square().mean().backward()
            if k == 6 and model.norm.running_mean is not None:
                model.norm.reset_running_stats()
            if k == 8 and model.norm.running_mean is not None:
                found.append(model.norm.running_mean.numpy())  # shared from now on
            found.append(y.detach().numpy().copy())
        return [*found, *(v.numpy().copy() for v in model.state_dict().values())]

    compare(run, 2)


def test_second_derivatives_after_replays() -> None:
    def run() -> list[np.ndarray]:
        rng, found = np.random.default_rng(0), []
        for _ in range(6):
            x = values(rng, 4, 6).requires_grad_()
            (g,) = calque.autograd.grad(F.layer_norm(x, (6,), WEIGHT).square().sum(), x, create_graph=True)
            g.square().sum().backward()
            found.append(x.grad.numpy().copy())
        return found

    compare(run, 3)


@pytest.mark.usefixtures("both_ways")
def test_nothing_is_kept_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        rng = np.random.default_rng(0)
        before = StretchCounts.replays
        for _ in range(8):
            x = values(rng, 4, 6).requires_grad_()
            y = F.cross_entropy(F.layer_norm(x, (6,)), labels(0))
            refs = [weakref.ref(t) for t in (x, x._storage, y, y._storage, y._grad_fn)]
            recorder.flush("test")
            calque.synchronize()
            del x, y
            assert [ref() for ref in refs] == [None] * len(refs)
        assert StretchCounts.replays > before or settings.eager
    finally:
        gc.enable()


OUTSIDE = {"more": 1}


def _pure(x: Any, y: Any) -> tuple[Any, ...]:
    for _ in range(8):
        x = (x * y).tanh()
    return (x,)


def _impure(x: Any, y: Any) -> tuple[Any, ...]:
    for _ in range(7 + OUTSIDE["more"]):
        x = (x * y).tanh()
    return (x,)


@pytest.mark.parametrize("impure", [False, True])
def test_functions_that_depend_on_more_than_their_operands_are_found(impure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "verify", True)
    function = _impure if impure else _pure
    for f in (_pure, _impure):
        monkeypatch.setattr(f, "__module__", "calque.test")  # only functions of the library are recorded again

    def run() -> Any:
        recorder.flush("test")
        with calque.no_grad():
            x = values(np.random.default_rng(1), 3, 3) - 0.125  # a place in the trace where no other test calls a composite
            return calque.autograd.composite.call(function, (x, values(np.random.default_rng(2), 3, 3)))

    for _ in range(5):
        run()
    monkeypatch.setitem(OUTSIDE, "more", 2)
    if impure:
        with pytest.raises(AssertionError, match="_impure recorded something else than a call with the same operands"):
            run()
    else:
        run()


def test_the_composites_of_a_network_depend_on_their_operands_alone(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(settings, "verify", True)
    rng = np.random.default_rng(seed)
    found = StretchCounts.recordings
    for name, case in CASES.items():
        for k in range(6):
            recorder.flush("test")
            x = values(rng, 4, 6).requires_grad_()
            (case(x, k // 3) * 1.0).sum().backward()
            assert x.grad is not None, name
    net = Images()
    optimizer = calque.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        F.mse_loss(net(values(rng, 2, 2, 8, 8)), values(rng, 2, 2, 4, 4)).backward()
        optimizer.step()
    assert StretchCounts.recordings > found + 50
