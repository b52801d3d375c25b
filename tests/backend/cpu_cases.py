"""Random loop kernels whose results do not depend on rounding or order, so that a compiled kernel must equal its interpreter
bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from calque.base.dtypes import ALL, DType, bfloat16, bool_, float16, float32, float64, int64, uint8
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.schedule import Buffer, Loop, Schedule

FLOATS: tuple[DType, ...] = (float16, bfloat16, float32, float64)
UNARY_FLOAT = ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint")
BINARY_FLOAT = ("add", "sub", "mul", "div", "min", "max", "mod", "floordiv")
BINARY_INT = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "and_", "or_", "xor", "pow")
BINARY_BOOL = ("and_", "or_", "xor")
COMPARE = ("lt", "le", "eq", "ne")


@dataclass
class Case:
    """A one-launch schedule with its inputs and scalars."""

    schedule: Schedule
    inputs: list[Any]
    scalars: list[Any]

    @property
    def kernel(self) -> LoopKernel:
        step = self.schedule.steps[0]
        assert isinstance(step, Loop)
        return step.kernel


@dataclass
class Builder:
    """Grows a kernel stage by stage."""

    rng: np.random.Generator
    extents: tuple[int, ...]
    rank_p: int
    operands: list[Operand] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    words: list[list[int]] = field(default_factory=list)
    instrs: list[Instr] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    scalars: list[DType] = field(default_factory=list)
    current: list[int] = field(default_factory=list)

    def emit(self, op: str, dtype: DType, *args: int, imm: Any = None) -> int:
        self.instrs.append(Instr(op, dtype, args, imm))
        self.current.append(len(self.instrs) - 1)
        return self.current[-1]

    def dtype(self, value: int) -> DType:
        return self.instrs[value].dtype

    def close(self, kind: str) -> None:
        first = len(self.instrs) - len(self.current)
        self.stages.append(Stage(kind, first, tuple(self.instrs[first:])))
        self.current = []

    def access(self, operand: int, dims: list[int], dense: bool, indirect: int = 0) -> int:
        """Access to `operand` over `dims`: row-major (dense, last stride 1) or with gaps and reversed dims. Sets the
        operand's size."""
        order = list(dims)
        if not dense:
            self.rng.shuffle(order)
        strides = [0] * len(self.extents)
        step = 1 if dense else int(self.rng.integers(1, 4))
        offset = int(self.rng.integers(0, 3))
        table = step if indirect else 0
        step *= max(indirect, 1)
        for d in reversed(order):
            strides[d] = step
            step *= max(self.extents[d], 1)
            if not dense and self.rng.random() < 0.3:
                offset += strides[d] * (max(self.extents[d], 1) - 1)
                strides[d] = -strides[d]
        self.sizes[operand] = max(self.sizes[operand], offset + step + 2)
        known = {0: "0", 1: "1"}
        if self.rng.random() < 0.7:
            known[2] = "2"
        classes = tuple(known.get(s, "s") for s in strides)
        self.accesses.append(Access(operand, classes, indirect > 0))
        words = [offset] + [s for s, c in zip(strides, classes, strict=True) if c == "s"]
        self.words.append(words + ([table, indirect] if indirect else []))
        return len(self.accesses) - 1

    def operand(self, dtype: DType, out: bool = False) -> int:
        self.operands.append(Operand(dtype, out))
        self.sizes.append(1)
        return len(self.operands) - 1

    def finish(self, vector: str) -> Case:
        inner = tuple(self.extents[self.rank_p :])
        fixed = inner if vector == "p" and 0 < prod(inner) <= 16 and self.rng.random() < 0.7 else ()
        kernel = LoopKernel(
            self.rank_p, len(inner), tuple(self.operands), tuple(self.accesses), tuple(self.stages), vector, tuple(self.scalars), fixed,
            panels=vector == "p" and not fixed and bool(self.rng.random() < 0.6),
        )  # fmt: skip
        buffers, inputs, given = [], [], []
        for operand, size in zip(self.operands, self.sizes, strict=True):
            same = [b for b in buffers if b.kind == ("output" if operand.out else "input")]
            data = values(self.rng, operand.dtype, size)
            if operand.out:  # a donated input shows what was not written
                buffers.append(Buffer("output", len(same), operand.dtype, size, donor=-2))
                given.append(data)
            else:
                buffers.append(Buffer("input", len(same), operand.dtype, size))
                inputs.append(data)
        count = len(inputs)
        final = []
        for b in buffers:
            final.append(Buffer("output", b.index, b.dtype, b.numel, donor=count + b.index) if b.kind == "output" else b)
        params = tuple(self.extents) + tuple(w for words in self.words for w in words)
        loop = Loop(kernel, tuple(range(len(final))), params, tuple(range(len(self.scalars))))
        outputs = tuple(k for k, b in enumerate(final) if b.kind == "output")
        scalars = [float(self.rng.integers(-3, 4)) if d.is_floating_point else int(self.rng.integers(0, 2)) for d in self.scalars]
        return Case(Schedule(tuple(final), (loop,), outputs, 0, tuple(self.scalars)), inputs + given, scalars)


