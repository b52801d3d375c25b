"""ONNX's convolutions, poolings, normalisations and resizings, as functions of ours."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.dtypes import bool_, float32, float64, int32, int64
from calque.exported.onnx.operators import along, shifted
from calque.exported.onnx.resizing import resize
from calque.exported.onnx.shaping import padded
from calque.exported.onnx.values import Call, Refused, operator
from calque.functional.common import cast
from calque.nn import functional as F

Pair = tuple[Any, Any]


def _window(c: Call, x: Any, kernel: list[int]) -> tuple[list[int], list[int], list[Pair]]:
    """(strides, dilations, what is padded around each dim)."""
    n = x._layout.ndim - 2
    strides, dilations = c.ints_of("strides", n, 1), c.ints_of("dilations", n, 1)
    auto = c.text("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if min([*strides, *dilations, *kernel]) < 1:
        raise Refused(f"strides {strides}, dilations {dilations} and a kernel of {kernel}")
    if auto == "NOTSET":
        pads = c.ints_of("pads", 2 * n, 0)
        if min(pads) < 0:
            raise Refused(f"pads of {pads}")
        return strides, dilations, [(pads[k], pads[k + n]) for k in range(n)]
    around: list[Pair] = []
    for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        total: Any = 0
        if auto != "VALID":
            total = d * (k - 1) + 1 - s if s == 1 else (-(-size // s) - 1) * s + d * (k - 1) + 1 - size
            total = total if total > 0 else 0
        half = total // 2
        around.append((half, total - half) if auto != "SAME_LOWER" else (total - half, half))
    return strides, dilations, around


def _even(around: list[Pair]) -> bool:
    return all(isinstance(a, int) and isinstance(b, int) and a == b for a, b in around)


def _spatial(name: str, n: int) -> Callable[..., Any]:
    if n not in (1, 2, 3):
        raise Refused(f"{n} dims beside samples and channels")
    function: Callable[..., Any] = getattr(F, f"{name}{n}d")
    return function


@operator("Conv")
def _conv(c: Call) -> Any:
    return _convolved(c, c.t(0), c.t(1), c.maybe(2))


def _convolved(c: Call, x: Any, weight: Any, bias: Any) -> Any:
    n = x._layout.ndim - 2
    if weight._layout.ndim != n + 2 or n < 1:
        raise Refused(f"a weight of shape {tuple(weight.shape)} for an input of shape {tuple(x.shape)}")
    strides, dilations, around = _window(c, x, list(weight.shape[2:]))
    padding = [a for a, _ in around]
    if not _even(around):
        x, padding = padded(x, {k + 2: p for k, p in enumerate(around)}, 0), [0] * n
    return _spatial("conv", n)(x, weight, bias, tuple(strides), tuple(padding), tuple(dilations), c.attr("group", 1))


@operator("ConvInteger")
def _conv_of_integers(c: Call) -> Any:
    w = cast(c.t(1), float64)
    if c.has(3):
        zero = cast(c.t(3), float64)
        w = w - (T.reshape(zero, (-1,) + (1,) * (w._layout.ndim - 1)) if zero._layout.ndim else zero)
    return cast(_convolved(c, shifted(c, 0, 2, -1), w, None), int32)


@operator("ConvTranspose")
def _conv_transpose(c: Call) -> Any:
    x, weight, bias = c.t(0), c.t(1), c.maybe(2)
    n = x._layout.ndim - 2
    strides, dilations, group = c.ints_of("strides", n, 1), c.ints_of("dilations", n, 1), c.attr("group", 1)
    more = c.ints_of("output_padding", n, 0)
    auto = c.text("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    kernel = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    whole = [s * (size - 1) + m + k for s, size, m, k in zip(strides, x.shape[2:], more, kernel, strict=True)]
    pads: list[Pair]
    shape = c.attrs.get("output_shape") or ([size * s for size, s in zip(x.shape[2:], strides, strict=True)] if auto.startswith("SAME") else None)
    if shape is None:
        flat = c.ints_of("pads", 2 * n, 0)
        pads = [(flat[k], flat[k + n]) for k in range(n)]
    else:
        totals = [w - s for w, s in zip(whole, shape[-n:], strict=True)]
        pads = [(t // 2, t - t // 2) if auto == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals]
    function = _spatial("conv_transpose", n)
    if _even(pads) and all(m < max(s, d) for m, s, d in zip(more, strides, dilations, strict=True)):
        return function(x, weight, bias, tuple(strides), tuple(a for a, _ in pads), tuple(more), group, tuple(dilations))
    found = function(x, weight, None, tuple(strides), (0,) * n, (0,) * n, group, tuple(dilations))
    found = padded(found, {k + 2: (-a, m - b) for k, ((a, b), m) in enumerate(zip(pads, more, strict=True))}, 0)
    return found if bias is None else found + T.reshape(bias, (-1,) + (1,) * n)


# --------------------------------------------------------------------------------------------------------------- pooling


def _extent(c: Call, x: Any, kernel: list[int]) -> tuple[list[int], list[int], list[Pair], list[Pair]]:
    """(strides, dilations, padding, and the same with what windows reach beyond it when sizes are rounded up)."""
    strides, dilations, around = _window(c, x, kernel)
    wide = list(around)
    if c.attr("ceil_mode", 0):
        for d, (size, k, s, step, (a, b)) in enumerate(zip(x.shape[2:], kernel, strides, dilations, around, strict=True)):
            reach = step * (k - 1) + 1
            count = -(-(size + a + b - reach) // s) + 1
            if (count - 1) * s >= size + a:  # windows begin in the input
                count = count - 1
            over = (count - 1) * s + reach - size - a
            wide[d] = (a, over if over > b else b)
    return strides, dilations, around, wide


def _kernel(c: Call, x: Any) -> list[int]:
    return c.ints_of("kernel_shape", x._layout.ndim - 2, 0)


@operator("MaxPool")
def _max_pool(c: Call) -> Any:
    x = c.t(0)
    kernel, n, dtype = _kernel(c, x), x._layout.ndim - 2, x._layout.dtype
    strides, dilations, _, wide = _extent(c, x, kernel)
    if c.outputs > 1 and c.attr("storage_order", 0):
        raise Refused("positions counted by columns")
    if not dtype.is_floating_point:
        x = cast(x, float32)
    function, size = _spatial("max_pool", n), tuple(x.shape[2:])
    fits = _even(wide) and all(2 * a <= k for (a, _), k in zip(wide, kernel, strict=True))
    if fits:
        found = function(x, tuple(kernel), tuple(strides), tuple(a for a, _ in wide), tuple(dilations), False, c.outputs > 1)
    else:
        x = padded(x, {k + 2: p for k, p in enumerate(wide)}, float("-inf"))
        found = function(x, tuple(kernel), tuple(strides), (0,) * n, tuple(dilations), False, c.outputs > 1)
    out, index = found if c.outputs > 1 else (found, None)
    out = out if dtype.is_floating_point else cast(out, dtype)
    if index is None:
        return out
    return out, _in_tensor(index, size, tuple(x.shape[2:]), [(0, 0)] * n if fits else wide, tuple(c.t(0).shape))


def _in_tensor(index: Any, size: tuple[Any, ...], wide: tuple[Any, ...], around: list[Pair], shape: tuple[Any, ...]) -> Any:
    """Positions in a whole tensor of those in a padded image."""
    rest, total, factor = index, T.zeros_like(index), 1
    for d in range(len(size))[::-1]:
        total = total + (T.remainder(rest, wide[d]) - around[d][0]) * factor
        rest, factor = T.div(rest, wide[d], rounding_mode="floor"), factor * size[d]
    rank = len(shape)
    return total + factor * (along(shape[1], 1, rank) + shape[1] * along(shape[0], 0, rank))


@operator("AveragePool")
def _average_pool(c: Call) -> Any:
    x = c.t(0)
    return _averages(c, x, bool(c.attr("count_include_pad", 0)))


def _averages(c: Call, x: Any, everything: bool) -> Any:
    kernel, n = _kernel(c, x), x._layout.ndim - 2
    strides, dilations, around, wide = _extent(c, x, kernel)
    if not any(p for pair in wide for p in pair if not (isinstance(p, int) and p == 0)) and max(dilations) == 1:
        return _spatial("avg_pool", n)(x, tuple(kernel), tuple(strides))
    if _even(wide) and wide == around and max(dilations) == 1 and all(2 * a <= k for (a, _), k in zip(wide, kernel, strict=True)):
        return _spatial("avg_pool", n)(x, tuple(kernel), tuple(strides), tuple(a for a, _ in wide), False, everything)
    counted = padded(T.zeros_like(x) + 1, {k + 2: p for k, p in enumerate(around)}, 1 if everything else 0)
    counted = padded(counted, {k + 2: (0, b - d) for k, ((_, b), (_, d)) in enumerate(zip(wide, around, strict=True))}, 0)
    total = _sums(padded(x, {k + 2: p for k, p in enumerate(wide)}, 0), kernel, strides, dilations)
    return total / _sums(counted, kernel, strides, dilations)


def _sums(x: Any, kernel: list[int], strides: list[int], dilations: list[int]) -> Any:
    """Sums of windows, one dim after the other."""
    for d, (k, s, step) in enumerate(zip(kernel, strides, dilations, strict=True)):
        count = (x.shape[d + 2] - step * (k - 1) - 1) // s + 1
        parts = [x[(slice(None),) * (d + 2) + (slice(j * step, j * step + (count - 1) * s + 1, s),)] for j in range(k)]
        x = parts[0]
        for part in parts[1:]:
            x = x + part
    return x


@operator("LpPool")
def _lp_pool(c: Call) -> Any:
    x, p = c.t(0), c.attr("p", 2)
    kernel = _kernel(c, x)
    strides, dilations, _, wide = _extent(c, x, kernel)
    powers = padded(T.pow(T.abs(x), p), {k + 2: pair for k, pair in enumerate(wide)}, 0)
    return T.pow(_sums(powers, kernel, strides, dilations), 1.0 / p)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(c: Call) -> Any:
    x = c.t(0)
    dims, p = list(range(2, x._layout.ndim)), c.attr("p", 2)
    if c.node.op == "GlobalLpPool":
        return T.pow(T.sum(T.pow(T.abs(x), p), dims, True), 1.0 / p)
    return (T.mean if c.node.op == "GlobalAveragePool" else T.amax)(x, dims, True)


@operator("MaxUnpool")
def _max_unpool(c: Call) -> Any:
    x, index, kernel = c.t(0), cast(c.t(1), int64), _kernel(c, c.t(0))
    strides, _, around = _window(c, x, kernel)
    own = [(size - 1) * s + k - a - b for size, s, k, (a, b) in zip(x.shape[2:], strides, kernel, around, strict=True)]
    lead = tuple(x.shape[:2])
    flat = T.scatter(T.full((prod((*lead, *own)),), 0, dtype=x._layout.dtype), 0, T.reshape(index, (-1,)), T.reshape(x, (-1,)))
    found = T.reshape(flat, (*lead, *own))
    wanted = c.ints(2, "the sizes of the result")[2:] if c.has(2) else own
    return padded(found, {k + 2: (0, w - n) for k, (w, n) in enumerate(zip(wanted, own, strict=True))}, 0)


# --------------------------------------------------------------------------------------------------------- normalisation


@operator("BatchNormalization")
def _batch_norm(c: Call) -> Any:
    x, weight, bias, mean, var = (c.t(k) for k in range(5))
    eps, momentum = c.attr("epsilon", 1e-5), c.attr("momentum", 0.9)
    if not c.attr("spatial", 1):
        raise Refused("statistics for each position")
    if not c.attr("training_mode", 0):
        if c.outputs > 1 and any(c.node.outputs[1:]):
            raise Refused("statistics among its results in evaluation")
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)
    dims = [d for d in range(x._layout.ndim) if d != 1]
    now, spread = T.mean(x, dims), T.var(x, dims, correction=0)
    out = F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
    return (out, mean * momentum + now * (1 - momentum), var * momentum + spread * (1 - momentum))[: c.outputs]


@operator("InstanceNormalization")
def _instance_norm(c: Call) -> Any:
    x = c.t(0)
    return F.instance_norm(x, None, None, c.t(1), c.t(2), True, 0.0, c.attr("epsilon", 1e-5))


@operator("LayerNormalization")
def _layer_norm(c: Call) -> Any:
    x = c.t(0)
    axis = c.axis(c.attr("axis", -1), x._layout.ndim)
    shape, eps = tuple(x.shape[axis:]), c.attr("epsilon", 1e-5)
    if c.outputs == 1 and tuple(c.t(1).shape) == shape and (not c.has(2) or tuple(c.t(2).shape) == shape) and x._layout.dtype is float32:
        return F.layer_norm(x, shape, c.t(1), c.maybe(2), eps)
    dims, wide = list(range(axis, x._layout.ndim)), cast(x, float32)
    mean = T.mean(wide, dims, True)
    away = wide - mean
    inverse = T.rsqrt(T.mean(away * away, dims, True) + eps)
    found = cast(away * inverse, x._layout.dtype) * c.t(1)
    return (found if not c.has(2) else found + c.t(2), mean, inverse)[: c.outputs]


@operator("RMSNormalization")
def _rms_norm(c: Call) -> Any:
    x = c.t(0)
    dims = list(range(c.axis(c.attr("axis", -1), x._layout.ndim), x._layout.ndim))
    wide = cast(x, float32)
    return cast(wide * T.rsqrt(T.mean(wide * wide, dims, True) + c.attr("epsilon", 1e-5)), x._layout.dtype) * c.t(1)


@operator("GroupNormalization")
def _group_norm(c: Call) -> Any:
    x, groups = c.t(0), c.attr("num_groups", kind=int)
    weight, bias, channels = c.t(1), c.t(2), x.shape[1]
    if c.opset < 21:  # one for each group
        weight, bias = (T.repeat_interleave(t, channels // groups, 0) for t in (weight, bias))
    return F.group_norm(x, groups, weight, bias, c.attr("epsilon", 1e-5))


@operator("LRN")
def _local_norm(c: Call) -> Any:
    x, size = c.t(0), c.attr("size", kind=int)
    squares = padded(x * x, {1: ((size - 1) // 2, size // 2)}, 0)
    total = T.narrow(squares, 1, 0, x.shape[1])
    for k in range(1, size):
        total = total + T.narrow(squares, 1, k, x.shape[1])
    return x / T.pow(total * (c.attr("alpha", 1e-4) / size) + c.attr("bias", 1.0), c.attr("beta", 0.75))


@operator("LpNormalization")
def _lp_norm(c: Call) -> Any:
    x, axis = c.t(0), c.axis(c.attr("axis", -1), c.t(0)._layout.ndim)
    norm = T.sum(T.abs(x), axis, True) if c.attr("p", 2) == 1 else T.sqrt(T.sum(x * x, axis, True))
    return T.where(norm == 0, T.zeros_like(x), x / norm)


@operator("Dropout")
def _dropout(c: Call) -> Any:
    training = bool(c.known(2, "whether it trains").reshape(-1).tolist()[0]) if c.has(2) else False
    if training and (c.known(1, "the ratio").reshape(-1).tolist()[0] if c.has(1) else 0.5):
        raise Refused("dropout while training: export the model for evaluation")
    x = c.t(0)
    return c.value(0) if c.outputs < 2 else (c.value(0), T.expand(T.full((), True, dtype=bool_), tuple(x.shape)))


# -------------------------------------------------------------------------------------------------------------- sampling


@operator("Resize", "Upsample")
def _resize(c: Call) -> Any:
    return resize(c)


@operator("GridSample")
def _grid_sample(c: Call) -> Any:
    mode = {"bilinear": "bilinear", "linear": "bilinear", "nearest": "nearest", "bicubic": "bicubic", "cubic": "bicubic"}[
        c.text("mode", "linear", ("linear", "bilinear", "nearest", "cubic", "bicubic"))
    ]
    return F.grid_sample(
        c.t(0), c.t(1), mode, c.text("padding_mode", "zeros", ("zeros", "border", "reflection")), bool(c.attr("align_corners", 0))
    )


@operator("Col2Im")
def _col2im(c: Call) -> Any:
    x, image, block = c.t(0), c.ints(1, "the sizes of the image"), c.ints(2, "the sizes of a block")
    if len(image) != 2:
        raise Refused(f"images of {len(image)} dims")
    pads = c.ints_of("pads", 4, 0)
    dilations, strides = c.ints_of("dilations", 2, 1), c.ints_of("strides", 2, 1)
    whole = (image[0] + pads[0] + pads[2], image[1] + pads[1] + pads[3])
    found = F.fold(x, whole, tuple(block), tuple(dilations), 0, tuple(strides))
    return padded(found, {2: (-pads[0], -pads[2]), 3: (-pads[1], -pads[3])}, 0)


@operator("QLinearMatMul", "QLinearConv")
def _quantised_product(c: Call) -> Any:
    matmul = c.node.op == "QLinearMatMul"
    a = cast(c.t(0), float64) - cast(c.t(2), float64)
    w, zero, scale = cast(c.t(3), float64), cast(c.t(5), float64), cast(c.t(4), float64)
    n = w._layout.ndim
    w = w - (zero if matmul else _by_channel(zero, n - 1))
    found = T.matmul(a, w) if matmul else _convolved(c, a, w, cast(c.t(8), float64) if c.has(8) else None)
    found = found * (cast(c.t(1), float64) * (scale if matmul else _by_channel(scale, n - 2)) / cast(c.t(6), float64))
    dtype = c.value(7).dtype
    info = np.iinfo(dtype.np)
    return cast(T.clamp(T.round(found) + cast(c.t(7), float64), float(info.min), float(info.max)), dtype)


def _by_channel(x: Any, after: int) -> Any:
    """One number, or one for each channel, before so many dims."""
    return T.reshape(x, (-1,) + (1,) * after if x._layout.ndim and x._layout.numel > 1 else ())


@operator("AffineGrid")
def _affine_grid(c: Call) -> Any:
    return F.affine_grid(c.t(0), list(c.ints(1, "the sizes")), bool(c.attr("align_corners", 0)))


