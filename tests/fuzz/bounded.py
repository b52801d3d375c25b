"""The oracle of the graph fuzz: NumPy in float64, where every value carries a bound of how far a correct float32 (or float64) computation of it may
be, elementwise and worst case: `c * eps * sum(|terms|)` of every operation, carried through all that follow. Gradients are computed by the same
arithmetic, so they carry bounds too. Where a decision (a maximum, the sign of a number) depends on a value inside its bound, both outcomes are
allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
TINY = {"float32": 2.0**-120, "float64": 2.0**-1000}  # where numbers lose digits on their way to zero


class B:
    """Values `v` and bounds `e` of the same shape; `eps` and `tiny` of the type that computes."""

    __slots__ = ("v", "e", "eps", "tiny")

    def __init__(self, v: Array, e: Array, eps: float, tiny: float) -> None:
        self.v, self.e, self.eps, self.tiny = np.asarray(v, np.float64), np.asarray(e, np.float64), eps, tiny

    def like(self, v: Array, e: Array, terms: Array | None = None, c: float = 2.0) -> B:
        """A result with bound `e` before rounding; `terms`: the sum of the absolute terms, the value itself if not given."""
        size = np.abs(v) if terms is None else terms
        return B(v, e + c * self.eps * (size + e) + self.tiny, self.eps, self.tiny)

    def moved(self, f: Callable[[Array], Array]) -> B:
        """The same elements in another order."""
        return B(f(self.v), f(self.e), self.eps, self.tiny)

    def __add__(self, o: B) -> B:
        return self.like(self.v + o.v, self.e + o.e)

    def __sub__(self, o: B) -> B:
        return self.like(self.v - o.v, self.e + o.e)

    def __mul__(self, o: B) -> B:
        return self.like(self.v * o.v, np.abs(self.v) * o.e + np.abs(o.v) * self.e + self.e * o.e)

    def __truediv__(self, o: B) -> B:
        v = self.v / o.v
        return self.like(v, (self.e + np.abs(v) * o.e) / np.maximum(np.abs(o.v) - o.e, 1e-300))

    def smooth(self, f: Callable[[Array], Array], slope: Array, c: float = 16.0) -> B:
        """A function with |f'| <= slope within the bound of its operand."""
        return self.like(f(self.v), slope * self.e, c=c)

    def sum(self, dims: tuple[int, ...], keepdim: bool) -> B:
        count = int(np.prod([self.v.shape[d] for d in dims], dtype=int))
        total, bound, size = (np.sum(a, axis=dims, keepdims=keepdim) for a in (self.v, self.e, np.abs(self.v)))
        return self.like(total, bound, size, 4 + np.log2(max(count, 1)))

    def __matmul__(self, o: B) -> B:
        a, b = np.abs(self.v), np.abs(o.v)
        return self.like(self.v @ o.v, a @ o.e + self.e @ b + self.e @ o.e, a @ b, self.v.shape[-1] + 2)

    def masked(self, sure: Array, maybe: Array) -> B:
        """Where `sure`, else zero; where `maybe`, anything in between."""
        return B(np.where(sure, self.v, 0.0), np.where(sure, self.e, 0.0) + np.where(maybe, np.abs(self.v) + self.e, 0.0), self.eps, self.tiny)


def unbroadcast(g: B, shape: tuple[int, ...]) -> B:
    """The gradient of an operand that was broadcast."""
    lead = g.v.ndim - len(shape)
    dims = (*range(lead), *(lead + d for d, n in enumerate(shape) if n == 1 and g.v.shape[lead + d] != 1))
    return g.sum(dims, True).moved(lambda a: a.reshape(shape)) if dims else g


class Var:
    """A value of the oracle: bounded floating numbers, or exact integers and truth values. `back(g)` gives the gradients of the parents."""

    __slots__ = ("b", "exact", "dtype", "parents", "back", "grad", "tracked")

    def __init__(self, b: B | None, exact: Array, dtype: str, parents: Sequence[Var] = (), back: Any = None) -> None:
        self.b, self.exact, self.dtype = b, exact, dtype
        self.parents, self.back, self.grad = tuple(parents), back, None
        self.tracked = any(p.tracked for p in parents) and b is not None and back is not None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def value(self) -> Array:
        return self.exact if self.b is None else self.b.v

    @property
    def floating(self) -> bool:
        return self.b is not None


def leaf(array: Array, dtype: str) -> Var:
    """An input."""
    if dtype in EPS:
        return Var(B(array, np.zeros(array.shape), EPS[dtype], TINY[dtype]), None, dtype)
    return Var(None, array, dtype)


