"""Pooling over windows: reductions of a strided view of the (padded) input.

The gradient of a maximum goes to the first largest element of its window, as in PyTorch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.cache import Cache
from calque.base.errors import ArgumentError, RankError, ShapeError
from calque.base.shapes import contiguous_strides, listed, whole
from calque.base.text import shown
from calque.functional.blame import signed
from calque.functional.common import cast, linked, prim, require_fractions, require_real
from calque.functional.declared import public
from calque.functional.precision import as_given
from calque.nn.functional.checks import check_norm, require_filled
from calque.nn.functional.conv import sizes
from calque.nn.functional.current import current
from calque.nn.functional.padding import pad
from calque.nn.functional.rows import AMAX, ARGMAX, choose, constant, kinked, positions, wide
from calque.nn.functional.windows import MAX_TAPS, Pair, Segment, Windows, divisors, lowest
from calque.nn.gradient import Saved, with_gradient
from calque.record.recorder import local
from calque.tensor import Tensor, record, upload_known

_KNOWN = Cache("pooling windows", 4000, 1 / 128)


def _windows(op: str, x: Tensor, settings: tuple[Any, ...], ceil_mode: bool) -> Windows:
    kernel, stride, padding, dilation = settings
    k = sizes(op, "kernel_size", kernel, 2, 1)
    s = k if stride is None or isinstance(stride, (tuple, list)) and not stride else sizes(op, "stride", stride, 2, 1)
    p, d = sizes(op, "padding", padding, 2, 0), sizes(op, "dilation", dilation, 2, 1)
    key = (op, x._layout, k, s, p, d, bool(ceil_mode))
    found: Windows | None = _KNOWN.get(key)
    if found is None:
        found = _KNOWN.keep(key, Windows(op, tuple(x._layout.shape), k, s, p, d, bool(ceil_mode)))
    return found


def _batched(op: str, x: Tensor, n: int) -> tuple[Tensor, Any]:
    """(N, C, H, W) and the function back to the caller's rank."""
    require_real(op, x)
    single = x._layout.ndim == n + 1
    if not single and x._layout.ndim != n + 2:
        raise RankError(f"[{op}] Expected {n + 1}D or {n + 2}D input, but got {list(x._layout.shape)}")
    if single:
        x = T.unsqueeze(x, 0)
    if n == 1:
        x = T.unsqueeze(x, 2)

    def back(y: Tensor) -> Tensor:
        if n == 1:
            y = T.squeeze(y, 2)
        return T.squeeze(y, 0) if single else y

    return x, back


def _row(op: str, value: Any, fill: int) -> Any:
    """A 1-d setting as a 2-d one of height `fill`."""
    return (fill, sizes(op, "size", value, 1, 0)[0])


def _row_of_steps(op: str, stride: Any, k: Any) -> Any:
    """The 1-d stride as a 2-d one: by default that of windows side by side."""
    return k if stride is None or isinstance(stride, (tuple, list)) and not stride else _row(op, stride, 1)


def _chosen(w: Windows, x: Tensor) -> Tensor:
    """Position of the first maximum inside each window, in 0 .. kH kW - 1."""
    return record(ARGMAX, (w.view(x),), ((4, 5), False))


def _position_type(w: Windows) -> dt.DType:
    """Type in which positions in the image are computed: half the vectors of int64, where they fit."""
    return dt.int32 if (w.padded[0] + 1) * (w.padded[1] + 1) < 1 << 31 else dt.int64


def _flat_positions(w: Windows, places: Tensor, columns: int, width: int, origin: Pair) -> Tensor:
    """Places inside windows (row * columns + column) as flat positions in an image of the given width whose row and column 0 lie at `origin` of
    the padded one."""
    kind = _position_type(w)
    place = cast(places, kind)
    if w.kernel[0] <= MAX_TAPS:  # integers are divided one by one
        row: Any = constant(0, kind)
        for r in range(1, w.kernel[0]):
            row = row + cast(T.ge(place, constant(r * columns, kind)), kind)
    else:
        row = T.floor_divide(place, constant(columns, kind))
    column = place - row * columns
    rows = T.reshape(positions((w.out[0],), kind) * w.stride[0] - origin[0], (-1, 1)) + row * w.dilation[0]
    return cast(rows * width + (positions((w.out[1],), kind) * w.stride[1] - origin[1]) + column * w.dilation[1], dt.int64)


