"""NumPy, DLPack, pickle, copy, and in-place writes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, AutogradError, DTypeError, ShapeError


def test_numpy_shares_memory_both_ways() -> None:
    t = calque.arange(6.0).reshape(2, 3)
    a, column = t.numpy(), t[:, 1].numpy()
    a[0, 1] = 50.0
    assert column[0] == 50.0 and t[0, 1].item() == 50.0
    t.add_(1)
    assert a.tolist() == [[1.0, 51.0, 3.0], [4.0, 5.0, 6.0]] and column.tolist() == [51.0, 5.0]
    del a, column
    t.zero_()
    assert t.sum().item() == 0


def test_a_write_by_numpy_does_not_reach_earlier_results() -> None:
    t = calque.ones(3)
    twice = t * 2  # recorded, not computed
    t.numpy()[0] = 100.0
    assert twice.tolist() == [2.0, 2.0, 2.0]
    same = calque.zeros(3).copy_(t)
    t.numpy()[1] = 7.0
    assert same.tolist() == [100.0, 1.0, 1.0]


def test_arrays_from_tensors() -> None:
    x = calque.tensor([1, 2])
    assert np.asarray(x).dtype == np.int64 and np.array(x, dtype=np.float32).dtype == np.float32
    assert np.stack([x, x]).shape == (2, 2) and np.add(x, 1).tolist() == [2, 3]
    assert np.asarray(calque.ones(2, dtype=calque.bfloat16)).astype(float).tolist() == [1.0, 1.0]
    w = calque.ones(2, requires_grad=True)
    with pytest.raises(BufferError, match="require gradient"):
        w.__dlpack__()
    for call in (w.numpy, lambda: np.asarray(w), w.__dlpack__):
        with pytest.raises(AutogradError, match="requires? grad"):
            call()
    assert w.detach().numpy().tolist() == w.numpy(force=True).tolist() == [1.0, 1.0]
    with pytest.raises(ArgumentError, match="without a copy"):
        x.__array__(np.float32, copy=False)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
)
def test_dlpack_shares_memory(dtype: str) -> None:
    x = calque.tensor([[0, 1], [1, 0], [1, 1]]).to(getattr(calque, dtype))[:, ::1]
    y = calque.from_dlpack(x.__dlpack__())
    assert y.dtype is x.dtype and y.tolist() == x.tolist()
    y[0, 0] = 1
    assert x[0, 0].item() == 1
    if dtype != "bfloat16":
        assert np.from_dlpack(x).tolist() == x.tolist()
    assert x.__dlpack_device__() == (1, 0)


def test_dlpack_of_other_objects() -> None:
    a = np.arange(6.0).reshape(2, 3).T
    t = calque.from_dlpack(a)
    assert t.stride() == (1, 3)
    t[0, 0] = 9.0
    assert a[0, 0] == 9.0
    with pytest.raises(TypeError, match="expected an object with __dlpack__ or a DLPack capsule, got list"):
        calque.from_dlpack([1])
    with pytest.raises(DTypeError, match="expected memory that can be shared"):
        calque.from_dlpack(np.zeros(2, np.longdouble))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    for x in (
        calque.arange(6).reshape(2, 3).t(),
        calque.ones((), requires_grad=True),
        calque.zeros(0, 2),
        calque.ones(2, dtype=calque.bfloat16),
    ):
        y = pickle.loads(pickle.dumps(x, protocol))
        assert y.tolist() == x.tolist() and y.dtype is x.dtype and y.shape == x.shape and y.requires_grad == x.requires_grad
        y.detach().add_(1)


def test_pickle_without_copying() -> None:
    x = calque.arange(1000.0)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert len(data) < 500 and len(buffers) == 1
    assert pickle.loads(data, buffers=[bytearray(buffers[0])]).tolist() == x.tolist()


@pytest.mark.parametrize("kind", [lambda b: b, lambda b: b.raw(), bytearray])
def test_what_is_made_of_a_buffer_has_memory_of_its_own(kind: Any) -> None:
    """The tensor that was pickled, and others that come of the same buffers, do not see what is written to it, nor what is pending."""
    x = calque.arange(40_000.0)
    x.sum().item()
    buffers: list[Any] = []
    data = pickle.dumps(x, 5, buffer_callback=buffers.append)
    buffers = [kind(b) for b in buffers]
    y, z = pickle.loads(data, buffers=buffers), pickle.loads(data, buffers=buffers)
    pending = z * 2
    y.add_(1)
    assert y[0].item() == 1.0 and x[0].item() == z[0].item() == pending[0].item() == 0.0


@pytest.mark.parametrize("protocol", [2, 5])
def test_pickles_keep_the_order_of_memory(protocol: int) -> None:
    """So that what may be looked at as another shape, and what a kernel needs no copy of, is the same behind it."""
    whole = calque.arange(24.0).reshape(2, 3, 4)
    for x, strides in (
        (whole.permute(2, 0, 1), (1, 12, 4)),
        (whole.to(calque.bfloat16).transpose(0, 1), (4, 12, 1)),
        (whole[:, :, 0].t(), (1, 3)),  # a part: without what lies between
        (whole[0, :, None], (4, 4, 1)),
    ):
        y = pickle.loads(pickle.dumps(x, protocol))
        assert y.stride() == strides and y.tolist() == x.tolist() and y.dtype is x.dtype
        y.add_(1)
        assert y.tolist() == (x + 1).tolist()


def test_an_array_without_dims_is_copied_by_asarray_alone() -> None:
    array = np.array(1.0)
    copied, shared, seen = calque.asarray(array), calque.as_tensor(array), calque.asarray(array, copy=False)
    array[...] = 3.0
    assert copied.item() == 1.0 and shared.item() == seen.item() == 3.0


def test_copies() -> None:
    w = calque.ones(2, requires_grad=True)
    w.sum().backward()
    deep = copy.deepcopy({"a": w, "b": w})
    assert deep["a"] is deep["b"] and deep["a"].requires_grad and deep["a"].is_leaf and deep["a"].grad.tolist() == [1.0, 1.0]
    deep["a"].data.zero_()
    assert w.tolist() == [1.0, 1.0]
    shallow = copy.copy(w)
    shallow.data.fill_(3)
    assert w.tolist() == [3.0, 3.0]
    with pytest.raises(AutogradError, match="leaves"):
        copy.deepcopy(w * 2)
    pickled = pickle.loads(pickle.dumps(w * 2))  # a graph does not survive: it is a leaf, as in PyTorch
    assert pickled.is_leaf and pickled.requires_grad and pickled.tolist() == [6.0, 6.0]
    w.data = calque.zeros(3)
    assert w.shape == (3,) and w.requires_grad


@pytest.mark.parametrize("size", [3, 300])
def test_what_is_copied_in_one_go_shares_memory_as_its_originals_do(size: int) -> None:
    whole = calque.ones(size, size) * 2
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    module = nn.Module()
    module.register_buffer("table", whole)
    module.row = nn.Buffer(whole[1])
    deep, state, other = copy.deepcopy([whole, whole[1], whole.t()]), copy.deepcopy(tied.state_dict()), copy.deepcopy(module)
    alone = copy.deepcopy(whole[1:, 0])
    whole.zero_()
    deep[0][1].fill_(5)
    assert deep[1].tolist() == [5.0] * size and deep[2][:, 1].tolist() == [5.0] * size and deep[2][0, 0].item() == 2
    assert deep[2].stride() == (1, size) and alone.tolist() == [2.0] * (size - 1) and alone.stride() == (size,)
    state["0.weight"].fill_(3)
    assert state["1.weight"].tolist() == [[3.0, 3.0], [3.0, 3.0]] and tied[0].weight.ne(3).all()
    other.table.mul_(4)
    assert other.row.tolist() == [8.0] * size and module.row.tolist() == [0.0] * size


# --------------------------------------------------------------------------------------------------------- in-place writes


def test_in_place_forms() -> None:
    x = calque.tensor([1.0, -2.0])
    assert x.add_(1) is x and x.tolist() == [2.0, -1.0]
    assert x.relu_().mul_(3).sub_(1).clamp_(0, 4).tolist() == [4.0, 0.0]
    assert x.copy_(calque.tensor(5)).fill_(2).tolist() == [2.0, 2.0]
    x /= 4
    x **= 2
    assert x.tolist() == [0.25, 0.25]
    assert calque.arange(4).bitwise_and_(1).tolist() == [0, 1, 0, 1]
    assert calque.eye(2).fill_diagonal_(3.0).tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert calque.zeros(3).masked_fill_(calque.tensor([True, False, True]), 2).tolist() == [2.0, 0.0, 2.0]
    assert calque.ones(2).gt_(calque.tensor([0.0, 2.0])).tolist() == [1.0, 0.0]


def test_old_values_are_kept_for_the_gradient() -> None:
    w = calque.tensor([2.0, 3.0], requires_grad=True)
    x = w * 1
    x *= w  # needs the old x
    x.exp_()
    x.sum().backward()
    values = np.array([2.0, 3.0])
    assert np.allclose(w.grad.numpy(), 2 * values * np.exp(values**2))
    w.grad = None
    y = calque.zeros(2)
    y[0] = w[1] * 2
    y.sum().backward()
    assert w.grad.tolist() == [0.0, 2.0]
    z = calque.zeros(2).copy_(w)
    z.sum().backward()
    assert z.requires_grad and not z.is_leaf


def test_a_saved_value_must_not_change() -> None:
    w = calque.ones(2, requires_grad=True)
    a = w * 1
    b = a * a
    a.add_(1)
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        b.sum().backward()


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: calque.ones(2, dtype=calque.int64).add_(0.5), DTypeError, ["torch.float32 can't be cast", "torch.int64"]),
    (lambda: calque.ones(2, dtype=calque.bool).add_(1), DTypeError, ["torch.int64 can't be cast", "torch.bool"]),
    (lambda: calque.ones(3).add_(calque.ones(2, 3)), ShapeError, ["[3] doesn't match the broadcast shape [2, 3]"]),
    (lambda: calque.ones(3).copy_(calque.ones(2)), ShapeError, ["(3,)", "(2,)"]),
    (lambda: calque.ones(1).expand(3).add_(1), ArgumentError, ["more than one element", "strides (0,)", "clone()"]),
    (lambda: calque.ones(3).fill_(calque.ones(3)), ShapeError, ["0-dimension value tensor", "1 dimensions"]),
    (lambda: calque.ones(2, requires_grad=True).add_(1), AutogradError, ["leaf", "in-place", "no_grad"]),
    (lambda: calque.ones(2, requires_grad=True)[0].zero_(), AutogradError, ["view of", "leaf"]),
    (lambda: calque.ones(2).fill_("a"), TypeError, ["got str"]),
    (lambda: (calque.ones(2, requires_grad=True) * 1)[0].detach_(), ArgumentError, ["use detach() instead"]),
])  # fmt: skip
def test_messages(call, error, words) -> None:
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2)])
def test_deep_copies_of_views_of_several_dtypes_share_their_copied_memory(order: tuple[int, ...]) -> None:
    base = calque.arange(4.0)
    shown = (base, base.view(calque.int32), base[2:].view(calque.uint8))
    again = copy.deepcopy([shown[k] for k in order])
    again[0].zero_()
    assert all(not t.flatten()[-1].item() for t in again)
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0]
    again[-1].fill_(1)
    last = {calque.float32: 1.0, calque.int32: 1, calque.uint8: 1}[again[-1].dtype]
    assert again[-1].flatten()[0].item() == last
    assert len({t.untyped_storage().data_ptr() for t in again if t.numel() * t.element_size() == 16}) == 1


def test_a_deep_copy_of_a_view_alone_copies_all_that_it_shows() -> None:
    base = calque.arange(4.0)
    (again,) = copy.deepcopy([base[1:3].view(calque.int32)])
    base.zero_()
    assert again.view(calque.float32).tolist() == [1.0, 2.0]
