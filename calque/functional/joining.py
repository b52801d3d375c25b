"""Taking tensors apart and putting them together: split, unbind, cat, stack, repeat, flip, roll."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import index as as_int
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.cache import Cache
from calque.base.device import CPU
from calque.base.errors import ArgumentError, DTypeError, NotDense, OutOfRangeError, ShapeError, UnsupportedTypeError, how_to_pass
from calque.base.layout import Layout
from calque.base.shapes import Shape, contiguous_strides, listed, normalize_dim, whole
from calque.base.text import described, shown, type_name
from calque.functional.blame import NOTHING, answer
from calque.functional.common import cast, is_number, is_tensor, method, prim
from calque.functional.declared import public
from calque.functional.options import written
from calque.functional.views import atleast_1d, atleast_2d, atleast_3d, expand, int_tuple, reshape, transpose, unsqueeze
from calque.functional.windows import narrow, selected, sliced
from calque.ir.symint import any_free
from calque.record.nodes import GradNode
from calque.record.places import require_one_place
from calque.record.recorder import local
from calque.run.buffer import strided
from calque.run.dispatch import raise_pending
from calque.tensor import TENSOR_TYPES, Tensor, alias, function_node, output_nodes, upload

MANY, SMALL = 8, 1 << 20  # operands, and bytes of all together, that are joined at once
_PARTS = Cache("parts of tensors", 600, 1 / 128)


def _parts(input: Tensor, layouts: tuple[Layout, ...], label: str, join: Callable[[list[Any]], Any]) -> tuple[Tensor, ...]:
    """Several views of one tensor as outputs of one graph node; `join` puts the parts' gradients together."""
    views = tuple([alias(input, part) for part in layouts])
    if input._requires_grad and local.state.grad and views:

        def backward(node: GradNode, grads: Any) -> tuple[Any]:
            like = next(g for g in grads if g is not None)
            dtype = like._layout.dtype
            full = [
                prim("full", (0.0, dtype), tuple(part.shape)) if g is None else g for g, part in zip(grads, layouts, strict=True)
            ]
            return (join(full),)

        node = function_node(label, (input,), layouts, backward)
        for one, out in zip(views, output_nodes(node, len(views)), strict=True):
            one._grad_fn, one._requires_grad = out, True
    return views


