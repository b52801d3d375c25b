"""Kernels of complex numbers: bit for bit what the definitions give, wherever operands lie in memory."""

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
from calque.base.dtypes import DType, bool_, complex64, complex128, float32, float64, int64
from calque.base.layout import dense_layout, layout
from calque.base.native import hot
from calque.ir.program import Node
from calque.ops.fft import TRANSFORMS
from calque.ops.opdef import get
from calque.record.inferred import result_of
from calque.tensor import from_array, record

pytestmark = pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler")

ELEMENTWISE = {"add": 2, "sub": 2, "mul": 2, "div": 2, "eq": 2, "ne": 2, "neg": 1, "abs": 1, "conj": 1, "copy": 1, "exp": 1, "sqrt": 1, "log": 1,
               "tanh": 1, "where": 3, "complex": 2}  # fmt: skip
MOVED = ("cat", "index_select", "gather", "view", "update", "scatter", "cast", "full")
ODD = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38, 1.0, -1.0])
SHAPES = st.lists(st.integers(1, 6), max_size=3).map(tuple)


def numbers(size: int, dtype: DType, seed: int) -> np.ndarray:
    """Some of them are what sums and products go wrong with."""
    rng = np.random.default_rng(seed)
    if dtype is bool_ or dtype is int64:
        return rng.integers(0, 2, size).astype(dtype.np)
    parts = rng.normal(size=2 * size)
    odd = rng.random(2 * size) < 0.2
    parts[odd] = rng.choice(ODD, int(odd.sum()))
    with np.errstate(all="ignore"):
        return parts.astype(dtype.to_real().np).view(dtype.np)[:size].copy()


@st.composite
def seen(draw: st.DrawFn, shape: tuple[int, ...], dtype: DType) -> tuple[Any, np.ndarray]:
    """A layout in some memory: dims in any order, gaps, an offset, broadcast dims."""
    strides, step = [0] * len(shape), 1
    for d in draw(st.permutations(range(len(shape)))):
        if draw(st.integers(0, 5)):
            step *= draw(st.integers(1, 2))
            strides[d], step = step, step * shape[d]
    offset = draw(st.integers(0, 3))
    size = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return layout(shape, tuple(strides), offset, dtype), numbers(size, dtype, draw(st.integers(0, 1 << 30)))


def shown(view: Any, memory: np.ndarray) -> np.ndarray:
    size = memory.itemsize
    found = np.lib.stride_tricks.as_strided(memory[view.offset :], view.shape, [s * size for s in view.strides])
    return np.ascontiguousarray(found).reshape(view.shape)


def tensor(view: Any, memory: np.ndarray) -> Any:
    return calque.as_strided(from_array(memory, dense_layout((memory.size,), view.dtype)), tuple(view.shape), view.strides, view.offset)  # type: ignore[attr-defined]


def compare(name: str, operands: list[Any], attrs: tuple[Any, ...], kernel: bool = True) -> None:
    op, plain = get(name), [shown(*x) for x in operands]
    views = tuple([dense_layout(x.shape, view.dtype) for x, (view, _) in zip(plain, operands, strict=True)])
    out = result_of(op, attrs, views, CPU)
    with np.errstate(all="ignore"):
        wanted = run_node(Node(op, tuple(range(len(plain))), attrs, tuple(out.shape), out.dtype), plain, (), ())
    found = record(op, tuple([tensor(*x) for x in operands]), attrs, True)
    np.testing.assert_array_equal(found.detach().numpy().view(wanted.dtype), wanted, strict=True)
    if wanted.size and wanted.dtype.kind in "cf":
        real = np.float32 if wanted.dtype in (np.complex64, np.float32) else np.float64
        signs = [np.signbit(x) for y in (found.numpy(), wanted) if not np.isnan(x := np.atleast_1d(y).view(real)).any()]
        assert len(signs) < 2 or (signs[0] == signs[1]).all()
    if kernel and out.numel:
        assert step_of(op, views, attrs, True).kernel is not None


@given(st.data(), SHAPES, st.sampled_from([complex64, complex128]), st.sampled_from(sorted(ELEMENTWISE)))
def test_elementwise(data: st.DataObject, shape: tuple[int, ...], dtype: DType, name: str) -> None:
    kinds = [bool_, dtype, dtype] if name == "where" else [dtype.to_real()] * 2 if name == "complex" else [dtype] * ELEMENTWISE[name]
    cut = data.draw(st.integers(0, len(shape)))
    compare(name, [data.draw(seen(shape[cut:] if k else shape, kind)) for k, kind in enumerate(kinds)], ())


@given(st.data(), SHAPES.filter(len), st.sampled_from([complex64, complex128]), st.sampled_from(MOVED))
def test_what_is_moved(data: st.DataObject, shape: tuple[int, ...], dtype: DType, name: str) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    operands, attrs = [data.draw(seen(shape, dtype))], (dim,)
    if name == "cat":
        operands.append(data.draw(seen(shape, dtype)))
    elif name in ("index_select", "gather", "scatter"):
        operands.append(data.draw(seen(shape if name != "index_select" else (4,), int64)))
        operands[1][1][:] %= shape[dim]
        if name == "scatter":
            operands.append(data.draw(seen(shape, dtype)))
            places = np.arange(shape[dim]).reshape(-1, *[1] * (len(shape) - dim - 1))  # each once
            operands[1] = (dense_layout(shape, int64), np.broadcast_to(places, shape).ravel().copy())
    elif name == "cast":
        kind = data.draw(st.sampled_from([complex64, complex128, float32, float64, int64, bool_]))
        operands, attrs = [data.draw(seen(shape, kind))], (dtype,)
    elif name == "full":
        operands, attrs = [data.draw(seen((), dtype))], (shape,)
    elif name in ("view", "update"):
        whole = (*shape[:-1], shape[-1] + 2)
        steps = dense_layout(whole, dtype).strides
        operands, attrs = [(dense_layout(whole, dtype), numbers(int(np.prod(whole)), dtype, 0))], (shape, steps, 1)
        if name == "update":
            operands.append(data.draw(seen(shape, dtype)))
    compare(name, operands, attrs, name not in ("cat", "index_select", "scatter", "view", "update"))


