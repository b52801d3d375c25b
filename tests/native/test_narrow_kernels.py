"""Kernels of floats of 16 bits, which are computed in float32 and rounded: bit for bit what the definitions give. And of ranks in long rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.autograd.eager import step_of
from calque.backend.ref.interpret import run_node
from calque.base.device import CPU
from calque.base.dtypes import DType, bfloat16, bool_, float16, float32, float64, int64, uint8
from calque.base.layout import dense_layout
from calque.base.native import hot
from calque.ir.program import Node
from calque.ops.opdef import get
from calque.record.inferred import result_of
from calque.tensor import from_array, record
from tests.native.test_complex_kernels import SHAPES, seen, shown, tensor

pytestmark = pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler")

NARROW = st.sampled_from([float16, bfloat16])
ELEMENTWISE = {
    "neg": 1, "abs": 1, "exp": 1, "sqrt": 1, "tanh": 1, "relu": 1, "floor": 1, "copy": 1, "add": 2, "sub": 2, "mul": 2, "div": 2, "maximum": 2,
    "lt": 2, "eq": 2, "where": 3,
}  # fmt: skip


def bits(size: int, dtype: DType, seed: int) -> np.ndarray:
    """Any numbers there are, NaN and what is not normal among them."""
    rng = np.random.default_rng(seed)
    if dtype.compute is dtype:
        return rng.integers(0, 2, size).astype(dtype.np)
    usual, any_ = rng.normal(size=size).astype(np.float32).astype(dtype.np), rng.integers(0, 1 << 16, size).astype(np.uint16).view(dtype.np)
    return np.where(rng.random(size) < 0.3, any_, usual).astype(dtype.np)


def compare(name: str, operands: list[Any], attrs: tuple[Any, ...], kernel: bool = True) -> None:
    op, plain = get(name), [shown(*x) for x in operands]
    views = tuple([dense_layout(x.shape, view.dtype) for x, (view, _) in zip(plain, operands, strict=True)])
    out = result_of(op, attrs, views, CPU)
    with np.errstate(all="ignore"):
        wanted = run_node(Node(op, tuple(range(len(plain))), attrs, tuple(out.shape), out.dtype), plain, (), ())
        found = calque.zeros(())
        for _ in range(2):
            found = record(op, tuple([tensor(*x) for x in operands]), attrs, True)
    assert found.dtype is out.dtype and tuple(found.shape) == wanted.shape  # type: ignore[attr-defined]
    values = found._storage.buffer.wait().reshape(wanted.shape)  # type: ignore[union-attr]
    same = (values == wanted) & (np.signbit(values) == np.signbit(wanted)) | ((values != values) & (wanted != wanted))
    assert same.all(), (values, wanted)
    if kernel and out.numel:
        assert step_of(op, views, attrs, True).kernel is not None


@given(st.data(), SHAPES, NARROW, st.sampled_from(sorted(ELEMENTWISE)))
def test_elementwise(data: st.DataObject, shape: tuple[int, ...], dtype: DType, name: str) -> None:
    kinds = [bool_, dtype, dtype] if name == "where" else [dtype] * ELEMENTWISE[name]
    cut = data.draw(st.integers(0, len(shape)))
    operands = []
    for k, kind in enumerate(kinds):
        view, memory = data.draw(seen(shape[cut:] if k else shape, kind))
        operands.append((view, bits(memory.size, kind, data.draw(st.integers(0, 1 << 30)))))
    compare(name, operands, ())


@given(st.data(), SHAPES.filter(len), NARROW, st.sampled_from(["sum", "amax", "amin", "matmul", "cat", "gather", "argsort", "full"]))
def test_what_is_summed_and_moved(data: st.DataObject, shape: tuple[int, ...], dtype: DType, name: str) -> None:
    dim, view = data.draw(st.integers(0, len(shape) - 1)), dense_layout(shape, dtype)
    usual = [np.random.default_rng(k).integers(-8, 9, view.numel).astype(dtype.np) for k in (0, 1)]  # sums of which no order rounds
    operands, attrs = [(view, usual[0])], (dim,)
    if name in ("sum", "amax", "amin"):
        attrs = ((dim,), data.draw(st.booleans()))
    elif name == "matmul":
        n = shape[-1]
        operands, attrs = [(dense_layout((len(usual[0]) // n, n), dtype), usual[0]), (dense_layout((n, len(usual[1]) // n), dtype), usual[1])], ()
    elif name == "cat":
        operands.append((view, usual[1]))
    elif name == "gather":
        operands.append((dense_layout(shape, int64), np.random.default_rng(2).integers(0, shape[dim], view.numel)))
    elif name == "argsort":
        attrs = (dim, data.draw(st.booleans()))
    else:
        operands, attrs = [(dense_layout((), dtype), usual[0][:1])], (shape,)
    compare(name, operands, attrs)


@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize("other", [float16, bfloat16, float32, float64, bool_, int64, uint8])
def test_conversions(dtype: DType, other: DType) -> None:
    """All numbers that there are, and many of float32, those in the middle of two among them."""
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype.np)
    if other in (int64, uint8):  # what is too large for them differs between processors
        every = every[np.abs(every.astype(np.float32)) < 100]
        every = every[every >= 0] if other is uint8 else every
    for start in range(0, len(every), 3001):
        part = every[start : start + 3001]
        compare("cast", [(dense_layout(part.shape, dtype), part)], (other,), kernel=False)
    if other is float32:
        wide = np.arange(1 << 16, dtype=np.uint32) << 16
        for rest in (0, 1, 0x0FFF, 0x1000, 0x1001, 0x2000, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
            values = (wide | rest).astype(np.uint32).view(np.float32)
            for start in range(0, len(values), 3001):
                part = values[start : start + 3001]
                compare("cast", [(dense_layout(part.shape, float32), part)], (dtype,))
    if other in (int64, float64):
        part = np.array([0, 1, 3, 2049, 4097, 65519, 65520, 1 << 20, (1 << 24) + 1], other.np)
        compare("cast", [(dense_layout(part.shape, other), part)], (dtype,), kernel=False)


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_numbers_beside(dtype: DType) -> None:
    """Products and quotients take them as they are, others round them first."""
    x = bits(50, dtype, 3)
    t, wide = from_array(x.copy(), dense_layout((50,), dtype)), x.astype(np.float32)
    with np.errstate(all="ignore"):
        for number in (0.1, 2, -3.7, 1e5, 1e-9, float("inf")):
            single = np.float32(number)
            rounded = np.asarray(single).astype(dtype.np).astype(np.float32)
            for _ in range(3):
                pairs = [(t * number, wide * single), (t / number, wide / single), (t < number, wide < rounded), (t == number, wide == rounded)]
                for found, wanted in pairs:
                    values = wanted if wanted.dtype == bool else wanted.astype(dtype.np).astype(np.float32)
                    np.testing.assert_array_equal(found.float().numpy() if wanted.dtype != bool else found.numpy(), values)


@given(st.integers(65, 400), st.integers(0, 1 << 30), st.sampled_from([float32, float64, int64]), st.booleans(), st.sampled_from([2, 30, 10**6]))
def test_ranks_in_long_rows(size: int, seed: int, dtype: DType, down: bool, distinct: int) -> None:
    """The first of equal ones first, NaN is the largest."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, distinct, (3, size)).astype(dtype.np)
    if dtype is not int64 and seed % 2:
        x[rng.random(x.shape) < 0.1] = np.nan
    if seed % 3 == 0:
        x.sort()
    start = int(rng.integers(0, size - size // 4))
    stop = int(rng.integers(start, start + size // 4 + 1))
    attrs, view = (1, start, stop, down), dense_layout(x.shape, dtype)
    wanted = run_node(Node(get("argsort"), (0,), (1, down), x.shape, int64), [x], (), ())[:, start:stop]
    found = record(get("ranked"), (from_array(x.copy(), view),), attrs, True)
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize(("dtype", "number"), [(float16, 70000.0), (float16, 65520), (bfloat16, 3.4e38)])
def test_a_number_that_overflows_is_refused_where_it_is_written(dtype: DType, number: float) -> None:
    t = calque.zeros(3, dtype=dtype)
    for _ in range(4):
        with pytest.raises(RuntimeError, match="overflow"):
            t.fill_(number)
        assert t.fill_(1.5).tolist() == [1.5] * 3
    assert (t + number).isinf().all()
