"""Native products of bfloat16 against float64, on this machine and with the instructions of smaller ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import calque
from calque.backend.cpu.contract import AVX2, AVX512, SSE, PlainUnit, contraction, is_native
from calque.backend.cpu.program import host
from calque.ops.routines import AddedSpec, ContractSpec
from tests.backend.contract_harness import Library, host_target, matmul_params

Array = NDArray[Any]
BFLOAT = ml_dtypes.bfloat16
HERE = host_target()
TARGETS = {target.name: target for target in (HERE, *((AVX512, AVX2) if HERE.vector_bytes == 64 else ()), SSE)}


@cache
def library(name: str) -> Library:
    """The library of a target, compiled once."""
    return Library("bfloat16", TARGETS[name])


def operand(rng: np.random.Generator, rows: int, columns: int, layout: str) -> Array:
    """Random values: "n" row-major, "t" column-major, "s" every second element of a row."""
    if layout == "t":
        return rng.standard_normal((columns, rows)).astype(BFLOAT).T
    return rng.standard_normal((rows, columns * (1 + (layout == "s")))).astype(BFLOAT)[:, :: 1 + (layout == "s")]


def assert_rounded_once(results: list[Any], exact: Any, size: Any, depth: int) -> None:
    """Half a unit of bfloat16 for the one rounding, float32's rounding of the sums besides; all results have the same bits."""
    bound = 2.0**-8 * np.abs(exact) + (depth + 8) * 2.0**-24 * size + 1e-30
    assert (np.abs(results[0].astype(np.float64) - exact) <= bound).all()
    assert all(other.tobytes() == results[0].tobytes() for other in results[1:])


def check(a: Array, b: Array, name: str) -> None:
    """Float32 sums rounded once, and the same bits for every thread count."""
    results = []
    for threads in (1, 2, 3):
        out = np.full((a.shape[0], b.shape[1]), np.nan, BFLOAT)
        library(name).prepare("matmul", matmul_params(a, b), a, b, out)(threads)
        results.append(out)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert_rounded_once(results, exact, size, a.shape[1])