def made(b: B, parents: Sequence[Var], back: Any) -> Var:
    return Var(b, None, parents[0].dtype, parents, back)


class Oracle:
    """The operations that graphs are made of, on `Var`s. `tests/fuzz/graphs.py` has the same names for Calque."""

    def add(self, x: Var, y: Var) -> Var:
        return made(x.b + y.b, (x, y), lambda g: (unbroadcast(g, x.shape), unbroadcast(g, y.shape))) if x.b else self._exact(np.add, x, y)

    def sub(self, x: Var, y: Var) -> Var:
        if not x.b:
            return self._exact(np.subtract, x, y)
        return made(x.b - y.b, (x, y), lambda g: (unbroadcast(g, x.shape), unbroadcast(negative(g), y.shape)))

    def mul(self, x: Var, y: Var) -> Var:
        if not x.b:
            return self._exact(np.multiply, x, y)
        return made(x.b * y.b, (x, y), lambda g: (unbroadcast(g * y.b, x.shape), unbroadcast(g * x.b, y.shape)))

    def div(self, x: Var, y: Var) -> Var:
        out = x.b / y.b
        return made(out, (x, y), lambda g: (unbroadcast(g / y.b, x.shape), unbroadcast(negative(g * out / y.b), y.shape)))

    def neg(self, x: Var) -> Var:
        return made(negative(x.b), (x,), lambda g: (negative(g),)) if x.b else self._exact(np.negative, x)

    def abs(self, x: Var) -> Var:
        b = x.b

        def back(g: B) -> tuple[B]:
            return (B(g.v * np.sign(b.v), g.e + 2 * np.where(near(b), np.abs(g.v), 0), g.eps, g.tiny),)

        return made(B(np.abs(b.v), b.e, b.eps, b.tiny), (x,), back)

    def relu(self, x: Var) -> Var:
        b = x.b
        return made(B(np.maximum(b.v, 0), b.e, b.eps, b.tiny), (x,), lambda g: (g.masked(b.v > 0, near(b)),))

    def tanh(self, x: Var) -> Var:
        out = x.b.smooth(np.tanh, 1.0)
        return made(out, (x,), lambda g: (g * (constant(1.0, out) - out * out),))

    def sigmoid(self, x: Var) -> Var:
        out = x.b.smooth(lambda a: 1 / (1 + np.exp(-a)), 0.25)
        return made(out, (x,), lambda g: (g * (out * (constant(1.0, out) - out)),))

    def sin(self, x: Var) -> Var:
        return made(x.b.smooth(np.sin, 1.0), (x,), lambda g: (g * x.b.smooth(np.cos, 1.0),))

    def cos(self, x: Var) -> Var:
        return made(x.b.smooth(np.cos, 1.0), (x,), lambda g: (negative(g * x.b.smooth(np.sin, 1.0)),))

    def exp(self, x: Var) -> Var:
        out = x.b.smooth(np.exp, np.exp(x.b.v + np.minimum(x.b.e, 1.0)))
        return made(out, (x,), lambda g: (g * out,))

    def log(self, x: Var) -> Var:
        b = x.b
        return made(b.smooth(np.log, 1 / np.maximum(b.v - b.e, 1e-3), 32.0), (x,), lambda g: (g / b,))

    def sqrt(self, x: Var) -> Var:
        b = x.b
        out = b.smooth(np.sqrt, 0.5 / np.sqrt(np.maximum(b.v - b.e, 1e-6)), 4.0)
        return made(out, (x,), lambda g: (g / (out + out),))

    def maximum(self, x: Var, y: Var) -> Var:
        return self._choice(x, y, np.maximum, lambda a, b: a > b)

    def minimum(self, x: Var, y: Var) -> Var:
        return self._choice(x, y, np.minimum, lambda a, b: a < b)

    def _choice(self, x: Var, y: Var, f: Any, wins: Any) -> Var:
        if not x.b:
            return self._exact(f, x, y)
        a, b = x.b, y.b
        maybe = np.abs(a.v - b.v) <= a.e + b.e
        out = B(f(a.v, b.v), np.maximum(a.e, b.e) + np.zeros(maybe.shape), a.eps, a.tiny)
        sure = wins(a.v, b.v)
        return made(out, (x, y), lambda g: (unbroadcast(g.masked(sure, maybe), x.shape), unbroadcast(g.masked(~sure, maybe), y.shape)))

    def where(self, c: Var, x: Var, y: Var) -> Var:
        if not x.b:
            return Var(None, np.where(c.exact, x.exact, y.exact), x.dtype)
        out = B(np.where(c.exact, x.b.v, y.b.v), np.where(c.exact, x.b.e, y.b.e), x.b.eps, x.b.tiny)
        mask = np.broadcast_to(c.exact, out.v.shape)
        never = np.zeros(out.v.shape, bool)
        return made(out, (x, y), lambda g: (unbroadcast(g.masked(mask, never), x.shape), unbroadcast(g.masked(~mask, never), y.shape)))

    def compare(self, x: Var, y: Var, name: str) -> Var:
        """Only of exact values."""
        f = {"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal}[name]
        return Var(None, f(x.value, y.value), "bool")

    def logic(self, x: Var, y: Var, name: str) -> Var:
        f = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[name]
        return Var(None, f(x.exact, y.exact), "bool")

    def _exact(self, f: Any, *operands: Var) -> Var:
        return Var(None, np.asarray(f(*(o.exact for o in operands))), operands[0].dtype)

    # ------------------------------------------------------------------------------------------------- reductions

    def sum(self, x: Var, dims: tuple[int, ...], keepdim: bool) -> Var:
        if not x.b:
            return Var(None, np.asarray(np.sum(x.exact.astype(np.int64), axis=dims, keepdims=keepdim)), "int64")
        return made(x.b.sum(dims, keepdim), (x,), lambda g: (spread(g, x.shape, dims, keepdim),))

    def mean(self, x: Var, dims: tuple[int, ...], keepdim: bool) -> Var:
        count = constant(float(max(1, np.prod([x.shape[d] for d in dims], dtype=int))), x.b)
        return made(x.b.sum(dims, keepdim) / count, (x,), lambda g: (spread(g / count, x.shape, dims, keepdim),))

    def amax(self, x: Var, dims: tuple[int, ...], keepdim: bool) -> Var:
        return self._extreme(x, dims, keepdim, 1.0)

    def amin(self, x: Var, dims: tuple[int, ...], keepdim: bool) -> Var:
        return self._extreme(x, dims, keepdim, -1.0)

    def _extreme(self, x: Var, dims: tuple[int, ...], keepdim: bool, sign: float) -> Var:
        f = np.max if sign > 0 else np.min
        if not x.b:
            return Var(None, np.asarray(f(x.exact, axis=dims, keepdims=keepdim)), x.dtype)
        b = x.b
        best = f(b.v, axis=dims, keepdims=True)
        bound = np.max(b.e, axis=dims, keepdims=True)
        out = B(best, bound, b.eps, b.tiny).moved(lambda a: a if keepdim else np.squeeze(a, axis=dims))
        sure = b.v == best
        rivals = sign * (best - b.v) <= 2 * bound
        maybe = rivals & (np.sum(rivals, axis=dims, keepdims=True) > 1)
        return made(out, (x,), lambda g: (spread(g, x.shape, dims, keepdim).masked(sure, maybe),))

    def argmax(self, x: Var, dim: int) -> Var:
        """Only of exact values."""
        return Var(None, np.asarray(np.argmax(x.value, axis=dim)).astype(np.int64), "int64")

    def matmul(self, x: Var, y: Var) -> Var:
        return made(
            x.b @ y.b, (x, y),
            lambda g: (unbroadcast(g @ turned(y.b), x.shape), unbroadcast(turned(x.b) @ g, y.shape)),
        )  # fmt: skip

    # --------------------------------------------------------------------------------------------------- movement

    def _moved(self, x: Var, f: Callable[[Array], Array]) -> Var:
        """Elements of x in other places, each any number of times; the gradient adds what went to several."""
        if not x.b:
            return Var(None, np.asarray(f(x.exact)), x.dtype)
        where = f(np.arange(x.value.size).reshape(x.shape))

        def back(g: B) -> tuple[B]:
            total, bound, size, count = (np.zeros(x.value.size) for _ in range(4))
            for to, what in ((total, g.v), (bound, g.e), (size, np.abs(g.v)), (count, np.ones(g.v.shape))):
                np.add.at(to, where.reshape(-1), what.reshape(-1))
            c = np.where(count > 1, 4 + np.log2(np.maximum(count, 1)), 0.0)
            return (B(total.reshape(x.shape), (bound + c * g.eps * (size + bound)).reshape(x.shape), g.eps, g.tiny),)

        return made(x.b.moved(f), (x,), back)

    def reshape(self, x: Var, shape: tuple[int, ...]) -> Var:
        return self._moved(x, lambda a: a.reshape(shape))

    def permute(self, x: Var, order: tuple[int, ...]) -> Var:
        return self._moved(x, lambda a: a.transpose(order))

    def expand(self, x: Var, shape: tuple[int, ...]) -> Var:
        return self._moved(x, lambda a: np.broadcast_to(a, shape))

    def cut(self, x: Var, slices: tuple[slice, ...]) -> Var:
        return self._moved(x, lambda a: a[slices])

    def flip(self, x: Var, dim: int) -> Var:
        return self._moved(x, lambda a: np.flip(a, dim))

    def index_select(self, x: Var, dim: int, index: tuple[int, ...]) -> Var:
        return self._moved(x, lambda a: np.take(a, list(index), axis=dim))

    def put(self, x: Var, slices: tuple[slice, ...], y: Var) -> Var:
        """A copy of x with y written to a part of it."""

        def written(a: Array, b: Array) -> Array:
            copy = a.copy()
            copy[slices] = b
            return copy

        if not x.b:
            return Var(None, written(x.exact, y.exact), x.dtype)
        out = B(written(x.b.v, y.b.v), written(x.b.e, y.b.e), x.b.eps, x.b.tiny)
        return made(out, (x, y), lambda g: (g.moved(lambda a: written(a, np.zeros(()))), unbroadcast(g.moved(lambda a: a[slices]), y.shape)))

    def cat(self, parts: Sequence[Var], dim: int) -> Var:
        if not parts[0].b:
            return Var(None, np.concatenate([p.exact for p in parts], dim), parts[0].dtype)
        out = B(*(np.concatenate([getattr(p.b, k) for p in parts], dim) for k in "ve"), parts[0].b.eps, parts[0].b.tiny)
        ends = np.cumsum([p.shape[dim] for p in parts])[:-1]

        def back(g: B) -> tuple[B, ...]:
            pieces = zip(np.split(g.v, ends, dim), np.split(g.e, ends, dim), strict=True)
            return tuple(B(v, e, g.eps, g.tiny) for v, e in pieces)

        return made(out, parts, back)

    def cast(self, x: Var, dtype: str) -> Var:
        if dtype not in EPS:
            return Var(None, x.exact.astype({"bool": bool}.get(dtype, dtype)), dtype)
        if not x.b:
            return leaf(x.exact.astype(np.float64), dtype)
        wide, own = x.b, x.dtype
        out = B(wide.v, wide.e + (EPS[dtype] * np.abs(wide.v) if dtype == "float32" else 0.0), EPS[dtype], TINY[dtype])

        def back(g: B) -> tuple[B]:
            return (B(g.v, g.e + (EPS[own] * np.abs(g.v) if own == "float32" else 0.0), EPS[own], TINY[own]),)

        return Var(out, None, dtype, (x,), back)


def negative(b: B) -> B:
    return B(-b.v, b.e, b.eps, b.tiny)


def constant(value: float, like: B) -> B:
    return B(np.asarray(value), np.asarray(0.0), like.eps, like.tiny)


def near(b: B) -> Array:
    """Where the sign of a number is open."""
    return np.abs(b.v) <= b.e


def turned(b: B) -> B:
    return b.moved(lambda a: a.swapaxes(-1, -2))


def spread(g: B, shape: tuple[int, ...], dims: tuple[int, ...], keepdim: bool) -> B:
    """The gradient of a sum, at every term."""
    return g.moved(lambda a: np.broadcast_to(a if keepdim else np.expand_dims(a, dims), shape))


def gradients(outputs: Sequence[tuple[Var, Array]], leaves: Sequence[Var]) -> list[B | None]:
    """Gradients of sum(output * weight) by the leaves, None where nothing depends on one."""
    order: list[Var] = []
    seen: set[int] = set()

    def visit(v: Var) -> None:
        if id(v) not in seen and v.tracked:
            seen.add(id(v))
            for p in v.parents:
                visit(p)
            order.append(v)

    grads: dict[int, list[B]] = {}

    def give(v: Var, g: B) -> None:
        if v.tracked and v.b is not None:
            grads.setdefault(id(v), []).append(g)

    def total(v: Var) -> B | None:
        """The sum of what came, in any order: terms that cancel leave their rounding behind."""
        parts = grads.get(id(v))
        if parts is None or len(parts) == 1:
            return parts[0] if parts else None
        value, bound, size = (sum(a) for a in zip(*((p.v, p.e, np.abs(p.v)) for p in parts), strict=True))
        return parts[0].like(value, bound, size, 2.0 * len(parts))

    for v, _ in outputs:
        visit(v)
    for v, weight in outputs:
        assert v.b is not None
        give(v, B(weight, np.zeros(weight.shape), v.b.eps, v.b.tiny))
    for v in reversed(order):
        found = total(v)
        if found is not None and v.back is not None:
            for p, g in zip(v.parents, v.back(found), strict=True):
                give(p, g)
    return [total(v) for v in leaves]
