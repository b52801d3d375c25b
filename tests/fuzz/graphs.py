"""Random typed graphs: a list of calls that the float64 oracle and Calque both run.

Every step depends on (seed, number of the step) and on shapes, types and oracle values alone, so a step can be left out, which is how failures
are made smaller. Types are float32, float64, int64, int32 and bool; shapes include empty and 0-d ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

import calque
from tests.fuzz.bounded import EPS, B, Oracle, Var, gradients, leaf

Call = tuple[str, tuple[Any, ...]]  # operation, operands (`Ref`) and static arguments
SHAPES = ((4, 6), (6,), (2, 3, 4), (1, 6), (4, 1), (), (24,), (3, 1, 2), (8, 3), (1,), (2, 2, 3, 2), (0,), (3, 0, 2), (17, 33), (70,), (5, 40))
DTYPES = ("float32", "float32", "float32", "float64", "int64", "int32", "bool")
LIMIT = 1500  # elements
LARGEST = 1e4


class Ref(int):
    """The number of an earlier value among the arguments of a call."""


def substitute(argument: Any, values: Sequence[Any]) -> Any:
    """The argument with its references replaced."""
    if isinstance(argument, Ref):
        return values[argument]
    if isinstance(argument, list):
        return [substitute(a, values) for a in argument]
    return argument


class Graph:
    """A random program with its expected values. `calls[i]` computes value i; `outputs` are value numbers."""

    def __init__(self, seed: int, steps: int, skip: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self.oracle = Oracle()
        self.calls: list[Call] = []
        self.values: list[Var] = []
        self.inputs: dict[int, np.ndarray] = {}
        self.leaves: list[int] = []
        self.rng = np.random.default_rng([seed, 1 << 20])
        for _ in range(3):
            self.input(self.choose(DTYPES[:4]))
        for step in range(steps):
            self.rng = np.random.default_rng([seed, step])
            if step in skip:
                continue
            for _ in range(4):
                before = len(self.values)
                getattr(self, "do_" + self.choose(NAMES))()
                if len(self.values) > before:
                    break
        self.rng = np.random.default_rng([seed, 1 << 21])
        chosen = {len(self.values) - 1, *(self.draw(len(self.values)) for _ in range(4))}
        self.outputs = sorted(chosen)
        roots = [n for n in self.outputs if self.values[n].tracked]
        self.roots = [(n, self.rng.standard_normal(self.values[n].shape).astype(np.float32).astype(np.float64)) for n in roots]
        self.gradients = gradients([(self.values[n], w) for n, w in self.roots], [self.values[n] for n in self.leaves])

    # ------------------------------------------------------------------------------------------------------ drawing

    def draw(self, bound: int) -> int:
        return int(self.rng.integers(bound))

    def choose(self, items: Sequence[Any]) -> Any:
        return items[self.draw(len(items))]

    def pick(self, fits: Callable[[Var], bool] = lambda v: True) -> Ref | None:
        found = [k for k, v in enumerate(self.values) if fits(v)]
        if not found:
            return None
        return Ref(self.choose(found[-6:] if self.rng.random() < 0.6 else found))

    def input(self, dtype: str, shape: tuple[int, ...] | None = None) -> Ref:
        shape = self.choose(SHAPES) if shape is None else shape
        if dtype == "bool":
            array = self.rng.random(shape) < 0.5
        elif dtype in EPS:
            array = np.round(self.rng.standard_normal(shape) * 64) / 64  # exact in both types, with ties and zeros
        else:
            array = self.rng.integers(-9, 10, shape).astype(dtype)
        value = leaf(np.asarray(array), dtype)
        if dtype in EPS and self.rng.random() < 0.7:
            value.tracked = True
            self.leaves.append(len(self.values))
        self.inputs[len(self.values)] = np.asarray(array, dtype if dtype != "bool" else bool)
        self.calls.append(("input", ()))
        self.values.append(value)
        return Ref(len(self.values) - 1)

    def call(self, name: str, *arguments: Any) -> Ref | None:
        """Add a call, unless its values leave the range where bounds mean something."""
        with np.errstate(all="ignore"):
            value = getattr(self.oracle, name)(*(substitute(a, self.values) for a in arguments))
        if value.value.size > LIMIT:
            return None
        if value.value.size and not (np.isfinite(value.value.astype(np.float64)).all() and float(np.abs(value.value).max()) < LARGEST):
            return None
        if value.b is not None and value.value.size and float(value.b.e.max()) > 0.05:
            return None
        self.calls.append((name, arguments))
        self.values.append(value)
        return Ref(len(self.values) - 1)

    def at(self, ref: Ref) -> Var:
        return self.values[ref]

    def partner(self, x: Ref) -> Ref | None:
        shape, dtype = self.at(x).shape, self.at(x).dtype

        def fits(v: Var) -> bool:
            matched = all(a == b or 1 in (a, b) for a, b in zip(reversed(shape), reversed(v.shape), strict=False))
            return v.dtype == dtype and matched and prod(np.broadcast_shapes(shape, v.shape)) <= LIMIT

        return self.pick(fits)

    # --------------------------------------------------------------------------------------------------- operations

    def do_input(self) -> None:
        self.input(self.choose(DTYPES))

    def do_unary(self) -> None:
        x = self.pick(lambda v: v.floating)
        if x is None:
            return
        name = self.choose(("neg", "abs", "relu", "tanh", "sigmoid", "sin", "cos", "exp", "log", "sqrt"))
        if name == "exp":
            x = self.call("tanh", x)
        elif name in ("log", "sqrt"):
            squared = self.call("mul", x, x)
            half = self.input(self.at(x).dtype, ())
            shift = self.call("exp", half) if squared is not None and abs(float(self.at(half).value)) < 1.5 else None
            x = None if squared is None or shift is None else self.call("add", squared, shift)
        if x is not None:
            self.call(name, x)

    def do_binary(self) -> None:
        x = self.pick(lambda v: v.dtype != "bool")
        y = None if x is None else self.partner(x)
        if x is not None and y is not None:
            self.call(self.choose(("add", "sub", "mul", "mul", "maximum", "minimum")), x, y)

    def do_div(self) -> None:
        x = self.pick(lambda v: v.floating)
        y = None if x is None else self.partner(x)
        if x is None or y is None:
            return
        below = self.call("cos", y)
        offset = None if below is None else self.call("exp", below)  # between 1/e and e
        if offset is not None:
            self.call("div", x, offset)

    def do_compare(self) -> None:
        x = self.pick(lambda v: v.dtype != "bool" and (v.b is None or not v.b.e.any()))
        y = None if x is None else self.partner(x)
        if x is not None and y is not None and (self.at(y).b is None or not self.at(y).b.e.any()):
            self.call("compare", x, y, self.choose(("lt", "le", "eq", "ne")))

    def do_logic(self) -> None:
        x = self.pick(lambda v: v.dtype == "bool")
        y = None if x is None else self.partner(x)
        if x is not None and y is not None:
            self.call("logic", x, y, self.choose(("and", "or", "xor")))

    def do_where(self) -> None:
        c, x = self.pick(lambda v: v.dtype == "bool"), self.pick(lambda v: v.dtype != "bool")
        y = None if x is None else self.partner(x)
        if c is None or x is None or y is None:
            return
        shapes = [self.at(r).shape for r in (c, x, y)]
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            return
        self.call("where", c, x, y)

    def dims(self, v: Var) -> tuple[int, ...]:
        return tuple(d for d in range(len(v.shape)) if self.rng.random() < 0.6)

    def do_reduce(self) -> None:
        name = self.choose(("sum", "sum", "mean", "amax", "amin"))
        wanted = (lambda v: v.floating) if name == "mean" else (lambda v: v.dtype != "bool")
        x = self.pick(lambda v: wanted(v) and v.value.ndim > 0 and (name == "sum" or v.value.size > 0))
        if x is None:
            return
        dims = self.dims(self.at(x)) or (0,)
        self.call(name, x, dims, bool(self.rng.random() < 0.5))

    def do_argmax(self) -> None:
        x = self.pick(lambda v: v.value.ndim > 0 and v.value.size > 0 and v.dtype != "bool" and (v.b is None or not v.b.e.any()))
        if x is not None:
            self.call("argmax", x, self.draw(self.at(x).value.ndim))

    def do_softmax(self) -> None:
        x = self.pick(lambda v: v.floating and v.value.ndim > 0 and v.value.size > 0 and float(np.abs(v.value).max()) < 20)
        if x is None:
            return
        dims = (self.at(x).value.ndim - 1,)
        top = self.call("amax", x, dims, True)
        e = None if top is None else self.call("sub", x, top)
        e = None if e is None else self.call("exp", e)
        total = None if e is None else self.call("sum", e, dims, True)
        if total is not None:
            self.call("div", e, total)

    def do_matmul(self) -> None:
        x = self.pick(lambda v: v.floating and v.value.ndim >= 2)
        if x is None:
            return
        v = self.at(x)
        y = self.pick(lambda o: o.dtype == v.dtype and o.value.ndim == 2 and o.shape[0] == v.shape[-1])
        self.call("matmul", x, self.input(v.dtype, (v.shape[-1], self.choose((1, 3, 20)))) if y is None else y)

    def do_reshape(self) -> None:
        x = self.pick()
        if x is not None:
            size = self.at(x).value.size
            options = [s for s in SHAPES if prod(s) == size] + [(size,), (1, size), (size, 1)]
            self.call("reshape", x, self.choose(options))

    def do_permute(self) -> None:
        x = self.pick(lambda v: v.value.ndim > 1)
        if x is not None:
            self.call("permute", x, tuple(int(d) for d in self.rng.permutation(self.at(x).value.ndim)))

    def do_expand(self) -> None:
        x = self.pick(lambda v: v.value.size <= 200)
        if x is not None:
            shape = tuple(self.choose((1, 2, 5)) if n == 1 else n for n in self.at(x).shape)
            self.call("expand", x, (self.choose((1, 3)), *shape) if self.rng.random() < 0.5 else shape)

    def slices(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        found = []
        for n in shape:
            start = self.draw(n + 1)
            stop = start + self.draw(n - start + 1)
            found.append(slice(start, stop, self.choose((1, 1, 2))) if self.rng.random() < 0.6 else slice(0, n, 1))
        return tuple(found)

    def do_cut(self) -> None:
        x = self.pick(lambda v: v.value.ndim > 0)
        if x is not None:
            self.call("cut", x, self.slices(self.at(x).shape))

    def do_flip(self) -> None:
        x = self.pick(lambda v: v.value.ndim > 0)
        if x is not None:
            self.call("flip", x, self.draw(self.at(x).value.ndim))

    def do_select(self) -> None:
        x = self.pick(lambda v: v.value.ndim > 0 and 0 not in v.shape)
        if x is not None:
            dim = self.draw(self.at(x).value.ndim)
            self.call("index_select", x, dim, tuple(self.draw(self.at(x).shape[dim]) for _ in range(self.choose((0, 1, 3, 5)))))

    def do_put(self) -> None:
        x = self.pick(lambda v: v.value.ndim > 0)
        if x is None:
            return
        slices = self.slices(self.at(x).shape)
        shape = self.at(x).value[slices].shape
        y = self.pick(lambda v: v.dtype == self.at(x).dtype and v.shape in (shape, ()))
        self.call("put", x, slices, self.input(self.at(x).dtype, shape) if y is None else y)

    def do_cat(self) -> None:
        x = self.pick(lambda v: v.value.ndim > 0)
        if x is None:
            return
        v = self.at(x)
        dim = self.draw(v.value.ndim)

        def fits(o: Var) -> bool:
            same = o.dtype == v.dtype and len(o.shape) == len(v.shape)
            return same and all(a == b or d == dim for d, (a, b) in enumerate(zip(o.shape, v.shape, strict=True)))

        y = self.pick(fits)
        if y is not None:
            self.call("cat", [x, y] if self.rng.random() < 0.7 else [x, y, x], dim)

    def do_cast(self) -> None:
        x = self.pick()
        if x is not None:
            self.call("cast", x, self.choose(("float32", "float64") if self.at(x).floating else ("float32", "float64", "int64", "int32")))

    def describe(self) -> str:
        """The program in words."""
        calls = [f"{name}({', '.join(_shown(a) for a in arguments)})" for name, arguments in self.calls]
        lines = [f"v{k} = {text}  # {v.dtype} {v.shape}" for k, (text, v) in enumerate(zip(calls, self.values, strict=True))]
        return "\n  ".join([*lines, f"outputs {self.outputs}, gradients of {[n for n, _ in self.roots]} by {self.leaves}"])


def _shown(argument: Any) -> str:
    if isinstance(argument, list):
        return f"[{', '.join(_shown(a) for a in argument)}]"
    return f"v{int(argument)}" if isinstance(argument, Ref) else repr(argument)


NAMES = (
    "input", "unary", "unary", "binary", "binary", "binary", "div", "compare", "logic", "where", "reduce", "reduce", "argmax", "softmax", "matmul",
    "reshape", "permute", "expand", "cut", "cut", "flip", "select", "put", "cat", "cast",
)  # fmt: skip


class Device:
    """The same operations by Calque."""

    def __getattr__(self, name: str) -> Any:
        return getattr(calque, name)

    def compare(self, x: Any, y: Any, name: str) -> Any:
        return getattr(calque, name)(x, y)

    def logic(self, x: Any, y: Any, name: str) -> Any:
        return getattr(calque, f"logical_{name}")(x, y)

    def argmax(self, x: Any, dim: int) -> Any:
        return x.argmax(dim)

    def mean(self, x: Any, dims: tuple[int, ...], keepdim: bool) -> Any:
        return x.mean(dims, keepdim)

    def sum(self, x: Any, dims: tuple[int, ...], keepdim: bool) -> Any:
        return x.sum(dims, keepdim)

    def reshape(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.reshape(shape)

    def permute(self, x: Any, order: tuple[int, ...]) -> Any:
        return x.permute(*order)

    def expand(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.expand(*shape)

    def cut(self, x: Any, slices: tuple[slice, ...]) -> Any:
        return x[slices]

    def flip(self, x: Any, dim: int) -> Any:
        return x.flip(dim)

    def index_select(self, x: Any, dim: int, index: tuple[int, ...]) -> Any:
        return calque.index_select(x, dim, calque.tensor(list(index), dtype=calque.int64))

    def put(self, x: Any, slices: tuple[slice, ...], y: Any) -> Any:
        copy = x.clone()
        copy[slices] = y
        return copy

    def cat(self, parts: list[Any], dim: int) -> Any:
        return calque.cat(parts, dim)

    def cast(self, x: Any, dtype: str) -> Any:
        return x.to(getattr(calque, dtype))


class Found:
    """What Calque computed: outputs and gradients as arrays."""

    def __init__(self, graph: Graph) -> None:
        device, values = Device(), []
        for k, (name, arguments) in enumerate(graph.calls):
            if name == "input":
                value = calque.tensor(graph.inputs[k])
                values.append(value.requires_grad_() if k in graph.leaves else value)
            else:
                values.append(getattr(device, name)(*(substitute(a, values) for a in arguments)))
        self.outputs = [values[n] for n in graph.outputs]
        self.gradients: list[Any] = [None] * len(graph.leaves)
        roots = [values[n] for n, _ in graph.roots]
        if roots and graph.leaves:
            weights = [calque.tensor(w).to(v.dtype) for v, (_, w) in zip(roots, graph.roots, strict=True)]
            self.gradients = list(calque.autograd.grad(roots, [values[n] for n in graph.leaves], weights, allow_unused=True))
        self.arrays = [v.detach().numpy().copy() for v in self.outputs]
        self.slopes = [None if g is None else g.numpy().copy() for g in self.gradients]

    def bits(self) -> list[bytes]:
        """For comparisons of runs that must agree exactly."""
        return [a.tobytes() for a in [*self.arrays, *(g for g in self.slopes if g is not None)]]


def wrong(graph: Graph, found: Found) -> str:
    """"" if everything lies within its bound."""
    for n, array in zip(graph.outputs, found.arrays, strict=True):
        v = graph.values[n]
        if tuple(array.shape) != v.shape or str(array.dtype) != v.dtype:
            return f"v{n}: {array.dtype} {array.shape} instead of {v.dtype} {v.shape}"
        if v.b is None and not np.array_equal(array, v.exact):
            return f"v{n}: {array.tolist()} instead of {v.exact.tolist()}"
        if v.b is not None and (text := outside(array, v.b)):
            return f"v{n}: {text}"
    for n, expected, array in zip(graph.leaves, graph.gradients, found.slopes, strict=True):
        size = graph.values[n].value.size
        if expected is None and array is not None and array.any():
            return f"gradient of v{n}: {array.tolist()} instead of nothing"
        if expected is not None and size and (array is None or (text := outside(array, expected))):
            return f"gradient of v{n}: {'missing' if array is None else text}"
    return ""


def outside(array: np.ndarray, b: B) -> str:
    """"" if every element is within its bound."""
    off = np.abs(array.astype(np.float64) - b.v)
    bad = ~(off <= b.e)
    if not bad.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{array[place]!r} at {place}, expected {b.v[place]!r} within {b.e[place]:.3g} ({int(bad.sum())} of {array.size} elements)"
