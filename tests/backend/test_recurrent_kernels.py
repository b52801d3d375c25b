"""The native kernels of long short-term memory against the NumPy definition in float64: sizes, strides, left-out results, thread counts, targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calque.backend.cpu.contract import AVX2, NEON, SSE, PlainUnit, contraction
from calque.kernel.contract import reference
from calque.ops.routines import RecurrentSpec
from tests.backend.contract_harness import Library, host_target, library, strides_of

Array = np.ndarray[Any, Any]
Sizes = tuple[int, int, int]


def forward_operands(rng: np.random.Generator, dtype: str, sizes: Sizes, gaps: bool) -> list[Array]:
    """Gate inputs, state, cell, weight. With gaps they are windows of larger arrays, and the weight lies transposed."""
    steps, rows, units = sizes
    bound = units**-0.5

    def window(*shape: int) -> Array:
        whole = rng.uniform(-1, 1, (*(e + 2 for e in shape[:-1]), shape[-1] + 3) if gaps else shape).astype(dtype)
        return whole[tuple(slice(1, 1 + e) for e in shape)] if gaps else whole

    x, h, c = 2 * window(steps, rows, 4 * units) if not gaps else window(steps, rows, 4 * units), window(rows, units), window(rows, units)
    weight = (bound * rng.uniform(-1, 1, (units, 4 * units))).astype(dtype).T if gaps else (bound * window(4 * units, units)).astype(dtype)
    return [x[::-1] if gaps else x, h, c, weight]


def backward_operands(rng: np.random.Generator, forward: list[Array], gaps: bool) -> list[Array]:
    """Weight, gates, cells, first cell, gradients: as the forward pass gives them."""
    x, _, c, weight = forward
    wide = [a.astype(np.float64) for a in forward]
    spec = spec_of(forward, x)
    cells, gates = (reference("lstm", spec, wide, part).astype(x.dtype) for part in (1, 2))
    g_out = rng.uniform(-1, 1, cells.shape[1:] if gaps else cells.shape).astype(x.dtype)
    g_out = np.broadcast_to(g_out, cells.shape)
    return [weight, gates, cells, c, g_out, rng.uniform(-1, 1, c.shape).astype(x.dtype)]


def spec_of(arrays: list[Array], gates: Array) -> RecurrentSpec:
    steps, rows, units = gates.shape
    return RecurrentSpec(tuple((a.shape, strides_of(a)) for a in arrays), (steps, rows, units // 4))


def check(kind: str, arrays: list[Array], wanted: tuple[bool, ...] = (True, True, True), lib: Library | None = None) -> None:
    """Every wanted output is right within rounding, and has the same bits for any number of threads."""
    dtype = arrays[0].dtype
    lib = lib or library(dtype.name)
    spec = spec_of(arrays, arrays[0 if kind == "lstm" else 1])
    exact = [reference(kind, spec, [a.astype(np.float64) for a in arrays], part) for part in range(3)]
    found = []
    for threads in (1, 2, 3, 4):
        outputs = [np.full(x.shape, np.nan, dtype) if want else None for x, want in zip(exact, wanted, strict=True)]
        lib.prepare_any(kind, contraction(kind, spec), arrays, outputs)(threads)
        found.append(outputs)
    for part, want in enumerate(exact):
        if not wanted[part]:
            continue
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(found[0][part], want, rtol=0, atol=64 * np.finfo(dtype).eps * scale)
        for other in found[1:]:
            assert found[0][part].tobytes() == other[part].tobytes()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_random_sizes(data: st.DataObject) -> None:
    few = st.integers(1, 9)
    rows = st.one_of(few, st.sampled_from([14, 15, 20, 28, 29, 33, 57]))
    units = st.one_of(st.integers(1, 40), st.sampled_from([47, 48, 49, 64, 100]))
    sizes = (data.draw(few), data.draw(rows), data.draw(units))
    dtype, gaps = data.draw(st.sampled_from(["float32", "float64"])), data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    forward = forward_operands(rng, dtype, sizes, gaps)
    check("lstm", forward, data.draw(st.sampled_from([(True, True, True), (True, False, False), (False, True, False), (False, False, True)])))
    wanted = data.draw(st.sampled_from([(True, True, True), (True, False, False), (False, True, False), (False, False, True), (True, False, True)]))
    check("lstm_grad", backward_operands(rng, forward, gaps), wanted)


@pytest.mark.parametrize("target", [AVX2, SSE], ids=lambda target: target.name)
def test_narrow_vectors(target: PlainUnit) -> None:
    """The code for other vector widths computes the same, on this machine."""
    if host_target() is NEON:
        pytest.skip("an x86 processor is needed")
    rng = np.random.default_rng(0)
    forward = forward_operands(rng, "float32", (4, 19, 21), True)
    lib = library("float32", target)
    check("lstm", forward, lib=lib)
    check("lstm_grad", backward_operands(rng, forward, False), lib=lib)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_activations_are_accurate_to_a_few_units_in_the_last_place(dtype: str) -> None:
    """Far out, near zero, infinite: relative errors of the gates, with no state and no weight."""
    values = np.concatenate([np.geomspace(1e-8, 80, 60), [0.0, np.inf]])
    z = np.concatenate([values, -values]).astype(dtype)
    x = np.zeros((1, len(z), 4), dtype)
    x[0, :, 0], x[0, :, 2] = z, z
    zero, weight = np.zeros((len(z), 1), dtype), np.zeros((4, 1), dtype)
    gates = np.empty((1, len(z), 4), dtype)
    arrays = [x, zero, zero, weight]
    library(dtype).prepare_any("lstm", contraction("lstm", spec_of(arrays, x)), arrays, [None, None, gates])(1)
    wide = z.astype(np.float64)
    e = np.exp(-np.abs(wide))
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(gates[0, :, 0], np.where(wide < 0, e, 1) / (1 + e), rtol=tolerance * 16)  # 80 times the rounding of log2(e) x
    np.testing.assert_allclose(gates[0, :, 2], np.tanh(wide), rtol=tolerance)


def test_nan_stays_in_its_row() -> None:
    """A NaN in one sequence does not reach the others."""
    arrays = forward_operands(np.random.default_rng(0), "float32", (3, 20, 17), False)
    arrays[0] = arrays[0].copy()
    arrays[0][1, 4, 2] = np.nan
    out = np.empty((3, 20, 17), np.float32)
    library("float32").prepare_any("lstm", contraction("lstm", spec_of(arrays, arrays[0])), arrays, [out, None, None])(2)
    hit = np.isnan(out)
    assert not hit[0].any() and hit[1, 4].sum() == 1 and hit[2, 4].all()
    hit[:, 4] = False
    assert not hit.any()
