"""The native kernels of recurrent layers against the NumPy definition in float64: sizes, strides, left-out results, thread counts, targets."""

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


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
PARTS = {"lstm": 3, "gru": 2, "rnn_tanh": 1, "rnn_relu": 1, "lstm_grad": 3, "gru_grad": 3, "rnn_tanh_grad": 2, "rnn_relu_grad": 2}


def window(rng: np.random.Generator, dtype: str, gaps: bool, *shape: int) -> Array:
    """Values in -1 .. 1; with gaps in a larger array."""
    whole = rng.uniform(-1, 1, (*(e + 2 for e in shape[:-1]), shape[-1] + 3) if gaps else shape).astype(dtype)
    return whole[tuple(slice(1, 1 + e) for e in shape)] if gaps else whole


def forward_operands(rng: np.random.Generator, kind: str, dtype: str, sizes: Sizes, gaps: bool) -> list[Array]:
    """Gate inputs, state, what else the kind has. With gaps they are windows of larger arrays, and the weight lies transposed."""
    steps, rows, units = sizes
    gates, bound = GATES[kind] * units, units**-0.5
    x = window(rng, dtype, gaps, steps, rows, gates)
    states = [window(rng, dtype, gaps, rows, units) for _ in range(2 if kind == "lstm" else 1)]
    weight = (bound * rng.uniform(-1, 1, (units, gates))).astype(dtype).T if gaps else (bound * window(rng, dtype, False, gates, units)).astype(dtype)
    bias = [window(rng, dtype, False, gates)] if kind == "gru" else []
    return [x[::-1] if gaps else 2 * x, *states, weight, *bias]


def backward_operands(rng: np.random.Generator, kind: str, forward: list[Array], gaps: bool) -> list[Array]:
    """Weight, what the forward pass gives, gradients."""
    x, h, *_ = forward
    weight = forward[3 if kind == "lstm" else 2]
    found = [reference(kind, spec_of(kind, forward), [a.astype(np.float64) for a in forward], part).astype(x.dtype) for part in range(PARTS[kind])]
    out = found[0]
    g_out = np.broadcast_to(rng.uniform(-1, 1, out.shape[1:] if gaps else out.shape).astype(x.dtype), out.shape)
    if kind == "lstm":
        return [weight, found[2], found[1], forward[2], g_out, rng.uniform(-1, 1, h.shape).astype(x.dtype)]
    return [weight, found[1], out, h, g_out] if kind == "gru" else [weight, out, g_out]


def spec_of(kind: str, arrays: list[Array]) -> RecurrentSpec:
    sequence, weight = (1, 0) if kind.endswith("_grad") else (0, 3 if kind == "lstm" else 2)
    return RecurrentSpec(tuple((a.shape, strides_of(a)) for a in arrays), (*arrays[sequence].shape[:2], arrays[weight].shape[1]))


def check(kind: str, arrays: list[Array], wanted: tuple[bool, ...] = (True, True, True), lib: Library | None = None) -> None:
    """Every wanted output is right within rounding, and has the same bits for any number of threads."""
    dtype = arrays[0].dtype
    lib = lib or library(dtype.name)
    spec = spec_of(kind, arrays)
    exact = [reference(kind, spec, [a.astype(np.float64) for a in arrays], part) for part in range(PARTS[kind])]
    found = []
    for threads in (1, 2, 3, 4):
        outputs = [np.full(x.shape, np.nan, dtype) if want else None for x, want in zip(exact, wanted, strict=False)]
        lib.prepare_any(kind, contraction(kind, spec), arrays, outputs)(threads)
        found.append(outputs)
    for part, want in enumerate(exact):
        if not wanted[part]:
            continue
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(found[0][part], want, rtol=0, atol=64 * np.finfo(dtype).eps * scale)
        for other in found[1:]:
            assert found[0][part].tobytes() == other[part].tobytes()


WANTED = [(True, True, True), (True, False, False), (False, True, False), (False, False, True), (True, False, True), (True, True, False)]


@pytest.mark.parametrize("kind", list(GATES))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_random_sizes(kind: str, data: st.DataObject) -> None:
    few = st.integers(1, 9)
    rows = st.one_of(few, st.sampled_from([14, 15, 20, 28, 29, 33, 57]))
    units = st.one_of(st.integers(1, 40), st.sampled_from([47, 48, 49, 64, 100]))
    sizes = (data.draw(few), data.draw(rows), data.draw(units))
    dtype, gaps = data.draw(st.sampled_from(["float32", "float64"])), data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    forward = forward_operands(rng, kind, dtype, sizes, gaps)
    check(kind, forward, data.draw(st.sampled_from(WANTED)))
    check(f"{kind}_grad", backward_operands(rng, kind, forward, gaps), data.draw(st.sampled_from(WANTED)))


@pytest.mark.parametrize("kind", list(GATES))
@pytest.mark.parametrize("target", [AVX2, SSE], ids=lambda target: target.name)
def test_narrow_vectors(kind: str, target: PlainUnit) -> None:
    """The code for other vector widths computes the same, on this machine."""
    if host_target() is NEON:
        pytest.skip("an x86 processor is needed")
    rng = np.random.default_rng(0)
    forward = forward_operands(rng, kind, "float32", (4, 19, 21), True)
    lib = library("float32", target)
    check(kind, forward, lib=lib)
    check(f"{kind}_grad", backward_operands(rng, kind, forward, False), lib=lib)


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
    library(dtype).prepare_any("lstm", contraction("lstm", spec_of("lstm", arrays)), arrays, [None, None, gates])(1)
    wide = z.astype(np.float64)
    e = np.exp(-np.abs(wide))
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(gates[0, :, 0], np.where(wide < 0, e, 1) / (1 + e), rtol=tolerance * 16)  # 80 times the rounding of log2(e) x
    np.testing.assert_allclose(gates[0, :, 2], np.tanh(wide), rtol=tolerance)


@pytest.mark.parametrize("kind", list(GATES))
def test_nan_stays_in_its_row(kind: str) -> None:
    """A NaN in one sequence does not reach the others."""
    arrays = forward_operands(np.random.default_rng(0), kind, "float32", (3, 20, 17), False)
    arrays[0] = arrays[0].copy()
    arrays[0][1, 4, 2] = np.nan
    out = np.empty((3, 20, 17), np.float32)
    outputs = [out, *[None] * (PARTS[kind] - 1)]
    library("float32").prepare_any(kind, contraction(kind, spec_of(kind, arrays)), arrays, outputs)(2)
    hit = np.isnan(out)
    assert not hit[0].any() and hit[1, 4].sum() == 1 and hit[2, 4].all()
    hit[:, 4] = False
    assert not hit.any()