def _remember(key: Any, layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
    _PARTS.keep(key, layouts, 700 * len(layouts))
    return layouts


def _cut(view: Layout, d: int, sizes: Sequence[int]) -> tuple[Layout, ...]:
    layouts, start = [], 0
    for length in sizes:
        layouts.append(sliced(view, d, start, start + length, 1)[0])
        start += length
    return tuple(layouts)


def _dim(input: Tensor, dim: int, op: str) -> int:
    if not input._layout.ndim:
        raise OutOfRangeError(f"[{op}] expects at least a 1-dimensional tensor, got shape ()")
    return normalize_dim(dim, input._layout.ndim, op)


@public()
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of the given sizes along `dim`, as views."""
    d = _dim(input, dim, "split")
    sizes = int_tuple("split", (split_sizes,))
    key = (input._layout, d, sizes)
    found = _PARTS.get(key)
    if found is None:
        extent = input._layout.shape[d]
        if sum(sizes) != extent or min(sizes, default=0) < 0:
            raise ShapeError(
                f"[split] split_with_sizes expects split_sizes to sum exactly to {extent} (input tensor's size at dimension "
                f"{d}), but got "
                f"split_sizes={list(sizes)}"
            )
        found = _remember(key, _cut(input._layout, d, sizes))
    return _parts(input, found, "SplitWithSizesBackward0", lambda grads: prim("cat", *grads, d))


@public(method=False)
def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of a size (the last may be smaller) or of a list of sizes, as views: (A, B) -> (s, B), (s, B), ...

    >>> import calque
    >>> [p.tolist() for p in calque.arange(5).split(2)]
    [[0, 1], [2, 3], [4]]
    """
    if isinstance(split_size_or_sections, (list, tuple)):
        return split_with_sizes(tensor, split_size_or_sections, dim)
    size = as_int(split_size_or_sections)
    d = _dim(tensor, dim, "split")
    key = (tensor._layout, d, size)
    found = _PARTS.get(key)
    if found is None:
        extent = tensor._layout.shape[d]
        if size < 0 or (size == 0 and extent):
            raise ArgumentError(f"[split] expects split_size be positive, but got split_size={size}")
        sizes = [min(size, extent - s) for s in range(0, extent, size)] if extent else [0]
        found = _remember(key, _cut(tensor._layout, d, sizes))
    return _parts(tensor, found, "SplitBackward0", lambda grads: prim("cat", *grads, d))


@method("split")
def _split(input: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """`split`; the method's second parameter has another name in PyTorch."""
    return split(input, split_size, dim)


@public()
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of equal size (the last may be smaller), as views."""
    if chunks <= 0:
        raise ArgumentError(f"[chunk] expects `chunks` to be greater than 0, got: {chunks}")
    d = _dim(input, dim, "chunk")
    extent = input._layout.shape[d]
    if not extent:
        return split_with_sizes(input, [0] * chunks, d)
    size = -(-extent // chunks)
    if any_free(size):
        return split_with_sizes(input, _chunk_sizes(extent, size, chunks), d)
    return split(input, size, d)


def _chunk_sizes(extent: int, size: int, chunks: int) -> list[int]:
    """The sizes of chunks of a free size: how many there are is asked, and how many that are no larger than the last is not."""
    sizes: list[int] = []
    for k in range(chunks - 1):
        if size * (k + 1) >= extent:
            return [*sizes, extent - size * k]
        sizes.append(size)
    return [*sizes, extent - size * (chunks - 1)]


def _only(op: str, either: Any, indices: Any, sections: Any) -> Any:
    """The one of three arguments that was given: PyTorch names the two meanings of the first."""
    given = [x for x in (either, indices, sections) if x is not None]
    if len(given) != 1:
        raise ArgumentError(f"[{op}] expected one of indices_or_sections, indices and sections, got {len(given)}; give exactly one")
    return given[0]


def _is_row(x: Any) -> bool:
    """Whether it is a tensor or array of several positions."""
    return hasattr(x, "tolist") and getattr(x, "ndim", 0) > 0


@public()
def tensor_split(
    input: Tensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None
) -> tuple[Tensor, ...]:
    """Pieces that differ in size by at most one (`sections`), or cut at the given positions (`indices`)."""
    indices_or_sections = _only("tensor_split", indices_or_sections, indices, sections)
    d = _dim(input, dim, "tensor_split")
    extent = input._layout.shape[d]
    cuts = tuple(indices_or_sections.tolist()) if _is_row(indices_or_sections) else indices_or_sections
    if not isinstance(cuts, (tuple, list)):
        cuts = whole("tensor_split", "indices_or_sections", cuts)
        if cuts <= 0:
            raise ArgumentError(f"[tensor_split] number of sections must be larger than 0, got {cuts}")
        small, more = divmod(extent, cuts)
        return split_with_sizes(input, [small + 1] * more + [small] * (cuts - more), d)
    edges = [0, *listed("tensor_split", "indices_or_sections", cuts), extent]
    found = tuple(sliced(input._layout, d, a, b, 1)[0] for a, b in itertools.pairwise(edges))
    if all(0 <= a <= b for a, b in itertools.pairwise(edges)):
        return _parts(input, found, "SplitBackward0", lambda grads: prim("cat", *grads, d))
    return tuple(input[(slice(None),) * d + (slice(a, b),)] for a, b in itertools.pairwise(edges))  # type: ignore[index]


def _axis_split(op: str, axis: int, least: int) -> Callable[..., tuple[Tensor, ...]]:
    def function(input: Tensor, indices_or_sections: Any = None, *, indices: Any = None, sections: Any = None) -> tuple[Tensor, ...]:
        indices_or_sections = _only(op, indices_or_sections, indices, sections)
        shape = tuple(input._layout.shape)
        if len(shape) < least:
            raise ShapeError(f"[{op}] expected a tensor with at least {least} dimensions, got shape {shape}; add some with unsqueeze(...)")
        d = min(axis, len(shape) - 1)
        if is_number(indices_or_sections) and (indices_or_sections <= 0 or shape[d] % indices_or_sections):
            raise ArgumentError(
                f"[{op}] expected a number of sections that divides the size {shape[d]} of dim {d}, got {indices_or_sections}; "
                "tensor_split makes pieces of different sizes"
            )
        return tensor_split(input, indices_or_sections, d)

    function.__name__ = op
    function.__doc__ = f"`tensor_split` along dim {axis}."
    return public()(function)


hsplit, vsplit, dsplit = _axis_split("hsplit", 1, 1), _axis_split("vsplit", 0, 2), _axis_split("dsplit", 2, 3)


@public()
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """All slices along `dim`, as views without it: (A, B) -> A times (B,)."""
    d = _dim(input, dim, "unbind")
    key = (input._layout, d, None)
    found = _PARTS.get(key)
    if found is None:
        found = _remember(key, tuple(selected(input._layout, d, i)[0] for i in range(input._layout.shape[d])))
    return _parts(input, found, "UnbindBackward0", lambda grads: stack(grads, d))


# ---------------------------------------------------------------------------------------------------------------- joining


def _given(op: str, tensors: Any) -> list[Tensor]:
    """The tensors of a sequence, of which there are some."""
    if tensors.__class__ is not list and tensors.__class__ is not tuple:
        _require_iterable(op, tensors)
    given = list(tensors)
    if not given:
        raise ArgumentError(f"[{op}] expected a non-empty list of Tensors")
    for x in given:
        if x.__class__ not in TENSOR_TYPES and not is_tensor(x):
            i = next(k for k, y in enumerate(given) if y is x)
            raise TypeError(f"[{op}] expected Tensor as element {i}, got {type_name(x)}; {how_to_pass(x)}")
    return given


def _require_iterable(op: str, tensors: Any) -> None:
    if is_tensor(tensors):
        raise TypeError(f"[{op}] expected a tuple or list of Tensors, got a Tensor; wrap it in a list")
    if not isinstance(tensors, Iterable) or getattr(tensors, "ndim", 1) == 0:
        raise DTypeError(f"[{op}] expected a tuple or list of Tensors, got {type_name(tensors)}; {how_to_pass(tensors)}")


def _common(op: str, tensors: Any) -> list[Tensor]:
    """The tensors converted to their common dtype."""
    given = _given(op, tensors)
    dtype = given[0]._layout.dtype
    for x in given:
        if x._layout.dtype is not dtype:
            for y in given:
                dtype = dt.promote(dtype, y._layout.dtype)
            return [cast(y, dtype) for y in given]
    return given


def _joined_now(parts: list[Tensor], join: Callable[[list[Any]], Any]) -> Tensor | None:
    """Many small values that are all there, joined at once; None for others. A program would have an input for each, and be a new one wherever their
    number changes, or which of them are one tensor: at every batch of samples that is drawn from a memory."""
    state = local.state
    if len(parts) < MANY or state.capture is not None or not state.plain or state.device is not None:
        return None
    size, given, trace = 0, [], state.trace
    for x in parts:
        view, buffer = x._layout, x._storage.buffer
        size += view.nbytes
        if buffer is None or (x._requires_grad and state.grad) or size > SMALL or view.device is not CPU:
            return None
        given.append((buffer, view))
    first = parts[0]._layout
    arrays = [trace.array(x) for x in parts] if trace.eager else [strided(buffer.readable(), view) for buffer, view in given]
    raise_pending()
    try:
        values = join(arrays)
    except ValueError:  # shapes that do not fit, which a primitive says in its own words
        return None
    made = upload(values, first.dtype)
    result = made._storage.buffer
    assert result is not None
    result.floating = all(buffer.floating for buffer, _ in given)
    return made


@public("concat", "concatenate", method=False, steps=True)
def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None, out: Tensor | None = None) -> Tensor:
    """Tensors joined along `dim`: (A, B), (C, B) -> (A + C, B).

    >>> import calque
    >>> calque.cat([calque.tensor([1]), calque.tensor([2, 3])])
    tensor([1, 2, 3])
    """
    dim = dim if axis is None else axis
    try:
        listed = _common("cat", tensors)
    except (NotDense, TypeError) as error:
        if (meant := answer("cat", cat, (tensors, dim), {}, error)) is not NOTHING:
            return meant if out is None else written("cat", meant, out)  # type: ignore[no-any-return]
        raise
    kept = listed
    if any(x._layout.ndim != 1 for x in listed):  # PyTorch skips empty 1-d tensors among others
        kept = [x for x in listed if x._layout.shape != (0,)] or listed[:1]
    first = kept[0]._layout
    if not first.ndim:
        raise ShapeError("[cat] zero-dimensional tensor (at position 0) cannot be concatenated; use stack()")
    nothing = first.shape == (0,) and isinstance(dim, int) and all(x._layout.shape == (0,) for x in kept)
    d = 0 if nothing else normalize_dim(dim, first.ndim, "cat")  # nothing is nothing along any dim, as for PyTorch
    result = _joined_now(kept, lambda parts: np.concatenate(parts, d))
    if result is None:
        result = prim("copy", kept[0]) if len(kept) == 1 else prim("cat", *kept, d)
    return result if out is None else written("cat", result, out)




@public(method=False, steps=True)
def stack(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Tensors of one shape joined along a new dim: N times (A, B) -> (N, A, B) for dim=0."""
    try:
        listed = _common("stack", tensors)
    except NotDense as asked:
        meant = asked.meaning("stack", (tensors,), {"dim": dim} if dim else {})
        return meant if out is None else written("stack", meant, out)  # type: ignore[no-any-return]
    shape = listed[0]._layout.shape
    for i, x in enumerate(listed):
        if x._layout.shape != shape:
            raise ShapeError(
                f"[stack] expects each tensor to be equal size, but got {list(shape)} at entry 0 and {list(x._layout.shape)} "
                f"at entry {i}"
            )
    d = normalize_dim(dim, len(shape) + 1, "stack")
    result = _joined_now(listed, lambda parts: np.concatenate(parts).reshape(-1, *shape) if d == 0 < len(shape) else np.stack(parts, d))
    if result is None:
        result = prim("cat", *[unsqueeze(x, d) for x in listed], d) if len(listed) > 1 else prim("copy", unsqueeze(listed[0], d))
    return result if out is None else written("stack", result, out)


@public(method=False, out=True, steps=True)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along dim 1 (dim 0 for 1-d tensors)."""
    listed = atleast_1d(_given("hstack", tensors))
    return cat(listed, 0 if listed[0]._layout.ndim == 1 else 1)


@public("row_stack", method=False, out=True, steps=True)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along dim 0, 1-d tensors as rows."""
    return cat(atleast_2d(_given("vstack", tensors)), 0)




@public(method=False, out=True, steps=True)
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along dim 2."""
    return cat(atleast_3d(_given("dstack", tensors)), 2)


@public(method=False, out=True, steps=True)
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along dim 1, 1-d tensors as columns."""
    return cat([reshape(x, (x._layout.numel, 1)) if x._layout.ndim <= 1 else x for x in _given("column_stack", tensors)], 1)


# ------------------------------------------------------------------------------------------------------------- repeating


@method("repeat")
def repeat(input: Tensor, *sizes: Any, repeats: Any = None) -> Tensor:
    """The tensor repeated along its dims (a copy): (A, B) -> (m*A, n*B) for repeats (m, n)."""
    counts = int_tuple("repeat", sizes if repeats is None else (repeats,))
    shape = tuple(input._layout.shape)
    lead = len(counts) - len(shape)
    if lead < 0:
        raise ShapeError(
            f"[repeat] Number of dimensions of repeat dims {counts} can not be smaller than number of dimensions of tensor of "
            f"shape {shape}"
        )
    if min(counts, default=0) < 0:
        raise ArgumentError(f"[repeat] expected counts >= 0, got {counts}")
    padded = (1,) * lead + shape
    apart: Shape = tuple(v for s in padded for v in (1, s))
    wide: Shape = tuple(v for n, s in zip(counts, padded, strict=True) for v in (n, s))
    repeated = expand(reshape(input, apart), wide)
    return reshape(prim("copy", repeated), tuple(n * s for n, s in zip(counts, padded, strict=True)))


@public(steps=True)
def tile(input: Tensor, *repeats: Any, dims: Any = None) -> Tensor:
    """As `repeat`, with counts padded by 1 on the left."""
    counts = int_tuple("tile", repeats if dims is None else (dims,))
    return repeat(input, (1,) * (input._layout.ndim - len(counts)) + counts)


@public(steps=True)
def repeat_interleave(input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Each element (or slice along `dim`) repeated: [a, b] -> [a, a, b, b] for repeats=2. With one tensor alone its elements say how often
    their own position is repeated. `output_size`: how many there are afterwards, which must be right."""
    if repeats is None:
        return _repeated_positions(input, output_size)
    x = reshape(input, (-1,)) if dim is None else input
    shape = tuple(x._layout.shape)
    if not shape:
        raise OutOfRangeError(f"[repeat_interleave] expected a tensor with dimensions for dim {dim}, got shape (); leave dim out")
    d = 0 if dim is None else normalize_dim(dim, len(shape), "repeat_interleave")
    if is_number(repeats) and hasattr(repeats, "__index__"):
        repeats = as_int(repeats)
        _check_repeats([repeats], shape[d] * repeats, output_size)
        wide = expand(unsqueeze(x, d + 1), (*shape[: d + 1], repeats, *shape[d + 1 :]))
        return reshape(prim("copy", wide), (*shape[:d], shape[d] * repeats, *shape[d + 1 :]))
    if not is_tensor(repeats):
        raise DTypeError(f"[repeat_interleave] expected repeats as an int or a Tensor, got {type_name(repeats)}; use calque.as_tensor(...)")
    if repeats._layout.ndim > 1:
        raise ShapeError(f"[repeat_interleave] repeats must be 0-dim or 1-dim tensor, got shape {tuple(repeats._layout.shape)}; flatten() it")
    if repeats._layout.dtype not in (dt.int32, dt.int64):
        raise UnsupportedTypeError(f"[repeat_interleave] expected repeats of int32 or int64, got {repeats._layout.dtype!r}; convert with .long()")
    require_one_place("repeat_interleave", (x, repeats))
    counts = repeats.tolist()
    counts = [counts] if isinstance(counts, int) else counts
    counts = counts * shape[d] if len(counts) == 1 else counts
    if len(counts) != shape[d]:
        raise ShapeError(
            f"[repeat_interleave] repeats must have the same size as input along dim {d}: {len(counts)} and {shape[d]}"
        )
    _check_repeats(counts, sum(counts), output_size)
    positions = [i for i, n in enumerate(counts) for _ in range(n)]
    return x.index_select(d, x.new_tensor(positions, dtype=dt.int64))  # type: ignore[attr-defined, no-any-return]


def _check_repeats(counts: Sequence[int], total: int, output_size: Any) -> None:
    if min(counts, default=0) < 0:
        raise ArgumentError(f"[repeat_interleave] expected repeats >= 0, got {min(counts)}; repeats can not be negative")
    if output_size is not None and output_size != total:
        raise ArgumentError(f"[repeat_interleave] expected output_size {total}, the sum of all repeats, got {shown(output_size)}; leave it out")


def _repeated_positions(counts: Any, output_size: Any) -> Tensor:
    if not is_tensor(counts) or counts._layout.ndim != 1 or counts._layout.dtype not in (dt.int32, dt.int64):
        found = f"{counts._layout.dtype!r} of shape {tuple(counts._layout.shape)}" if is_tensor(counts) else type(counts).__name__
        raise ShapeError(f"[repeat_interleave] expected repeats as a 1-d tensor of int64 or int32, got {found}; pass (input, repeats)")
    listed = counts.tolist()
    _check_repeats(listed, sum(listed), output_size)
    return counts.new_tensor([i for i, n in enumerate(listed) for _ in range(n)])  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------------- reordering


@public(steps=True)
def flip(input: Tensor, *axes: Any, dims: Any = None) -> Tensor:
    """The order of elements reversed along dims (a copy).

    >>> import calque
    >>> calque.arange(3).flip(0)
    tensor([2, 1, 0])
    """
    shape = tuple(input._layout.shape)
    wanted = [normalize_dim(d, len(shape), "flip") for d in int_tuple("flip", axes if dims is None else (dims,))]
    if len(set(wanted)) < len(wanted):
        twice = max(wanted, key=wanted.count)
        raise ArgumentError(f"[flip] expected different dims, got {tuple(wanted)}: dim {twice} appears multiple times; name it once")
    if not shape or not input._layout.numel:
        return prim("copy", input)
    strides = contiguous_strides(shape)
    start = sum(strides[d] * (shape[d] - 1) for d in wanted)
    return prim("view", input, shape, tuple(-s if d in wanted else s for d, s in enumerate(strides)), start)


@public(steps=True)
def fliplr(input: Tensor) -> Tensor:
    """Columns reversed."""
    return flip(input, 1)


@public(steps=True)
def flipud(input: Tensor) -> Tensor:
    """Rows reversed."""
    if not input._layout.ndim:
        raise ShapeError("[flipud] expected at least 1 dimension, got a 0-d tensor; reshape it to (1,)")
    return flip(input, 0)


@public(steps=True)
def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Elements moved by `shifts` places along dims, those that fall off re-entering at the other end."""
    if dims is None:
        return reshape(roll(reshape(input, (-1,)), shifts, 0), tuple(input._layout.shape))
    moves, axes = int_tuple("roll", (shifts,)), int_tuple("roll", (dims,))
    if not moves:
        raise ShapeError("[roll] `shifts` required: expected one or more, got none; leave the call out")
    if axes and not input._layout.ndim:
        raise OutOfRangeError(f"[roll] expected a tensor with dimensions, got shape (): Dimension specified as {axes[0]}")
    if len(moves) != len(axes):
        raise ShapeError(f"[roll] shifts and dimensions must align, got {moves} and {axes}")
    result = input
    for move, axis in zip(moves, axes, strict=True):
        d = normalize_dim(axis, input._layout.ndim, "roll")
        extent = input._layout.shape[d]
        cut = -move % extent if extent else 0
        if cut:
            result = prim("cat", narrow(result, d, cut, extent - cut), narrow(result, d, 0, cut), d)
    return prim("copy", input) if result is input else result


@public(steps=True)
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Rotated by k quarter turns from the first towards the second dim."""
    given = listed("rot90", "dims", dims)
    if len(given) != 2:
        raise ArgumentError(f"[rot90] expected two dims, from the first towards the second, got {described(dims)}")
    a, b = (normalize_dim(d, input._layout.ndim, "rot90") for d in given)
    if a == b:
        raise ShapeError(f"[rot90] expected two different dims, got {tuple(dims)}")
    turns = whole("rot90", "k", k) % 4
    if turns == 0:
        return prim("copy", input)
    if turns == 2:
        return flip(input, (a, b))
    turned = flip(input, b if turns == 1 else a)
    return transpose(turned, a, b)