@pytest.mark.parametrize("name", list(TARGETS))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_products(name: str, data: st.DataObject) -> None:
    """Sizes around tiles, odd depths, every layout."""
    m, n = (data.draw(st.one_of(st.integers(1, 40), st.integers(60, 130))) for _ in range(2))
    k = data.draw(st.one_of(st.integers(0, 70), st.integers(200, 400)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    check(operand(rng, m, k, data.draw(st.sampled_from("nts"))), operand(rng, k, n, data.draw(st.sampled_from("nts"))), name)


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("shape", [(20, 5001, 40), (300, 1001, 1100), (700, 64, 700), (1, 300, 500), (500, 300, 1)])
def test_blocks_of_depth_and_chunks(name: str, shape: tuple[int, int, int]) -> None:
    """Sums of several blocks of k are kept in float32; several chunks of columns; vectors."""
    m, k, n = shape
    rng = np.random.default_rng(1)
    check(operand(rng, m, k, "n"), operand(rng, k, n, "n"), name)
    check(operand(rng, m, k, "t"), operand(rng, k, n, "t"), name)


def check_added(a: Array, b: Array, d: Array, factors: tuple[float, float], name: str) -> None:
    """The same of products to which something is added: float32 until the one rounding."""
    shape = (*a.shape[:-1], b.shape[-1])
    steps = [tuple(s // 2 for s in x.strides) for x in (a, b, np.broadcast_to(d, shape))]
    params = contraction("addmm", AddedSpec(ContractSpec(a.shape, steps[0], b.shape, steps[1], shape), steps[2], *factors), "bfloat16")
    results = []
    for threads in (1, 2, 3):
        out = np.full(shape, np.nan, BFLOAT)
        library(name).prepare_any("addmm", params, [a, b, d], [out])(threads)
        results.append(out)
    wide = [x.astype(np.float64) for x in (a, b, d)]
    exact = factors[0] * (wide[0] @ wide[1]) + factors[1] * wide[2]
    size = abs(factors[0]) * (np.abs(wide[0]) @ np.abs(wide[1])) + abs(factors[1] * wide[2])
    assert_rounded_once(results, exact, size, a.shape[-1])


@pytest.mark.parametrize("name", list(TARGETS))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_products_with_something_added(name: str, data: st.DataObject) -> None:
    """What is added is a row, a column, a number or a matrix of any layout."""
    m, n = (data.draw(st.one_of(st.integers(1, 40), st.integers(60, 130))) for _ in range(2))
    k = data.draw(st.one_of(st.integers(0, 70), st.integers(200, 400)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    rows, columns = data.draw(st.sampled_from([(1, n), (m, 1), (1, 1), (m, n)]))
    d = operand(rng, rows, columns, data.draw(st.sampled_from("nts")))
    a, b = operand(rng, m, k, data.draw(st.sampled_from("nts"))), operand(rng, k, n, data.draw(st.sampled_from("nts")))
    check_added(a, b, d, data.draw(st.sampled_from([(1.0, 1.0), (0.7, 0.3), (-1.5, 2.0)])), name)


@pytest.mark.parametrize("name", list(TARGETS))
def test_something_added_to_blocks_and_batches(name: str) -> None:
    """Once, behind the last block of k; every product of a batch has its own part of it."""
    rng = np.random.default_rng(1)
    for m, k, n in ((20, 5001, 40), (300, 1001, 1100), (1, 300, 500), (500, 300, 1)):
        check_added(operand(rng, m, k, "n"), operand(rng, k, n, "t"), operand(rng, 1, n, "n"), (1.0, 1.0), name)
    a, b, d = (rng.standard_normal(shape).astype(BFLOAT) for shape in ((3, 2, 17, 30), (3, 2, 30, 21), (3, 1, 17, 21)))
    check_added(a, b, d, (1.0, 0.5), name)


@pytest.mark.parametrize("name", list(TARGETS))
def test_rounding_ties_nan_and_infinity(name: str) -> None:
    """A product by one returns every value; sums halfway between two values go to the even one."""
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -1.5, 2.0**-100], BFLOAT).reshape(8, 1)
    out = np.empty((8, 1), BFLOAT)
    one = np.ones((1, 1), BFLOAT)
    library(name).prepare("matmul", matmul_params(values, one), values, one, out)(1)
    np.testing.assert_array_equal(out.astype(np.float32), (values.astype(np.float32) + np.float32(0)))
    row, pair = np.array([[256.0, 1.0], [258.0, 1.0], [258.0, 3.0]], BFLOAT), np.ones((2, 1), BFLOAT)
    ties = np.empty((3, 1), BFLOAT)
    library(name).prepare("matmul", matmul_params(row, pair), row, pair, ties)(1)
    assert ties[:, 0].astype(np.float32).tolist() == [256.0, 260.0, 260.0]  # 257 -> 256, 259 -> 260, 261 -> 260


def test_targets_differ_in_how_they_multiply() -> None:
    """Only the pair instruction halves the packed panels."""
    assert PlainUnit("avx512_bf16", 64, 32, bfloat_pairs=True) != AVX512
    assert is_native("matmul", "bfloat16") and is_native("conv2d", "bfloat16") and not is_native("matmul", "float16")
    assert is_native("addmm", "bfloat16") and not any(is_native("addmm", dtype) for dtype in ("float32", "float64", "int8"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_contractions_never_run_on_the_host(dtype: str) -> None:
    """Products, batched products and convolutions with their gradients, beside PyTorch."""
    before = host.COUNTERS.contractions
    rng = np.random.default_rng(0)
    a, b, x, w = (rng.standard_normal(s).astype(np.float32) for s in ((3, 20, 33), (3, 33, 17), (2, 3, 9, 9), (4, 3, 3, 3)))
    results = []
    torch = pytest.importorskip("torch")
    for module in (calque, torch):
        kind = getattr(module, dtype)
        u, v, y, f = (module.tensor(value).to(kind).requires_grad_() for value in (a, b, x, w))  # type: ignore[attr-defined]
        product, image = u @ v, module.nn.functional.conv2d(y, f, padding=1)  # type: ignore[attr-defined]
        (product.float().sum() + image.float().square().sum()).backward()
        found = [product, image, u.grad, v.grad, y.grad, f.grad]
        assert all(value.dtype is kind for value in found)
        results.append([value.detach().float().numpy() for value in found])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=2e-2 * np.abs(theirs).max())
    assert host.COUNTERS.contractions == before
