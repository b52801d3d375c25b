"""Normalisations, each one graph node: statistics in two passes forward, one pass of two sums backward.

Sources: Ioffe and Szegedy, "Batch Normalization" (2015); Ba, Kiros, Hinton, "Layer Normalization" (2016); Wu and He, "Group
Normalization" (2018); Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from calque import functional as T
from calque.autograd.assign import assign
from calque.autograd.superinstruction import superinstruction
from calque.base.cache import memoised
from calque.base.dtypes import DType, float64, int64
from calque.base.errors import ArgumentError, RankError, ShapeError
from calque.base.layout import channels_last as channels_last_format
from calque.base.layout import channels_last_3d, contiguous_format
from calque.functional.common import cast, require_fractions, require_real, row_major
from calque.functional.declared import public
from calque.functional.formats import is_contiguous
from calque.functional.options import written
from calque.nn.functional.checks import channels_last, require_dtype
from calque.nn.functional.current import current, there
from calque.nn.functional.rows import Dims, total, wide
from calque.nn.gradient import Saved, formula, not_of_integers, with_gradient
from calque.record.recorder import local
from calque.tensor import Tensor


class _Kernel:
    """Normalise over `dims` of x, then scale and shift with parameters of the extents of these dims, whose gradients sum over `spread`."""

    __slots__ = ("dims", "spread", "eps", "count", "facts")
    held = ()

    def __init__(self, shape: Dims, dims: Dims, spread: Dims, eps: float) -> None:
        self.dims, self.spread, self.eps = dims, spread, float(eps)
        self.count = prod(shape[d] for d in dims) * 1.0
        self.facts = (dims, spread, self.eps, self.count)  # what `backward` depends on, see `autograd.dependencies`

    def forward(self, x: Tensor, weight: Any, bias: Any) -> tuple[Any, ...]:
        kind = x._layout.dtype
        values = wide(x)
        mean = total(values, self.dims) / self.count
        centred = values - mean
        scale = T.rsqrt(total(centred * centred, self.dims) / self.count + self.eps)
        y = centred * scale
        if weight is not None:
            y = y * wide(weight)
        if bias is not None:
            y = y + wide(bias)
        return cast(y, kind), mean, scale

    def backward(self, saved: Saved, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias = saved.inputs
        _, mean, scale = saved.values
        g = wide(g)
        normal = (wide(x) - mean) * scale
        result: list[Any] = [None, None, None]
        if saved.needs[0]:
            inner = g if weight is None else g * wide(weight)
            average, slope = total(inner, self.dims) / self.count, total(inner * normal, self.dims) / self.count
            result[0] = cast((inner - average - normal * slope) * scale, x._layout.dtype)
        if saved.needs[1]:
            result[1] = cast(total(g * normal, self.spread, False), weight._layout.dtype)
        if saved.needs[2]:
            result[2] = cast(total(g, self.spread, False), bias._layout.dtype)
        return tuple(result)


class _Channels:
    """Normalise over `dims` of x seen as `shape`, then scale and shift with parameters seen as `affine`: one number for many elements, so what
    belongs to channels and groups is computed first.

    The mean is rounded; `low`, the mean of what is centred with it, is what it lacks. With the factor of a channel rounded once (from float64)
    nothing but the last additions is less exact than in float64, as in the kernels of PyTorch, which hold such numbers in float64.
    """

    __slots__ = ("shape", "dims", "affine", "first", "second", "spread", "eps", "count", "stats", "facts")
    held = ()

    def __init__(self, shape: Dims, dims: Dims, affine: Dims, eps: float) -> None:
        self.shape, self.dims, self.affine, self.eps = shape, dims, affine, float(eps)
        self.first = tuple(d for d in dims if affine[d] == 1)  # a weight stands outside of sums over these dims
        self.second = tuple(d for d in dims if affine[d] != 1)
        self.spread = tuple(d for d in range(len(shape)) if d not in dims and affine[d] == 1)
        self.count = prod(shape[d] for d in dims) * 1.0
        self.stats: tuple[Any, ...] = ()  # mean and variance of the call
        self.facts = (shape, dims, affine, self.eps, self.count)  # what `backward` depends on, see `autograd.dependencies`

    def forward(self, x: Tensor, weight: Any, bias: Any) -> tuple[Any, ...]:
        kind = x._layout.dtype
        values = self._seen(x)
        mean = total(values, self.dims) / self.count
        centred = values - mean
        low = total(centred, self.dims) / self.count
        variance = total(centred * centred, self.dims) / self.count
        exact = T.rsqrt(cast(variance, float64) + self.eps)
        scale = factor = cast(exact, kind.compute)
        if weight is not None:
            factor = cast(exact * T.reshape(cast(weight, float64), self.affine), kind.compute)
        y = centred * factor
        shift = low * factor
        y = y - shift if bias is None else y + (T.reshape(wide(bias), self.affine) - shift)
        return cast(T.reshape(y, tuple(x._layout.shape)), kind), mean, low, scale, factor, variance

    def _seen(self, x: Tensor) -> Tensor:
        return T.reshape(wide(x), self.shape)

    def backward(self, saved: Saved, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias = saved.inputs
        _, mean, low, scale, _, _ = saved.values
        result: list[Any] = [None, None, None]
        g = self._seen(g)
        sums = total(g, self.first)
        if saved.needs[0] or saved.needs[1]:
            centred = self._seen(x) - mean
            slopes = (total(g * centred, self.first) - low * sums) * scale
        if saved.needs[0]:
            result[0] = cast(T.reshape(self._to_input(g, centred, sums, slopes, saved), tuple(x._layout.shape)), x._layout.dtype)
        if saved.needs[1]:
            result[1] = self._to_parameter(slopes, weight)
        if saved.needs[2]:
            result[2] = self._to_parameter(sums, bias)
        return tuple(result)

    def _to_input(self, g: Tensor, centred: Tensor, sums: Tensor, slopes: Tensor, saved: Saved) -> Tensor:
        _, _, low, scale, factor, _ = saved.values
        weight = saved.inputs[1]
        if not self.second:
            steep = slopes * scale / self.count
            return (g - (centred * steep + (sums / self.count - low * steep))) * factor
        if weight is not None:
            seen = T.reshape(wide(weight), self.affine)
            sums, slopes = sums * seen, slopes * seen
        sums, slopes = total(sums, self.second) * scale, total(slopes, self.second) * scale
        steep = slopes * scale / self.count
        return g * factor - (centred * steep + (sums / self.count - low * steep))

    def _to_parameter(self, sums: Tensor, parameter: Tensor) -> Tensor:
        return cast(T.reshape(total(sums, self.spread) if self.spread else sums, tuple(parameter._layout.shape)), parameter._layout.dtype)

    def __call__(self, label: str, x: Tensor, weight: Any, bias: Any) -> Tensor:
        y, mean, low, _, _, variance = with_gradient(label, self.forward, self.backward, (x, weight, bias), every=True)
        self.stats = (mean, low, variance)
        return y  # type: ignore[no-any-return]


def _trailing(
    op: str, input: Tensor, normalized_shape: Sequence[int], weight: Any, bias: Any, alike: bool = True
) -> tuple[Dims, Dims, Dims]:  # fmt: skip
    """(normalised shape, its dims, the leading dims), checked. `alike`: parameters have the dtype of the input, unless that has 16 bits."""
    wanted = tuple(int(n) for n in normalized_shape)
    shape = tuple(input._layout.shape)
    if not wanted:
        raise ArgumentError(f"[{op}] Expected normalized_shape to be at least 1-dimensional, got ()")
    if shape[-len(wanted) :] != wanted:
        raise ShapeError(
            f"[{op}] Given normalized_shape={list(wanted)}, expected input with shape [*, {', '.join(map(str, wanted))}], "
            f"but got input of size {list(shape)}; normalise over the input's last dims"
        )
    for name, p in (("weight", weight), ("bias", bias)):
        if p is not None:
            if tuple(p._layout.shape) != wanted:
                raise ShapeError(f"[{op}] expected {name} of the normalized shape {wanted}, got {tuple(p._layout.shape)}")
            if alike and input._layout.dtype.itemsize > 2:
                require_dtype(op, input, p)
    lead = len(shape) - len(wanted)
    return wanted, tuple(range(lead, len(shape))), tuple(range(lead))


@public(method=False, of="calque nn.functional", steps=True)
def layer_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the last dims, scaled and shifted: (*, normalized_shape) -> the same.

    >>> import calque
    >>> calque.nn.functional.layer_norm(calque.tensor([[1.0, 3.0]]), (2,), eps=0.0)
    tensor([[-1.,  1.]])
    """
    _, dims, lead = _trailing("layer_norm", input, normalized_shape, weight, bias)
    kernel = _Kernel(tuple(input._layout.shape), dims, lead, eps)
    return with_gradient("NativeLayerNormBackward0", kernel.forward, kernel.backward, (row_major(input), weight, bias))  # type: ignore[no-any-return]


