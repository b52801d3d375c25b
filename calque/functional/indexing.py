"""`x[...]` for reading and writing: integers, slices, None, Ellipsis, boolean masks and index tensors, with NumPy's and
PyTorch's meaning."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import index as as_int
from typing import Any

import numpy as np

from calque.autograd.assign import assign, put, put_number
from calque.autograd.moving import move
from calque.autograd.superinstruction import known, superinstruction
from calque.base import dtypes as dt
from calque.base.asked import ASKED
from calque.base.device import CPU
from calque.base.errors import DTypeError, NotDense, OutOfRangeError, OverlapError, ShapeError, how_to_pass
from calque.base.layout import Layout, dense_layout, layout
from calque.base.native import hot
from calque.base.shapes import Shape, broadcast_shapes
from calque.base.text import type_name
from calque.functional.checks import check_index, known_values
from calque.functional.common import called, cast, is_scalar, is_tensor, method, operand, prim
from calque.functional.creation import as_tensor
from calque.functional.options import filled, held, within
from calque.functional.placing import beside_input
from calque.functional.views import Entry, expand, lookup, permute, remember, reshape
from calque.functional.windows import PartRule, place_in, selected, window
from calque.functional.writing import check_target
from calque.record.recorder import local
from calque.run.estimate import LARGE
from calque.tensor import Tensor, make_view, read, read_number, upload

_OF_A_TUPLE = (slice, Tensor, np.ndarray, list, tuple, range)  # items that no list of numbers has
_INDICES = (dt.int64, dt.int32, dt.bool_, dt.uint8)
_LIST_IS_AN_ARRAY = 32  # items: a longer list is an array whatever it holds, as in PyTorch


# ----------------------------------------------------------------------------------------------------------- basic views


def _bound(value: Any) -> int | None:
    return None if value is None else value if value.__class__ is int else as_int(value)


def _basic_key(items: tuple[Any, ...], read: bool) -> tuple[Any, ...] | None:
    """A hashable form of an index made of integers, slices, None and Ellipsis; None if it holds anything else. `read`: tensors of one integer may
    stand in it, too, where nothing is pending (which the compiled module does; else `_read` finds them)."""
    key: list[Any] = []
    for item in items:
        kind = item.__class__
        if kind is int or item is None or item is Ellipsis:
            key.append(item)
        elif kind is slice:
            key.append((_bound(item.start), _bound(item.stop), _bound(item.step)))
        elif isinstance(item, np.integer):
            key.append(int(item))
        else:
            return None
    return tuple(key)


basic_key: Callable[[tuple[Any, ...], bool], tuple[Any, ...] | None] = _basic_key if hot is None else hot.basic_key


def _spelled_out(key: tuple[Any, ...], view: Layout, consumed: int) -> tuple[Any, ...]:
    """The key with its Ellipsis written as full slices. `consumed`: dims the other items take."""
    if consumed > view.ndim:
        raise OutOfRangeError(
            f"[index] too many indices for tensor of dimension {view.ndim}: shape {tuple(view.shape)}, got {consumed}"
        )
    full = ((None, None, None),) * (view.ndim - consumed)
    where = next((i for i, item in enumerate(key) if item is Ellipsis), None)
    if where is None:
        return key + full
    rest = key[where + 1 :]
    if any(item is Ellipsis for item in rest):  # each skips the dims that no item stands for, so that nothing is left behind the second
        behind = rest[next(i for i, item in enumerate(rest) if item is Ellipsis) :]
        if full and not all(item is Ellipsis for item in behind):
            raise OutOfRangeError(
                f"[index] expected nothing behind a second ellipsis ('...'), got {len(key)} items for {view.ndim} dims; an index can only have a "
                "single ellipsis where items follow"
            )
        rest = tuple([item for item in rest if item is not Ellipsis])
    return key[:where] + full + rest


def _reached(shape: Shape, strides: Shape, items: tuple[Any, ...]) -> tuple[Shape, Shape, int]:
    """Shape, strides and relative offset after integers, slices and Nones, one item per dim."""
    extents: list[int] = []
    steps: list[int] = []
    offset = d = 0
    for item in items:
        if item is None:
            extents.append(1)
            steps.append(shape[d] * strides[d] if d < len(shape) else 1)
            continue
        extent, step = shape[d], strides[d]
        if item.__class__ is int:
            offset += place_in(item, d, shape, "index") * step
        else:
            start, stop, every = item
            first, count, stride = window(start, stop, every, extent, "index")
            extents.append(count)
            steps.append(step * stride)
            offset += first * step
        d += 1
    return tuple(extents), tuple(steps), offset


def _basic(view: Layout, key: tuple[Any, ...]) -> Entry:
    items = _spelled_out(key, view, sum([item is not None and item is not Ellipsis for item in key]))
    source = tuple(view.shape)
    shape, strides, offset = _reached(source, view.strides, items)
    part = layout(shape, strides, view.offset + offset, view.dtype, view.device)
    if part.numel == view.numel and not any(item.__class__ is tuple and item != (None, None, None) for item in items):
        return part, lambda g: reshape(g, source)
    return part, PartRule(source, shape, lambda strides: _reached(source, strides, items)[1:])


def _view(input: Tensor, key: tuple[Any, ...]) -> Tensor:
    full_key = ("index", input._layout, key)
    found = lookup(full_key) or remember(full_key, _basic(input._layout, key))
    return make_view(input, found, _NAMES.get(key[-1].__class__, "SliceBackward0") if key else "SliceBackward0")


_NAMES = {int: "SelectBackward0", type(None): "UnsqueezeBackward0"}  # of the last of PyTorch's views, which are one here


def get(input: Tensor, index: Any) -> Tensor:
    """`input[index]`."""
    if index.__class__ is int:
        place = ("select", input._layout, 0, index)
        found = lookup(place) or remember(place, selected(input._layout, 0, index, "index"))
        return make_view(input, found, "SelectBackward0")
    items = _items(index)
    key = basic_key(items, True)
    if key is not None:
        return _view(input, key)
    try:
        return _read(input, items)
    except NotDense as asked:
        return asked.meaning("__getitem__", (input, index), {})  # type: ignore[no-any-return]


def _items(index: Any) -> tuple[Any, ...]:
    """The index as a tuple of items. A list is one index array, unless it is short and holds slices, None, tensors or sequences: then it counts
    as a tuple, as in PyTorch."""
    if index.__class__ is tuple or isinstance(index, tuple):
        return tuple(index)
    if isinstance(index, list) and len(index) < _LIST_IS_AN_ARRAY and any(i is None or i is Ellipsis or isinstance(i, _OF_A_TUPLE) for i in index):
        return tuple(index)
    return (index,)


# -------------------------------------------------------------------------------------------------------------- advanced


@beside_input
def positions_of(mask: Tensor) -> tuple[Tensor, ...]:
    """Coordinates of the true elements of a boolean tensor, one index tensor per dim. Reads the mask: a sync point."""
    found = np.nonzero(read(mask, "nonzero")) if mask._layout.ndim else (np.nonzero(read(mask, "nonzero").reshape(1))[0],)
    return tuple(upload(p, dt.int64) for p in found)


def _brought(index: Tensor, input: Tensor) -> Tensor:
    """An index of the CPU beside the tensor that it is for, wherever that lives."""
    return move(index, input._layout.device) if index._layout.device is CPU else index


def _varies(index: Tensor) -> bool:
    """Whether every slice of a batch, inside of `vmap`, has an index of its own: what it picks is gathered then."""
    storage = index._storage
    return storage.trace is not None and storage.trace.transforms and storage.trace.varies(storage)  # type: ignore[no-any-return]


def _no_index(item: Any) -> Exception:
    if isinstance(item, (str, bytes)):  # of a batch that was thought to be a dict
        return DTypeError(f"[index] expected integers, slices, masks or tensors, got the text {item!r}; a tensor has no names for its parts")
    hint = f"; {how_to_pass(item)}" if hasattr(item, "__dlpack__") or hasattr(item, "to_numpy") else ""  # as an int, a mask would choose a row
    return OutOfRangeError(
        f"[index] only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices (got {type_name(item)}){hint}"
    )


def _index_array(item: Any) -> Tensor:
    """An index of a sequence or an array. PyTorch rounds floats to 0, also those of NumPy."""
    found = as_tensor(list(item) if isinstance(item, range) else item)
    if found._layout.dtype.category == 2 and found._layout.numel:
        return as_tensor(read(found, "index").astype(np.int64))
    return found if found._layout.numel or isinstance(item, np.ndarray) else cast(found, dt.int64)


def _parse(item: Any, reading: bool) -> Any:
    """One item: an int, None, Ellipsis, a slice as a tuple, or an index tensor (int64-like or bool)."""
    if item is None or item is Ellipsis or item.__class__ is int:
        return item
    if isinstance(item, slice):
        return (_bound(item.start), _bound(item.stop), _bound(item.step))
    if isinstance(item, (bool, np.bool_)):
        return as_tensor(bool(item), dt.bool_)
    if isinstance(item, np.integer):
        return int(item)
    if is_tensor(item):
        found = item
    elif isinstance(item, (list, tuple, np.ndarray, range)):
        found = _index_array(item)
    elif hasattr(item, "__index__") and not hasattr(item, "__dlpack__"):
        return as_int(item)
    else:
        raise _no_index(item)
    dtype = found._layout.dtype
    if dtype.category >= 2 or (item is found and found._layout.ndim and dtype not in _INDICES):
        raise OutOfRangeError(
            f"[index] tensors used as indices must be long, int, byte or bool tensors, got {dtype}; convert with .long()"
        )
    selects = dtype.category == 1 and not found._layout.ndim and dtype is not dt.uint8
    if selects and (known_values(found) is not None or (reading and not _varies(found))):
        return int(read_number(found, "index", lambda values: values.item()))  # PyTorch selects, and the result is a view
    return cast(found, dt.bool_) if dtype is dt.uint8 else found


def _check_mask(view: Layout, mask: Tensor, source: int) -> None:
    """The mask has the shape of the dims it stands for."""
    shape = tuple(mask._layout.shape)
    if shape != tuple(view.shape)[source : source + len(shape)]:
        raise OutOfRangeError(
            f"[index] The shape of the mask {list(shape)} at index {source} does not match the shape of the indexed tensor "
            f"{list(view.shape)} at index {source}"
        )


def _consumed(item: Any) -> int:
    """Dims of the tensor that an item stands for."""
    if item is None or item is Ellipsis:
        return 0
    if is_tensor(item) and item._layout.dtype is dt.bool_:
        ndim: int = item._layout.ndim
        return ndim
    return 1


_FULL = (None, None, None)


def _separate(input: Tensor, items: list[Any]) -> tuple[Tensor, list[tuple[int, Tensor]]]:
    """The view that the basic items make, and (dim of that view, integer index tensor) for the others."""
    spelled = _spelled_out(tuple(items), input._layout, sum(_consumed(item) for item in items))
    basic: list[Any] = []
    indices: list[tuple[int, Tensor]] = []
    d = source = 0
    for item in spelled:
        if not is_tensor(item):
            basic.append(item)
            d += item.__class__ is not int
            source += item is not None
            continue
        if item._layout.dtype is dt.bool_:
            _check_mask(input._layout, item, source)
            parts = positions_of(item)
        else:
            parts = (item,)
        for part in parts:
            basic.append(_FULL if _consumed(item) else None)  # a 0-d mask indexes a new dim of size 1
            indices.append((d, _brought(part, input)))
            d += 1
        source += _consumed(item)
    return (input if all(item == _FULL for item in basic) else _view(input, tuple(basic))), indices


class _Plan:
    """How an index with tensors reads or writes `base`: its indexed dims are brought together, merged, and addressed by one
    linear index."""

    def __init__(self, base: Tensor, indices: list[tuple[int, Tensor]]) -> None:
        view = base._layout
        dims = [d for d, _ in indices]
        shapes = [tuple(i._layout.shape) for _, i in indices]
        try:
            common = broadcast_shapes(*shapes, op="index")
        except ShapeError:
            listed = ", ".join(str(list(s)) for s in shapes)
            raise OutOfRangeError(
                f"[index] shape mismatch: indexing tensors could not be broadcast together with shapes {listed}"
            ) from None
        adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
        self.place = dims[0] if adjacent else 0
        rest = [d for d in range(view.ndim) if d not in dims]
        self.order = (*rest[: self.place], *dims, *rest[self.place :])
        self.moved = base if list(self.order) == list(range(view.ndim)) else permute(base, self.order)
        self.index = self._linear(view, indices, common)
        self.flat = self._merge(len(dims))

    @staticmethod
    def _linear(view: Layout, indices: list[tuple[int, Tensor]], common: Shape) -> Tensor:
        linear: Tensor | None = None
        for d, index in indices:
            size = view.shape[d]
            if not size and 0 not in common:
                raise OutOfRangeError(f"[index] index is out of bounds for dimension {d} with size 0 (shape {tuple(view.shape)})")
            checked = check_index("index", index, size)
            linear = checked if linear is None else prim("add", prim("mul", linear, (size, dt.int64)), checked)
        assert linear is not None
        return linear if tuple(linear._layout.shape) == common else expand(linear, common)

    def _merge(self, count: int) -> Tensor:
        if count == 1:
            return self.moved
        shape = tuple(self.moved._layout.shape)
        return reshape(
            self.moved, (*shape[: self.place], prod(shape[self.place : self.place + count]), *shape[self.place + count :])
        )

    @property
    def target(self) -> Shape:
        """Shape of the indexed elements."""
        shape = self.flat._layout.shape
        return (*shape[: self.place], *self.index._layout.shape, *shape[self.place + 1 :])

    def read(self) -> Tensor:
        """The indexed elements."""
        return prim("index_select", self.flat, self.index, self.place)

    def written(self, source: Tensor, accumulate: bool) -> Tensor:
        """The base's value with the source written or added."""
        result = prim("index_add" if accumulate else "index_put", self.flat, self.index, source, self.place)
        result = reshape(result, tuple(self.moved._layout.shape))
        inverse = tuple(sorted(range(len(self.order)), key=lambda i: self.order[i]))
        return result if self.moved is self.flat and inverse == tuple(range(len(inverse))) else permute(result, inverse)


