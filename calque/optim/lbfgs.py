"""L-BFGS (Nocedal & Wright 2006, algorithms 7.4 and 7.5) with a line search for the strong Wolfe conditions (algorithms 3.5 and 3.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from calque import functional as T
from calque.autograd.modes import enable_grad, no_grad
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described, shown
from calque.functional.common import is_number, is_tensor
from calque.functional.complex import view_as_real
from calque.optim.methods import has_methods
from calque.optim.optimizer import Optimizer, check_range, replace
from calque.record import recorder
from calque.record.threads import SECTION, handed_over
from calque.tensor import Tensor, layout_of

DECREASE, CURVATURE = 1e-4, 0.9  # the constants c1 and c2 of the Wolfe conditions
SMALLEST_CURVATURE = 1e-10  # below it a pair of changes of gradient and place says nothing about the Hessian


class LBFGS(Optimizer):
    """Newton steps with an inverse Hessian estimated from the last `history_size` changes of the gradient.

    One `step(closure)` makes up to `max_iter` of them. `closure` clears the gradients, computes the loss, calls `backward` and returns the loss; it
    is called up to `max_eval` times (default: 1.25 `max_iter`). line_search_fn: None for steps of length `lr`, or "strong_wolfe". A step ends early
    where no gradient is above `tolerance_grad`, or neither the loss nor a parameter changes by more than `tolerance_change`. There is one group
    of parameters.

    >>> import calque
    >>> w = calque.tensor([3.0, -2.0], requires_grad=True)
    >>> optimizer = calque.optim.LBFGS([w], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = ((w - 1) ** 2 * calque.tensor([1.0, 10.0])).sum()
    ...     loss.backward()
    ...     return loss
    >>> float(optimizer.step(closure)), calque.allclose(w.detach(), calque.ones(2), atol=1e-4)
    (94.0, True)
    """

    by_element = False
    state_needed = ("func_evals", "n_iter")

    def __init__(
        self, params: Iterable[Any], lr: float = 1, max_iter: int = 20, max_eval: int | None = None, tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9, history_size: int = 100, line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval, "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change, "history_size": history_size, "line_search_fn": line_search_fn,
        })  # fmt: skip

    def check_group(self, group: dict[str, Any]) -> None:
        if self.param_groups and group["params"] is not self.param_groups[0]["params"]:
            raise ArgumentError("[LBFGS] LBFGS doesn't support per-parameter options (parameter groups); give it one list of parameters")
        check_range("LBFGS", "learning rate", group["lr"], 0.0)
        for key in ("max_iter", "max_eval", "history_size", "tolerance_grad", "tolerance_change"):
            check_range("LBFGS", f"{key} value", group[key], 0.0)
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise ArgumentError(f"[LBFGS] only 'strong_wolfe' is supported as line_search_fn (or None), got {shown(group['line_search_fn'])}")

    def _problems(self, values: Any, parameter: Tensor, what: str) -> list[str]:
        found = super()._problems(values, parameter, what)
        size = sum(layout_of(p).numel for p in self._parts())
        for name in ("d", "prev_flat_grad"):
            value = values.get(name)
            if value is not None and value.numel() != size:
                found.append(f"state {shown(name)} has {value.numel()} elements, the parameters together {size}")
        return found

    @no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Up to `max_iter` iterations; returns the first loss."""
        if not callable(closure):
            raise DTypeError(f"[LBFGS] expected a function that evaluates the model and returns the loss, got {described(closure)} as 'closure'")
        group, evaluate = self.param_groups[0], enable_grad()(closure)
        state = self.state[group["params"][0]]
        state.setdefault("func_evals", 0), state.setdefault("n_iter", 0)
        lr, most, tolerance = float(group["lr"]), group["max_iter"], group["tolerance_change"]
        first = evaluate()
        loss, gradient, calls = _loss(first), self._gradient(), 1
        state["func_evals"] += 1
        if _largest(gradient) <= group["tolerance_grad"]:
            return first
        for turn in range(1, most + 1):
            state["n_iter"] += 1
            d = state["d"] = _direction(state, gradient, group["history_size"])
            before = state["prev_loss"] = loss
            state["prev_flat_grad"] = gradient
            t = state["t"] = lr if state["n_iter"] > 1 else min(1.0, 1.0 / float(T.sum(T.abs(gradient)))) * lr
            slope = float(gradient.dot(d))  # type: ignore[attr-defined]
            if slope > -tolerance:
                break
            used = 0
            if group["line_search_fn"]:
                loss, gradient, t, used = self._search(evaluate, _Point(0.0, loss, gradient, slope), t, d, group["max_eval"] - calls)
                state["t"] = t
            self._move(t, d)
            if not group["line_search_fn"] and turn < most:  # nobody would use the loss after the last
                loss, gradient, used = _loss(evaluate()), self._gradient(), 1
            calls += used
            state["func_evals"] += used
            if turn == most or calls >= group["max_eval"] or _largest(gradient) <= group["tolerance_grad"]:
                break
            if _largest(d) * abs(t) <= tolerance or abs(loss - before) < tolerance:
                break
        return first

    def _gradient(self) -> Tensor:
        """All gradients as one vector."""
        found = [T.zeros_like(p) if p._grad is None else p._grad for p in self.param_groups[0]["params"]]
        return T.cat([T.reshape(view_as_real(g) if g._layout.dtype.is_complex else g, (-1,)) for g in found], 0)

    def _parts(self) -> list[Any]:
        """The parameters, complex ones as real numbers."""
        return [view_as_real(p) if layout_of(p).dtype.is_complex else p for p in self.param_groups[0]["params"]]

    def _move(self, t: float, d: Tensor) -> None:
        """Add t * d to the parameters."""
        start = 0
        with SECTION:
            for p in self._parts():
                count = layout_of(p).numel
                part: Any = T.narrow(d, 0, start, count)
                if has_methods(p.__class__):
                    p.add_(T.reshape(part, tuple(p.shape)), alpha=t)
                else:
                    replace(p, p + T.reshape(part, tuple(p._layout.shape)) * t)
                start += count
            handed_over(recorder.flush, recorder.local.state, "optimizer.step")

    def _search(self, closure: Any, start: _Point, t: float, d: Tensor, calls: int) -> tuple[float, Tensor, float, int]:
        """Loss, gradient and length of the step that the line search finds, and how often it called the closure."""
        parameters = self.param_groups[0]["params"]
        places = [p.clone() for p in parameters]

        def evaluate(t: float) -> _Point:
            self._move(t, d)
            loss, gradient = _loss(closure()), self._gradient()
            with SECTION:
                for p, place in zip(parameters, places, strict=True):
                    if has_methods(p.__class__):
                        p.copy_(place)
                    else:
                        replace(p, place)
            return _Point(t, loss, gradient, float(gradient.dot(d)))  # type: ignore[attr-defined]

        narrow = self.param_groups[0]["tolerance_change"] / _largest(d)
        found, used = _strong_wolfe(evaluate, start, t, narrow, calls)
        return found.loss, found.gradient, found.step, used


def _loss(value: Any) -> float:
    """What a closure has returned, as a number."""
    if not is_tensor(value) and not is_number(value):
        raise DTypeError(f"[LBFGS] expected the closure to return the loss, got {described(value)}; end it with `return loss`")
    return float(value)


def _largest(values: Any) -> float:
    return float(values.abs().max())


def _direction(state: dict[str, Any], gradient: Tensor, history: int) -> Any:
    """The estimated inverse Hessian times the negative gradient (the two-loop recursion). Each turn of a loop is flushed: it is the same
    short program whatever the length of the history."""
    if state["n_iter"] == 1:
        state["old_dirs"], state["old_stps"], state["ro"], state["H_diag"] = [], [], [], 1
        return -gradient
    changes, moves, inverses = state["old_dirs"], state["old_stps"], state["ro"]
    y, s = gradient - state["prev_flat_grad"], state["d"] * float(state["t"])
    product = y.dot(s)
    if float(product) > SMALLEST_CURVATURE:
        if len(changes) >= history:
            del changes[0], moves[0], inverses[0]
        changes.append(y), moves.append(s), inverses.append(1.0 / product)
        state["H_diag"] = product / y.dot(y)
    q, factors = -gradient, []
    for y, s, inverse in zip(reversed(changes), reversed(moves), reversed(inverses), strict=True):
        factors.append(s.dot(q) * inverse)
        q = q - y * factors[-1]
        recorder.flush("LBFGS")
    r = q * state["H_diag"]
    for y, s, inverse in zip(changes, moves, inverses, strict=True):
        r = r + s * (factors.pop() - y.dot(r) * inverse)
        recorder.flush("LBFGS")
    return r


class _Point(NamedTuple):
    """A place on the line of a search: how far along, and the loss, the gradient and the slope there."""

    step: float
    loss: float
    gradient: Tensor
    slope: float


def _strong_wolfe(evaluate: Callable[[float], _Point], start: _Point, t: float, narrow: float, most: int) -> tuple[_Point, int]:
    """A point that decreases the loss enough and is flat enough (or the best so far after `most` more calls), and the number of calls. Brackets
    narrower than `narrow` are not divided."""
    previous, new = start, evaluate(t)
    for turn in range(most):
        if _too_high(new, start) or (turn > 1 and new.loss >= previous.loss):
            break
        if _flat(new, start):
            return new, turn + 1
        if new.slope >= 0:
            break
        bounds = new.step + 0.01 * (new.step - previous.step), new.step * 10
        previous, new = new, evaluate(_cubic(previous, new, bounds))
    else:
        return (start if start.loss <= new.loss else new), most + 1
    return _zoom(evaluate, start, [previous, new], narrow, turn, most)


def _zoom(
    evaluate: Callable[[float], _Point], start: _Point, bracket: list[_Point], narrow: float, turn: int, most: int
) -> tuple[_Point, int]:
    """Divide a bracket, after `turn` divisions, until one of its ends satisfies the Wolfe conditions; see `_strong_wolfe`."""
    low = 0 if bracket[0].loss <= bracket[1].loss else 1
    stuck = False
    while turn < most and abs(bracket[1].step - bracket[0].step) >= narrow:
        t = _cubic(bracket[0], bracket[1])
        left, right = sorted(point.step for point in bracket)
        margin = 0.1 * (right - left)
        near = min(right - t, t - left) < margin
        if near and (stuck or t >= right or t <= left):  # for the second time at the border of the bracket: move away from it
            t, near = (right - margin if abs(t - right) < abs(t - left) else left + margin), False
        stuck = near
        new = evaluate(t)
        turn += 1
        if _too_high(new, start) or new.loss >= bracket[low].loss:
            bracket[1 - low] = new
            low = 0 if bracket[0].loss <= bracket[1].loss else 1
            continue
        if _flat(new, start):
            bracket[low] = new
            break
        if new.slope * (bracket[1 - low].step - bracket[low].step) >= 0:
            bracket[1 - low] = bracket[low]
        bracket[low] = new
    return bracket[low], turn + 1


def _too_high(new: _Point, start: _Point) -> bool:
    return new.loss > start.loss + DECREASE * new.step * start.slope


def _flat(new: _Point, start: _Point) -> bool:
    return abs(new.slope) <= -CURVATURE * start.slope


def _cubic(a: _Point, b: _Point, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two points with their slopes is smallest, within bounds (of the two points, unless given)."""
    a, b = (a, b) if a.step <= b.step else (b, a)
    low, high = bounds or (a.step, b.step)
    with np.errstate(all="ignore"):  # points that coincide, losses that are infinite: no number, and then a bound
        first = a.slope + b.slope - 3 * np.divide(a.loss - b.loss, a.step - b.step)
        square = first**2 - a.slope * b.slope
        if not square >= 0:
            return (low + high) / 2.0
        second = np.sqrt(square)
        found = b.step - (b.step - a.step) * ((b.slope + second - first) / (b.slope - a.slope + 2 * second))
    return float(min(max(found, low), high))