@public(method=False, of="calque nn.functional", steps=True)
def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dims, scaled: (*, normalized_shape) -> the same. `eps` defaults to the dtype's epsilon."""
    _, dims, lead = _trailing("rms_norm", input, normalized_shape, weight, None, False)
    kind = input._layout.dtype
    small = eps if eps is not None else {"float64": 2.220446049250313e-16}.get(kind.compute.name, 1.1920928955078125e-07)
    count = prod(input._layout.shape[d] for d in dims) * 1.0
    forward, rule = _rms(dims, lead, float(small), count, kind)
    return with_gradient("RmsNormBackward0", forward, rule, (row_major(input), weight))  # type: ignore[no-any-return]


@memoised("formulas of rms_norm", 1500, 1 / 2048)
def _rms(dims: Dims, lead: Dims, small: float, count: float, kind: DType) -> tuple[Any, Any]:
    """(forward, rule of the gradient)."""

    def forward(x: Tensor, w: Any) -> tuple[Any, ...]:
        x = wide(x)
        scale = T.rsqrt(total(x * x, dims) / count + small)
        y = x * scale
        return cast(y if w is None else y * wide(w), kind), scale

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        (x, w), scale, g = saved.inputs, saved.values[1], wide(g)
        normal = wide(x) * scale
        gx = gw = None
        if saved.needs[0]:
            inner = g if w is None else g * wide(w)
            gx = cast((inner - normal * (total(inner * normal, dims) / count)) * scale, kind)
        if saved.needs[1]:
            gw = cast(total(g * normal, lead, False), w._layout.dtype)
        return gx, gw

    return forward, formula(forward, backward)


