"""Native products with weights of four bits against NumPy's of float64, on this machine and with the instructions of smaller ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
from calque.backend.cpu.contract import AVX2, AVX512, NEON, SSE, PlainUnit, contraction, expected, is_native, module_ir
from calque.base.errors import DTypeError, ShapeError
from calque.functional.common import prim
from calque.ops.opdef import get
from calque.ops.routines import Int4Spec
from tests.backend.contract_harness import Library, aligned, host_target, strides_of

HERE = host_target()
SMALLER = (*((AVX2,) if HERE.vector_bytes == 64 else ()), SSE) if HERE.vector_bytes >= 32 else ()
TARGETS = {target.name: target for target in (HERE, *SMALLER, PlainUnit("plain", 16, 16))}
EXACT = {"float32": 2.0**-24, "float64": 2.0**-53}


@cache
def library(dtype: str, name: str) -> Library:
    """The library of a target, compiled once."""
    return Library(dtype, TARGETS[name])


def check(sizes: tuple[int, int, int, int], dtype: str, name: str, seed: int, spread: bool = False) -> None:
    """Near the sum of products in float64, as near as a sum of so many roundings is; the same bits for every number of threads."""
    rows, columns, groups, size = sizes
    rng = np.random.default_rng(seed)
    wide = 1 + spread  # operands whose rows lie apart
    x = rng.standard_normal((rows, wide * groups * size)).astype(dtype)[:, : groups * size]
    packed = rng.integers(-128, 128, (columns, wide * groups * size // 2)).astype(np.int8)[:, : groups * size // 2]
    scale = rng.standard_normal((columns, wide * groups)).astype(dtype)[:, :groups]
    reference: Any = get("int4_matmul").ref
    wanted = reference(x.astype(np.float64), packed, scale.astype(np.float64))
    most = reference(np.abs(x).astype(np.float64), np.full_like(packed, -128), np.abs(scale).astype(np.float64))  # every weight is -8
    params = contraction("int4_matmul", Int4Spec(tuple((a.shape, strides_of(a)) for a in (x, packed, scale)), (rows, columns)), dtype)
    results = []
    for threads in (1, 2, 3):
        out = aligned(rows * columns, dtype).reshape(rows, columns)
        out[...] = -7
        library(dtype, name).prepare_any("int4_matmul", params, [x, packed, scale], [out])(threads)
        results.append(out)
    assert (np.abs(results[0] - wanted) <= (groups * size + 4) * EXACT[dtype] * np.abs(most)).all()
    assert all(np.array_equal(out, results[0]) for out in results[1:])


@pytest.mark.parametrize("name", list(TARGETS))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_products(name: str, data: st.DataObject) -> None:
    """Rows and columns around tiles, groups of all sizes, rows that lie apart."""
    rows, columns, groups = (data.draw(st.integers(1, most)) for most in (10, 150, 5))
    size = data.draw(st.one_of(st.sampled_from([8, 16, 32, 64, 128]), st.integers(1, 90).map(lambda n: 2 * n)))
    check((rows, columns, groups, size), data.draw(st.sampled_from(list(EXACT))), name, data.draw(st.integers(0, 99)), data.draw(st.booleans()))


@pytest.mark.parametrize("size", [32, 64, 128])
def test_layers_of_models(size: int) -> None:
    for rows in (1, 3, 32):
        check((rows, 1000, 768 // size, size), "float32", HERE.name, size)


def test_what_is_native_and_expected() -> None:
    assert is_native("int4_matmul", "float32") and is_native("int4_matmul", "float64") and not is_native("int4_matmul", "int8")
    for target in (AVX512, AVX2, NEON, SSE):
        assert ("permvar" in module_ir("float32", target)) is (target is AVX512)
    for rows, tiles in ((1, {1}), (4, {4}), (7, {3, 4}), (0, set())):
        spec = Int4Spec((((rows, 8), (8, 1)), ((3, 4), (4, 1)), ((3, 1), (1, 1))), (rows, 3))
        assert expected("int4_matmul", contraction("int4_matmul", spec), "float32", HERE, 1) == {f"int4_tile_{count}" for count in tiles}


def test_operands_that_are_parts_of_others() -> None:
    """Their places count elements of their own types."""
    rng = np.random.default_rng(0)
    x, scale = calque.tensor(rng.standard_normal((3, 70)), dtype=calque.float32), calque.tensor(rng.random((9, 5)), dtype=calque.float32)
    packed = calque.tensor(rng.integers(-128, 128, (9, 40)), dtype=calque.int8)
    parts = x[1:, 4:68], packed[3:8, 5:37], scale[2:7, 3:]
    compiled = calque.compile(lambda *given: prim("int4_matmul", *given))
    wanted = get("int4_matmul").ref(*[t.numpy() for t in parts])
    inside = calque.compile(lambda x, packed, scale: prim("int4_matmul", x[1:, 4:68], packed[3:8, 5:37], scale[2:7, 3:]))
    for _ in range(3):
        np.testing.assert_allclose(inside(x, packed, scale).numpy(), wanted, rtol=1e-4)
        np.testing.assert_allclose(compiled(*parts).numpy(), wanted, rtol=1e-4)


def test_what_is_refused() -> None:
    x, packed, scale = calque.ones(2, 8), calque.ones(3, 4, dtype=calque.int8), calque.ones(3, 2)
    assert prim("int4_matmul", x, packed, scale).shape == (2, 3)
    sizes = ((x, packed, scale[:, :0]), (x, packed[:, :3], scale), (x, packed[:2], scale), (x[0], packed, scale), (x[:, :6], packed[:, :3], scale))
    for wrong in sizes:
        with pytest.raises(ShapeError, match=r"\[int4_matmul\] expected rows \(R, K\), packed weights \(N, K / 2\) and scales \(N, groups\)"):
            prim("int4_matmul", *wrong)
    for wrong in ((x.long(), packed, scale.long()), (x, packed.to(calque.uint8), scale), (x, packed, scale.double())):
        with pytest.raises(DTypeError, match=r"\[int4_matmul\] expected a floating dtype, int8, and the first again"):
            prim("int4_matmul", *wrong)
