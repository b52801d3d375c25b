"""What the generated tests share: inputs drawn from a record's samples, and one-node programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from calque.backend.ref.interpret import interpret
from calque.base.dtypes import DType, bool_, dtype_by_name, from_numpy_dtype
from calque.ir.program import Node, Program
from calque.ops import REGISTRY, OpDef, get
from calque.ops.opdef import Attrs, Sample

Array = np.ndarray[Any, Any]


def records() -> list[OpDef]:
    """All primitives that compute something."""
    return [op for op in REGISTRY.values() if op.kind != "leaf"]


def every_case(ops: Sequence[OpDef], dtypes: Sequence[str] | None = None) -> list[Any]:
    """One pytest parameter per primitive and operand dtype."""
    found = []
    for op in ops:
        for name in op.dtypes:
            if dtypes is None or name in dtypes:
                found.append(pytest.param(op, dtype_by_name(name), id=f"{op.name}-{name}"))
    return found


def operands(op: OpDef, sample: Sample, dtype: DType, rng: np.random.Generator) -> list[Array]:
    """Random operands as the sample wants them."""
    found = []
    bounds = dict(sample.integers)
    kind: Any
    for position, shape in enumerate(sample.shapes):
        if position in sample.bytes:
            values, kind = rng.integers(-128, 128, shape), np.int8
        elif position in bounds:
            values = rng.integers(0, bounds[position], shape)
            kind = np.bool_ if op.name == "where" else np.int64
        elif dtype.is_floating_point:
            values, kind = rng.uniform(sample.low, sample.high, shape), dtype.np
        elif dtype.is_complex:
            values, kind = rng.uniform(sample.low, sample.high, shape) + 1j * rng.uniform(sample.low, sample.high, shape), dtype.np
        elif dtype is bool_:
            values, kind = rng.integers(0, 2, shape), np.bool_
        else:
            low = sample.low if dtype.is_signed else max(sample.low, 0)
            values, kind = rng.integers(int(np.ceil(low)), int(sample.high) + 1, shape), dtype.np
        found.append(np.asarray(values).astype(kind))
    return found


def dtypes_of(arrays: Sequence[Array]) -> list[DType]:
    """Calque's dtypes of arrays."""
    found = [from_numpy_dtype(a.dtype) for a in arrays]
    assert all(d is not None for d in found)
    return found  # type: ignore[return-value]


def infer(op: OpDef, arrays: Sequence[Array], attrs: Attrs) -> tuple[tuple[int, ...], DType]:
    """Shape and dtype by the record's rules."""
    return op.shape([a.shape for a in arrays], attrs), op.dtype(dtypes_of(arrays), attrs)


def program_of(op: OpDef, arrays: Sequence[Array], attrs: Attrs) -> Program:
    """A program of inputs and one node."""
    leaves = [
        Node(get("input"), (), (i, a.shape, dtype), a.shape, dtype)
        for i, (a, dtype) in enumerate(zip(arrays, dtypes_of(arrays), strict=True))
    ]
    shape, dtype = infer(op, arrays, attrs)
    node = Node(op, tuple(range(len(arrays))), attrs, shape, dtype, "user.py:1")
    return Program((*leaves, node), (len(leaves),))


def evaluate(op: OpDef, arrays: Sequence[Array], attrs: Attrs) -> Array:
    """The primitive by the reference interpreter."""
    return interpret(program_of(op, arrays, attrs), arrays)[0]


def epsilon(dtype: DType) -> float:
    """Distance from 1 to the next number."""
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype.np).eps)


def assert_near(got: Array, want: Array, ulps: float, dtype: DType, floor: float = 0.0) -> None:
    """Equal (with NaN and infinities) up to `ulps` units of `dtype`, relative, plus `floor` absolute."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    if not dtype.is_floating_point:
        np.testing.assert_array_equal(got, want)
        return
    tiny = float(np.finfo(np.float32 if dtype.itemsize == 2 else dtype.np).tiny)
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=ulps * epsilon(dtype), atol=max(floor, tiny), equal_nan=True
    )
