"""Views, reshaping, joining and single values: shapes, memory sharing, gradients and messages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, OutOfRangeError, ShapeError
from calque.nn import functional as F


def test_snippets_of_the_sources() -> None:
    t = calque.arange(12)
    assert t.view([-1, 6]).shape == t.reshape([-1, 6]).shape == (2, 6)
    a = calque.zeros(3, 2)
    b = a.view(2, 3)
    a.fill_(1)
    assert b.tolist() == [[1.0] * 3] * 2
    a = calque.zeros(3, 2)
    b = a.t().reshape(6)
    a.fill_(1)
    assert b.tolist() == [0.0] * 6
    assert calque.zeros(2, 1, 2).squeeze().shape == (2, 2)
    assert [tuple(calque.zeros(2, 2).unsqueeze(d).shape) for d in (0, 1, 2)] == [(1, 2, 2), (2, 1, 2), (2, 2, 1)]
    assert repr(calque.zeros(1, 2, 2).size()) == "torch.Size([1, 2, 2])"


def test_writes_reach_every_view() -> None:
    x = calque.arange(12.0).reshape(3, 4)
    rows, columns, part, window = x.unbind(0), x.split(2, 1), x[1:, ::2], x.unfold(1, 2, 1)
    x.mul_(10)
    assert rows[1].tolist() == [40.0, 50.0, 60.0, 70.0]
    assert columns[1].tolist() == [[20.0, 30.0], [60.0, 70.0], [100.0, 110.0]]
    part.zero_()
    assert x.tolist() == [[0.0, 10.0, 20.0, 30.0], [0.0, 50.0, 0.0, 70.0], [0.0, 90.0, 0.0, 110.0]]
    assert window[1, 1].tolist() == [50.0, 0.0]
    x.detach()[0] = -1
    assert x[0].tolist() == [-1.0] * 4


def test_pieces_share_one_gradient_node() -> None:
    x = calque.arange(6.0).requires_grad_()
    a, _, c = x.split(2)
    assert a.grad_fn.next_functions[0][0] is c.grad_fn.next_functions[0][0]
    (a.sum() + 2 * c.sum()).backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0, 0.0, 2.0, 2.0]


def test_metadata() -> None:
    x = calque.zeros(2, 3, 4)[:, 1:].transpose(0, 2)
    assert (x.shape, x.stride(), x.storage_offset(), x.dim(), x.numel()) == ((4, 2, 2), (1, 4, 12), 4, 3, 16)
    assert not x.is_contiguous() and x.contiguous().is_contiguous()
    assert x.size(-1) == 2 and x.stride(0) == 1 and x.ndim == 3 and len(x) == 4
    assert x.element_size() == 4 and x.nbytes == 64
    y = calque.ones(3)
    assert y.contiguous() is y and y.to(calque.float32) is y and y.cpu() is y
    assert y[1:].data_ptr() == y.data_ptr() + 4
    assert y.view(-1).untyped_storage().data_ptr() == y.data_ptr()


def test_bytes_as_another_dtype() -> None:
    x = calque.tensor([1.0, -2.0])
    bits = x.view(calque.int32)
    assert bits.tolist() == np.array([1, -2], np.float32).view(np.int32).tolist()
    bits[0] = 0
    assert x.tolist() == [0.0, -2.0]
    x[1] = 1.0
    assert bits.tolist() == [0, 1065353216]


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: calque.zeros(12).reshape(5, 5), ShapeError, ["12", "25", "(5, 5)"]),
    (lambda: calque.zeros(12).view(5, -1), ShapeError, ["12 elements", "(5, -1)"]),
    (lambda: calque.zeros(4).view(-1, -1), ShapeError, ["at most one -1"]),
    (lambda: calque.zeros(2, 3).t().view(6), ShapeError, ["strides (1, 3)", "shape (3, 2)", ".reshape"]),
    (lambda: calque.zeros(2, 2, 2).t(), ShapeError, ["<= 2 dimensions", "3D"]),
    (lambda: calque.zeros(2, 3).permute(0, 0), ShapeError, ["2 dims", "(0, 0)"]),
    (lambda: calque.zeros(2, 3).transpose(0, 2), OutOfRangeError, ["expected -2 to 1, got 2"]),
    (lambda: calque.zeros(2, 3).expand(2, 4), ShapeError,
        ["(4) must match the existing size (3)", "dimension 1", "[2, 4]", "[2, 3]"]),
    (lambda: calque.zeros(2, 3).expand(3), ShapeError, ["at least 2 sizes"]),
    (lambda: calque.zeros(3).narrow(0, 2, 2), OutOfRangeError, ["start (2) + length (2) exceeds dimension size (3)"]),
    (lambda: calque.zeros(3).select(0, 3), OutOfRangeError, ["index 3", "dimension 0", "size 3"]),
    (lambda: calque.zeros(3).split([1, 1]), ShapeError, ["sum exactly to 3", "[1, 1]"]),
    (lambda: calque.zeros(3).split(0), ArgumentError, ["split_size=0"]),
    (lambda: calque.zeros(3).chunk(0), ArgumentError, ["greater than 0, got: 0"]),
    (lambda: calque.zeros(3).as_strided((4,), (1,)), ArgumentError, ["element 3", "storage of 3 elements"]),
    (lambda: calque.zeros(3).unfold(0, 4, 1), ArgumentError, ["0 <= size <= 3", "size 4"]),
    (lambda: calque.cat([calque.zeros(2, 3), calque.zeros(2, 4)]), ShapeError, ["(2, 3)", "(2, 4)"]),
    (lambda: calque.cat([calque.zeros(())]), ShapeError, ["zero-dimensional"]),
    (lambda: calque.cat([]), ArgumentError, ["non-empty list"]),
    (lambda: calque.stack([calque.zeros(2), calque.zeros(3)]), ShapeError, ["[2] at entry 0", "[3] at entry 1"]),
    (lambda: calque.zeros(2, 2).repeat(2), ShapeError, ["(2,)", "(2, 2)"]),
    (lambda: calque.zeros(2, 3).diagonal(0, 1, 1), ShapeError, ["identical"]),
    (lambda: calque.zeros(2, 3).movedim((0, 1), (1,)), ShapeError, ["[movedim] expected as many distinct", "(0, 1) -> (1,)"]),
    (lambda: calque.zeros(2, 3).movedim((0, -2), (0, 1)), ShapeError, ["as many distinct destinations as sources, got (0, -2) -> (0, 1)"]),
    (lambda: calque.zeros(2, 3).movedim((0, 1), (1, -1)), ShapeError, ["as many distinct destinations as sources, got (0, 1) -> (1, -1)"]),
    (lambda: calque.zeros(3)[::-1], ArgumentError, ["step must be positive, got -1", "flip"]),
])  # fmt: skip
def test_messages(call, error, words) -> None:
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_truth_of_several_values() -> None:
    with pytest.raises(
        ValueError, match=r"3 values is ambiguous: expected one value, got shape \(3,\); use \.any\(\) or \.all\(\)"
    ):
        bool(calque.ones(3))
    with pytest.raises(ValueError, match="no values"):
        bool(calque.ones(0))
    assert calque.ones(1) and not calque.zeros(())


def test_single_values() -> None:
    assert (
        calque.tensor([[2.5]]).item() == 2.5 and isinstance(calque.tensor(3).item(), int) and calque.tensor(True).item() is True
    )
    assert calque.tensor(1.5, dtype=calque.bfloat16).item() == 1.5
    assert int(calque.tensor(2.9)) == 2 and float(calque.tensor(2)) == 2.0 and [10, 20][calque.tensor(1)] == 20
    assert calque.tensor([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]] and calque.tensor(5).tolist() == 5
    assert [x.item() for x in calque.arange(3)] == [0, 1, 2]
    assert 2 in calque.arange(3) and 5 not in calque.arange(3)
    with pytest.raises(ShapeError, match=r"with 2 elements cannot be converted to Scalar: .*shape \(2,\)"):
        calque.ones(2).item()
    with pytest.raises(TypeError, match="only integer tensors of a single element"):
        [1][calque.tensor(0.0)]
    with pytest.raises(TypeError, match="len\\(\\) of a 0-d tensor"):
        len(calque.tensor(1))
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        iter(calque.tensor(1))


def test_conversions() -> None:
    x = calque.tensor([1.7, -1.7, 0.0])
    assert x.long().tolist() == [1, -1, 0] and x.bool().tolist() == [True, True, False]
    assert x.to("cpu", calque.int32).dtype is calque.int32 and x.to(calque.ones(1).double()).dtype is calque.float64
    assert x.to(dtype=calque.float16).dtype is calque.float16 and x.type_as(calque.tensor(1)).dtype is calque.int64
    assert x.type() == "torch.FloatTensor" and x.type("torch.DoubleTensor").dtype is calque.float64
    assert (x < 2).type(calque.Tensor).dtype is calque.float32 and x.double().type(calque.Tensor).dtype is calque.float32  # the default type
    assert x.to(calque.float32, copy=True) is not x
    assert calque.result_type(calque.tensor([1]), 2.0) is calque.float32
    assert calque.promote_types(calque.uint8, calque.int8) is calque.int16
    with pytest.raises(TypeError, match="invalid type"):
        x.type("torch.NoTensor")


def test_sizes_are_ints() -> None:
    sizes = calque.Size([calque.tensor(3), True, np.int64(2)])
    assert sizes == (3, 1, 2) and [type(n) for n in sizes] == [int, int, np.int64]
    assert calque.Size(calque.tensor([3, 4])) == (3, 4) and calque.Size() == () and calque.Size(n for n in (1, 2)) == (1, 2)
    for joined in ((1, 2) + calque.Size([3]), calque.Size([1]) + (calque.tensor(2), 3), 1 * calque.Size([1, 2, 3]), calque.Size([1, 2, 3]) * 1):
        assert joined == (1, 2, 3) and type(joined) is calque.Size and all(type(n) is int for n in joined)
    for wrong, text in (([2.0], "float 2.0 as item 0"), ([1, "a"], "str 'a' as item 1"), (calque.ones(1), "a Tensor of one element as item 0")):
        with pytest.raises(TypeError, match=rf"\[Size\] expected ints, got {text}; torch.Size\(\) takes an iterable of 'int'"):
            calque.Size(wrong)
    with pytest.raises(TypeError, match="unsupported operand"):
        calque.Size([1]) + [2]


def test_shapes_are_joined_with_tuples_and_computed_with_arrays() -> None:
    """An array's own operator is asked: `shape + array` is arithmetic, as NumPy and PyTorch have it."""
    size = calque.Size([2, 3])
    joined = [size + (1,), (1,) + size, size + size, size + (True, calque.tensor(5)), size * 2, 2 * size, size * np.int64(2)]
    assert [tuple(found) for found in joined] == [(2, 3, 1), (1, 2, 3), (2, 3, 2, 3), (2, 3, 1, 5), (2, 3) * 2, (2, 3) * 2, (2, 3) * 2]
    assert all(type(found) is calque.Size and all(type(extent) is int for extent in found) for found in joined)
    for found, expected in [
        (size + np.array(1), [3, 4]), (size + np.array([1, 2]), [3, 5]), (size + np.int64(1), [3, 4]),
        (size * np.array(2), [4, 6]), (size * np.array([2, 3]), [4, 9]), (size - np.array(1), [1, 2]),
    ]:  # fmt: skip
        assert isinstance(found, np.ndarray) and found.tolist() == expected
    for wrong in (lambda: size + [1], lambda: size + 1, lambda: size + calque.ones(2), lambda: size + "ab", lambda: size + (1.5,)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError):
        size * 2.0


