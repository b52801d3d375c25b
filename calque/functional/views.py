"""Views: functions whose result shares memory with their input. Layout arithmetic is cached per (layout, arguments).

A view's gradient rule maps the view's gradient to the source's; it is made once with the layout and captures no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque.base.cache import Cache
from calque.base.dtypes import DType
from calque.base.errors import ArgumentError, DTypeError, NotDense, OutOfRangeError, ShapeError, no_tensor
from calque.base.layout import Layout, layout
from calque.base.shapes import (
    Shape,
    broadcast_shapes,
    broadcast_strides,
    contiguous_strides,
    infer_size,
    ints,
    inverse,
    listed,
    normalize_dim,
    view_strides,
)
from calque.functional.blame import NOTHING, answer
from calque.functional.common import Tensors, attribute, method, prim
from calque.functional.declared import public
from calque.functional.memory import export, share_array
from calque.record.recorder import local
from calque.tensor import Tensor, View, make_view, view_kind, wrap

Entry = tuple[Layout, Callable[[Any], Any]]
_VIEWS = Cache("views", 1200, 1 / 32)


def remember(key: Any, entry: Entry) -> View:
    """Cache a computed view."""
    return _VIEWS.keep(key, view_kind(*entry))  # type: ignore[no-any-return]


lookup: Callable[[Any], View | None] = _VIEWS.get


def int_tuple(op: str, values: Any) -> Shape:
    """A tuple of Python ints from varargs such as `(2, 3)`, `((2, 3),)` or `([2, 3],)`; elements may be 0-d integer tensors."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = values[0]
    for v in values:
        if v.__class__ is not int:
            break
    else:
        return tuple(values)
    return ints(op, values)


# ------------------------------------------------------------------------------------------------- view and reshape


def _reshaped(view: Layout, shape: Shape, op: str) -> Entry | None:
    target, source = infer_size(shape, view.numel, op), tuple(view.shape)
    strides = contiguous_strides(target) if (view.origin or view).plain else view_strides(source, view.strides, target)
    if strides is None:
        return None
    return layout(target, strides, view.offset, view.dtype, view.device), lambda g: reshape(g, source)