class _Gather(NamedTuple):
    """How an element of an image finds the windows it lies in, per dim. The image is cut into `cells` of a stride's length; element r of cell i lies
    in windows i + d at tap r + before - stride * d, for d from `first` to `last`, wherever such a window and such a tap exist. `before`: how far
    the first window begins in front of the image."""

    before: Pair
    cells: Pair
    first: Pair
    last: Pair
    sides: tuple[int, int, int, int]
    width: int
    none: int
    shift: int

    def count(self, i: int) -> int:
        return self.last[i] - self.first[i] + 1


def _gather(w: Windows, shape: Pair, before: Pair) -> _Gather:
    """`shape`: of the image. `sides`: how far windows are looked for over the edges of the output (left, right, top, bottom). `width`: taps are
    numbered row * width + column, so that those outside a window never have the number of one; windows that do not exist choose `none`, and
    numbers are at least -`shift`."""
    cells = tuple(-(-shape[2 + i] // s) for i, s in enumerate(w.stride))
    first = tuple(-((k - 1 - before[i]) // w.stride[i]) for i, k in enumerate(w.kernel))
    last = tuple((s - 1 + before[i]) // s for i, s in enumerate(w.stride))
    (top, bottom), (left, right) = ((max(0, -first[i]), max(0, cells[i] + last[i] - w.out[i])) for i in range(2))
    height, width = (k + s - 1 for k, s in zip(w.kernel, w.stride, strict=True))
    return _Gather(before, cells, first, last, (left, right, top, bottom), width, height * width, (w.stride[0] - 1) * width + w.stride[1] - 1)


def _image(w: Windows) -> tuple[Pair, Pair]:
    """The image that a maximum is taken of, and how far its first window begins in front of it: the input, or the padded one."""
    return (w.shape, w.padding) if w.pieces else ((*w.shape[:2], *w.padded), (0, 0))


def _spread(w: Windows, plan: _Gather, shape: Pair, g: Tensor, code: Tensor | None = None) -> Tensor:
    """Gradient of an image of `shape` as a gather: every element adds the gradients of the windows that contain it or, with
    `code` (see `_codes`), of those whose code names it. No two elements write to one place.
    """
    (rows, columns), (height, width) = plan.cells, w.stride
    kind, outer = g._layout.dtype, shape[:2]
    g = wide(g)
    g = pad(g, plan.sides, value=0.0) if any(plan.sides) else g
    steps = contiguous_strides(tuple(g._layout.shape))
    view, place = (*outer, rows, columns, 1, 1), (*steps, 0, 0)
    total: Any = None
    for a in range(plan.count(0)):  # windows in increasing order: sums round as PyTorch's do
        for b in range(plan.count(1)):
            start = (max(0, plan.first[0]) + a) * steps[2] + (max(0, plan.first[1]) + b) * steps[3]
            part = prim("view", g, view, place, start)
            taps = [plan.before[i] - w.stride[i] * (plan.first[i] + n) for i, n in enumerate((a, b))]  # of the first element of a cell
            inside = None if all(0 <= t <= k - s for t, k, s in zip(taps, w.kernel, w.stride, strict=True)) else _reached(w, taps)
            if code is not None:  # where no tap can be there is nothing to load: that is known when a kernel is compiled
                hit = T.eq(prim("view", code, view, place, start), _numbers(w, plan, code._layout.dtype, taps))
                inside = hit if inside is None else T.bitwise_and(inside, hit)
            part = part if inside is None else choose(inside, part, 0.0, g._layout.dtype)
            total = part if total is None else total + part
    total = cast(T.expand(total, (*outer, rows, columns, height, width)), kind)
    grown = (*outer, rows * height, columns * width)
    n, c, h, _ = contiguous_strides(grown)
    strides = (n, c, h * height, width, h, 1)
    if grown == shape:  # written where it is computed: readers would compute it more than once
        return prim("update", constant(0.0, kind, shape), total, tuple(total._layout.shape), strides, 0)  # type: ignore[no-any-return]
    whole = T.reshape(T.permute(total, (0, 1, 2, 4, 3, 5)), grown)
    return prim("view", whole, shape, contiguous_strides(grown), 0)  # type: ignore[no-any-return]


def _numbers(w: Windows, plan: _Gather, kind: dt.DType, taps: list[int]) -> Tensor:
    """(s, s): the numbers of the taps at which the elements of a cell lie, the first of them at `taps`."""
    numbers = positions((plan.none + plan.shift,), kind)
    found = prim("view", numbers, w.stride, (plan.width, 1), plan.shift + taps[0] * plan.width + taps[1])
    return found - constant(plan.shift, kind) if plan.shift else found


def _reached(w: Windows, taps: list[int]) -> Tensor:
    """(s, s): whether taps exist at which the elements of a cell lie, in both dims."""
    inside = []
    for i, s in enumerate(w.stride):
        place = positions((s,), dt.int32)
        inside.append(T.bitwise_and(T.ge(place, -taps[i]), T.lt(place, w.kernel[i] - taps[i])))
    return T.bitwise_and(T.reshape(inside[0], (-1, 1)), T.reshape(inside[1], (1, -1)))


def _code(plan: _Gather, windows: Tensor, kind: dt.DType, rows: Segment, columns: Segment) -> Tensor:
    """Places of the maxima in windows of these taps as row * width + column (see `_gather`)."""
    inner = columns.taps
    code = chosen = cast(record(ARGMAX, (windows,), ((4, 5), False)), kind)
    numbers = positions((plan.none,), kind)
    if plan.width != inner:
        for row in range(1, rows.taps):
            code = code + cast(T.ge(chosen, prim("view", numbers, (), (), row * inner)), kind) * (plan.width - inner)
    cut = rows.tap * plan.width + columns.tap
    return code + prim("view", numbers, (), (), cut) if cut else code


def _codes(w: Windows, parts: list[Tensor]) -> Tensor:
    """The codes of all windows (of the `pieces`, if there are any), in one byte where they fit, with windows around them whose code names no
    element."""
    plan = _gather(w, *_image(w))
    kind = dt.uint8 if plan.none + plan.shift < 256 else dt.int32
    left, right, top, bottom = plan.sides
    if not w.pieces:
        whole = [Segment(0, w.out[i], 0, w.kernel[i]) for i in range(2)]
        code = _code(plan, parts[0], kind, *whole)
        return pad(code, plan.sides, value=plan.none) if any(plan.sides) else code
    full = (*w.shape[:2], w.out[0] + top + bottom, w.out[1] + left + right)
    codes = [_code(plan, x, kind, a, b) for x, (a, b) in zip(parts, w.pieces, strict=True)]
    return _joined(w, constant(plan.none, kind, full), (top, left), codes)


def _inner(w: Windows, codes: Tensor) -> Tensor:
    """The codes without what stands around them."""
    left, _, top, _ = _gather(w, *_image(w)).sides
    strides = contiguous_strides(tuple(codes._layout.shape))
    return prim("view", codes, (*w.shape[:2], *w.out), strides, top * strides[2] + left)  # type: ignore[no-any-return]


def _joined(w: Windows, base: Tensor, origin: Pair, parts: list[Tensor]) -> Tensor:
    """Pieces of the output written into `base`, in which the output begins at `origin`."""
    strides = contiguous_strides(tuple(base._layout.shape))
    for part, (rows, columns) in zip(parts, w.pieces, strict=True):
        start = (origin[0] + rows.first) * strides[2] + (origin[1] + columns.first) * strides[3]
        base = prim("update", base, part, tuple(part._layout.shape), strides, start)
    return base


def _max_windows(w: Windows, x: Tensor, places: bool) -> tuple[Tensor, Any]:
    """Maximum per window of the input (the padded one, unless there are `pieces`), with the gradient to the first maximum; and, if they are wanted or
    the gradient will want them, the codes of the maxima (see `_codes`) where the gradient is a gather, else None."""
    coded = w.gathers() and (places or (local.state.grad and x._requires_grad))

    def forward(x: Tensor) -> tuple[Any, ...]:
        windows, parts = [], []
        for piece in w.pieces or (None,):  # a piece and its maxima one after the other: so every group can write where those before it did
            windows.append(w.view(x) if piece is None else w.piece(x, *piece))
            parts.append(record(AMAX, (windows[-1],), ((4, 5), False)))
        y = _joined(w, constant(0, x._layout.dtype, (*w.shape[:2], *w.out)), (0, 0), parts) if w.pieces else parts[0]
        return (y, _codes(w, windows)) if coded else (y,)

    def spread(saved: Saved, g: Tensor) -> Any:
        x = saved.inputs[0].detach()
        kind, shape = g._layout.dtype, tuple(x._layout.shape)
        if w.gathers():
            image, before = _image(w)
            return _spread(w, _gather(w, image, before), image, g, saved.values[1])
        chosen = _chosen(w, x)
        if w.disjoint:
            kind_of_place = dt.uint8 if w.kernel[0] * w.kernel[1] < 256 else dt.int32
            chosen = cast(chosen, kind_of_place)
            hit = T.eq(T.reshape(chosen, (*w.view_shape[:4], 1, 1)), positions(w.kernel, kind_of_place))
            hits = choose(hit, T.reshape(g, (*w.view_shape[:4], 1, 1)), 0.0, kind)
            return prim("update", constant(0.0, kind, shape), hits, w.view_shape, w.view_strides, 0)
        n, c, height, width = shape
        flat = T.reshape(_flat_positions(w, chosen, w.kernel[1], width, (0, 0)), (n, c, -1))
        zeros = constant(0.0, kind, (n, c, height * width))
        return T.reshape(prim("scatter_add", zeros, flat, T.reshape(g, (n, c, -1)), 2), shape)

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        return (linked(spread(saved, g), saved.inputs[0]),)

    values = with_gradient("MaxPool2DWithIndicesBackward0", forward, backward, (x,), every=True)
    return values[0], values[1] if coded else None


def _max_pool(op: str, n: int, input: Tensor, settings: tuple[Any, ...], ceil_mode: bool, indices: bool) -> Any:
    x, back = _batched(op, input, n)
    require_filled(op, input, n)
    w = _windows(op, x, settings, ceil_mode)
    x = x if w.pieces else w.pad(x, lowest(x._layout.dtype))
    y, codes = _max_windows(w, x, indices)
    if not indices:
        return back(y)
    if codes is None:
        flat = _flat_positions(w, cast(_chosen(w, x.detach()), _position_type(w)), w.kernel[1], w.shape[3], w.padding)
    else:
        flat = _flat_positions(w, _inner(w, codes), _gather(w, *_image(w)).width, w.shape[3], w.padding)
    return back(y), back(flat)


@public(method=False, of="calque nn.functional", steps=True)
def max_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Largest element of every window: (N, C, H, W) -> (N, C, H', W').

    >>> import calque
    >>> calque.nn.functional.max_pool2d(calque.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    """
    return _max_pool("max_pool2d", 2, input, (kernel_size, stride, padding, dilation), ceil_mode, return_indices)


@public(method=False, of="calque nn.functional", steps=True)
def max_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Largest element of every window: (N, C, L) -> (N, C, L')."""
    op = "max_pool1d"
    if not return_indices:
        require_fractions(op, input)
    k = _row(op, kernel_size, 1)
    settings = (k, _row_of_steps(op, stride, k), _row(op, padding, 0), _row(op, dilation, 1))
    return _max_pool(op, 1, input, settings, ceil_mode, return_indices)


@public(of="nn.functional")
def max_pool2d_with_indices(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`max_pool2d` and the flat positions of the maxima."""
    return max_pool2d(input, *args, **{**kwargs, "return_indices": True})


@public(of="nn.functional")
def max_pool1d_with_indices(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`max_pool1d` and the positions of the maxima."""
    return max_pool1d(input, *args, **{**kwargs, "return_indices": True})


def _window_sums(w: Windows, x: Tensor) -> Tensor:
    if w.exact():
        n, c = w.shape[:2]
        return T.sum(T.reshape(x, (n, c, w.out[0], w.kernel[0], w.out[1], w.kernel[1])), (3, 5))
    padded = w.pad(x, 0.0)
    if not w.gathers():
        return T.sum(w.view(padded), (4, 5))

    def forward(x: Tensor) -> tuple[Any, ...]:
        return (T.sum(w.view(x), (4, 5)),)

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        shape = tuple(saved.inputs[0]._layout.shape)
        return (_spread(w, _gather(w, shape, (0, 0)), shape, g),)

    return with_gradient("AvgPool2DBackward0", forward, backward, (padded,), reads=False)  # type: ignore[no-any-return]


def _avg_pool(op: str, n: int, input: Tensor, settings: tuple[Any, ...], ceil_mode: bool, include_pad: bool, divisor: int | None) -> Tensor:
    if input._layout.dtype is not dt.int64:
        require_fractions(op, input)
    x, back = _batched(op, input, n)
    if divisor == 0:
        raise ArgumentError(f"[{op}] divisor must be not zero")
    require_filled(op, input, n)
    w = _windows(op, x, (*settings, 1), ceil_mode)
    count = divisor if divisor is not None else divisors(w, include_pad)
    if isinstance(count, Tensor):
        count = cast(count, x._layout.dtype.compute)
    elif not isinstance(count, int):
        count = upload_known(count.astype(x._layout.dtype.compute.np), x._layout.dtype.compute)
    totals = _window_sums(w, kinked(cast(x, x._layout.dtype.compute)))
    if x._layout.dtype.category == 1:
        return back(cast(T.div(totals, count, rounding_mode="trunc"), x._layout.dtype))  # type: ignore[no-any-return]
    return back(cast(totals / count, x._layout.dtype))  # type: ignore[no-any-return]


@public(of="nn.functional", steps=True)
def avg_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Mean of every window: (N, C, H, W) -> (N, C, H', W')."""
    return _avg_pool("avg_pool2d", 2, input, (kernel_size, stride, padding), ceil_mode, count_include_pad, divisor_override)


@public(method=False, of="calque nn.functional", steps=True)
def avg_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Tensor:
    """Mean of every window: (N, C, L) -> (N, C, L')."""
    k, padding = _row("avg_pool1d", kernel_size, 1), _row("avg_pool1d", padding, 0)
    settings = (k, _row_of_steps("avg_pool1d", stride, k), padding)
    return _avg_pool("avg_pool1d", 1, input, settings, ceil_mode, count_include_pad, None)


def largest_norm(pool: Any, input: Tensor, norm_type: float, kernel_size: Any, stride: Any, ceil_mode: bool) -> Tensor:
    """The largest (for -inf the smallest) size in every window: what norms of higher and higher order go to."""
    sign = 1.0 if norm_type > 0 else -1.0
    return pool(T.abs(input) * sign, kernel_size, stride, 0, 1, ceil_mode) * sign  # type: ignore[no-any-return]


@public(of="nn.functional")
def lp_pool2d(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """(sum of x ** p) ** (1 / p) over every window: (N, C, H, W) -> (N, C, H', W')."""
    k = sizes("lp_pool2d", "kernel_size", kernel_size, 2, 1)
    check_norm("lp_pool2d", norm_type)
    if norm_type in (math.inf, -math.inf):
        return largest_norm(current("max_pool2d", max_pool2d), input, norm_type, kernel_size, stride, ceil_mode)
    means = current("avg_pool2d", avg_pool2d)(input ** float(norm_type), k, stride, 0, ceil_mode)
    return (T.sign(means) * current("relu", T.relu)(T.abs(means)) * float(k[0] * k[1])) ** (1.0 / float(norm_type))


@public(of="nn.functional")
def lp_pool1d(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """(sum of x ** p) ** (1 / p) over every window: (N, C, L) -> (N, C, L')."""
    k = sizes("lp_pool1d", "kernel_size", kernel_size, 1, 1)[0]
    check_norm("lp_pool1d", norm_type)
    if norm_type in (math.inf, -math.inf):
        return largest_norm(current("max_pool1d", max_pool1d), input, norm_type, kernel_size, stride, ceil_mode)
    means = current("avg_pool1d", avg_pool1d)(input ** float(norm_type), k, stride, 0, ceil_mode)
    return (T.sign(means) * current("relu", T.relu)(T.abs(means)) * float(k)) ** (1.0 / float(norm_type))


signed(max_pool2d_with_indices, max_pool2d)
signed(max_pool1d_with_indices, max_pool1d)

# ------------------------------------------------------------------------------------------------------------- adaptive


def _target(op: str, output_size: Any, hw: Pair) -> Pair:
    if 0 in hw:
        raise ShapeError(f"[{op}] Expected input to have non-zero size for non-batch dimensions, but got {tuple(hw)}; an empty image has no windows")
    sides = output_size if isinstance(output_size, (tuple, list)) else None if output_size is None else listed(op, "output_size", output_size)
    wanted = (sides,) * 2 if sides is None else tuple(sides) * 2 if len(sides) == 1 else tuple(sides)
    out = tuple(hw[i] if n is None else whole(op, "output_size", n) for i, n in enumerate(wanted[:3]))
    if len(out) != 2 or min(out) < 1 or max(out) >= 1 << 31:
        raise ArgumentError(f"[{op}] expected output_size as one or two ints from 1 to 2**31 - 1, got {shown(output_size)}")
    return out


def _averages(size: int, out: int, kind: dt.DType) -> Tensor:
    """Matrix (out, size) whose row i averages the i-th adaptive window."""
    table = np.zeros((out, size))
    for i in range(out):
        start, stop = i * size // out, -(-(i + 1) * size // out)
        table[i, start:stop] = 1.0 / (stop - start)
    return upload_known(table.astype(kind.np), kind)


@as_given
def _adaptive_average(op: str, x: Tensor, output_size: Any) -> Tensor:
    hw = tuple(x._layout.shape[2:])
    out = _target(op, output_size, hw)
    if out == (1, 1):
        return T.mean(x, (2, 3), True)
    if all(h % o == 0 for h, o in zip(hw, out, strict=True)):
        n, c = x._layout.shape[:2]
        return T.mean(T.reshape(kinked(x), (n, c, out[0], hw[0] // out[0], out[1], hw[1] // out[1])), (3, 5))
    given, kind = x._layout.dtype, x._layout.dtype.compute
    rows = T.matmul(kinked(cast(x, kind)), T.transpose(_averages(hw[1], out[1], kind), 0, 1))
    return cast(T.matmul(_averages(hw[0], out[0], kind), rows), given)


@public(of="nn.functional", steps=True)
def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Mean over windows that divide the image into `output_size`: (N, C, H, W) -> (N, C, *output_size)."""
    x, back = _batched("adaptive_avg_pool2d", input, 2)
    return back(_adaptive_average("adaptive_avg_pool2d", x, output_size))  # type: ignore[no-any-return]


@public(method=False, of="calque nn.functional")
def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Mean over windows that divide the sequence into `output_size`: (N, C, L) -> (N, C, output_size)."""
    x, back = _batched("adaptive_avg_pool1d", input, 1)
    return back(_adaptive_average("adaptive_avg_pool1d", x, (1, sizes("adaptive_avg_pool1d", "output_size", output_size, 1, 1)[0])))  # type: ignore[no-any-return]


def _adaptive_max(op: str, x: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
    require_fractions(op, x)
    height, width = x._layout.shape[2:]
    out = _target(op, output_size, (height, width))
    x = kinked(x)
    values, indices = [], []
    for i in range(out[0]):
        top, bottom = i * height // out[0], -(-(i + 1) * height // out[0])
        for j in range(out[1]):
            left, right = j * width // out[1], -(-(j + 1) * width // out[1])
            value, place = T.max(T.flatten(x[:, :, top:bottom, left:right], 2), 2)
            values.append(value)
            indices.append((T.floor_divide(place, right - left) + top) * width + T.remainder(place, right - left) + left)
    shape = (*x._layout.shape[:2], *out)
    return T.reshape(T.stack(values, 2), shape), T.reshape(T.stack(indices, 2), shape)


@public(of="nn.functional")
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maximum over windows that divide the image into `output_size`: (N, C, H, W) -> (N, C, *output_size)."""
    if not return_indices and (others := current("adaptive_max_pool2d_with_indices", adaptive_max_pool2d)) is not adaptive_max_pool2d:
        return others(input, output_size)[0]
    x, back = _batched("adaptive_max_pool2d", input, 2)
    require_filled("adaptive_max_pool2d", input, 2, True)
    found = [back(part) for part in _adaptive_max("adaptive_max_pool2d", x, output_size)]
    return tuple(found) if return_indices else found[0]


@public(of="nn.functional", steps=True)
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maximum over windows that divide the sequence into `output_size`: (N, C, L) -> (N, C, output_size)."""
    if (others := current("adaptive_max_pool1d_with_indices", adaptive_max_pool1d)) is not adaptive_max_pool1d and not return_indices:
        return others(input, output_size)[0]
    x, back = _batched("adaptive_max_pool1d", input, 1)
    require_filled("adaptive_max_pool1d", input, 1, True)
    found = [back(part) for part in _adaptive_max("adaptive_max_pool1d", x, (1, *sizes("adaptive_max_pool1d", "output_size", output_size, 1, 1)))]
    return tuple(found) if return_indices else found[0]