IMAGE, MATRIX, NUMBER = (1, 4, 2, 2), (3, 3), ()
COPIES: list[tuple[tuple[int, ...], Callable[[calque.Tensor], calque.Tensor]]] = [
    (IMAGE, lambda x: F.pad(x, (-1, 0))), (IMAGE, lambda x: F.pad(x, (0, 0))), (IMAGE, lambda x: F.pad(x, (0, 0, 0, 0), "reflect")),
    (IMAGE, lambda x: F.pad(x, (0, 0, 0, 0), "replicate")), (IMAGE, lambda x: F.pad(x, (0, 0, 0, 0), "circular")),
    (IMAGE, lambda x: F.interpolate(x, size=2)), (IMAGE, lambda x: F.interpolate(x, scale_factor=1.0, mode="nearest-exact")),
    (IMAGE, lambda x: F.pixel_shuffle(x, 1)), (IMAGE, lambda x: F.pixel_unshuffle(x, 1)), (IMAGE, lambda x: F.pixel_unshuffle(x, 2)),
    (IMAGE, lambda x: F.channel_shuffle(x, 1)), (IMAGE, lambda x: F.channel_shuffle(x, 4)), (IMAGE, nn.Upsample(scale_factor=1)),
    ((1, 4, 1, 1), lambda x: F.pixel_shuffle(x, 2)), (IMAGE, nn.ReflectionPad2d(0)), (MATRIX, lambda x: calque.linalg.matrix_power(x, 1)),
    (MATRIX, lambda x: calque.chain_matmul(x)), (NUMBER, lambda x: calque.masked.sum(x)), (NUMBER, lambda x: calque.masked.prod(x, 0)),
    (NUMBER, lambda x: x.sum_to_size(())),
]  # fmt: skip