def _at_hand(input: Tensor, items: tuple[Any, ...]) -> bool:
    """Whether a tensor and the masks and indices of it are small values that are there, of forms that NumPy takes as they are."""
    view = input._layout
    if not local.state.trace.eager or view.device is not CPU or view.numel >= LARGE:
        return False
    for item in items:
        if not is_tensor(item) or item._layout.device is not CPU:
            return False
    first = items[0]._layout
    if not first.ndim or (first.dtype is not dt.bool_ and first.dtype is not dt.int64):
        return False
    for item in items[1:]:  # several indices have one shape, so what they pick has no other size
        if item._layout.dtype is not dt.int64 or first.dtype is not dt.int64 or item._layout.shape != first.shape:
            return False
    return bool(first.dtype is dt.bool_ or first.numel * prod(view.shape[len(items) :]) < LARGE)


def _read_now(input: Tensor, items: tuple[Any, ...]) -> Tensor | None:
    """What masks and indices pick, if all of it is there, small, and no gradient is asked for; else None. Reading a mask waits for it in any
    case, and a program for what is picked would be a new one for every number of elements."""
    state = local.state
    if (state.grad and input._requires_grad) or not _at_hand(input, items):
        return None
    trace = state.trace
    if items[0]._layout.dtype is dt.bool_:
        _check_mask(input._layout, items[0], 0)  # NumPy takes masks of nothing for any dims
    try:
        found = _picked(trace.array(input), [trace.array(item) for item in items])
    except IndexError:
        return None  # the slow way says what is wrong
    made: Tensor = trace.made(found, dense_layout(found.shape, input._layout.dtype), True)
    return made


