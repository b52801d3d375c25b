"""Native products of int8 against NumPy's of int64, on this machine and with the instructions of smaller ones: equal, not near."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calque.backend.cpu.contract import AVX2, AVX512, SSE, PlainUnit, is_native
from tests.backend.contract_harness import Library, host_target, matmul_params

Array = NDArray[Any]
HERE = host_target()
PLAIN = PlainUnit("plain", 16, 16)  # what a processor without such instructions computes
SMALLER = (*((AVX512, AVX2) if HERE.vector_bytes == 64 else ()), *((SSE,) if HERE.int8_depth > 1 else ()))
TARGETS = {target.name: target for target in (HERE, *SMALLER, PLAIN)}


@cache
def library(name: str) -> Library:
    """The library of a target, compiled once."""
    return Library("int8", TARGETS[name])


def operand(rng: np.random.Generator, rows: int, columns: int, layout: str, extreme: bool = False) -> Array:
    """Random values, or only the largest: "n" row-major, "t" column-major, "s" every second element of a row."""

    def values(*shape: int) -> Array:
        return (np.full(shape, -128) if extreme else rng.integers(-128, 128, shape)).astype(np.int8)

    if layout == "t":
        return values(columns, rows).T
    return values(rows, columns * (1 + (layout == "s")))[:, :: 1 + (layout == "s")]


def check(a: Array, b: Array, name: str) -> None:
    """The same integers for every number of threads."""
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64).astype(np.int32)
    for threads in (1, 2, 3):
        out = np.full((a.shape[0], b.shape[1]), 77, np.int32)
        library(name).prepare("int8_matmul", matmul_params(a, b), a, b, out)(threads)
        np.testing.assert_array_equal(out, exact)


@pytest.mark.parametrize("name", list(TARGETS))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_products(name: str, data: st.DataObject) -> None:
    """Sizes around tiles, odd depths, every layout."""
    m, n = (data.draw(st.one_of(st.integers(1, 40), st.integers(60, 130))) for _ in range(2))
    k = data.draw(st.one_of(st.integers(0, 70), st.integers(200, 400)))
    rng, extreme = np.random.default_rng(data.draw(st.integers(0, 99))), data.draw(st.booleans())
    left, right = data.draw(st.sampled_from("nts")), data.draw(st.sampled_from("nts"))
    check(operand(rng, m, k, left, extreme), operand(rng, k, n, right), name)


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("shape", [(20, 5001, 40), (300, 3001, 1100), (700, 64, 700), (1, 300, 500), (500, 300, 1)])
def test_blocks_of_depth_and_chunks(name: str, shape: tuple[int, int, int]) -> None:
    """Several blocks of k are added up in C; several chunks of columns; vectors; sums of -128 * -128 alone."""
    m, k, n = shape
    rng = np.random.default_rng(1)
    check(operand(rng, m, k, "n"), operand(rng, k, n, "t"), name)
    check(operand(rng, m, k, "t", True), operand(rng, k, n, "n", True), name)


def test_batches_and_sums_that_wrap() -> None:
    """One matrix for many, and more than int32 holds: as NumPy's int32."""
    a, b = np.full((3, 4, 140_000), -128, np.int8), np.full((140_000, 5), -128, np.int8)
    out = np.empty((3, 4, 5), np.int32)
    library(HERE.name).prepare("int8_matmul", replace(matmul_params(a[0], b), rows=12), a, b, out)(2)
    assert (out == np.int64(140_000 * 128 * 128).astype(np.int32)).all()


def test_what_is_native() -> None:
    """int8 has this product, and no other routine; other types have theirs."""
    assert is_native("int8_matmul", "int8") and not is_native("matmul", "int8") and not is_native("conv2d", "int8")
    assert not is_native("int8_matmul", "float32") and is_native("matmul", "float32")