def values(rng: np.random.Generator, dtype: DType, size: int) -> Any:
    """Small whole numbers; floats with some NaN and infinities."""
    if dtype is bool_:
        return rng.random(size) < 0.5
    low = 0 if dtype is uint8 else -6
    data = rng.integers(low, 7, size).astype(dtype.np)
    if dtype.category == 2 and rng.random() < 0.3:
        special = rng.random(size) < 0.1
        data[special] = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32).astype(dtype.np)[
            rng.integers(0, 4, int(special.sum()))
        ]
    return data


def convert(b: Builder, value: int, dtype: DType) -> int:
    """The value as `dtype`, bounded first so that no conversion overflows."""
    source = b.dtype(value)
    if source is dtype:
        return value
    if source.category == 2 and dtype.category == 1:
        value = whole(b, value, 6)
        if dtype is uint8:
            value = b.emit("abs", source, value)
        one = b.emit("eq", bool_, value, value)  # NaN to integer is not defined
        value = b.emit("select", source, one, value, b.emit("const", source, imm=0))
    return b.emit("cast", dtype, value)


def whole(b: Builder, value: int, bound: int) -> int:
    """A float rounded to a whole number in -bound..bound: sums and products of such numbers are exact."""
    dtype = b.dtype(value)
    if dtype.category != 2:
        return value
    value = b.emit("rint", dtype, value)
    value = b.emit("min", dtype, value, b.emit("const", dtype, imm=bound))
    return b.emit("max", dtype, value, b.emit("const", dtype, imm=-bound))


def operate(b: Builder, value: int, other: int) -> int:
    """A random exact instruction on a value and a second one of any type."""
    rng, dtype = b.rng, b.dtype(value)
    if rng.random() < 0.2:
        return convert(b, value, ALL[rng.integers(len(ALL))])
    other = convert(b, other, dtype)
    if rng.random() < 0.25:
        condition = b.emit(str(rng.choice(COMPARE)), bool_, value, other)
        return b.emit("select", dtype, condition, value, other) if rng.random() < 0.6 else condition
    if dtype is bool_:
        return b.emit("not_", dtype, value) if rng.random() < 0.3 else b.emit(str(rng.choice(BINARY_BOOL)), dtype, value, other)
    if dtype.category == 1:
        if rng.random() < 0.2:
            return b.emit(str(rng.choice(("neg", "abs", "not_"))), dtype, value)
        op = str(rng.choice(BINARY_INT))
        return b.emit(op, dtype, value, other)
    if rng.random() < 0.4:
        return b.emit(str(rng.choice(UNARY_FLOAT)), dtype, value)
    return b.emit(str(rng.choice(BINARY_FLOAT)), dtype, value, other)


def leaf(b: Builder, inner: bool) -> int:
    """A load, a constant, an index or a scalar argument."""
    rng = b.rng
    dims = [d for d in range(len(b.extents)) if inner or d < b.rank_p]
    choice = rng.random()
    if choice < 0.7 or not dims:
        dtype = ALL[rng.integers(len(ALL))]
        operand = b.operand(dtype)
        used = [d for d in dims if rng.random() < 0.8]
        if rng.random() < 0.2:
            index = b.emit("load", int64, imm=b.access(b.operand(int64), used, dense=True))
            return b.emit(
                "load_at", dtype, index, imm=b.access(operand, [d for d in used if rng.random() < 0.5], rng.random() < 0.5, 5)
            )
        return b.emit("load", dtype, imm=b.access(operand, used, dense=bool(rng.random() < 0.6)))
    if choice < 0.8:
        return b.emit("index", int64, imm=int(rng.choice(dims)))
    if choice < 0.9:
        dtype = FLOATS[rng.integers(4)]
        return b.emit("const", dtype, imm=float(rng.integers(-3, 4)))
    b.scalars.append(float64 if rng.random() < 0.5 else int64)
    return b.emit("scalar", b.scalars[-1], imm=len(b.scalars) - 1)


