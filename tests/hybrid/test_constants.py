"""Tensors that a hybridized call makes of Python data: constants of the recording, new ones at every replay, never a frozen number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.replay import capture
from tests.hybrid.common import counts

F = nn.functional
OPTIONS = {"shift": [1.0, 2.0, 3.0]}


def agree(function: Callable[..., Any], make: Callable[[int], Any], calls: int = 12) -> dict[str, Any]:
    """Compare hybridized calls with calls as written; the counters of the hybridized ones."""
    inputs = [make(k) for k in range(calls)]
    expected = [function(*x).tolist() for x in inputs]
    before = counts()
    compiled = calque.compile(function)
    assert [compiled(*x).tolist() for x in inputs] == expected
    after = counts()
    found = {name: after[name] - before[name] for name in ("replays", "imperative", "continued")}
    found["reasons"] = [r for r, n in after["reasons"].items() if n > before["reasons"].get(r, 0)]
    return found


def _input(k: int) -> tuple[Any, ...]:
    return (calque.tensor(np.random.default_rng(k).standard_normal((4, 3)).astype(np.float32)),)


def _written(x: Any) -> Any:
    total = calque.tensor([0.0, 0.0, 0.0])
    for row in x:
        total += row
    return total


def _per_branch(x: Any) -> Any:
    weight = calque.tensor([2.0, 1.0, 0.0]) if x.sum().item() > 0 else calque.tensor([-1.0, 3.0, 0.5])
    x = x * weight
    return x - calque.tensor(1.0) if x.max().item() > 1 else x * calque.linspace(0, 1, 3)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "list": lambda x: x + calque.tensor([1.0, 2.0, 3.0]),
    "reached list": lambda x: x * calque.tensor(OPTIONS["shift"]),
    "nested": lambda x: x @ calque.as_tensor([[1.0, 0.0], [2.0, -1.0], [0.5, 3.0]]),
    "array made inside": lambda x: x + calque.tensor(np.arange(3, dtype=np.float32)),
    "operand": lambda x: x * np.array([1.0, -2.0, 0.5], np.float32),
    "index": lambda x: x[:, calque.tensor([2, 0])],
    "written": _written,
    "per branch": _per_branch,
    "of a size": lambda x: x / calque.tensor([float(x.shape[1])]),
    "of a number that was read": lambda x: x * calque.tensor(x.mean().item() * 2),
    "linspace": lambda x: x * calque.linspace(-1, 1, 3),
    "triangle": lambda x: x[calque.tril_indices(3, 3)[0]],
    "padded pooling": lambda x: F.avg_pool2d(x[None, None], 2, padding=1, count_include_pad=False),
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x[None, None], (3, 2)),
    "resized": lambda x: F.interpolate(x[None, None], size=(5, 7), mode="bilinear"),
    "reflected": lambda x: F.pad(x[None, None], (1, 1, 1, 1), mode="reflect"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_of_python_data(name: str) -> None:
    found = agree(FUNCTIONS[name], _input, 30 if name == "per branch" else 12)
    assert found["imperative"] == 1 and found["replays"] >= 9, found


def test_results_are_new_tensors() -> None:
    """What one call returns is not what the next one writes to."""
    make = calque.compile(lambda x: (calque.tensor([1.0, 2.0]), x + 1))
    kept = []
    for k in range(8):
        made, _ = make(calque.ones(2))
        assert made.tolist() == [1.0, 2.0]
        made += k
        kept.append(made)
    assert [t.tolist() for t in kept] == [[1.0 + k, 2.0 + k] for k in range(8)]
    assert counts()["replays"] > 0


def test_changed_data_is_seen() -> None:
    shift = calque.compile(lambda x: x + calque.tensor(OPTIONS["shift"]))
    before = list(OPTIONS["shift"])
    try:
        for k in range(8):
            OPTIONS["shift"][1] = float(k // 4)
            assert shift(calque.zeros(3)).tolist() == [1.0, float(k // 4), 3.0]
    finally:
        OPTIONS["shift"] = before


def test_gradients_through_constants() -> None:
    model = nn.Linear(3, 3)
    call = calque.compile(lambda x: (model(x) * calque.tensor([1.0, 2.0, 3.0])).square().sum())
    for k in range(8):
        (x,) = _input(k)
        model.zero_grad()
        (model(x) * calque.tensor([1.0, 2.0, 3.0])).square().sum().backward()
        expected = [p.grad.tolist() for p in model.parameters()]
        model.zero_grad()
        call(x).backward()
        assert [p.grad.tolist() for p in model.parameters()] == expected


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + calque.tensor([x.sum().item(), 1.0, 2.0]), "makes a tensor from a number that changes"),
        (lambda x: x[calque.nonzero(x.sum(1) > 0)[:, 0]].sum(0), "reads a value: nonzero"),
        (lambda x: x.masked_select(x > 0).sum(), "reads a value"),
        (lambda x: calque.unique(x.round()).sum(), "reads a value"),
        (lambda x: x + float(np.asarray(x.numpy()).sum()), "reads a value: numpy"),
        (lambda x: x + calque.tensor([1.0] * (capture.LARGEST_CONSTANT + 3))[:3], "makes a large tensor"),
    ],
    ids=["number", "nonzero", "masked_select", "unique", "numpy", "large"],
)
def test_what_runs_as_written_and_why(function: Callable[..., Any], reason: str) -> None:
    """Shapes that depend on values, and arrays that Python gets."""
    found = agree(function, _input, 5)
    assert found["replays"] == 0 and any(reason in r for r in found["reasons"]), found