_BY_CHANNELS = {4: channels_last_format, 5: channels_last_3d}  # orders in memory that a result has too


def _in_order(input: Tensor) -> Tensor:
    """The input by rows, or by channels where it lies so."""
    by_channels = _BY_CHANNELS.get(input._layout.ndim, contiguous_format)
    return input if is_contiguous(input, by_channels) else row_major(input)


def _per_channel(ndim: int, channels: int) -> Dims:
    return (1, channels, *(1,) * (ndim - 2))


def _check_channels(op: str, input: Tensor, **parameters: Any) -> None:
    if (parameters.get("running_mean") is None) is not (parameters.get("running_var") is None):
        raise ArgumentError(f"[{op}] running_mean and running_var must either both be None or neither be None: got one; pass both")
    if input._layout.ndim < 2:
        raise RankError(f"[{op}] expected an input (N, C, ...) with at least 2 dims, got shape {tuple(input._layout.shape)}")
    channels = input._layout.shape[1]
    for name, p in parameters.items():
        if p is not None and tuple(p._layout.shape) != (channels,):
            raise ShapeError(
                f"[{op}] expected {name} with one element per channel ({channels} for input {tuple(input._layout.shape)}), "
                f"got shape {tuple(p._layout.shape)}; {name} should contain {channels} elements not {p._layout.numel}"
                + (f"; {hint}" if (hint := channels_last(tuple(input._layout.shape), p._layout.numel)) else "")
            )
    kind = input._layout.dtype
    if kind.itemsize > 2:
        for name, p in parameters.items():
            if p is not None and p._layout.dtype is not kind and (kind.category == 2 or name == "weight"):  # of integers the function is refused
                require_dtype(op, input, p)


