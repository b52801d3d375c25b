"""`torch.optim.lbfgs`: the line search as functions, which libraries of minimisers take from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.errors import ArgumentError
from calque.optim import lbfgs as own

__all__ = ["_cubic_interpolate", "_strong_wolfe"]


def _cubic_interpolate(x1: Any, f1: Any, g1: Any, x2: Any, f2: Any, g2: Any, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two points, with values f and slopes g, is smallest."""
    a, b = (own._Point(float(x), float(f), None, float(g)) for x, f, g in ((x1, f1, g1), (x2, f2, g2)))  # type: ignore[arg-type]
    return own._cubic(a, b, bounds)


def _strong_wolfe(
    obj_func: Callable[[Any, float, Any], tuple[Any, Any]], x: Any, t: float, d: Any, f: Any, g: Any, gtd: Any, c1: float = own.DECREASE,
    c2: float = own.CURVATURE, tolerance_change: float = 1e-9, max_ls: int = 25,
) -> tuple[Any, Any, float, int]:  # fmt: skip
    """Value, gradient and length of a step from x along d that satisfies the Wolfe conditions, and how often `obj_func(x, t, d)` was called."""
    if (c1, c2) != (own.DECREASE, own.CURVATURE):
        raise ArgumentError(f"[_strong_wolfe] expected c1={own.DECREASE} and c2={own.CURVATURE}, got {c1} and {c2}: the search knows these alone")

    def evaluate(step: float) -> own._Point:
        value, gradient = obj_func(x, step, d)
        return own._Point(step, float(value), gradient, float(gradient.dot(d)))

    start = own._Point(0.0, float(f), g, float(gtd))
    found, used = own._strong_wolfe(evaluate, start, float(t), tolerance_change / own._largest(d), max_ls)
    return found.loss, found.gradient, found.step, used
