"""Convolutions in one and two dims and their transposes, from one 2-d contraction and its gradients.

Layout is (N, C, H, W) with weights (O, C / groups, kH, kW); 1-d images have height 1, and three dims are a sum over depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.cache import Cache
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.shapes import listed
from calque.base.text import described, shown
from calque.functional.common import cast, require_fractions, row_major
from calque.functional.declared import public
from calque.functional.precision import lower_precision
from calque.nn.functional.checks import channels_last, require_dtype
from calque.nn.functional.integers import convolved, transposed
from calque.nn.functional.padding import pad
from calque.nn.functional.rows import wide
from calque.ops.opdef import get
from calque.tensor import Tensor, record

CONV, BIASED, CONV_INPUT, BIASED_INPUT = map(get, ("conv2d", "biased_conv2d", "conv2d_input_grad", "biased_conv2d_input_grad"))
Sizes = int | Sequence[int]
_CHECKED = Cache("convolutions", 1000, 1 / 128)


def sizes(op: str, name: str, value: Any, n: int, least: int) -> tuple[int, ...]:
    """n ints >= least from one int or a sequence."""
    found = tuple(listed(op, name, value))
    if len(found) == 1:
        found *= n
    if len(found) != n or min(found) < least:
        raise ArgumentError(f"[{op}] expected {name} as an int or {n} ints >= {least}, got {shown(value)}")
    return found


def _check_bias(op: str, bias: Any, channels: int) -> None:
    if bias is not None and tuple(bias._layout.shape) != (channels,):
        raise ShapeError(f"[{op}] expected bias of shape ({channels},), one per output channel, got {tuple(bias._layout.shape)}")


def _check_groups(op: str, groups: Any) -> None:
    if not isinstance(groups, int) or isinstance(groups, bool):
        raise DTypeError(f"[{op}] expected groups as an int, got {described(groups)}; pass a number of groups of channels")


def _prepare(op: str, n: int, x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> tuple[Any, Any]:
    """(geometry of the 2-d primitive, extra one-sided padding or None), checked once per combination."""
    shape, kernel = tuple(x._layout.shape), tuple(w._layout.shape)
    require_dtype(op, x, w)
    strides, dilations = sizes(op, "stride", stride, n, 1), sizes(op, "dilation", dilation, n, 1)
    _check_groups(op, groups)
    if groups < 1 or kernel[0] % groups:
        raise ArgumentError(f"[{op}] expected output channels divisible by groups >= 1, got {kernel[0]} channels and groups={groups}")
    if shape[1] != kernel[1] * groups:
        raise ShapeError(
            f"[{op}] Given groups={groups}, weight of size {list(kernel)}, expected input{list(shape)} to have "
            f"{kernel[1] * groups} channels, "
            f"but got {shape[1]} channels instead; {channels_last(shape, kernel[1] * groups) or 'change in_channels or groups'}"
        )
    extra = None
    if isinstance(padding, str):
        before, extra = _named_padding(op, padding, strides, dilations, kernel[2:])
    else:
        before = sizes(op, "padding", padding, n, 0)
    padded = tuple(s + 2 * p + (0 if extra is None else extra[d]) for d, (s, p) in enumerate(zip(shape[2:], before, strict=True)))
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel[2:], strict=True))
    if any(r > s for r, s in zip(reach, padded, strict=True)):
        raise ShapeError(
            f"[{op}] Calculated padded input size per channel: {padded}. Kernel size: {reach}. Kernel size can't be "
            "greater than actual "
            f"input size; got input {shape} with padding {before}: use more padding or a smaller kernel"
        )
    return (strides, before, dilations, groups), extra


def _named_padding(op: str, name: str, strides: Any, dilations: Any, kernel: Any) -> tuple[Any, Any]:
    if name == "valid":
        return (0,) * len(kernel), None
    if name != "same":
        raise ArgumentError(f"[{op}] Invalid padding string {shown(name)}, should be one of {{'valid', 'same'}}")
    if any(s != 1 for s in strides):
        raise ArgumentError(f"[{op}] padding='same' is not supported for strided convolutions, got stride {strides}")
    spans = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    extra = tuple(s % 2 for s in spans)
    return tuple(s // 2 for s in spans), extra if any(extra) else None


def _convolve(op: str, n: int, x: Tensor, w: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    if not isinstance(padding, (int, str)):
        padding = tuple(listed(op, "padding", padding))
    key = (n, x._layout, w._layout, stride if stride.__class__ is int else tuple(listed(op, "stride", stride)), dilation
           if dilation.__class__ is int else tuple(listed(op, "dilation", dilation)), padding, groups, groups.__class__)  # fmt: skip
    found = _CHECKED.get(key)
    if found is None:
        _check_ranks(op, n, x, w)
        single = x._layout.ndim == n + 1
        probe = T.unsqueeze(x, 0) if single else x
        found = _CHECKED.keep(key, (*_prepare(op, n, probe, w, stride, padding, dilation, groups), single))
    (strides, before, dilations, groups), extra, single = found
    if bias is not None:
        _check_bias(op, bias, w._layout.shape[0])
        require_dtype(op, x, bias)
    if single:
        x = T.unsqueeze(x, 0)
    if extra is not None:
        x = pad(x, [side for e in reversed(extra) for side in (0, e)])
    inside = bias if bias is not None and (kind := x._layout.dtype).compute is not kind else None  # floats of 16 bits are rounded once
    if n == 1:
        strides, before, dilations = (1, *strides), (0, *before), (1, *dilations)
        y = T.squeeze(_contracted(T.unsqueeze(x, 2), T.unsqueeze(w, 2), (strides, before, dilations, groups), inside), 2)
    else:
        y = _contracted(x, w, (strides, before, dilations, groups), inside)
    if bias is not None and inside is None:
        y = y + T.reshape(bias, (1, -1, *(1,) * n))
    return T.squeeze(y, 0) if single else y


def _contracted(x: Tensor, w: Tensor, geometry: tuple[Any, ...], bias: Any = None) -> Tensor:
    if bias is not None:
        return record(BIASED, (x, w, bias), geometry)
    return record(CONV, (x, w), geometry) if x._layout.dtype.category != 1 else convolved(x, w, *geometry)


def _contracted_input(x: Tensor, w: Tensor, geometry: tuple[Any, ...], bias: Any = None) -> Tensor:
    if bias is not None:
        return record(BIASED_INPUT, (x, w, bias), geometry)
    return record(CONV_INPUT, (x, w), geometry) if x._layout.dtype.category != 1 else transposed(x, w, *geometry)


def _check_ranks(op: str, n: int, x: Tensor, w: Tensor) -> None:
    if w._layout.ndim != n + 2:
        raise ShapeError(f"[{op}] expected a weight with {n + 2} dims (O, C / groups, {'kH, kW' if n == 2 else 'k'}), got {tuple(w._layout.shape)}")
    if x._layout.ndim not in (n + 1, n + 2):
        raise ShapeError(f"[{op}] Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {op}, but got input of size: {list(x._layout.shape)}")


@public(method=False, of="calque nn.functional")
@lower_precision
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation: (N, C, L), (O, C / groups, k) -> (N, O, L')."""
    return _convolve("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@public(method=False, of="calque nn.functional")
@lower_precision
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation: (N, C, H, W), (O, C / groups, kH, kW) -> (N, O, H', W').

    >>> import calque
    >>> tuple(calque.nn.functional.conv2d(calque.ones(1, 3, 8, 8), calque.ones(4, 3, 3, 3), padding="same").shape)
    (1, 4, 8, 8)
    """
    return _convolve("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@public(method=False, of="calque nn.functional")
@lower_precision
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation: (N, C, D, H, W), (O, C / groups, kD, kH, kW) -> (N, O, D', H', W'), as kD 2-d convolutions added up. One image
    (C, D, H, W) is a batch of one."""
    op = "conv3d"
    _check_ranks(op, 3, input, weight)
    if input._layout.ndim == 4:
        return T.squeeze(conv3d(T.unsqueeze(input, 0), weight, bias, stride, padding, dilation, groups), 0)
    geometry, extra = _prepare(op, 3, input, weight, stride, padding, dilation, groups)
    (sd, *s2), (pd, *p2), (dd, *d2) = geometry[:3]
    if bias is not None:
        _check_bias(op, bias, weight._layout.shape[0])
        require_dtype(op, input, bias)
    x = input if extra is None else pad(input, [side for e in reversed(extra) for side in (0, e)])
    x = pad(x, (0, 0, 0, 0, pd, pd)) if pd else x
    batch, channels, depth = x._layout.shape[0], x._layout.shape[1], x._layout.shape[2]
    steps = weight._layout.shape[2]
    if steps > 1:
        x, weight = wide(x), wide(weight)  # parts that were rounded might cancel each other
    out_depth = (depth - dd * (steps - 1) - 1) // sd + 1
    result: Any = None
    for step in range(steps):
        slab = x[:, :, step * dd : step * dd + (out_depth - 1) * sd + 1 : sd]
        images = T.reshape(T.permute(slab, (0, 2, 1, 3, 4)), (batch * out_depth, channels, *x._layout.shape[3:]))
        part = _convolve("conv2d", 2, images, weight[:, :, step], bias if steps == 1 else None, tuple(s2), tuple(p2), tuple(d2), groups)
        result = part if result is None else result + part
    result = row_major(T.permute(T.reshape(result, (batch, out_depth, *result._layout.shape[1:])), (0, 2, 1, 3, 4)))
    return cast(result if bias is None or steps == 1 else result + T.reshape(wide(bias), (1, -1, 1, 1, 1)), input._layout.dtype)


def _transpose(
    op: str, n: int, x: Tensor, w: Tensor, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> Tensor:
    _check_ranks(op, n, x, w)
    require_dtype(op, x, w)
    if x._layout.dtype is not dt.int64:
        require_fractions(op, x)
    if x._layout.ndim == n + 1:
        return T.squeeze(_transpose(op, n, T.unsqueeze(x, 0), w, bias, stride, padding, output_padding, groups, dilation), 0)
    strides, dilations = sizes(op, "stride", stride, n, 1), sizes(op, "dilation", dilation, n, 1)
    before, after = sizes(op, "padding", padding, n, 0), sizes(op, "output_padding", output_padding, n, 0)
    kernel, shape = tuple(w._layout.shape), tuple(x._layout.shape)
    _check_groups(op, groups)
    if any(o >= max(s, d) for o, s, d in zip(after, strides, dilations, strict=True)):
        raise ArgumentError(f"[{op}] output padding must be smaller than either stride or dilation, but got output_padding {after}")
    if shape[1] != kernel[0] or groups < 1 or kernel[0] % groups:
        raise ShapeError(
            f"[{op}] Given transposed=1, weight of size {list(kernel)}, expected input{list(shape)} to have {kernel[0]} channels "
            f"(divisible by groups={groups}), but got {shape[1]} channels instead; {channels_last(shape, kernel[0]) or 'change in_channels'}"
        )
    _check_bias(op, bias, kernel[1] * groups)
    if bias is not None:
        require_dtype(op, x, bias)
    if any(o >= s for o, s in zip(after, strides, strict=True)):  # a dilated kernel reaches so far: as if zeros followed the input
        sides = [side for o, s in zip(reversed(after), reversed(strides), strict=True) for side in (0, o // s)]
        x, after = pad(x, sides), tuple(o % s for o, s in zip(after, strides, strict=True))
        shape = tuple(x._layout.shape)
    out = tuple(
        (s - 1) * st - 2 * p + d * (k - 1) + o + 1 for s, st, p, d, k, o in zip(shape[2:], strides, before, dilations, kernel[2:], after, strict=True)
    )
    if min(out) < 1:
        raise ShapeError(f"[{op}] expected a positive output size, got {out} from input {shape}; use less padding")
    inside = bias if bias is not None and (kind := x._layout.dtype).compute is not kind else None  # floats of 16 bits are rounded once
    if n == 1:
        geometry = ((1, *out), (1, *strides), (0, *before), (1, *dilations), groups)
        y = T.squeeze(_contracted_input(T.unsqueeze(x, 2), T.unsqueeze(w, 2), geometry, inside), 2)
    else:
        y = _contracted_input(x, w, (out, strides, before, dilations, groups), inside)
    return y if bias is None or inside is not None else y + T.reshape(bias, (1, -1, *(1,) * n))


@public(method=False, of="calque nn.functional")
@lower_precision
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Gradient of `conv1d` with respect to its input, as a layer: (N, C, L), (C, O / groups, k) -> (N, O, L')."""
    return _transpose("conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@public(method=False, of="calque nn.functional")
@lower_precision
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Gradient of `conv2d` with respect to its input, as a layer: (N, C, H, W), (C, O / groups, kH, kW) -> (N, O, H', W')."""
    return _transpose("conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation)