@given(st.data(), SHAPES, st.sampled_from([complex64, complex128]), st.booleans())
def test_sums_are_those_of_complex128(data: st.DataObject, shape: tuple[int, ...], dtype: DType, keepdim: bool) -> None:
    view, memory = data.draw(seen(shape, dtype))
    memory[:] = np.random.default_rng(memory.size).normal(size=(memory.size, 2)).astype(dtype.to_real().np).view(dtype.np)[:, 0]
    dims = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1))))) if shape else ()
    wanted = shown(view, memory).astype(np.complex128).sum(dims, keepdims=keepdim).astype(dtype.np)
    found = record(get("sum"), (tensor(view, memory),), (dims, keepdim)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-14 if dtype is complex128 else 2e-7, atol=1e-14 if dtype is complex128 else 1e-7, strict=True)


@given(st.data(), *[st.integers(1, 7)] * 3, st.sampled_from([complex64, complex128]), st.booleans())
def test_products(data: st.DataObject, m: int, k: int, n: int, dtype: DType, many: bool) -> None:
    lead = (2,) if many else ()
    operands = [data.draw(seen(s, dtype)) for s in ((*lead, m, k), (k, n))]
    for _, memory in operands:
        memory[:] = np.random.default_rng(memory.size).normal(size=(memory.size, 2)).astype(dtype.to_real().np).view(dtype.np)[:, 0]
    wanted = np.matmul(*[shown(*x).astype(np.complex128) for x in operands])
    found = (tensor(*operands[0]) @ tensor(*operands[1])).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-13 if dtype is complex128 else 2e-5, atol=1e-13 if dtype is complex128 else 2e-5)


NAMES = [op.name for op in TRANSFORMS]


@given(st.data(), SHAPES.filter(len), st.sampled_from([float32, float64]), st.sampled_from(NAMES), st.sampled_from([1.0, 0.1]))
def test_transforms(data: st.DataObject, shape: tuple[int, ...], real: DType, name: str, scale: float) -> None:
    dtype, dim = real if name == "fft_r2c" else real.to_complex(), data.draw(st.integers(0, len(shape) - 1))
    operand = data.draw(seen(shape, dtype))
    attrs = {"fft_c2c": ((dim,), data.draw(st.booleans())), "fft_r2c": (dim,), "fft_c2r": (dim, data.draw(st.integers(1, 9)))}[name]
    compare(name, [operand], (*attrs, scale))


@given(st.sampled_from([complex64, complex128]), st.sampled_from([0, 3, -1, True, 2.5, -0.0, float("inf"), 1e300, 1 + 2j, 10**30, -0.5j]))
def test_numbers_beside(dtype: DType, number: Any) -> None:
    """A number is a complex one, and of a real one the imaginary part is 0."""
    x = numbers(9, dtype, 5)
    t = from_array(x.copy(), dense_layout((9,), dtype))
    with np.errstate(all="ignore"):
        other = np.complex128(complex(number)).astype(dtype.np)
        pairs = [(t + number, x + other), (t * number, x * other), (t / number, x / other), (t == number, x == other)]
        for found, wanted in pairs if number is True else [*pairs, (number - t, other - x)]:
            np.testing.assert_array_equal(found.numpy(), wanted, strict=True)


def test_a_number_beside_complex_ones_has_gradients() -> None:
    for _ in range(4):
        z = calque.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        (z * (2 + 1j) + 3.0).abs().sum().backward()
        w = calque.tensor([2 + 1j]).resolve_conj()
        y = z.detach().clone().requires_grad_()
        (y * w + calque.tensor(3.0 + 0j)).abs().sum().backward()
        np.testing.assert_array_equal(z.grad.numpy(), y.grad.numpy())


def test_parts_are_seen_where_they_lie() -> None:
    """Real numbers in complex memory, and complex ones in real memory, from an offset on."""
    x = numbers(40, complex64, 1)
    x[~np.isfinite(x) | (np.abs(x) > 9)] = 1
    z = from_array(x.copy(), dense_layout((40,), complex64))[3:]
    for _ in range(4):
        np.testing.assert_array_equal((z.imag + z.real).numpy(), x[3:].imag + x[3:].real)
        np.testing.assert_array_equal(z.real.exp().numpy(), np.exp(np.ascontiguousarray(x[3:].real)))
        np.testing.assert_allclose(z.angle().numpy(), np.angle(x[3:]), rtol=1e-6)
        pairs = calque.view_as_real(z)[1:].clone()
        np.testing.assert_array_equal((calque.view_as_complex(pairs[2:]) + 1).numpy(), x[6:] + np.complex64(1))