def _written_now(input: Tensor, items: tuple[Any, ...], value: Tensor) -> bool:
    """Write a tensor where masks and indices pick, if `_read_now` would read there; else False."""
    view, base = input._layout, input._base
    if value._layout.dtype is not view.dtype or value._layout.device is not CPU or not _at_hand(input, items):
        return False
    if local.state.grad and (input._requires_grad or value._requires_grad or (base is not None and base._requires_grad)):
        return False
    check_target("index_put_", input)
    trace = local.state.trace
    values = np.array(trace.array(input))
    try:
        values[tuple([trace.array(item) for item in items])] = trace.array(value)
    except (IndexError, ValueError):
        return False  # the slow way says what is wrong
    put(input, values)
    return True


def _picked(values: np.ndarray[Any, Any], indices: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """What indices pick from an array, as a row-major one. Rows are moved whole by `take`, in a sixth of the time."""
    if len(indices) == 1 and values.ndim > 1 and indices[0].dtype != np.bool_ and values.flags.c_contiguous:
        return values.take(indices[0], 0)
    found = values[tuple(indices)]
    return found if found.flags.c_contiguous else np.ascontiguousarray(found)


@superinstruction
def _indexed(input: Tensor, *items: Tensor) -> Tensor:
    base, indices = _separate(input, list(items))
    return _Plan(base, indices).read()


OFTEN = 8  # times that indices of such layouts pick from a tensor before steps are watched for it, which takes as long as thirty reads
_RECENT = 64
_recent: dict[Any, int] = {}  # layouts of tensors and of their indices -> how often, of the last few: where each comes once, nothing is gained


def _often(input: Tensor, items: tuple[Any, ...]) -> bool:
    """Whether indices like these have picked from tensors like this often of late."""
    layouts = [input._layout]
    for item in items:
        if not is_tensor(item) or item._layout.dtype is not dt.int64:
            return False
        layouts.append(item._layout)
    key = tuple(layouts)
    count = _recent.get(key, 0)
    if count < OFTEN:
        if len(_recent) >= _RECENT:
            _recent.clear()
        _recent[key] = count + 1
    return count >= OFTEN


def _read(input: Tensor, items: tuple[Any, ...]) -> Tensor:
    found = known(_indexed, input, *items) if _often(input, items) else None
    if found is None:
        found = _read_now(input, items)
    if found is not None and found is not False:
        return found  # type: ignore[no-any-return]
    if local.state.trace.eager and all(is_tensor(item) and item._layout.dtype is dt.int64 and item._layout.ndim for item in items):
        return _indexed(input, *items)
    parsed = [_parse(item, True) for item in items]
    if not [item for item in parsed if is_tensor(item)]:  # numbers were given as tensors
        return _view(input, tuple(parsed))
    base, indices = _separate(input, parsed)
    return _Plan(base, indices).read()


def fitted(op: str, value: Any, view: Layout) -> Tensor:
    """A value to be written, converted to the dtype and broadcast to the shape of the target; extra leading 1s are dropped."""
    if not is_tensor(value):
        if is_scalar(value):
            return filled(tuple(view.shape), within(value, view.dtype), view.dtype, op)
        value = as_tensor(value)
    value = cast(value, view.dtype)
    if value._layout.shape == view.shape:
        return value
    shape, target = tuple(value._layout.shape), tuple(view.shape)
    while len(shape) > len(target) and shape[0] == 1:
        shape = shape[1:]
    try:
        return expand(reshape(value, shape), target)
    except ShapeError:
        raise ShapeError(
            f"[{op}] shape mismatch: value tensor of shape {list(value._layout.shape)} cannot be broadcast to indexing result "
            "of shape "
            f"{list(target)}; expected a number or sizes that match or are 1"
        ) from None


def _is_single(value: Any) -> bool:
    return is_scalar(value) or (is_tensor(value) and value._layout.numel == 1)


def put_values(input: Tensor, items: tuple[Any, ...], value: Any, accumulate: bool = False) -> None:
    """Write (or add) values, broadcast to the shape the index names."""
    if not accumulate and is_tensor(value) and _written_now(input, items, value):
        return
    parsed = [_parse(item, False) for item in items]
    if len(parsed) == 1 and is_tensor(parsed[0]) and parsed[0]._layout.dtype is dt.bool_ and _is_single(value) and not accumulate:
        mask = parsed[0]
        _check_mask(input._layout, mask, 0)
        check_target("index_put_", input)
        mask = _brought(mask, input)
        mask = reshape(mask, tuple(mask._layout.shape) + (1,) * (input._layout.ndim - mask._layout.ndim))
        dtype, value = input._layout.dtype, reshape(value, ()) if is_tensor(value) else value
        assign(input, prim("where", mask, operand("index_put_", held("index_put_", within(value, dtype), dtype), dtype), input))
        return
    base, indices = _separate(input, parsed)
    check_target("index_put_", base)
    if not indices:
        source = fitted("index_put_", value, base._layout)
        assign(base, prim("add", base, source) if accumulate else source)
        return
    plan = _Plan(base, indices)
    if is_tensor(value) and value._layout.dtype is not base._layout.dtype:
        raise DTypeError(
            f"[index_put_] Index put requires the source and destination dtypes match, got {base._layout.dtype} for the destination and "
            f"{value._layout.dtype} for the source; convert the values with .to({base._layout.dtype})"
        )
    source = fitted("index_put_", value, dense_layout(plan.target, base._layout.dtype))
    assign(base, plan.written(source, accumulate))


def set_item(input: Tensor, index: Any, value: Any) -> None:
    """`input[index] = value`."""
    try:
        _set_item(input, index, value)
    except NotDense as error:
        if error.tensor.__class__ not in ASKED:
            raise
        error.meaning("__setitem__", (input, index, value), {})


def _set_item(input: Tensor, index: Any, value: Any) -> None:
    items = _items(index)
    key = basic_key(items, False)
    if key is None:
        try:
            put_values(input, items, value)
        except OverlapError as error:
            error.again("__setitem__", set_item, set_item, (input, items, value), {})
        return
    if index.__class__ is tuple and not index:
        target = input
    else:
        target = get(input, index)
    try:
        check_target("copy_", target)
    except OverlapError as error:
        error.again("copy_", set_item, set_item, (target, fitted("copy_", value, target._layout)), {})
        return
    if not put_number(target, value):
        assign(target, fitted("copy_", value, target._layout))


method("__getitem__")(called(get, "__getitem__"))
method("__setitem__")(called(set_item, "__setitem__"))