@public(of="nn.functional")
def batch_norm(
    input: Tensor, running_mean: Any, running_var: Any, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalise every channel over batch and positions: (N, C, *) -> the same. While training with the batch's statistics, which also
    update the running ones; else with the running ones."""
    if input._layout.ndim == 1 and not input._layout.numel:  # no samples, of no channels: PyTorch takes it
        return T.clone(input)
    _check_channels("batch_norm", input, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    input = input if input._layout.upright else _in_order(input)
    shape = tuple(input._layout.shape)
    affine = _per_channel(len(shape), shape[1])
    if eps < 0:
        raise ArgumentError(f"[batch_norm] batch_norm eps must be non-negative, but got {eps}; it is added to a variance")
    dims = (0, *range(2, len(shape)))
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError("[batch_norm] expected running_mean and running_var in evaluation mode, got None; pass training=True")
        return _normalise_with(input, running_mean, running_var, weight, bias, affine, eps)
    count = prod(shape[d] for d in dims)
    if count == 1:
        raise ShapeError(
            f"[batch_norm] Expected more than 1 value per channel when training, got input size {input._layout.shape!r}; use eval() or a larger batch"
        )
    y, *stats = _by_batch(input, weight, bias, dims, affine, eps)
    if running_mean is not None and count:
        _update_running(tuple(stats), running_mean, running_var, momentum, count)  # type: ignore[arg-type]
    return y


@superinstruction
def _by_batch(input: Tensor, weight: Any, bias: Any, dims: Dims, affine: Dims, eps: float) -> tuple[Tensor, ...]:
    """(what is normalised with the batch's statistics, mean, what that lacks, variance)"""
    kernel = _Channels(tuple(input._layout.shape), dims, affine, eps)
    kernel.count = kernel.count or 1.0  # sums over no samples, and with them the gradients of the parameters, are 0 and not 0 / 0
    return kernel("NativeBatchNormBackward0", input, weight, bias), *kernel.stats


def _normalise_with(x: Tensor, mean: Tensor, variance: Tensor, weight: Any, bias: Any, affine: Dims, eps: float) -> Tensor:
    kind = x._layout.dtype
    if kind.category != 2:
        require_real("batch_norm", x)
        raise not_of_integers("batch_norm", x)
    factor = T.rsqrt(wide(variance) + float(eps))
    if weight is not None:
        factor = factor * wide(weight)
    y = (wide(x) - T.reshape(wide(mean), affine)) * T.reshape(factor, affine)
    if bias is not None:
        y = y + T.reshape(wide(bias), affine)
    return cast(y, kind)


def _update_running(stats: tuple[Tensor, Tensor, Tensor], running_mean: Tensor, running_var: Tensor, momentum: Any, count: int) -> None:
    """Exponential averages of mean and unbiased variance, without history. `momentum` is a number or a 0-d tensor."""
    state = local.state
    before, state.grad = state.grad, False
    try:
        for running, new in zip((running_mean, running_var), _unbiased(*stats, tuple(running_mean._layout.shape), count), strict=True):
            assign(running, _average(running, new, momentum))
    finally:
        state.grad = before


@superinstruction
def _unbiased(mean: Tensor, low: Tensor, variance: Tensor, shape: Dims, count: int) -> tuple[Tensor, Tensor]:
    mean, variance = T.reshape(mean + low, shape), T.reshape(variance, shape)
    return mean, variance * (count / (count - 1))


@superinstruction
def _average(running: Tensor, new: Tensor, momentum: Any) -> Tensor:
    kind = running._layout.dtype
    new = cast(new, kind)
    return cast(running * (1.0 - momentum) + new * momentum, kind)


@public(method=False, of="calque nn.functional", steps=True)
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Normalise each sample over the channels of a group and all positions: (N, C, *) -> the same."""
    _check_channels("group_norm", input, weight=weight, bias=bias)
    shape = tuple(input._layout.shape)
    if num_groups <= 0 or shape[1] % num_groups:
        raise ShapeError(
            "[group_norm] Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(shape)} "
            f"and num_groups={num_groups}"
        )
    if prod(shape) // num_groups == 1:
        raise ShapeError(f"[group_norm] Expected more than 1 value per channel when training, got input size {list(shape)}")
    each = shape[1] // num_groups
    kernel = _Channels((shape[0], num_groups, each, prod(shape[2:])), (2, 3), (1, num_groups, each, 1), eps)
    return kernel("NativeGroupNormBackward0", input if input._layout.upright else _in_order(input), weight, bias)


@public(of="nn.functional")
def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalise each channel of each sample over its positions: (N, C, *) -> the same."""
    _check_channels("instance_norm", input, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    shape = tuple(input._layout.shape)
    affine = _per_channel(len(shape), shape[1])
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise ArgumentError("[instance_norm] Expected running_mean and running_var to be defined when use_input_stats is false")
        return _normalise_with(input, running_mean, running_var, weight, bias, affine, eps)
    dims = tuple(range(2, len(shape)))
    input = row_major(input)
    count = prod(shape[d] for d in dims)
    if count <= 1:
        raise ShapeError(f"[instance_norm] Expected more than 1 spatial element when training, got input size {input._layout.shape!r}")
    kernel = _Channels(shape, dims, affine, eps)
    y = kernel("NativeBatchNormBackward0", input, weight, bias)
    if running_mean is not None and running_var is not None:
        stats = tuple(total(s.detach(), (0,)) / (shape[0] * 1.0) for s in kernel.stats)
        _update_running(tuple(stats), running_mean, running_var, momentum, count)  # type: ignore[arg-type]
    return y


def _means_of_neighbours(squares: Tensor, size: int, pad: Any, average: Any) -> Tensor:
    """Means over neighbouring channels by padding and pooling, called as PyTorch calls them."""
    shape, around = squares._layout.shape, (size // 2, (size - 1) // 2)
    if len(shape) == 3:
        return T.squeeze(average(pad(T.unsqueeze(squares, 1), (0, 0, *around)), (size, 1), stride=1), 1)
    deep = T.reshape(squares, (shape[0], 1, shape[1], shape[2], -1))
    return T.reshape(T.squeeze(average(pad(deep, (0, 0, 0, 0, *around)), (size, 1, 1), stride=1), 1), shape)


@public(of="nn.functional")
def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha * mean of squares over `size` neighbouring channels) ** beta: (N, C, *) -> the same."""
    require_real("local_response_norm", input)
    if input._layout.ndim < 3:
        raise ShapeError(f"[local_response_norm] Expected 3D or higher dimensionality input (got {input._layout.ndim} dimensions)")
    if size < 1:
        raise ArgumentError(f"[local_response_norm] expected size >= 1, got {size}; it counts neighbouring channels")
    if not input._layout.numel:
        return input
    if input._layout.dtype is not int64:
        require_fractions("local_response_norm", input)
    channels = input._layout.shape[1]
    squares = input * input
    average = "avg_pool2d" if input._layout.ndim == 3 else "avg_pool3d"
    if any(current(name, T.mean) is not T.mean for name in ("pad", average)):  # a program's own, which it expects to be called
        means = _means_of_neighbours(squares, size, there("pad"), there(average))
        return input / (means * float(alpha) + float(k)) ** float(beta)
    before, after = min(size // 2, channels - 1), min((size - 1) // 2, channels - 1)
    shifted: Any = None
    for step in range(-before, after + 1):
        low, high = max(0, -step), min(channels, channels - step)
        part = T.narrow(squares, 1, low + step, high - low)
        edges = [T.zeros_like(T.narrow(squares, 1, 0, n)) for n in (low, channels - high)]
        whole = T.cat([edges[0], part, edges[1]], 1) if low or high < channels else part
        shifted = whole if shifted is None else shifted + whole
    return input / (shifted * (alpha / size) + float(k)) ** float(beta)


@public(of="nn.functional", steps=True)
def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Tensor:
    """x / max(norm_p(x), eps) along `dim`: (*) -> (*).

    >>> import calque
    >>> calque.nn.functional.normalize(calque.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    length = T.norm(input, p, dim, True)
    y = input / T.clamp(length, min=float(eps))
    return y if out is None else written("normalize", y, out)
