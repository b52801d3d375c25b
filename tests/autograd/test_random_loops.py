"""Random training loops whose models change and whose losses are used in unusual ways: recorded again or as written, it is the same."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from tests.autograd.both_ways import compare, fresh  # noqa: F401

F = nn.functional


def values(rng: np.random.Generator, *shape: int) -> Any:
    return calque.tensor(rng.normal(size=shape).astype(np.float32))


def perceptron() -> Any:
    calque.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 3))


def graph(node: Any) -> list[Any]:
    """Names behind a node, in the order of a walk."""
    found, stack = [], [node]
    while stack and len(found) < 200:
        item = stack.pop()
        if item is not None:
            found.append(item.name() if hasattr(item, "name") and not isinstance(item, calque.Tensor) else tuple(item.shape))
            stack += item.next if not isinstance(item, calque.Tensor) else []
    return found


def other_relu(x: Any, inplace: bool = False) -> Any:
    return calque.relu(x) * 2.0


def leave(*_: Any) -> None:
    """Nothing."""


def change(act: int, model: Any, handles: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the things that a program may do to a model between two steps."""
    first = model[0]
    if act == 0:
        handles.append(model[1].register_forward_hook(lambda m, a, out: out * 0.5))
    elif act == 1 and handles:
        handles.pop().remove()
    elif act == 2:
        first.weight.requires_grad_(not first.weight.requires_grad)
    elif act == 3:
        first.weight.data = first.weight.data * 1.01
    elif act == 4:
        model[1] = nn.Tanh() if isinstance(model[1], nn.ReLU) else nn.ReLU()
    elif act == 5:
        model.train(not model.training)
    elif act == 6:
        with calque.no_grad():
            first.weight.mul_(0.99)
    elif act == 7:
        monkeypatch.setattr(F, "relu", other_relu)
    elif act == 8:
        monkeypatch.undo()
        monkeypatch.setattr("calque.run.dispatch.INTERPRET_WORK", 0)
        monkeypatch.setattr("calque.run.dispatch.INTERPRET_TIMES", 0)
    elif act == 9:
        monkeypatch.setattr(nn.Linear, "forward", lambda self, x: F.linear(x, self.weight, self.bias) + 1.0)
    elif act == 10:
        model[4].bias = nn.Parameter(model[4].bias.detach() + 0.1)
    elif act == 11:
        model[1].inplace = not getattr(model[1], "inplace", False)
    elif act == 12:
        model[1].hybridize(not handles)
    elif act == 13:
        model[2].forward = lambda x: x * 1.5 if not handles else x * 0.5
    elif act == 14:
        model[2].__dict__.pop("forward", None)
        model[2].training = model.training


def difference(act: int, model: Any, x: Any, found: list[Any]) -> Any:
    """One of the ways to use a model in a step: a loss whose gradients are there."""
    y = model(x)
    loss = y.square().mean()
    if act == 0:
        found.append(loss.item())
        loss.backward()
    elif act == 1:
        loss.backward(retain_graph=True)
        (loss * 0.5).backward()
    elif act == 2:
        grads = calque.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], create_graph=True)
        sum(g.square().sum() for g in grads).backward()
    elif act == 3:
        y.register_hook(lambda g: g * 0.5)
        loss.backward()
    elif act == 4:
        y.retain_grad()
        loss.backward()
        found.append(float(y.grad.sum()))
    elif act == 5:
        (loss + model(x * 2.0).mean()).backward()
    elif act == 6:
        z = x.clone().requires_grad_()
        (loss + model(z).pow(2).sum()).backward()
        found.append(float(z.grad.sum()))
    elif act == 7:
        z = (x.clone().requires_grad_() * 2.0)[1:]
        model(z).sum().backward()
    elif act == 8:
        with calque.autocast("cpu", dtype=calque.bfloat16):
            model(x).float().sum().backward()
    elif act == 9:
        found += graph(loss._grad_fn)
        loss.backward()
        found += graph(loss._grad_fn)
    elif act == 10:
        with calque.no_grad():
            model[0].weight.add_(0.01)
            model[2].weight.add_(0.01)
        loss.backward()  # raises: a saved weight was overwritten
    elif act == 11:
        model[2].weight.data = model[2].weight.data * 2.0
        loss.backward()
    elif act == 12:
        loss.backward()
        loss.backward()  # raises: the graph was freed
    elif act == 13:
        with calque.no_grad():
            loss = model(x).square().mean()
    elif act == 14:
        copy.deepcopy(model)(x).sum().backward()
        loss.backward()
    elif act == 15:
        model(x.view(2, 2, 6)).mean().backward()
    elif act == 16:
        model(x.t().reshape(6, 4).t()).mean().backward()
    elif act == 17:
        y.detach_().add_(1.0)
        loss.backward()
    else:
        loss.backward()
    return loss


def random_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    chooser, rng, model = random.Random(seed), np.random.default_rng(seed), perceptron()
    optimizer = calque.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found: list[Any] = []
    handles: list[Any] = []
    for _ in range(24):
        if chooser.random() < 0.25:
            change(chooser.randrange(15), model, handles, monkeypatch)
        if chooser.random() < 0.8:
            optimizer.zero_grad(set_to_none=chooser.random() < 0.7)
        act = chooser.randrange(40)
        try:
            loss = difference(act, model, values(rng, 4, 6), found)
            found.append(float(loss.detach()))
        except Exception as error:
            found.append(f"{type(error).__name__}: {str(error).partition('(recorded')[0][:80]}")
        if chooser.random() < 0.9:
            optimizer.step()
    monkeypatch.undo()
    monkeypatch.setattr("calque.run.dispatch.INTERPRET_WORK", 0)
    return [*found, *(float(v.double().sum()) for v in model.state_dict().values())]


@pytest.mark.filterwarnings("ignore:.SGD. 1 of the 5 parameters")  # one of the changes is that trap
@pytest.mark.parametrize("number", [*range(12), *(pytest.param(k, marks=pytest.mark.slow) for k in range(12, 30))])
def test_random_loops(number: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[np.ndarray]:
        return [np.array(x) for x in random_loop(1000 * seed + number, monkeypatch)]

    compare(run, 0)


def overwrite(model: Any) -> None:
    with calque.no_grad():
        model[2].weight.add_(0.5)


def exchange(model: Any) -> None:
    model[2].weight.data = model[2].weight.data * 2.0


@pytest.mark.parametrize("alter", [overwrite, exchange, leave])
@pytest.mark.parametrize("keep", [False, True])
def test_what_is_saved_changes_between_the_passes(alter: Callable[[Any], None], keep: bool, seed: int) -> None:
    def run() -> list[np.ndarray]:
        model, rng, found = perceptron(), np.random.default_rng(seed), []
        for k in range(9):
            model.zero_grad()
            loss = model(values(rng, 4, 6)).square().sum()
            if k in (6, 8):
                alter(model)
            found.append(np.array(loss.item()))  # the place of the trace does not tell what was done to the weight
            try:
                for _ in range(1 + keep):
                    loss.backward(retain_graph=keep)
            except RuntimeError as error:
                found.append(np.array([str(error).partition("(")[0]]))
            found += [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]
        return found

    compare(run, 3)
