"""Every primitive computed where it is written, on operands that lie anywhere in memory, against its definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import calque
from calque.autograd.routines import kernel, routine
from calque.base.device import CPU
from calque.base.dtypes import DType, dtype_by_name, from_numpy_dtype
from calque.base.layout import dense_layout
from calque.base.native import hot
from calque.ops.opdef import OpDef
from calque.record.inferred import result_of
from calque.tensor import Tensor, from_array, record
from tests.ops.cases import Array, assert_near, evaluate, every_case, operands, records

ULPS = {"contract": 64.0, "reduce": 16.0, "elementwise": 8.0, "opaque": 4.0, "index": 4.0}

pytestmark = pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler")


def somewhere(x: Array, rng: np.random.Generator) -> Tensor:
    """Values in memory whose dims lie in any order, with gaps, behind an offset."""
    order, gaps, offset = rng.permutation(x.ndim), rng.integers(1, 3, x.ndim), int(rng.integers(0, 3))
    memory = np.zeros([x.shape[d] * gaps[d] for d in order], x.dtype)
    view = memory[(*[slice(None, None, int(gaps[d])) for d in order], ...)]
    view[...] = x.transpose(order)
    flat = np.concatenate([np.zeros(offset, x.dtype), memory.reshape(-1), np.zeros(1, x.dtype)])
    steps = np.array([memory.strides[k] * gaps[d] for k, d in enumerate(order)], int) // x.itemsize
    strides = tuple([int(steps[list(order).index(d)]) for d in range(x.ndim)])
    kind = from_numpy_dtype(x.dtype)
    assert kind is not None
    return calque.as_strided(from_array(flat, dense_layout((flat.size,), kind)), x.shape, strides, offset)


def compare(op: OpDef, arrays: list[Array], attrs: tuple[object, ...], rng: np.random.Generator) -> None:
    wanted = evaluate(op, arrays, attrs)
    dtype = from_numpy_dtype(wanted.dtype)
    assert dtype is not None
    floor = 16 * float(np.finfo(wanted.dtype).eps) if wanted.dtype.kind == "f" else 0.0
    with calque.no_grad():
        for tensors in ([calque.from_numpy(x.copy()) for x in arrays], *[[somewhere(x, rng) for x in arrays] for _ in range(3)]):
            found = record(op, tuple(tensors), attrs)
            assert found.dtype is dtype
            assert_near(found.numpy(), wanted, ULPS.get(op.kind, 1.0), dtype, floor)


@pytest.mark.parametrize(("op", "dtype"), every_case(records(), ("float32", "float64", "int64", "bool", "uint8")))
def test_samples(op: OpDef, dtype: DType, rng: np.random.Generator) -> None:
    for sample in op.samples:
        compare(op, operands(op, sample, dtype, rng), sample.attrs, rng)
        special = operands(op, sample, dtype, rng)
        if op.ordering or op.kind in ("reduce", "index"):
            for k, x in enumerate(special):
                if k not in dict(sample.integers):
                    special[k] = x = np.asarray(np.round(x.astype(np.float64))).astype(x.dtype)
                    if dtype.is_floating_point and x.size and rng.integers(0, 2):
                        x.reshape(-1)[rng.integers(0, x.size)] = np.nan
            compare(op, special, sample.attrs, rng)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 7.0, -7.0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("name", ["remainder", "floor_divide", "sign"])
def test_divisions_of_special_numbers(name: str, dtype: str, rng: np.random.Generator) -> None:
    """To the last bit, signs of zeros included."""
    op, kind = records_by_name()[name], dtype_by_name(dtype)
    numbers = SPECIAL.astype(kind.np) if kind.is_floating_point else np.array([0, 1, -1, 3, 7, -7, -(1 << 63), (1 << 63) - 1])
    pairs = np.array(list(itertools.product(numbers, numbers)), kind.np)
    arrays = [pairs[:, k].copy() for k in range(op.arity)]
    found, wanted = record(op, tuple([somewhere(x, rng) for x in arrays])).numpy(), evaluate(op, arrays, ())
    np.testing.assert_array_equal(found, wanted, strict=True)
    if kind.is_floating_point:
        np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(wanted[wanted == 0]))


def records_by_name() -> dict[str, OpDef]:
    return {op.name: op for op in records()}


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "gt", "eq", "pow"])
def test_an_integer_beside_floats_counts_as_one(name: str) -> None:
    function, x = getattr(calque, name), calque.tensor([0.5, -2.0, 3.0])
    for number in (0, 1, -3, 1 << 53, -(1 << 70)):
        assert function(x, number).tolist() == function(x, calque.full((), float(number))).tolist(), number
    if name in ("add", "mul"):
        with pytest.raises(OverflowError, match=r"expected an integer that fits into float64"):
            function(x, 10**400)


WITH_KERNELS = ("cast", "sign", "remainder", "cumsum", "ranked", "argsort", "scatter", "index_add", "update", "view", "any", "argmax")


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_there_is_a_kernel(name: str, rng: np.random.Generator) -> None:
    """Without one an operation takes five times as long, and nothing else tells."""
    op = records_by_name()[name]
    kind = "bool" if name == "any" else "float32"
    sample = next(s for s in op.samples if all(0 not in shape for shape in s.shapes) and len(s.shapes[0]) > 1)
    arrays = operands(op, sample, dtype_by_name(kind), rng)
    kinds = [from_numpy_dtype(x.dtype) for x in arrays]
    views = tuple([dense_layout(x.shape, k) for x, k in zip(arrays, kinds, strict=True) if k is not None])
    out = result_of(op, sample.attrs, views, CPU)
    assert kernel(op, sample.attrs, views, out, out, routine(op, sample.attrs, views, out), False) is not None
