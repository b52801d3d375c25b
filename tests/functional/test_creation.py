"""Creation functions against NumPy, and the text of their errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import ArgumentError, DeviceError, DTypeError, OutOfMemoryError, ShapeError


def test_dtypes_follow_the_values() -> None:
    assert calque.tensor([[3, 5], [10, 5]]).dtype is calque.int64
    assert calque.tensor([1, 2.5]).dtype is calque.float32
    assert calque.tensor([True, False]).dtype is calque.bool
    assert calque.tensor(np.float64(2.0)).dtype is calque.float64
    assert calque.tensor([np.float32(1), np.float32(2)]).dtype is calque.float32
    assert calque.tensor(np.arange(3, dtype=np.int16)).dtype is calque.int16
    assert calque.tensor([]).dtype is calque.float32
    assert calque.tensor([calque.tensor(1), calque.tensor(2)]).tolist() == [1, 2]
    assert calque.tensor(1, dtype=calque.float16).dtype is calque.float16
    assert calque.tensor(calque.ones(2), dtype=calque.int32).dtype is calque.int32


@pytest.mark.parametrize("call", [
    lambda: calque.zeros(2, 3), lambda: calque.zeros((2, 3)), lambda: calque.zeros([2, 3]),
    lambda: calque.zeros(size=(2, 3)),
    lambda: calque.zeros(calque.Size([2, 3])), lambda: calque.zeros(np.int64(2), calque.tensor(3)),
    lambda: calque.zeros(2, 3, device="cpu"),
])  # fmt: skip
def test_forms_of_a_size(call) -> None:
    assert call().shape == (2, 3)
    assert call().tolist() == [[0.0] * 3] * 2


def test_constants_and_likes() -> None:
    x = calque.tensor([[1, 2]], dtype=calque.int32)
    assert calque.full((2,), 7).dtype is calque.int64
    assert calque.full((2,), 2.5).tolist() == [2.5, 2.5]
    assert calque.full((), True).item() is True
    assert calque.full((2,), calque.tensor(3.0)).tolist() == [3.0, 3.0]
    assert calque.zeros_like(x).dtype is calque.int32
    assert calque.ones_like(x, dtype=calque.float64).tolist() == [[1.0, 1.0]]
    assert calque.full_like(x, 9).tolist() == [[9, 9]]
    assert calque.empty_like(x).shape == calque.empty(1, 2).shape == (1, 2)
    assert (
        x.new_zeros(3).dtype is x.new_ones((2, 2)).dtype is x.new_full((2,), 4).dtype is x.new_tensor([1.0]).dtype is calque.int32
    )
    assert calque.scalar_tensor(0.01).dtype is calque.float32
    assert calque.zeros(2, dtype=calque.float64, requires_grad=True).requires_grad


def test_sequences_equal_numpy() -> None:
    assert calque.arange(5).tolist() == list(range(5))
    assert calque.arange(1, 10, 3).tolist() == [1, 4, 7]
    assert calque.arange(5, 0, -2).tolist() == [5, 3, 1]
    assert calque.arange(0, 1, 0.25).tolist() == [0.0, 0.25, 0.5, 0.75]
    assert calque.arange(3, dtype=calque.float64).dtype is calque.float64
    assert np.allclose(calque.linspace(-1, 2, 7).numpy(), np.linspace(-1, 2, 7))
    assert calque.linspace(3, 5, 1).tolist() == [3.0]
    assert np.allclose(calque.logspace(0, 2, 3, base=2).numpy(), [1, 2, 4])
    assert np.array_equal(calque.eye(2, 3).numpy(), np.eye(2, 3))
    a, b = calque.meshgrid(calque.arange(2), calque.arange(3), indexing="ij")
    assert np.array_equal(a.numpy(), np.meshgrid(range(2), range(3), indexing="ij")[0])
    assert b.shape == (2, 3)


@pytest.mark.parametrize("given", [np.longlong(7), np.array(7, np.longlong), [np.longlong(7)], np.array([7], np.longlong)], ids=str)
def test_integers_of_the_other_name_are_integers(given: Any) -> None:
    """C has two integers of 64 bits, and libraries hand out arrays of either: they are equal to NumPy, and not to its loops."""
    for t in (calque.tensor(given), calque.as_tensor(given)):
        for _ in range(3):
            assert (t // 3).tolist() in (2, [2])
            assert (t // 3).dtype is calque.int64
            assert (t + t).tolist() in (14, [14])


def test_from_numpy_shares_memory() -> None:
    a = np.zeros((3, 4))
    t = calque.from_numpy(a[:, ::2])
    assert t.stride() == (4, 2)
    doubled = t * 2
    a[0, 0] = 5.0
    assert t[0, 0].item() == 5.0
    assert doubled[0, 0].item() == 0.0  # what was recorded before does not see the write
    t[2, 1] = 7.0
    assert a[2, 2] == 7.0
    t.add_(1)
    assert a[0, 0] == 6.0 and a[0, 1] == 0.0


@pytest.mark.parametrize("make", [
    lambda: np.arange(4)[::-1], lambda: np.arange(4, dtype=">i4"), lambda: np.broadcast_to(np.arange(3), (2, 3)),
    lambda: np.frombuffer(b"\1\2\3\4", np.uint8),
])  # fmt: skip
def test_arrays_that_cannot_be_shared_are_copied(make) -> None:
    array = make()
    t = calque.from_numpy(array)
    assert t.tolist() == array.tolist()
    t.add_(1)
    assert array.tolist() == make().tolist()


def test_as_tensor_shares_what_it_can() -> None:
    a, t = np.ones(2), calque.ones(2)
    assert calque.as_tensor(t) is t
    calque.as_tensor(a)[0] = 5.0
    assert a[0] == 5.0
    assert calque.as_tensor([1, 2]).tolist() == [1, 2]
    b = bytearray(b"\0\0\0\0")
    calque.frombuffer(b, dtype=calque.int32).fill_(1)
    assert b == b"\1\0\0\0"


@pytest.mark.parametrize(("data", "error", "words"), [
    ([[1, 2], [3]], ShapeError, ["expected sequence of length 2 at dim 1 (got 1)", "index [1]", "pad"]),
    ([[1, 2], 3], ShapeError, ["expected a sequence of length 2 at dim 1", "number 3", "index [1]"]),
    ([1, [2, 3]], ShapeError, ["expected a number at index [1], got a sequence of length 2"]),
    ([[1, "a"]], DTypeError, ["got str 'a'", "index [0][1]", "dtype"]),
    ([1, None], DTypeError, ["got NoneType None", "index [1]", "dtype object"]),
    (np.array([1, "x", 2.0], dtype=object), DTypeError, ["dtype object", "str 'x'", "index [1]"]),
    (np.array(["u"]), DTypeError, ["dtype <U1", "index [0]"]),
    ([1 << 70], ArgumentError, ["64 bits"]),
    ([1, 1 << 63], ArgumentError, ["64 bits"]),
])  # fmt: skip
def test_data_that_is_no_array_of_numbers(data, error, words) -> None:
    with pytest.raises(error) as caught:
        calque.tensor(data)
    assert isinstance(caught.value, (TypeError, ValueError))
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_long_integers_beside_floats_are_floats() -> None:
    """`tensor([1, 1e20])` was refused: its first element is an integer, and its largest one does not fit into one."""
    for values in ([1, 1e20], [[1, 2.0], [3, 1e30]], [1, float("inf")], [1 << 64, 1.0], [1.0, 1 << 64]):
        found = calque.tensor(values, dtype=calque.float64)
        assert found.tolist() == np.array(values, float).tolist()
        assert calque.tensor(values).dtype is calque.float32
    assert calque.tensor([1, 1 << 70], dtype=calque.float64).tolist() == [1.0, 2.0**70]
    assert calque.tensor([1, 1 << 63], dtype=calque.uint64).tolist() == [1, 1 << 63]


def test_a_tensor_too_large_for_memory() -> None:
    with pytest.raises(MemoryError) as caught:
        calque.zeros(10**15)
    assert isinstance(caught.value, OutOfMemoryError)
    assert re.search(r"expected [\d.]+ PiB .*got [\d.]+ \w+ free with [\d.]+ \w+ in use", str(caught.value))
    assert (calque.ones(2) + 1).tolist() == [2.0, 2.0]  # the process lives


@pytest.mark.parametrize(
    "call", [lambda: calque.zeros(2, device="cuda"), lambda: calque.ones(2).cuda(), lambda: calque.ones(2).to("cuda:1")]
)
def test_a_missing_device(call) -> None:
    with pytest.raises(DeviceError, match=r"got 'cuda(:1)?': JAX.*; run: pip install 'jax\[cuda13\]'.*; or use device='cpu'"):
        call()


@pytest.mark.parametrize(("call", "text"), [
    (lambda: calque.zeros(2, -1), "negative dimension -1: [2, -1]"),
    (lambda: calque.full((2,), 300, dtype=calque.uint8), "without overflow: 300 is outside 0..255"),
    (lambda: calque.full((2,), float("nan"), dtype=calque.int64), "without overflow: nan"),
    (lambda: calque.arange(0, 5, 0), "step must be nonzero"),
    (lambda: calque.arange(5, 0), "inconsistent with step sign"),
    (lambda: calque.arange("a"), "expected a number for end, got str"),
    (lambda: calque.linspace(0, 1, -1), "non-negative, got -1"),
    (lambda: calque.ones(2, dtype=calque.int64, requires_grad=True),
        "only Tensors of floating point and complex dtype can require gradients, got torch.int64"),
    (lambda: calque.zeros(2, dtype="float32x"), "expected a dtype, got 'float32x'"),
    (lambda: calque.zeros(2.5), "expected integers, got float 2.5"),
    (lambda: calque.zeros(2, colour=1), "unexpected keyword argument 'colour'"),
    (lambda: calque.from_numpy([1]), "expected np.ndarray (got list)"),
    (lambda: calque.from_numpy(np.zeros(2, np.longdouble)), "can't convert np.ndarray of type"),
    (lambda: calque.meshgrid(calque.ones(2, 2)), "Expected 0D or 1D tensors, got shape (2, 2)"),
])  # fmt: skip
def test_messages(call, text) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        call()
    assert text in str(caught.value)


def test_the_tensor_class_makes_tensors() -> None:
    class Marked(calque.Tensor):
        pass

    assert calque.Tensor([1, 2]).dtype is calque.float32 and calque.Tensor(2, 3).shape == (2, 3)
    made = Marked([1.0, 2.0]).requires_grad_()
    (made * made).sum().backward()
    assert type(made) is Marked and made.grad.tolist() == [2.0, 4.0]


def test_old_constructors_take_a_size() -> None:
    like = calque.zeros(3, 2)
    assert calque.Tensor(like.size()).shape == (3, 2) and calque.LongTensor(like.shape).dtype is calque.int64
    assert calque.FloatTensor(calque.Size([])).shape == () and calque.FloatTensor(np.int64(2), 3).shape == (2, 3)
    assert calque.FloatTensor((3, 2)).tolist() == [3, 2] and calque.FloatTensor(like.size(0), 2).shape == (3, 2)
    with pytest.raises(DTypeError, match=r"^\[Tensor\]"):
        calque.Tensor(2.5)


def test_copies_of_arrays_lie_in_memory_as_the_arrays_do() -> None:
    """So that `view` refuses, and `stride` and `as_strided` find, what they do of PyTorch's."""
    block = np.arange(24.0).reshape(2, 3, 4)
    fixed = block.transpose(1, 2, 0)
    fixed.flags.writeable = False
    for array, strides in (
        (block.transpose(1, 2, 0), (4, 1, 12)),
        (block[:, ::2].transpose(2, 0, 1), (1, 8, 4)),
        (np.broadcast_to(block[0].T, (2, 4, 3)), (12, 1, 4)),
        (block[0, ::-1], (4, 1)),
    ):
        for made in (calque.tensor(array), calque.tensor(array, dtype=calque.bfloat16), calque.ones(1).new_tensor(array)):
            assert made.stride() == strides and made.tolist() == array.tolist()
    assert calque.from_numpy(fixed).stride() == (4, 1, 12)
    with pytest.raises(ValueError, match="view"):
        calque.tensor(fixed).view(-1)
