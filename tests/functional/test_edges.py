"""Element types, signs of zero and shapes at the edge, as PyTorch has them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import ShapeError
from calque.nn import functional as F


def test_alpha_has_no_part_in_the_dtype() -> None:
    half, small, brain = (calque.tensor([1], dtype=d) for d in (calque.float16, calque.int8, calque.bfloat16))
    assert calque.tensor(1.0, dtype=calque.float16).add(0.25, alpha=2).dtype is calque.float16
    assert small.add(calque.tensor([True]), alpha=2).dtype is calque.int8
    assert small.sub(3, alpha=2).tolist() == [-5]
    assert brain.add(calque.tensor([3]), alpha=0.5).dtype is calque.bfloat16
    assert half.sub(calque.tensor([2.5], dtype=calque.float16), alpha=2).tolist() == [-4.0]
    assert calque.rsub(small, 3, alpha=2).dtype is calque.int8
    with pytest.raises(ValueError, match="without overflow: 300"):
        small.add(small, alpha=300)


def test_sixteen_bit_floats_with_alpha_are_rounded_once() -> None:
    x, y = calque.tensor([1.0], dtype=calque.bfloat16), calque.tensor([1.0078125], dtype=calque.bfloat16)
    wanted = calque.tensor([1.0 + 0.6 * 1.0078125]).to(calque.bfloat16)
    assert calque.add(x, y, alpha=0.6).equal(wanted)


def test_three_operands_are_promoted_together() -> None:
    x, y, z = calque.tensor(1.25, dtype=calque.float64), calque.tensor([1, 2], dtype=calque.int8), calque.tensor([3, 4], dtype=calque.int32)
    assert calque.addcmul(x, y, z, value=-1.25).dtype is calque.float64
    assert calque.tensor(5, dtype=calque.int32).clamp(max=calque.tensor([4, 6], dtype=calque.uint8)).dtype is calque.uint8
    assert calque.addcdiv(calque.zeros(1), calque.tensor([-1]), calque.tensor(-1.25, dtype=calque.bfloat16)).item() == pytest.approx(0.8)
    assert calque.addr(calque.zeros(2, 2), calque.tensor([1, 2]), calque.tensor([1, 2])).dtype is calque.float32


def test_products_of_integers_take_whole_factors() -> None:
    m, v = calque.tensor([[1, 2], [3, 4]]), calque.tensor([1, 2])
    assert calque.addmv(v, m, v, alpha=2.7).tolist() == [11, 24]
    with pytest.raises(TypeError, match="argument alpha must not be a floating point number"):
        calque.addr(m, v, v, alpha=0.5)


def test_unsigned_numbers_wrap_around() -> None:
    x = calque.zeros(3, dtype=calque.uint8)
    x[0] = -1
    x[1:].fill_(-2)
    assert x.tolist() == [255, 254, 254]
    assert calque.full((1,), -255, dtype=calque.uint8).item() == 1
    assert x.masked_fill(x == 255, -3).tolist() == [253, 254, 254]
    assert x.clamp(min=-3).tolist() == [255, 254, 254]
    for value in (-256, 256, -1.0, math.nan):
        with pytest.raises(ValueError, match="without overflow"):
            x.fill_(value)
    with pytest.raises(ValueError, match="without overflow"):
        calque.tensor([1, 300], dtype=calque.uint8)
    with pytest.raises(ValueError, match="without overflow"):
        calque.where(x > 0, x, 300)
    assert calque.tensor(np.array([300]), dtype=calque.uint8).item() == 44


def test_zeros_keep_their_sign() -> None:
    zeros = calque.tensor([-0.0, 0.0, -0.0])
    signs = calque.floor_divide(zeros, calque.tensor([1.0, -1.0, -1.0])).numpy()
    assert np.signbit(signs).tolist() == [True, True, False]
    for function in (calque.sinh, calque.asinh, calque.atanh, lambda x: calque.fmod(x, 1.0), lambda x: calque.remainder(x, 2.0)):
        assert np.signbit(function(zeros).numpy()).tolist() == [True, False, True]


def test_division_of_nothing_by_zero() -> None:
    assert calque.floor_divide(calque.zeros(0, dtype=calque.int64), calque.tensor([[0], [2]])).shape == (2, 0)
    assert calque.div(calque.tensor(True), calque.tensor([-4, 2]), rounding_mode="trunc").tolist() == [0, 0]


def test_numpy_raises_what_the_computation_did(recorded: None) -> None:
    x = calque.tensor([4, 6])
    x.floor_divide_(calque.tensor([2, 0]))
    with pytest.raises(ZeroDivisionError, match="first at position"):
        x.numpy()
    assert x.tolist() == [4, 6]


def test_ravel_copies_what_is_not_contiguous() -> None:
    x = calque.arange(12.0)
    flat = x[::2].ravel()
    flat.fill_(7)
    assert flat.stride() == (1,)
    assert x.tolist() == list(range(12))
    x[2:8].ravel().fill_(7)
    assert x[2:8].tolist() == [7.0] * 6


def test_covariance_of_one_variable() -> None:
    x = calque.arange(4.0).view(1, 4)
    assert calque.cov(x).shape == ()
    assert calque.corrcoef(x).tolist() == 1.0


def test_no_differences() -> None:
    assert calque.diff(calque.arange(3.0), n=0, prepend=calque.tensor([9.0])).tolist() == [0.0, 1.0, 2.0]


def test_sums_to_a_size_count_bools() -> None:
    assert calque.tensor([[True, False], [True, True]]).sum_to_size(1, 2).tolist() == [[2, 1]]


def test_averages_of_integers_are_integers() -> None:
    x = calque.arange(-8, 8).view(1, 1, 4, 4)
    assert F.avg_pool2d(x, 2).tolist() == [[[[-5, -3], [2, 4]]]]
    assert F.avg_pool1d(x[0], 2).dtype is calque.int64


def test_transposed_convolutions_with_more_padding_than_stride() -> None:
    y = F.conv_transpose2d(calque.ones(1, 1, 3, 3), calque.ones(1, 1, 2, 2), stride=1, output_padding=1, dilation=2)
    assert y[0, 0, 2].tolist() == [2.0, 2.0, 4.0, 2.0, 2.0, 0.0]
    assert y[0, 0, 5].tolist() == [0.0] * 6


def test_what_a_number_has_no_dimensions_for() -> None:
    x = calque.tensor(3.0)
    for call in (lambda: x.size(-1), lambda: x.stride(0), lambda: x.unflatten(0, (1, -1)), lambda: calque.diag_embed(x), lambda: x.flatten(2)):
        with pytest.raises(IndexError):
            call()
    assert calque.ones(3, 1)[:, ::2].stride() == (1, 2)
    assert calque.trapezoid(calque.zeros(3, 0, dtype=calque.int64)).tolist() == [0, 0, 0]


def test_one_element_stands_for_all_in_a_contraction() -> None:
    x, y = calque.ones(3, 1), calque.arange(6.0).view(3, 2)
    assert calque.tensordot(x, y, 1).tolist() == [[6.0, 9.0]] * 3


def test_infinite_legs() -> None:
    assert calque.hypot(calque.tensor([-math.inf, math.nan]), calque.tensor([math.nan, 1.0])).tolist()[0] == math.inf


def test_numbers_have_nothing_to_transpose() -> None:
    x = calque.tensor(3.0)
    assert x.mT.item() == x.mH.item() == x.movedim(0, 0).item() == x.movedim(-1, 0).item() == 3.0
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.movedim(1, 0)


def test_vector_products_need_a_dim_of_three() -> None:
    for shape in ((), (2,), (3, 2)):
        with pytest.raises(ShapeError, match="must have length 3"):
            calque.linalg.cross(calque.ones(shape), calque.ones(shape))


def test_a_number_has_no_dim_to_repeat_along() -> None:
    for dim in (0, -1, 1):
        with pytest.raises(IndexError, match="leave dim out"):
            calque.tensor(2.0).repeat_interleave(3, dim)
    assert calque.tensor(2.0).repeat_interleave(3).tolist() == [2.0] * 3


def test_nothing_is_joined_along_any_dim() -> None:
    """As in PyTorch: lists of boxes, of which there may be none, are joined along dim 1."""
    for dim in (0, 1, -7):
        assert calque.cat([calque.ones(0), calque.ones(0)], dim).shape == (0,)
    for parts, dim in (([calque.ones(0), calque.ones(3)], 1), ([calque.ones(0), calque.ones(2, 3)], 2), ([calque.ones(0, 1)], 2)):
        with pytest.raises(IndexError, match=r"^\[cat\] Dimension out of range"):
            calque.cat(parts, dim)
    with pytest.raises(TypeError, match=r"^\[cat\] expected dim as an int"):
        calque.cat([calque.ones(0)], 1.5)


def test_a_dual_level_begins_where_operations_are_computed_at_once() -> None:
    x = calque.ones(3) * 2
    assert x.tolist() == [2.0] * 3 and (x + 1).tolist() == [3.0] * 3
    with calque.autograd.forward_ad.dual_level():
        found = calque.autograd.forward_ad.unpack_dual(calque.autograd.forward_ad.make_dual(x, calque.ones(3)).square())
        assert found.primal.tolist() == [4.0] * 3 and found.tangent.tolist() == [4.0] * 3


def test_what_indices_pick_is_computed_at_once_only_if_it_is_small() -> None:
    """A row of 10,000 numbers and 10,000 indices are small, what they pick is not: memory for it is asked of the pool, whose limits hold."""
    x, rows = calque.ones(1, 10_000), calque.zeros(10_000, dtype=calque.int64)
    assert x[rows[:1]]._storage.buffer is not None
    assert x[rows]._storage.buffer is None
    assert x[rows[:3], rows[:3]].tolist() == [1.0] * 3


@pytest.mark.parametrize("copies", [1, 200], ids=["small", "compiled"])
@pytest.mark.parametrize("base", [2, 10])
@pytest.mark.parametrize("dtype", [calque.float32, calque.float64], ids=["float32", "float64"])
def test_logarithms_of_powers_of_their_base_are_exact(dtype: Any, base: int, copies: int) -> None:
    """log10(1000.0) was 2.9999999999999996: how many digits a number has, and which power of ten is below it, follow from it by rounding down."""
    least, most = {(2, False): (-126, 127), (2, True): (-1022, 1023), (10, False): (-37, 38), (10, True): (-307, 308)}[base, dtype is calque.float64]
    exponents = list(range(least, most + 1)) * copies
    powers = calque.tensor([float(base) ** k if base == 2 else float(f"1e{k}") for k in range(least, most + 1)], dtype=dtype).repeat(copies)
    found = (calque.log2 if base == 2 else calque.log10)(powers)
    assert found.tolist() == exponents
