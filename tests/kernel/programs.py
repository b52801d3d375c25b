"""Building small programs in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import calque.ops  # noqa: F401 - registers the primitives
from calque.base.dtypes import DType, float32, int64
from calque.ir.program import Check, Node, Program
from calque.ops import opdef


class Build:
    """`b = Build(); x = b.input((2, 3)); b.exp(x)`: every primitive is a method that infers shape and dtype."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs = 0
        self.scalars = 0

    def add(self, name: str, *operands: int, attrs: tuple[Any, ...] = ()) -> int:
        op = opdef.get(name)
        given = [self.nodes[o] for o in operands]
        shape = op.shape([n.shape for n in given], attrs)
        dtype = op.dtype([n.dtype for n in given], attrs)
        self.nodes.append(Node(op, tuple(operands), attrs, tuple(shape), dtype))
        return len(self.nodes) - 1

    def input(self, shape: tuple[int, ...], dtype: DType = float32) -> int:
        self.inputs += 1
        return self.add("input", attrs=(self.inputs - 1, tuple(shape), dtype))

    def scalar(self, dtype: DType = float32) -> int:
        self.scalars += 1
        return self.add("scalar", attrs=(self.scalars - 1, dtype))

    def constant(self, value: Any, dtype: DType = float32) -> int:
        return self.add("constant", attrs=(value, dtype))

    def view(self, x: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> int:
        return self.add("view", x, attrs=(tuple(shape), tuple(strides), offset))

    def update(self, base: int, value: int, strides: tuple[int, ...], offset: int = 0) -> int:
        return self.add("update", base, value, attrs=(self.shape(value), tuple(strides), offset))

    def reshape(self, x: int, shape: tuple[int, ...]) -> int:
        return self.view(x, shape, dense(shape))

    def transpose(self, x: int, *order: int) -> int:
        strides = dense(self.shape(x))
        return self.view(x, tuple(self.shape(x)[d] for d in order), tuple(strides[d] for d in order))

    def shape(self, x: int) -> tuple[int, ...]:
        return self.nodes[x].shape

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*operands: int, attrs: tuple[Any, ...] = ()) -> int:
            return self.add(name, *operands, attrs=attrs)

        return call

    def program(
        self, *outputs: int, donated: Any = (), updates: tuple[tuple[int, int], ...] = (), checks: tuple[int, ...] = ()
    ) -> Program:
        return Program(
            tuple(self.nodes), tuple(outputs), frozenset(donated), tuple(updates), tuple(Check(c, None) for c in checks)
        )


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for e in reversed(shape):
        strides.append(step)
        step *= max(e, 1)
    return tuple(reversed(strides))


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, low: float = -2, high: float = 2) -> Any:
    if dtype.category == 0:
        return rng.random(shape) < 0.5
    if dtype.category == 1:
        return rng.integers(int(low) if dtype.is_signed else 0, max(int(high), 1), shape).astype(dtype.np)
    return rng.uniform(low, high, shape).astype(dtype.np)


def index_array(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> Any:
    return rng.integers(0, max(size, 1), shape).astype(int64.np)