@pytest.mark.parametrize("shape, function", COPIES)
def test_a_write_to_what_happens_to_be_the_same_does_not_reach_the_argument(
    shape: tuple[int, ...], function: Callable[[calque.Tensor], calque.Tensor]
) -> None:
    x = calque.randn(shape)
    before = x.clone()
    result = function(x)
    result.add_(1)
    assert calque.equal(x, before)
    y = x[None].expand(2, *shape).clone()  # in every slice of a batch, too
    before = y.clone()
    calque.vmap(lambda s: function(s).add_(1))(y)
    assert calque.equal(y, before)
    leaf = x.clone().requires_grad_()
    function(leaf).add_(1).sum().backward()
    assert leaf.grad is not None and leaf.grad.abs().sum().item() > 0


def test_tensors_of_the_common_shape_are_given_as_they_are() -> None:
    x, y = calque.zeros(3, requires_grad=True), calque.ones(2, 3)
    a, b = calque.broadcast_tensors(x, y)
    assert b is y and a.shape == (2, 3) and a is not x
    assert calque.broadcast_tensors(x, x.detach())[0] is x
    normal = calque.distributions.Normal(x, calque.ones(3))
    normal.log_prob(y).sum().backward()
    assert normal.loc is x and x.grad is not None, "a parameter of a distribution is the leaf that it was made of"


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding_that_takes_more_than_there_is(mode: str) -> None:
    with pytest.raises(RuntimeError, match=r"\[pad\] The input size 3, plus negative padding -2 and -2, is negative"):
        F.pad(calque.zeros(1, 1, 2, 3), (-2, -2, 0, 0), mode)
    assert F.pad(calque.zeros(1, 1, 2, 3), (-1, -2, 0, 0), mode).shape == (1, 1, 2, 0)
