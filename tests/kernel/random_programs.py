"""Random valid programs over all kinds of primitives, as a hypothesis strategy and as a seeded function."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from calque.base.dtypes import DType, bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from calque.ir.program import Program
from tests.kernel.programs import Build, dense, index_array, random_array

SHAPES = ((4, 6), (6,), (2, 3, 4), (1, 6), (4, 1), (), (24,), (3, 1, 2), (8, 3))
UNARY = ("neg", "abs", "exp", "tanh", "sqrt", "relu", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


class Generator:
    """Grows a program by random steps. Floating values stay moderate so that comparisons mean something."""

    def __init__(
        self, seed: int, steps: int, dtypes: tuple[DType, ...], shapes: tuple[tuple[int, ...], ...] = SHAPES, data: Any = None, scale: int = 1
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.shapes = shapes
        self.scale = scale  # of the sizes up to which values take part in what makes large ones
        self.data = data or self.rng  # what draws values
        self.b = Build()
        self.arrays: list[Any] = []
        self.scalars: list[Any] = []
        self.values: list[int] = []
        self.indices: list[tuple[int, int]] = []
        self.dtypes = dtypes
        for _ in range(int(self.rng.integers(1, 4))):
            self.new_input()
        for _ in range(steps):
            kinds = (
                "unary", "binary", "binary", "binary", "reduce", "view", "view", "update", "matmul", "cat", "select", "gather",
                "put", "cast", "where", "full", "scalar", "input", "normalise", "view_at", "scan", "update_add",
            )  # fmt: skip
            getattr(self, kinds[int(self.rng.integers(len(kinds)))])()

    def pick(self, *, among: Any = None) -> int:
        pool = [v for v in self.values if among is None or among(self.b.nodes[v])]
        if not pool:
            return -1
        recent = pool[-6:] if self.rng.random() < 0.6 else pool
        return recent[int(self.rng.integers(len(recent)))]

    def keep(self, value: int) -> int:
        self.values.append(value)
        return value

    def new_input(self, shape: Any = None, dtype: Any = None) -> int:
        shape = self.shapes[int(self.rng.integers(len(self.shapes)))] if shape is None else shape
        dtype = dtype or self.dtypes[int(self.rng.integers(len(self.dtypes)))]
        self.arrays.append(random_array(self.data, shape, dtype))
        return self.keep(self.b.input(shape, dtype))

    def as_dtype(self, x: int, dtype: DType) -> int:
        return x if self.b.nodes[x].dtype is dtype else self.b.cast(x, attrs=(dtype,))

    def input(self) -> None:
        self.new_input()

    def unary(self) -> None:
        x = self.pick(among=lambda n: n.dtype.category == 2)
        if x < 0:
            return
        name = UNARY[int(self.rng.integers(len(UNARY)))]
        if name == "exp":
            x = self.b.tanh(x)
        if name == "sqrt":
            x = self.b.abs(x)
        self.keep(self.b.add(name, x))

    def partner(self, x: int) -> int:
        n = self.b.nodes[x]

        def fits(o: Any) -> bool:
            for a, c in zip(reversed(n.shape), reversed(o.shape)):
                if a != c and 1 not in (a, c):
                    return False
            return o.dtype is n.dtype and prod(np.broadcast_shapes(n.shape, o.shape)) <= 500 * self.scale

        found = self.pick(among=fits)
        return found if found >= 0 else x

    def binary(self) -> None:
        x = self.pick(among=lambda n: n.dtype.category > 0)
        if x < 0:
            return
        y = self.partner(x)
        name = BINARY[int(self.rng.integers(len(BINARY)))]
        if name == "mul" and self.b.nodes[x].dtype.category == 2:
            x = self.b.tanh(x)
        self.keep(self.b.add(name, x, y))

    def reduce(self) -> None:
        x = self.pick(among=lambda n: n.dtype.category > 0)
        if x < 0:
            return
        n = self.b.nodes[x]
        dims = tuple(d for d in range(len(n.shape)) if self.rng.random() < 0.5)
        name = ("sum", "amax", "amin", "argmax", "argmin", "sum")[int(self.rng.integers(6))]
        if 0 in n.shape:
            return
        self.keep(self.b.add(name, x, attrs=(dims, bool(self.rng.random() < 0.5))))

    def random_view(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        strides, offset = list(dense(shape)), 0
        shape_ = list(shape)
        kind = int(self.rng.integers(6))
        if kind == 0:
            order = self.rng.permutation(len(shape))
            return tuple(shape_[d] for d in order), tuple(strides[d] for d in order), 0
        if kind == 1 and shape:
            d = int(self.rng.integers(len(shape)))
            start = int(self.rng.integers(shape[d] + 1)) if shape[d] else 0
            stop = int(self.rng.integers(start, shape[d] + 1))
            if stop == start:
                return tuple(shape), tuple(strides), 0
            offset = start * strides[d]
            shape_[d] = stop - start
            return tuple(shape_), tuple(strides), offset
        if kind == 2:
            size = prod(shape)
            options = [s for s in self.shapes if prod(s) == size] + [(size,), (1, size)]
            new = options[int(self.rng.integers(len(options)))]
            return new, dense(new), 0
        if kind == 3 and shape:
            d = int(self.rng.integers(len(shape)))
            turned = tuple(-s if k == d else s for k, s in enumerate(strides))
            return tuple(shape_), turned, (shape[d] - 1) * strides[d] if shape[d] else 0
        if kind == 4 and shape:
            d = int(self.rng.integers(len(shape)))
            return (*shape_[:d], -(-shape[d] // 2), *shape_[d + 1 :]), (*strides[:d], strides[d] * 2, *strides[d + 1 :]), 0
        return (2, *shape_), (0, *strides), 0

    def view(self) -> None:
        x = self.pick(among=lambda n: n.numel <= 200 * self.scale)
        if x >= 0:
            shape, strides, offset = self.random_view(self.b.shape(x))
            if 0 not in self.b.shape(x):
                self.keep(self.b.view(x, shape, strides, offset))

    def view_at(self) -> None:
        x = self.pick(among=lambda n: len(n.shape) >= 1 and n.shape[0] > 1)
        if x < 0:
            return
        shape, strides = self.b.shape(x), dense(self.b.shape(x))
        self.scalars.append(int(self.rng.integers(shape[0])) * strides[0])
        at = self.b.scalar(int64)
        row = self.b.add("view_at", x, at, attrs=(shape[1:], strides[1:]))
        self.keep(row)
        if self.rng.random() < 0.5:
            self.keep(self.b.add("update_at", x, row, at, attrs=(shape[1:], strides[1:])))

    def update(self) -> None:
        base = self.pick(among=lambda n: 0 not in n.shape)
        if base < 0:
            return
        shape, strides, offset = self.random_view(self.b.shape(base))
        if 0 in strides and any(s == 0 and e > 1 for s, e in zip(strides, shape)):
            return
        dtype = self.b.nodes[base].dtype
        value = self.pick(among=lambda n: n.shape == tuple(shape) and n.dtype is dtype)
        if value < 0:
            value = self.new_input(tuple(shape), dtype)
        self.keep(self.b.update(base, value, strides, offset))

    def update_add(self) -> None:
        base = self.pick(among=lambda n: len(n.shape) == 1 and n.shape[0] >= 6 and n.dtype in (float32, float64, int64))
        if base < 0:
            return
        size, dtype = self.b.shape(base)[0], self.b.nodes[base].dtype
        value = self.new_input((size // 2 - 1, 3), dtype)
        self.keep(self.b.add("update_add", base, value, attrs=((size // 2 - 1, 3), (2, 1), 0)))

    def matmul(self) -> None:
        a = self.pick(among=lambda n: len(n.shape) >= 2 and n.dtype.category == 2 and 0 not in n.shape)
        if a < 0:
            return
        k = self.b.shape(a)[-1]
        dtype = self.b.nodes[a].dtype
        c = self.pick(among=lambda n: len(n.shape) >= 2 and n.shape[-2] == k and n.dtype is dtype and n.numel < 100 * self.scale)
        if c < 0 or (len(self.b.shape(a)) > 2 and len(self.b.shape(c)) > 2 and self.b.shape(a)[:-2] != self.b.shape(c)[:-2]):
            c = self.b.transpose(self.new_input((3, k), dtype), 1, 0)
        self.keep(self.b.tanh(self.b.matmul(a, c)))

    def cat(self) -> None:
        x = self.pick(among=lambda n: len(n.shape) >= 1 and n.numel < 100 * self.scale)
        if x < 0:
            return
        n = self.b.nodes[x]
        y = self.pick(among=lambda o: o.shape == n.shape and o.dtype is n.dtype)
        dim = int(self.rng.integers(len(n.shape)))
        self.keep(self.b.cat(x, y, x if self.rng.random() < 0.3 else y, attrs=(dim,)))

    def index_for(self, shape: tuple[int, ...], size: int) -> int:
        self.arrays.append(index_array(self.data, shape, size))
        return self.b.input(shape, int64)

    def select(self) -> None:
        x = self.pick(among=lambda n: len(n.shape) >= 1 and 0 not in n.shape and n.numel < 100 * self.scale)
        if x < 0:
            return
        shape = self.b.shape(x)
        dim = int(self.rng.integers(len(shape)))
        i = self.index_for(((3,), (2, 2), ())[int(self.rng.integers(3))], shape[dim])
        self.keep(self.b.index_select(x, i, attrs=(dim,)))

    def gather(self) -> None:
        x = self.pick(among=lambda n: len(n.shape) >= 1 and 0 not in n.shape)
        if x < 0:
            return
        shape = self.b.shape(x)
        dim = int(self.rng.integers(len(shape)))
        self.keep(self.b.gather(x, self.index_for((*shape[:dim], 2, *shape[dim + 1 :]), shape[dim]), attrs=(dim,)))

    def put(self) -> None:
        x = self.pick(among=lambda n: len(n.shape) >= 1 and 0 not in n.shape and n.dtype.itemsize > 2)
        if x < 0:
            return
        shape, dtype = self.b.shape(x), self.b.nodes[x].dtype
        dim = int(self.rng.integers(len(shape)))
        name = ("index_put", "index_add", "scatter", "scatter_add")[int(self.rng.integers(4))]
        wanted = (*shape[:dim], 3, *shape[dim + 1 :])
        i = self.index_for((3,) if name.startswith("index") else wanted, shape[dim])
        source = self.pick(among=lambda n: n.shape == wanted and n.dtype is dtype)
        if source < 0:
            source = self.new_input(wanted, dtype)
        self.keep(self.b.add(name, x, i, source, attrs=(dim,)))

    def cast(self) -> None:
        x = self.pick()
        options = (float32, float64, int64, int32, bool_, float16, bfloat16)
        dtype = options[int(self.rng.integers(len(options)))]
        if dtype is uint8:
            return
        self.keep(self.as_dtype(x, dtype))

    def where(self) -> None:
        x = self.pick(among=lambda n: n.dtype.category > 0)
        if x < 0:
            return
        y = self.partner(x)
        self.keep(self.b.where(self.b.lt(x, y), x, y))

    def full(self) -> None:
        dtype = self.dtypes[int(self.rng.integers(len(self.dtypes)))]
        shape = self.shapes[int(self.rng.integers(len(self.shapes)))]
        if self.rng.random() < 0.5:
            self.keep(self.b.full(self.b.constant(2, dtype), attrs=(shape,)))
        else:
            self.keep(self.b.iota(attrs=(shape, dtype)))

    def scalar(self) -> None:
        x = self.pick(among=lambda n: n.dtype.category > 0)
        if x >= 0:
            self.scalars.append(2)
            self.keep(self.b.add("mul", x, self.b.scalar(self.b.nodes[x].dtype)))

    def normalise(self) -> None:
        x = self.pick(among=lambda n: n.dtype.category == 2 and len(n.shape) >= 1 and 0 not in n.shape)
        if x < 0:
            return
        dims = (len(self.b.shape(x)) - 1,)
        centred = self.b.sub(x, self.b.amax(x, attrs=(dims, True)))
        e = self.b.exp(centred)
        self.keep(self.b.div(e, self.b.sum(e, attrs=(dims, True))))

    def scan(self) -> None:
        x = self.pick(among=lambda n: len(n.shape) >= 1 and n.numel < 100 * self.scale and n.dtype in (float32, float64, int64))
        if x >= 0 and self.rng.random() < 0.5:
            self.keep(self.b.cumsum(x, attrs=(len(self.b.shape(x)) - 1,)))

    def checks(self) -> tuple[int, ...]:
        """Up to two values that must be -1, and are, found from whatever integers there are. Of one integer it is a view, of several a reduction."""
        found = []
        for _ in range(int(self.rng.integers(3))):
            x = self.pick(among=lambda n: n.dtype is int64 and 0 not in n.shape)
            if x < 0:
                break
            shape, least = self.b.shape(x), self.b.constant(-1, int64)
            bad = self.b.lt(self.b.maximum(x, least), least)
            at = self.b.where(bad, self.b.iota(attrs=(shape, int64)), self.b.full(least, attrs=(shape,)))
            found.append(self.b.amax(at, attrs=(tuple(range(len(shape))), False)) if prod(shape) > 1 else self.b.reshape(at, ()))
        return tuple(found)

    def finish(self) -> tuple[Program, list[Any], list[Any]]:
        rng = self.rng
        count = int(rng.integers(1, 5))
        chosen = [self.pick() for _ in range(count)]
        chosen.append(self.values[-1])
        inputs = [k for k, n in enumerate(self.b.nodes) if n.op.name == "input"]
        donated = {k for k in range(len(inputs)) if rng.random() < 0.4}
        updates = []
        for number, o in enumerate(chosen):
            n = self.b.nodes[o]
            same = [k for k in donated if self.b.nodes[inputs[k]].shape == n.shape and self.b.nodes[inputs[k]].dtype is n.dtype]
            same = [k for k in same if inputs[k] not in chosen and k not in [i for _, i in updates]]
            if same and number not in [u for u, _ in updates]:
                updates.append((number, same[0]))
        return self.b.program(*chosen, donated=donated, updates=tuple(updates), checks=self.checks()), self.arrays, self.scalars


def random_program(
    seed: int, steps: int = 12, dtypes: tuple[DType, ...] = (float32, float32, int64)
) -> tuple[Program, list[Any], list[Any]]:
    """Program, input arrays, scalars."""
    return Generator(seed, steps, dtypes).finish()