@method("view")
def view(input: Tensor, *shape: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """The same memory under another shape (ints, a tuple, a list; one -1 is inferred) or another element type.

    >>> import calque
    >>> calque.arange(6).view([-1, 3]).shape
    torch.Size([2, 3])
    """
    if not shape:
        shape = (() if dtype is None else dtype) if size is None else size,
    if len(shape) == 1 and isinstance(shape[0], DType):
        return view_dtype(input, shape[0])
    shape = int_tuple("view", shape)
    key = ("view", input._layout, shape)
    found = lookup(key)
    if found is None:
        computed = _reshaped(input._layout, shape, "view")
        if computed is None:
            raise ShapeError(
                f"[view] expected a layout that fits shape {shape}, got a tensor of shape {tuple(input._layout.shape)} with "
                "strides "
                f"{input._layout.strides}: view size is not compatible with input tensor's size and stride (at least one "
                "dimension spans "
                "across two contiguous subspaces); use .reshape(...) instead, which copies here"
            )
        found = remember(key, computed)
    return make_view(input, found, "ViewBackward0")


def view_dtype(input: Tensor, dtype: DType) -> Tensor:
    """The same bytes read as another element type, also as the same one: writes to either show in the other, and no gradient goes through."""
    view = input._layout
    if dtype is view.dtype:
        return detach(input)
    if local.state.trace.exports:  # a program has no memory that two tensors could share
        seen = _as_dtype(view, dtype)
        if seen is None:
            raise _undivided(view, dtype)
        return make_view(detach(input), view_kind(seen, lambda g: g), "AliasBackward0")
    array = export(input, "view")
    try:
        array = array.view(dtype.np)
    except ValueError:
        raise _undivided(view, dtype) from None
    return share_array(array, dtype, input._storage.buffer)


def _undivided(view: Layout, dtype: DType) -> ShapeError:
    return ShapeError(
        f"[view] expected a last dimension that {dtype} divides, got shape {tuple(view.shape)} of {view.dtype} with strides {view.strides}"
    )


def _as_dtype(view: Layout, dtype: DType) -> Layout | None:
    """Where the elements of another type lie in the same bytes; None if they would lie across others."""
    shape, strides, old, new = tuple(view.shape), view.strides, view.dtype.itemsize, dtype.itemsize
    if old == new:
        return layout(shape, strides, view.offset, dtype, view.device)
    if not shape or strides[-1] != 1:
        return None
    if new < old:
        r = old // new
        return layout((*shape[:-1], shape[-1] * r), (*[s * r for s in strides[:-1]], 1), view.offset * r, dtype, view.device)
    r = new // old
    if shape[-1] % r or view.offset % r or any(s % r for s in strides[:-1]):
        return None
    return layout((*shape[:-1], shape[-1] // r), (*[s // r for s in strides[:-1]], 1), view.offset // r, dtype, view.device)


@public()
def reshape(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """The elements under another shape: a view where strides allow it, else a copy with memory of its own.

    >>> import calque
    >>> calque.arange(6).reshape(2, -1).shape
    torch.Size([2, 3])
    """
    shape = int_tuple("reshape", sizes if shape is None else (shape,))
    try:
        return reshaped(input, shape)
    except AttributeError as error:
        if (meant := answer("reshape", reshape, (input, shape), {}, error)) is not NOTHING:
            return meant  # type: ignore[no-any-return]
        raise no_tensor("reshape", error) or error from None
    except NotDense as asked:
        return asked.meaning("reshape", (input, shape), {})  # type: ignore[no-any-return]


def reshaped(input: Tensor, shape: Shape) -> Tensor:
    """`reshape` to a tuple of Python ints, which nobody has to look at."""
    key = ("view", input._layout, shape)
    found = lookup(key)
    if found is None:
        computed = _reshaped(input._layout, shape, "reshape")
        if computed is None:
            return reshaped(prim("copy", input), shape)
        found = remember(key, computed)
    return make_view(input, found, "ViewBackward0")


@public()
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """`input.view(other.size())`."""
    return view(input, tuple(other._layout.shape))


@public()
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """`input.reshape(other.size())`."""
    return reshape(input, tuple(other._layout.shape))


@public()
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dims `start_dim`..`end_dim` as one: (A, B, C) -> (A, B*C) for start_dim=1.

    >>> import calque
    >>> calque.zeros(2, 3, 4).flatten(1).shape
    torch.Size([2, 12])
    """
    shape = input._layout.shape
    if not shape:
        normalize_dim(start_dim, 1, "flatten"), normalize_dim(end_dim, 1, "flatten")
        return reshape(input, (1,))
    first, last = normalize_dim(start_dim, len(shape), "flatten"), normalize_dim(end_dim, len(shape), "flatten")
    if first > last:
        raise ShapeError(f"[flatten] expected start_dim <= end_dim, got {start_dim} and {end_dim}; flatten() has invalid args")
    if first == last:
        return input
    merged = 1
    for extent in shape[first : last + 1]:
        merged *= extent
    return reshape(input, (*shape[:first], merged, *shape[last + 1 :]))


@public()
def ravel(input: Tensor) -> Tensor:
    """The elements in one dimension; a view if the tensor is contiguous, else a copy."""
    return reshape(input if input._layout.contiguous else prim("copy", input), (input._layout.numel,))


@public()
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """One dim as several: (A, B*C) -> (A, B, C) for dim=1, sizes=(B, C)."""
    shape = input._layout.shape
    if not shape:
        raise OutOfRangeError(f"[unflatten] expected a dimension to unflatten, got dim {dim} of a 0-d tensor; use reshape()")
    d = normalize_dim(dim, len(shape), "unflatten")
    parts = infer_size(int_tuple("unflatten", (sizes,)), shape[d], "unflatten")
    return view(input, (*shape[:d], *parts, *shape[d + 1 :]))


# ------------------------------------------------------------------------------------------------------ permutations


def _permuted(view: Layout, dims: Shape) -> Entry:
    shape, strides, back = tuple(view.shape), view.strides, inverse(dims)
    moved = layout(tuple([shape[d] for d in dims]), tuple([strides[d] for d in dims]), view.offset, view.dtype, view.device)
    return moved, lambda g: permute(g, back)


@public()
def permute(input: Tensor, *axes: Any, dims: Any = None) -> Tensor:
    """Dimensions in the given order: (A, B, C) -> (C, A, B) for dims=(2, 0, 1)."""
    wanted = int_tuple("permute", axes if dims is None else (dims,))
    try:
        key = ("permute", input._layout, wanted)
        found = lookup(key)
    except Exception as error:
        if (meant := answer("permute", permute, (input, wanted), {}, error)) is not NOTHING:
            return meant
        raise
    if found is None:
        ndim = input._layout.ndim
        order = tuple(normalize_dim(d, ndim, "permute") for d in wanted)
        if sorted(order) != list(range(ndim)):
            raise ShapeError(
                f"[permute] expected each of the {ndim} dims of shape {tuple(input._layout.shape)} once, got {wanted}"
            )
        found = remember(key, _permuted(input._layout, order))
    return make_view(input, found, "PermuteBackward0")


def _exchanged(view: Layout, dim0: int, dim1: int, op: str) -> Entry:
    a, b = normalize_dim(dim0, view.ndim, op), normalize_dim(dim1, view.ndim, op)
    order = list(range(view.ndim))
    if order:
        order[a], order[b] = order[b], order[a]
    return _permuted(view, tuple(order))


@public("swapdims")
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged, as a view.

    >>> import calque
    >>> calque.zeros(2, 3, 4).transpose(0, 2).shape
    torch.Size([4, 3, 2])
    """
    try:
        key = ("transpose", input._layout, dim0, dim1)
        found = lookup(key) or remember(key, _exchanged(input._layout, dim0, dim1, "transpose"))
    except Exception as error:
        if (meant := answer("transpose", transpose, (input, dim0, dim1), {}, error)) is not NOTHING:
            return meant
        raise
    return make_view(input, found, "TransposeBackward0")




@public()
def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """`transpose`, under NumPy's name."""
    return transpose(input, axis0, axis1)


@public()
def t(input: Tensor) -> Tensor:
    """Transpose of a matrix, as a view; tensors with fewer dimensions as they are.

    >>> import calque
    >>> calque.tensor([[1, 2], [3, 4]]).t()
    tensor([[1, 3],
            [2, 4]])
    """
    try:
        key = ("t", input._layout)
        found = lookup(key)
    except Exception as error:
        if (meant := answer("t", t, (input,), {}, error)) is not NOTHING:
            return meant
        raise
    if found is None:
        ndim = input._layout.ndim
        if ndim > 2:
            raise ShapeError(
                f"[t] expects a tensor with <= 2 dimensions, but self is {ndim}D: shape {tuple(input._layout.shape)}; use .mT "
                "or transpose()"
            )
        found = remember(key, _permuted(input._layout, tuple(reversed(range(ndim)))))
    return make_view(input, found, "TBackward0")


def _transpose_all(input: Tensor) -> Tensor:
    key = ("T", input._layout)
    found = lookup(key) or remember(key, _permuted(input._layout, tuple(reversed(range(input._layout.ndim)))))
    return make_view(input, found, "PermuteBackward0")


def _matrix_transpose(input: Tensor) -> Tensor:
    if input._layout.ndim == 0:
        return input
    if input._layout.ndim == 1:
        raise ShapeError(
            f"[mT] expected at least 2 dimensions, got shape {tuple(input._layout.shape)}; only batches of matrices can be "
            "transposed"
        )
    return transpose(input, -2, -1)


@public("moveaxis")
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Dims `source` moved to the places `destination`, the others in order: (A, B, C) -> (B, C, A) for 0 -> 2."""
    ndim = input._layout.ndim
    sources = [normalize_dim(d, ndim, "movedim") for d in listed("movedim", "source", source)]
    targets = [normalize_dim(d, ndim, "movedim") for d in listed("movedim", "destination", destination)]
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ShapeError(f"[movedim] expected as many distinct destinations as sources, got {source} -> {destination}")
    if not ndim:  # the one dim of a number, 0 or -1, cannot move
        return permute(input, ())
    order = [-1] * ndim
    for s, d in zip(sources, targets, strict=True):
        order[d] = s
    rest = iter(d for d in range(ndim) if d not in sources)
    return permute(input, tuple(next(rest) if d < 0 else d for d in order))




# ------------------------------------------------------------------------------------------------- squeeze and expand


def _keep_dims(view: Layout, kept: Sequence[int]) -> Entry:
    source = tuple(view.shape)
    shorter = layout(tuple(source[d] for d in kept), tuple(view.strides[d] for d in kept), view.offset, view.dtype, view.device)
    return shorter, lambda g: reshape(g, source)


def _squeezed(view: Layout, dims: Any) -> Entry:
    if dims is None:
        return _keep_dims(view, [d for d in range(view.ndim) if view.shape[d] != 1])
    listed = dims if isinstance(dims, tuple) else (dims,)
    drop = {normalize_dim(d, view.ndim, "squeeze") for d in listed}
    if len(drop) != len(listed):
        raise ShapeError(f"[squeeze] expected distinct dims, got {dims}; dim appears multiple times")
    return _keep_dims(view, [d for d in range(view.ndim) if d not in drop or view.shape[d] != 1])


@public()
def squeeze(input: Tensor, dim: Any = None, *, axis: Any = None) -> Tensor:
    """Without its dimensions of size 1, or without those of `dim` (an int or a tuple) that have size 1: (2, 1, 2) -> (2, 2).

    >>> import calque
    >>> calque.zeros(2, 1, 2).squeeze().shape
    torch.Size([2, 2])
    """
    dim = axis if dim is None else dim
    try:
        if dim is not None and dim.__class__ is not int:
            dim = tuple(listed("squeeze", "dim", dim))
        key = ("squeeze", input._layout, dim)
        found = lookup(key) or remember(key, _squeezed(input._layout, dim))
    except Exception as error:
        if (meant := answer("squeeze", squeeze, (input, dim), {}, error)) is not NOTHING:
            return meant
        raise
    return make_view(input, found, "SqueezeBackward0" if dim is None else "SqueezeBackward1" if dim.__class__ is int else "SqueezeBackward2")


def _unsqueezed(view: Layout, dim: int) -> Entry:
    d = normalize_dim(dim, view.ndim + 1, "unsqueeze")
    stride = view.shape[d] * view.strides[d] if d < view.ndim else 1
    longer = layout(
        (*view.shape[:d], 1, *view.shape[d:]),
        (*view.strides[:d], stride, *view.strides[d:]),
        view.offset,
        view.dtype,
        view.device,
    )
    source = tuple(view.shape)
    return longer, lambda g: reshape(g, source)


@public()
def unsqueeze(input: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """A new dimension of size 1 at `dim`.

    >>> import calque
    >>> calque.zeros(2, 2).unsqueeze(1).shape
    torch.Size([2, 1, 2])
    """
    if dim is None:
        dim = axis
        if dim is None:
            raise DTypeError("[unsqueeze] expected arguments (input, dim), got others: missing a required argument: 'dim'; look at its parameters")
    try:
        key = ("unsqueeze", input._layout, dim)
        found = lookup(key) or remember(key, _unsqueezed(input._layout, dim))
    except Exception as error:
        if (meant := answer("unsqueeze", unsqueeze, (input, dim), {}, error)) is not NOTHING:
            return meant
        raise
    return make_view(input, found, "UnsqueezeBackward0")


@public(method=False)
def sum_to_shape(g: Tensor, shape: Shape) -> Tensor:
    """`g` summed over the dimensions that broadcasting from `shape` repeated."""
    current = tuple(g._layout.shape)
    if isinstance(shape, tuple) and current == shape:
        return g
    shape = ints("sum_to_shape", shape)
    lead = len(current) - len(shape)
    if lead < 0:
        raise ShapeError(f"[sum_to_shape] expected at most {len(current)} sizes for a tensor of shape {current}, got {shape}; drop the first ones")
    dims = tuple(range(lead)) + tuple(lead + i for i, s in enumerate(shape) if s == 1 and current[lead + i] != 1)
    return reshape(prim("sum", g, dims, False) if dims else g, shape)


def _expanded(view: Layout, sizes: Shape) -> Entry:
    source = tuple(view.shape)
    lead = len(sizes) - len(source)
    if lead < 0:
        raise ShapeError(
            f"[expand] expected at least {len(source)} sizes for a tensor of shape {source}, got {sizes}; the number of sizes "
            "provided must be "
            "greater or equal to the number of dimensions in the tensor"
        )
    target: list[int] = []
    for d, wanted in enumerate(sizes):
        have = source[d - lead] if d >= lead else None
        if wanted == -1 and have is None:
            raise ShapeError(
                f"[expand] expected a size for the new dimension {d}, got -1 in {sizes}; -1 keeps the size of an existing "
                "dimension"
            )
        if wanted < -1:
            raise ShapeError(f"[expand] expected sizes >= -1, got {sizes}")
        if have not in (None, 1, wanted) and wanted != -1:
            raise ShapeError(
                f"[expand] The expanded size of the tensor ({wanted}) must match the existing size ({have}) at non-singleton "
                f"dimension {d}. "
                f"Target sizes: {list(sizes)}. Tensor sizes: {list(source)}"
            )
        target.append(have if wanted == -1 and have is not None else wanted)
    shape = tuple(target)
    strides = list(broadcast_strides(source, view.strides, shape))
    for d in reversed(range(len(shape))):  # dims of size 1 have PyTorch's strides: their own, or as if they were dense
        if shape[d] == 1 and source:
            strides[d] = view.strides[d - lead] if d >= lead else shape[d + 1] * strides[d + 1] if d + 1 < len(shape) else 1
    wide = layout(shape, tuple(strides), view.offset, view.dtype, view.device)
    return wide, lambda g: sum_to_shape(g, source)


@public()
def expand(input: Tensor, *sizes: Any, size: Any = None, implicit: bool = False) -> Tensor:
    """Dimensions of size 1 repeated without copying: (3, 1) -> (3, 4); -1 keeps a size.

    >>> import calque
    >>> calque.tensor([[1], [2]]).expand(-1, 3)
    tensor([[1, 1, 1],
            [2, 2, 2]])
    """
    wanted = int_tuple("expand", sizes if size is None else (size,))
    key = ("expand", input._layout, wanted)
    found = lookup(key) or remember(key, _expanded(input._layout, wanted))
    return make_view(input, found, "ExpandBackward0")


@public()
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """`input.expand(other.size())`."""
    return expand(input, tuple(other._layout.shape))


@public()
def broadcast_to(input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """`input.expand(size)`."""
    return expand(input, *sizes, size=size)


@public(method=False)
def broadcast_tensors(*tensors: Tensors) -> tuple[Tensor, ...]:
    """All tensors expanded to their common shape; one that has it already is given as it is."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    shape = broadcast_shapes(*(tuple(x._layout.shape) for x in tensors), op="broadcast_tensors")
    return tuple(x if tuple(x._layout.shape) == shape else expand(x, shape) for x in tensors)


# ------------------------------------------------------------------------------------------------ copies and handles


@public()
def detach(input: Tensor) -> Tensor:
    """The same memory without autograd history.

    >>> import calque
    >>> calque.ones(2, requires_grad=True).detach().requires_grad
    False
    """
    trace = local.state.trace
    return trace.detached(input) if trace.transforms else wrap(input._storage, input._layout)  # type: ignore[no-any-return]


@public()
def detach_(input: Tensor) -> Tensor:
    """Forget the autograd history, in place."""
    if input._base is not None:
        raise ArgumentError("[detach_] can't detach views in-place, use detach() instead")
    input._grad_fn, input._requires_grad = None, False
    return input


@public(method=False)
def atleast_1d(*tensors: Tensors) -> Any:
    """Tensors with at least one dimension: () -> (1,)."""
    return _each(tensors, lambda x: reshape(x, (1,)) if x._layout.ndim < 1 else x)


@public(method=False)
def atleast_2d(*tensors: Tensors) -> Any:
    """Tensors with at least two dimensions: (N,) -> (1, N)."""
    return _each(tensors, lambda x: reshape(x, (1, 1)) if x._layout.ndim == 0 else unsqueeze(x, 0) if x._layout.ndim == 1 else x)


@public(method=False)
def atleast_3d(*tensors: Tensors) -> Any:
    """Tensors with at least three dimensions: (N,) -> (1, N, 1), (A, B) -> (A, B, 1)."""

    def grow(x: Tensor) -> Tensor:
        return x if x._layout.ndim > 2 else unsqueeze(atleast_2d(x), -1)

    return _each(tensors, grow)


def _each(tensors: tuple[Any, ...], function: Callable[[Any], Any]) -> Any:
    if len(tensors) == 1 and not isinstance(tensors[0], (tuple, list)):
        return function(tensors[0])
    return tuple(function(x) for x in (tensors[0] if len(tensors) == 1 else tensors))


attribute("T", _transpose_all, "The dimensions in reverse order.")
attribute("mT", _matrix_transpose, "The last two dimensions exchanged.")
