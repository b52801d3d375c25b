"""Definitions that need more than a formula: indices, views, convolution, sorting, random bits, reductions, singular points."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from calque.base.dtypes import bool_, float32, int8, int64, uint8
from calque.ops import get
from tests.ops.cases import evaluate

Array = np.ndarray[Any, Any]


def run(name: str, *arguments: Any) -> Array:
    """A primitive on arrays, then its attributes."""
    op = get(name)
    split = len(arguments) - len(op.attrs)
    return evaluate(op, [np.asarray(a) for a in arguments[:split]], arguments[split:])


# --------------------------------------------------------------------------------------------------------------------- random


def squares64(counter: int, seed: int) -> int:
    """The published algorithm on Python integers."""
    mask = (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    key = (z ^ (z >> 31)) | 1
    x = y = counter * key & mask
    w = (y + key) & mask
    for addend in (y, w, y):
        x = (x * x + addend) & mask
        x = (x >> 32) | (x << 32) & mask
    t = (x * x + w) & mask
    x = (t >> 32) | (t << 32) & mask
    return t ^ (((x * x + y) & mask) >> 32)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63 - 1, -5])
@pytest.mark.parametrize("offset", [0, 7, 2**40])
def test_random_bits_are_squares64(seed: int, offset: int) -> None:
    bits = run("random_bits", np.int64(seed), np.int64(offset), (2, 3))
    want = [squares64(offset + k, seed & (1 << 64) - 1) for k in range(6)]
    assert bits.view(np.uint64).ravel().tolist() == want


def test_random_bits_depend_on_the_position_alone() -> None:
    whole = run("random_bits", np.int64(3), np.int64(0), (100,))
    parts = [run("random_bits", np.int64(3), np.int64(start), (25,)) for start in (0, 25, 50, 75)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_random_bits_are_balanced_and_independent_between_neighbouring_seeds() -> None:
    bits = [run("random_bits", np.int64(seed), np.int64(0), (20_000,)).view(np.uint64) for seed in (0, 1)]
    for words in (*bits, bits[0] ^ bits[1], bits[0][1:] ^ bits[0][:-1]):
        counts = np.array([((words >> np.uint64(b)) & np.uint64(1)).sum() for b in range(64)])
        spread = math.sqrt(len(words)) / 2
        assert np.abs(counts - len(words) / 2).max() < 5 * spread


# ----------------------------------------------------------------------------------------------------------- views and updates


def element(flat: Array, strides: tuple[int, ...], offset: int, index: tuple[int, ...]) -> int:
    return offset + sum(i * s for i, s in zip(index, strides, strict=True))


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((4, 3), (1, 4), 0),
        ((3, 4), (-4, -1), 11),
        ((2, 2), (4, 2), 1),
        ((2, 3, 4), (0, 4, 1), 0),
        ((), (), 5),
        ((0, 2), (1, 1), 0),
    ],
)
def test_views_and_updates_name_the_elements_of_the_definition(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    base = np.arange(12.0).reshape(3, 4)
    positions = {index: element(base, strides, offset, index) for index in itertools.product(*map(range, shape))}
    seen = run("view", base, shape, strides, offset)
    assert seen.shape == shape and all(seen[i] == base.reshape(-1)[p] for i, p in positions.items())
    value = 100 + np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    added, written = base.reshape(-1).copy(), base.reshape(-1).copy()
    for index, position in positions.items():
        added[position] += value[index]
        written[position] = value[index]
    np.testing.assert_array_equal(run("update_add", base, value, shape, strides, offset).reshape(-1), added)
    if 0 not in strides:
        np.testing.assert_array_equal(run("update", base, value, shape, strides, offset).reshape(-1), written)
        np.testing.assert_array_equal(run("update_at", base, value, np.int64(offset), shape, strides).reshape(-1), written)
    np.testing.assert_array_equal(run("view_at", base, np.int64(offset), shape, strides), seen)


@pytest.mark.parametrize("offset", [-100, 100])
def test_a_run_time_offset_outside_the_base_is_moved_inside(offset: int) -> None:
    base = np.arange(12.0)
    seen = run("view_at", base, np.int64(offset), (3,), (1,))
    np.testing.assert_array_equal(seen, base[:3] if offset < 0 else base[-3:])


# --------------------------------------------------------------------------------------------------------------------- indexing


def test_index_primitives_against_loops(rng: np.random.Generator) -> None:
    base, source = rng.standard_normal((4, 5, 3)), rng.standard_normal((4, 6, 2))
    index = rng.integers(0, 5, (4, 6, 2))
    gathered, put, added = np.empty((4, 6, 2)), base.copy(), base.copy()
    for a, b, c in itertools.product(range(4), range(6), range(2)):
        gathered[a, b, c] = base[a, index[a, b, c], c]
        put[a, index[a, b, c], c] = source[a, b, c]
        added[a, index[a, b, c], c] += source[a, b, c]
    np.testing.assert_array_equal(run("gather", base, index, 1), gathered)
    np.testing.assert_array_equal(run("scatter", base, index, source, 1), put)
    np.testing.assert_allclose(run("scatter_add", base, index, source, 1), added, rtol=1e-14)


def test_slice_index_primitives_against_loops(rng: np.random.Generator) -> None:
    base, index = rng.standard_normal((4, 5, 3)), rng.integers(0, 5, (2, 4))
    source = rng.standard_normal((4, 2, 4, 3))
    selected, put, added = np.empty((4, 2, 4, 3)), base.copy(), base.copy()
    for i, j in itertools.product(range(2), range(4)):
        selected[:, i, j] = base[:, index[i, j]]
        put[:, index[i, j]] = source[:, i, j]
        added[:, index[i, j]] += source[:, i, j]
    np.testing.assert_array_equal(run("index_select", base, index, 1), selected)
    np.testing.assert_array_equal(run("index_put", base, index, source, 1), put)
    np.testing.assert_allclose(run("index_add", base, index, source, 1), added, rtol=1e-14)


def test_indices_outside_are_clamped() -> None:
    base = np.arange(4.0)
    np.testing.assert_array_equal(run("index_select", base, np.array([-3, 9]), 0), [0.0, 3.0])
    np.testing.assert_array_equal(run("gather", base, np.array([-3, 9]), 0), [0.0, 3.0])


# ------------------------------------------------------------------------------------------------------------------ convolution


def convolve(x: Array, w: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """Six nested loops."""
    n, _, h, wd = x.shape
    o, cg, kh, kw = w.shape
    oh = (h + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (wd + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    out = np.zeros((n, o, oh, ow))
    for b, f, i, j, k, u, v in itertools.product(*map(range, (n, o, oh, ow, cg, kh, kw))):
        row, column = i * stride[0] - padding[0] + u * dilation[0], j * stride[1] - padding[1] + v * dilation[1]
        if 0 <= row < h and 0 <= column < wd:
            out[b, f, i, j] += x[b, f // (o // groups) * cg + k, row, column] * w[f, k, u, v]
    return out


@pytest.mark.parametrize("number", range(len(get("conv2d").samples)))
def test_convolution_against_loops_and_its_gradients_are_adjoint(number: int, rng: np.random.Generator) -> None:
    sample = get("conv2d").samples[number]
    x, w = (rng.standard_normal(shape) for shape in sample.shapes)
    out = run("conv2d", x, w, *sample.attrs)
    np.testing.assert_allclose(out, convolve(x, w, *sample.attrs), rtol=1e-12, atol=1e-12)
    g = rng.standard_normal(out.shape)
    dx = run("conv2d_input_grad", g, w, x.shape[2:], *sample.attrs)
    dw = run("conv2d_weight_grad", x, g, w.shape[2:], *sample.attrs)
    assert math.isclose((dx * x).sum(), (g * out).sum(), rel_tol=1e-10)
    assert math.isclose((dw * w).sum(), (g * out).sum(), rel_tol=1e-10)


# ------------------------------------------------------------------------------------------------------- sorting and reductions


def test_argsort_is_stable_and_puts_nan_last_or_first() -> None:
    x = np.array([2.0, math.nan, 1.0, 2.0, -math.inf, math.nan, 1.0])
    assert run("argsort", x, 0, False).tolist() == [4, 2, 6, 0, 3, 1, 5]
    assert run("argsort", x, 0, True).tolist() == [1, 5, 0, 3, 2, 6, 4]
    assert run("argsort", np.array([0, 255, 0], np.uint8), 0, True).tolist() == [1, 0, 2]


def test_positions_of_extremes() -> None:
    x = np.array([[1.0, 3.0, 3.0], [0.0, 3.0, 0.0]])
    assert run("argmax", x, (0, 1), False) == 1
    assert run("argmin", x, (0, 1), False) == 3
    assert run("argmax", x, (0,), False).tolist() == [0, 0, 0]
    assert run("argmin", x, (1,), True).tolist() == [[0], [0]]
    cube = np.arange(24).reshape(2, 3, 4)
    assert run("argmax", cube, (0, 2), False).tolist() == [7, 7, 7]


def test_nan_wins_extremes() -> None:
    x = np.array([1.0, math.nan, 3.0, math.nan])
    for name in ("amax", "amin"):
        assert np.isnan(run(name, x, (0,), False))
    for name in ("argmax", "argmin"):
        assert run(name, x, (0,), False) == 1
    for name in ("maximum", "minimum"):
        assert np.isnan(run(name, x, x[::-1].copy())).tolist() == [True, True, True, True]


def test_empty_reductions_give_the_identity() -> None:
    empty = np.zeros((0, 2), np.float32)
    assert run("sum", empty, (0,), False).tolist() == [0, 0]
    assert run("prod", empty, (0,), False).tolist() == [1, 1]
    flags = empty.astype(np.bool_)
    assert run("any", flags, (0,), False).tolist() == [False, False]
    assert run("all", flags, (0,), False).tolist() == [True, True]
    assert run("amax", np.zeros((0, 2)), (1,), False).shape == (0,)


def test_sixteen_bit_sums_accumulate_in_float32() -> None:
    ones = np.ones(5000, np.float16)
    assert run("sum", ones, (0,), False) == 5000
    assert run("cumsum", ones, 0)[4095] == 4096


# -------------------------------------------------------------------------------------------------------------- integers, casts


def test_integer_division_rounds_down_and_by_zero_gives_zero() -> None:
    x, y = np.array([7, -7, 7, -7, 5]), np.array([2, 2, -2, -2, 0])
    assert run("floor_divide", x, y).tolist() == [3, -4, -4, 3, 0]
    assert run("remainder", x, y).tolist() == [1, 1, -1, -1, 0]
    assert run("fmod", x, y).tolist() == [1, -1, 1, -1, 0]


def test_floating_division_rounds_down() -> None:
    x, y = np.array([7.0, -7.0, 1.0, -5.0, 3.0, -0.0]), np.array([2.0, 2.0, 0.1, math.inf, 0.0, 2.0])
    assert run("floor_divide", x, y).tolist() == [3.0, -4.0, 9.0, -1.0, math.inf, 0.0]
    assert run("remainder", x[:4], y[:4]).tolist() == [1.0, 1.0, pytest.approx(0.1), math.inf]


def test_integer_powers_wrap_and_invert() -> None:
    x, y = np.array([3, -2, 2, -1, 1, 0, 7, 3]), np.array([4, 3, -1, -3, -2, -1, 0, 50])
    want = [81, -8, 0, -1, 1, 0, 1, (3**50 + 2**63) % 2**64 - 2**63]
    assert run("pow", x, y).tolist() == want
    assert run("pow", np.uint8(3), np.uint8(6)) == 729 % 256


def test_casts_follow_pytorch() -> None:
    x = np.array([1.9, -1.9, 0.0, 255.0, 300.0])
    assert run("cast", x, int64).tolist() == [1, -1, 0, 255, 300]
    assert run("cast", x, uint8).tolist() == [1, 255, 0, 255, 44]
    assert run("cast", x, int8).tolist() == [1, -1, 0, -1, 44]
    assert run("cast", np.array([0.0, -0.0, math.nan, 0.5]), bool_).tolist() == [False, False, True, True]
    assert run("cast", np.array([True, False]), float32).tolist() == [1.0, 0.0]


def test_atan2_knows_the_sign_of_zero() -> None:
    y, x = np.array([0.0, -0.0, 0.0, -0.0, 1.0]), np.array([-1.0, -1.0, -0.0, 0.0, -math.inf])
    np.testing.assert_array_equal(run("atan2", y, x), np.array([math.pi, -math.pi, math.pi, -0.0, math.pi]))
