"""The native attention kernels against the NumPy definition in float64: sizes, strides, masks, thread counts, targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calque.backend.cpu.contract import AVX2, AVX512, NEON, SCRATCH_BYTES, SSE, PlainUnit, contraction
from calque.backend.cpu.contract.attention import forward_sizes
from calque.backend.cpu.contract.attention_call import Attention
from calque.backend.cpu.contract.attention_few import few_sizes
from calque.backend.cpu.contract.attention_grad import gradient_sizes
from calque.backend.cpu.contract.builder import Builder
from calque.backend.cpu.contract.product_words import blocking_for
from calque.kernel.contract import reference
from calque.ops.attention import MAX_HEAD_SIZE, MOST_QUERIES_IN_PLACE
from calque.ops.routines import AttentionSpec
from tests.backend.contract_harness import Library, host_target, library, strides_of

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64")


def spec_of(arrays: list[Array], batch: tuple[int, ...], scale: float, causal: bool, turned: bool = False) -> AttentionSpec:
    return AttentionSpec(tuple((a.shape, strides_of(a)) for a in arrays), batch, scale, causal, turned)


def check(kind: str, arrays: list[Array], spec: AttentionSpec, wanted: tuple[bool, ...], lib: Library | None = None) -> None:
    """Every wanted output is right within rounding, and has the same bits for any number of threads."""
    dtype = arrays[0].dtype
    lib = lib or library(dtype.name)
    exact = [reference(kind, spec, [a.astype(np.float64) for a in arrays], part) for part in range(len(wanted))]
    found = []
    for threads in (1, 2, 4):
        outputs = [np.full(x.shape, np.nan, dtype) if want else None for x, want in zip(exact, wanted, strict=True)]
        lib.prepare_any(kind, contraction(kind, spec), arrays, outputs)(threads)
        found.append(outputs)
    for part, want in enumerate(exact):
        if not wanted[part]:
            continue
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(found[0][part], want, rtol=0, atol=256 * np.finfo(dtype).eps * scale)
        for other in found[1:]:
            assert found[0][part].tobytes() == other[part].tobytes()


def operands(
    rng: np.random.Generator, dtype: str, batch: tuple[int, ...], sizes: tuple[int, int, int, int], masked: bool, scale: float, causal: bool
) -> tuple[list[Array], list[Array]]:
    """Operands of attention, and of its gradient with matching row statistics. Queries and keys lie like views of one projection."""
    queries, keys, features, outputs = sizes
    q = rng.standard_normal((*batch, features, queries)).astype(dtype).swapaxes(-1, -2)
    k = rng.standard_normal((*batch, keys, 2 * features)).astype(dtype)[..., :features]
    v = np.broadcast_to(rng.standard_normal((keys, outputs)).astype(dtype), (*batch, keys, outputs))
    mask = []
    if masked:
        m = rng.standard_normal((queries, keys)).astype(dtype)
        m[rng.random(m.shape) < 0.2] = -np.inf
        mask = [np.broadcast_to(m, (*batch, queries, keys))]
    forward = [q, k, v, *mask]
    g = rng.standard_normal((*batch, queries, outputs)).astype(dtype)
    kind = "attention" + "_masked" * masked
    exact = [reference(kind, spec_of(forward, batch, scale, causal), [a.astype(np.float64) for a in forward], part) for part in (0, 1)]
    return forward, [q, k, v, g, exact[1].astype(dtype), (g * exact[0]).sum(-1).astype(dtype), *mask]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_random_sizes(data: st.DataObject) -> None:
    size = st.one_of(st.integers(0, 40), st.integers(41, 400))
    width = st.one_of(st.integers(1, 40), st.sampled_from([64, 65, 127, 128, 200, 256, 257]))
    sizes = (data.draw(size), data.draw(size), data.draw(width), data.draw(width))
    batch = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    dtype, masked, causal, turned = data.draw(st.tuples(st.sampled_from(DTYPES), st.booleans(), st.booleans(), st.booleans()))
    scale = data.draw(st.sampled_from([0.1, 0.0, -0.2]))
    forward, backward = operands(np.random.default_rng(data.draw(st.integers(0, 9))), dtype, batch, sizes, masked, scale, causal)
    suffix = "_masked" * masked
    check("attention" + suffix, forward, spec_of(forward, batch, scale, causal, turned), (True, True))
    wanted = data.draw(st.sampled_from([(True, True, True), (True, False, False), (False, True, False), (False, True, True)]))
    check("attention_grad" + suffix, backward, spec_of(backward, batch, scale, causal, turned), wanted)


@pytest.mark.parametrize("target", [AVX2, SSE], ids=lambda target: target.name)
def test_narrow_vectors(target: PlainUnit) -> None:
    """The code for other vector widths computes the same, on this machine."""
    if host_target() is NEON:
        pytest.skip("an x86 processor is needed")
    forward, backward = operands(np.random.default_rng(0), "float32", (2,), (70, 300, 33, 20), True, 0.2, True)
    lib = library("float32", target)
    check("attention_masked", forward, spec_of(forward, (2,), 0.2, True), (True, True), lib)
    check("attention_grad_masked", backward, spec_of(backward, (2,), 0.2, True), (True, True, True), lib)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_few_queries(data: st.DataObject) -> None:
    """Keys and values read in place, however long their rows and whatever lies between them; columns that are apart take the other path."""
    queries, keys = data.draw(st.integers(1, MOST_QUERIES_IN_PLACE)), data.draw(st.one_of(st.integers(0, 40), st.integers(250, 700)))
    width = st.one_of(st.integers(1, 40), st.sampled_from([64, 65, 127, 128, 200, 256, 257]))
    sizes = (queries, keys, data.draw(width), data.draw(width))
    batch = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    dtype, masked, causal, turned = data.draw(st.tuples(st.sampled_from(DTYPES), st.booleans(), st.booleans(), st.booleans()))
    forward, _ = operands(np.random.default_rng(data.draw(st.integers(0, 9))), dtype, batch, sizes, masked, 0.3, causal)
    if data.draw(st.booleans()):
        forward[2] = np.ascontiguousarray(forward[2].swapaxes(-1, -2)).swapaxes(-1, -2)
    wanted = data.draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    check("attention" + "_masked" * masked, forward, spec_of(forward, batch, 0.3, causal, turned), wanted)


@pytest.mark.parametrize("target", [AVX2, SSE], ids=lambda target: target.name)
@pytest.mark.parametrize("sizes", [(1, 300, 33, 20), (3, 37, 64, 100)])
def test_few_queries_with_narrow_vectors(target: PlainUnit, sizes: tuple[int, int, int, int]) -> None:
    if host_target() is NEON:
        pytest.skip("an x86 processor is needed")
    forward, _ = operands(np.random.default_rng(0), "float32", (2,), sizes, True, 0.2, True)
    check("attention_masked", forward, spec_of(forward, (2,), 0.2, True), (True, True), library("float32", target))


def test_few_queries_stay_inside_their_operands() -> None:
    """Nothing beside the rows is read or written: NaN around keys and values changes nothing, results end where they end."""
    rng = np.random.default_rng(0)
    for keys, features, outputs in ((1, 1, 1), (17, 5, 7), (40, 33, 70), (300, 20, 129)):
        around = [np.full((2, keys + 2, width + 40), np.nan, np.float32) for width in (features, outputs)]
        k, v = around[0][:, 1:-1, 20:-20], around[1][:, 1:-1, 20:-20]
        k[...], v[...] = rng.standard_normal(k.shape), rng.standard_normal(v.shape)
        q = rng.standard_normal((2, 2, features)).astype(np.float32)
        check("attention", [q, k, v], spec_of([q, k, v], (2,), 0.4, False), (True, True))


def test_nan_with_few_queries() -> None:
    forward, _ = operands(np.random.default_rng(0), "float32", (1,), (3, 90, 16, 16), False, 0.3, True)
    q, k, v = (x.copy() for x in forward)
    q[0, 0], k[0, 2, 1] = np.nan, np.nan
    out = np.empty((1, 3, 16), np.float32)
    spec = spec_of([q, k, v], (1,), 0.3, True)
    library("float32").prepare_any("attention", contraction("attention", spec), [q, k, v], [out, None])(1)
    assert np.isnan(out).all(-1)[0].tolist() == [True, False, True] and np.isfinite(out[0, 1]).all()


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NEON], ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gradient", [False, True])
def test_blocks_fit_into_scratch_memory(gradient: bool, dtype: str, target: PlainUnit) -> None:
    """For every head size the areas of one piece of work fit, and blocks are whole numbers of tiles."""
    blocking = blocking_for(dtype, target)
    b = Builder("sizes", (), blocking)
    for width in range(1, MAX_HEAD_SIZE + 1):
        shapes = ((1000, width), (1000, width), (1000, width))
        call = Attention(AttentionSpec(tuple((shape, (width, 1)) for shape in shapes), (), 1.0, False), gradient)
        assert call.key_block % blocking.tile_columns == call.query_chunk % blocking.tile_columns == 0
        sizes = (gradient_sizes if gradient else forward_sizes)(b, width, width, call.key_block, call.query_chunk)
        assert all(isinstance(size, int) and size % blocking.lanes == 0 for size in sizes.values())
        few = few_sizes(b, width, width, call.key_block)
        assert all(isinstance(size, int) and size % blocking.lanes == 0 for size in few.values())
        assert max(sum(sizes.values()), sum(few.values())) * blocking.item_bytes <= SCRATCH_BYTES  # type: ignore[arg-type, type-var]


@pytest.mark.parametrize("sizes", [(600, 600, 64, 64), (300, 700, 33, 16), (100, 700, 64, 48), (700, 300, 16, 80), (45, 45, 64, 64), (0, 50, 16, 16)])
def test_tiles_at_the_diagonal(sizes: tuple[int, int, int, int]) -> None:
    """Pieces of work that begin behind the first queries, tiles cut at the diagonal, keys that nobody sees."""
    forward, backward = operands(np.random.default_rng(1), "float32", (1,), sizes, False, 0.2, True)
    check("attention", forward, spec_of(forward, (1,), 0.2, True), (True, True))
    check("attention_grad", backward, spec_of(backward, (1,), 0.2, True), (True, True, True))


@pytest.mark.parametrize("sizes", [(300, 300, 64, 64), (300, 300, 33, 33), (90, 90, 48, 20), (70, 70, 7, 16), (0, 0, 8, 8)])
@pytest.mark.parametrize("batch", [(2, 3), (1, 2), (5, 4)])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_side_by_side_in_one_value(sizes: tuple[int, int, int, int], batch: tuple[int, int], causal: bool) -> None:
    """The same bits as in values of their own, for any number of threads and pieces of work; nothing else of a row is touched."""
    _, arrays = operands(np.random.default_rng(3), "float32", batch, sizes, False, 0.2, causal)
    spec = spec_of(arrays, batch, 0.2, causal, True)
    widths = [batch[1] * size for size in (sizes[2], sizes[2], sizes[3])]
    apart = [np.full((batch[0], sizes[0], width), np.nan, np.float32) for width in widths]
    lib = library("float32")
    lib.prepare_any("attention_grad", contraction("attention_grad", spec), arrays, apart)(1)
    joint = sum(widths) + 5
    for threads in (1, 2, 4):
        rows = np.full((batch[0], sizes[0], joint), 7, np.float32)
        starts = (2 + widths[0], 2, joint - widths[2])  # in another order, with gaps
        parts = [rows[..., start : start + width] for start, width in zip(starts, widths, strict=True)]
        lib.prepare_any("attention_grad", contraction("attention_grad", replace(spec, joint=joint)), arrays, parts)(threads)
        for own, part in zip(apart, parts, strict=True):
            assert own.tobytes() == part.tobytes()
            part[...] = 7
        assert (rows == 7).all()


def test_nan_stays_in_its_rows() -> None:
    """A NaN in one query or one key spreads as in the formula: causal queries in front of the key do not see it."""
    forward, _ = operands(np.random.default_rng(0), "float32", (1,), (90, 90, 16, 16), False, 0.3, True)
    q, k, v = (x.copy() for x in forward)
    q[0, 3], k[0, 70, 2] = np.nan, np.nan
    out = np.empty((1, 90, 16), np.float32)
    spec = spec_of([q, k, v], (1,), 0.3, True)
    library("float32").prepare_any("attention", contraction("attention", spec), [q, k, v], [out, None])(1)
    bad = np.isnan(out).all(-1)[0]
    assert bad.nonzero()[0].tolist() == [3, *range(70, 90)]
    assert np.isfinite(out[0, ~bad]).all()


def test_very_large_scores_do_not_overflow() -> None:
    forward, backward = operands(np.random.default_rng(0), "float32", (1,), (50, 70, 16, 16), False, 200.0, False)
    check("attention", forward, spec_of(forward, (1,), 200.0, False), (True, False))
    assert np.abs(backward[4]).max() > 1000


def test_work_is_cut_by_sizes_alone() -> None:
    """Few products are cut into several pieces; many are not."""
    forward, backward = operands(np.random.default_rng(0), "float32", (1,), (512, 512, 8, 8), False, 1.0, False)
    assert Attention(spec_of(forward, (1,), 1.0, False), False).query_chunk == 64
    one = Attention(spec_of(backward, (1,), 1.0, False), True)
    assert one.splits == 2 and one.workspace_bytes("float32", AVX512) == 2 * 512 * 8 * 4
    many = replace(one.spec, batch=(16,), views=tuple(((16, *shape[1:]), strides) for shape, strides in one.spec.views))
    assert Attention(many, True).splits == 1 and Attention(many, True).workspace_bytes("float32", AVX512) == 0