def expression(b: Builder, inner: bool, visible: list[int], size: int) -> int:
    """A chain of random instructions over leaves and earlier values."""
    rng = b.rng
    value = leaf(b, inner)
    for _ in range(size):
        other = int(rng.choice(visible)) if visible and rng.random() < 0.5 else leaf(b, inner)
        value = operate(b, value, other)
    return value


def store(b: Builder, value: int, inner: bool) -> None:
    """Store a value densely, with gaps, or at an index."""
    rng, dims = b.rng, [d for d in range(len(b.extents)) if inner or d < b.rank_p]
    operand = b.operand(b.dtype(value), out=True)
    kind = rng.random()
    if kind < 0.8 or not inner or len(b.extents) == b.rank_p:
        b.emit("store", b.dtype(value), value, imm=b.access(operand, dims, dense=bool(rng.random() < 0.7)))
        return
    index = b.emit("load", int64, imm=b.access(b.operand(int64), dims, dense=True))
    value = whole(b, value, 3)
    add = kind > 0.9 and b.dtype(value) is not bool_
    access = b.access(operand, list(range(b.rank_p)), True, 5)
    b.emit("add_at" if add else "store_at", b.dtype(value), value, index, imm=access)


def random_case(seed: int) -> Case:
    """A kernel with up to three stages over random extents (some 0, some around the vector width)."""
    rng = np.random.default_rng(seed)
    rank_p, rank_r = int(rng.integers(0, 4)), int(rng.integers(0, 3))
    pool = (1, 2, 3, 5, 7, 16, 17, 33, 70)
    extents = [int(rng.choice(pool)) for _ in range(rank_p + rank_r)]
    while np.prod(extents) > 4000:
        extents[int(np.argmax(extents))] = int(rng.choice((1, 2, 3)))
    if extents and rng.random() < 0.05:
        extents[int(rng.integers(len(extents)))] = 0
    b = Builder(rng, tuple(extents), rank_p)
    visible: list[int] = []
    empty = 0 in extents[rank_p:]
    for kind in ("point", "reduce", "reduce"):
        if rng.random() < 0.5:
            continue
        value = expression(b, kind == "reduce", visible, int(rng.integers(0, 4)))
        if kind == "reduce":
            value = reduce(b, value, empty)
        visible.append(value)
        if rng.random() < 0.3 and kind == "point":
            store(b, value, inner=False)
        b.close(kind)
    inner = bool(rank_r and rng.random() < 0.7)
    for _ in range(int(rng.integers(1, 3))):
        store(b, expression(b, inner, visible, int(rng.integers(0, 5))), inner)
    b.close("map" if inner else "point")
    return b.finish(str(rng.choice(("p", "r", ""))))


def reduce(b: Builder, value: int, empty: bool) -> int:
    """A reduction whose result does not depend on the order."""
    rng = b.rng
    dtype = b.dtype(value)
    if dtype is bool_:
        if empty or rng.random() < 0.5:
            return b.emit("reduce", int64, b.emit("cast", int64, value), imm="sum")
        return b.emit("reduce", bool_, value, imm="max" if rng.random() < 0.5 else "min")
    kind = rng.random()
    if empty or kind < 0.3:
        return b.emit("reduce", dtype, whole(b, value, 6), imm="sum")
    if kind < 0.5:
        return b.emit("reduce", dtype, whole(b, value, 2), imm="prod")
    if kind < 0.75 or not b.extents or 0 in b.extents:
        return b.emit("reduce", dtype, value, imm=str(rng.choice(("max", "min"))))
    position = b.emit("const", int64, imm=0)
    for d in range(b.rank_p, len(b.extents)):
        scale = b.emit("const", int64, imm=b.extents[d])
        position = b.emit("add", int64, b.emit("mul", int64, position, scale), b.emit("index", int64, imm=d))
    return b.emit("reduce", int64, value, position, imm=str(rng.choice(("argmax", "argmin"))))
