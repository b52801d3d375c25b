"""Planning takes a time that grows with the length of a program, not with its square: lines of Python that run in the layers that plan are counted.

A chain of 9,226 additions took 18 seconds to plan, 12 squares with a pick at their end 7, and each two more 22 times as long.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import calque
from calque.base.config import settings
from calque.nn import functional as F
from calque.run import dispatch

PLANNERS = tuple(str(Path(calque.__file__).parent / name) + "/" for name in ("ir", "graph", "kernel", "backend", "run"))
SHORT, LONG = 30, 120
LEAST, STEEP, SHARE = 1500, 5.5, 0.25  # lines of a function that count; growth that is no longer linear; how much of all lines may grow so
Program = Callable[[int], calque.Tensor]


@pytest.fixture(autouse=True)
def _planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "sync", True)
    monkeypatch.setattr(settings, "eager", 0)
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)


def chain(n: int) -> calque.Tensor:
    y = calque.rand(2000)
    for _ in range(n):
        y = y * 1.01 + 0.5
    return y.sum()


def doubled(n: int) -> calque.Tensor:
    """Every value is used twice, so there are 2^n ways from the end to the beginning."""
    y, at = calque.rand(40, 60), calque.randint(0, 60, (40, 1))
    for _ in range(n):
        y = y * y + y * 0.5
    return y.gather(1, at).sum()


def picks(n: int) -> calque.Tensor:
    y = calque.rand(40, 60)
    for _ in range(n):
        y = y - y.max(1, keepdim=True).values + y.mean(0)
    return y.sum()


def turned(n: int) -> calque.Tensor:
    y = calque.rand(64, 64)
    for _ in range(n):
        y = y.reshape(8, 8, 64).permute(1, 0, 2).reshape(64, 64) + y.t()
    return y.sum()


def halves(n: int) -> calque.Tensor:
    y = calque.rand(64, 64)
    for _ in range(n):
        y = calque.cat([y[:32] * y[32:], y[:32] + y[32:]])
    return y.sum()


def turned_round(n: int) -> calque.Tensor:
    y = calque.rand(64, 64)
    for _ in range(n):
        y = calque.cat([y[32:], y[:32]])
    return y.sum()


def chosen(n: int) -> calque.Tensor:
    y = calque.rand(64, 64)
    for _ in range(n):
        y = calque.where(y > 0.5, y * y, -y).double().float()
    return y.sum()


def pieces(n: int) -> calque.Tensor:
    x = calque.rand(1000)
    return calque.cat([x[k : k + 5] * 2 for k in range(n)]).sum()


def written(n: int) -> calque.Tensor:
    x = calque.zeros(n, 50)
    for k in range(n):
        x[k] += x[(k + 1) % n] + k
    return x.sum()


def rows(n: int) -> calque.Tensor:
    """The gradient is a sum of n slices."""
    x = calque.rand(n, 50, requires_grad=True)
    sum((x[k] * float(k) for k in range(n)), calque.zeros(50)).sum().backward()
    return x.grad.sum()  # type: ignore[union-attr]


def layers(n: int) -> calque.Tensor:
    w, y = calque.rand(16, 16, requires_grad=True), calque.rand(8, 16)
    for _ in range(n):
        y = F.layer_norm((y @ w).tanh(), (16,))
    y.sum().backward()
    return w.grad.sum()  # type: ignore[union-attr]


def optimizer(n: int) -> calque.Tensor:
    weights = [calque.rand(20, 20, requires_grad=True) for _ in range(n)]
    adam = calque.optim.Adam(weights)
    sum(((w * w).sum() for w in weights), calque.zeros(())).backward()
    adam.step()
    return weights[0].sum()


PROGRAMS = [chain, doubled, picks, turned, halves, turned_round, chosen, pieces, written, rows, layers, optimizer]


@pytest.fixture
def counted() -> Iterator[Callable[[Program, int], Counter[CodeType]]]:
    lines: Counter[CodeType] = Counter()

    def inside(frame: Any, event: str, arg: Any) -> Any:
        if event == "line":
            lines[frame.f_code] += 1
        return inside

    def entered(frame: Any, event: str, arg: Any) -> Any:
        return inside if frame.f_code.co_filename.startswith(PLANNERS) else None

    def count(program: Program, n: int) -> Counter[CodeType]:
        lines.clear()
        value = program(n)
        before = sys.gettrace()
        sys.settrace(entered)
        try:
            value.item()
        finally:
            sys.settrace(before)
        return Counter(lines)

    yield count


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_planning_grows_with_the_length(program: Program, counted: Callable[[Program, int], Counter[CodeType]]) -> None:
    program(8).item()
    short, long = counted(program, SHORT), counted(program, LONG)
    steep = {code: count for code, count in long.items() if count > LEAST and count > STEEP * short[code]}
    told = sorted(((count, short[code], code.co_qualname) for code, count in steep.items()), reverse=True)
    assert sum(steep.values()) < SHARE * sum(long.values()), told
    assert sum(long.values()) < STEEP * sum(short.values())
