"""Normalisations, each one graph node: statistics in two reductions forward, one pass of two sums backward.

Sources: Ioffe and Szegedy, "Batch Normalization" (2015); Ba, Kiros, Hinton, "Layer Normalization" (2016); Wu and He, "Group
Normalization" (2018); Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from calque import functional as T
from calque.autograd.composite import call
from calque.base.errors import ArgumentError, ShapeError
from calque.functional.common import cast
from calque.nn.functional.checks import require_dtype
from calque.nn.functional.rows import Dims, total, wide
from calque.nn.gradient import Saved, with_gradient
from calque.run.recorder import local
from calque.tensor import Tensor, assign

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "normalize", "rms_norm"]


class _Kernel:
    """Normalise over `dims` of `view(x)`, then scale and shift with parameters shaped `affine`, whose gradients sum over `spread`."""

    __slots__ = ("dims", "spread", "affine", "grouped", "eps", "count", "stats", "facts")
    held = ()

    def __init__(self, shape: Dims, dims: Dims, affine: Dims, spread: Dims, eps: float, grouped: Dims | None = None) -> None:
        self.dims, self.affine, self.spread, self.eps, self.grouped = dims, affine, spread, float(eps), grouped
        over = shape if grouped is None else grouped
        self.count = float(prod(over[d] for d in dims))
        self.stats: tuple[Any, ...] = ()  # mean and variance of the call
        self.facts = (dims, spread, affine, grouped, self.eps, self.count)  # what `backward` depends on, see `autograd.again`

    def _grouped(self, x: Tensor) -> Tensor:
        return x if self.grouped is None else T.reshape(x, self.grouped)

    def _back(self, x: Tensor, like: Tensor) -> Tensor:
        return x if self.grouped is None else T.reshape(x, tuple(like._layout.shape))

    def forward(self, x: Tensor, weight: Any, bias: Any) -> tuple[Any, ...]:
        kind = x._layout.dtype
        values = self._grouped(wide(x))
        mean = total(values, self.dims) / self.count
        centred = values - mean
        variance = total(centred * centred, self.dims) / self.count
        scale = T.rsqrt(variance + self.eps)
        y = self._back(centred * scale, x)
        if weight is not None:
            y = y * T.reshape(wide(weight), self.affine)
        if bias is not None:
            y = y + T.reshape(wide(bias), self.affine)
        return cast(y, kind), mean, scale, variance

    def backward(self, saved: Saved, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias = saved.inputs
        _, mean, scale, _ = saved.values
        g = wide(g)
        normal = (self._grouped(wide(x)) - mean) * scale
        result: list[Any] = [None, None, None]
        if saved.needs[0] and self.grouped is None and self.spread == self.dims:  # one weight per statistic: it stands outside the sums
            average, slope = total(g, self.dims) / self.count, total(g * normal, self.dims) / self.count
            factor = scale if weight is None else scale * T.reshape(wide(weight), self.affine)
            result[0] = cast((g - average - normal * slope) * factor, x._layout.dtype)
        elif saved.needs[0]:
            inner = self._grouped(g if weight is None else g * T.reshape(wide(weight), self.affine))
            average = total(inner, self.dims) / self.count
            slope = total(inner * normal, self.dims) / self.count
            result[0] = cast(self._back((inner - average - normal * slope) * scale, x), x._layout.dtype)
        if saved.needs[1]:
            gw = total(g * self._back(normal, x), self.spread)
            result[1] = cast(T.reshape(gw, tuple(weight._layout.shape)), weight._layout.dtype)
        if saved.needs[2]:
            result[2] = cast(T.reshape(total(g, self.spread), tuple(bias._layout.shape)), bias._layout.dtype)
        return tuple(result)

    def __call__(self, label: str, x: Tensor, weight: Any, bias: Any) -> Tensor:
        y, mean, _, variance = with_gradient(label, self.forward, self.backward, (x, weight, bias), every=True)
        self.stats = (mean, variance)
        return y  # type: ignore[no-any-return]


def _trailing(op: str, input: Tensor, normalized_shape: Sequence[int], weight: Any, bias: Any) -> tuple[Dims, Dims, Dims]:
    """(normalised shape, its dims, the leading dims), checked."""
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
            if input._layout.dtype.itemsize > 2:
                require_dtype(op, input, p)
    lead = len(shape) - len(wanted)
    return wanted, tuple(range(lead, len(shape))), tuple(range(lead))


def layer_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the last dims, scaled and shifted: (*, normalized_shape) -> the same.

    >>> import calque
    >>> calque.nn.functional.layer_norm(calque.tensor([[1.0, 3.0]]), (2,), eps=0.0)
    tensor([[-1.,  1.]])
    """
    wanted, dims, lead = _trailing("layer_norm", input, normalized_shape, weight, bias)
    return _Kernel(tuple(input._layout.shape), dims, wanted, lead, eps)("NativeLayerNormBackward0", input, weight, bias)


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dims, scaled: (*, normalized_shape) -> the same. `eps` defaults to the dtype's epsilon."""
    _, dims, lead = _trailing("rms_norm", input, normalized_shape, weight, None)
    kind = input._layout.dtype
    small = eps if eps is not None else {"float64": 2.220446049250313e-16}.get(kind.compute.name, 1.1920928955078125e-07)
    count = float(prod(input._layout.shape[d] for d in dims))

    def forward(x: Tensor, w: Any) -> tuple[Any, ...]:
        x = wide(x)
        scale = T.rsqrt(total(x * x, dims) / count + float(small))
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

    return with_gradient("RmsNormBackward0", forward, backward, (input, weight))  # type: ignore[no-any-return]


def _per_channel(ndim: int, channels: int) -> Dims:
    return (1, channels, *(1,) * (ndim - 2))


def _check_channels(op: str, input: Tensor, **parameters: Any) -> None:
    if (parameters.get("running_mean") is None) is not (parameters.get("running_var") is None):
        raise ArgumentError(f"[{op}] running_mean and running_var must either both be None or neither be None: got one; pass both")
    if input._layout.ndim < 2:
        raise ShapeError(f"[{op}] expected an input (N, C, ...) with at least 2 dims, got shape {tuple(input._layout.shape)}")
    channels = input._layout.shape[1]
    for name, p in parameters.items():
        if p is not None and tuple(p._layout.shape) != (channels,):
            raise ShapeError(
                f"[{op}] expected {name} with one element per channel ({channels} for input {tuple(input._layout.shape)}), "
                f"got shape {tuple(p._layout.shape)}; {name} should contain {channels} elements not {p._layout.numel}"
            )
    weight = parameters.get("weight")
    if weight is not None and input._layout.dtype.itemsize > 2:
        require_dtype(op, input, weight)


def batch_norm(
    input: Tensor, running_mean: Any, running_var: Any, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalise every channel over batch and positions: (N, C, *) -> the same. While training with the batch's statistics, which also
    update the running ones; else with the running ones."""
    _check_channels("batch_norm", input, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    shape = tuple(input._layout.shape)
    affine = _per_channel(len(shape), shape[1])
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
    kernel = _Kernel(shape, dims, affine, dims, eps)
    y = kernel("NativeBatchNormBackward0", input, weight, bias)
    if running_mean is not None and count:
        _update_running(kernel.stats, running_mean, running_var, momentum, count)
    return y


def _normalise_with(x: Tensor, mean: Tensor, variance: Tensor, weight: Any, bias: Any, affine: Dims, eps: float) -> Tensor:
    kind = x._layout.dtype
    factor = T.rsqrt(wide(variance) + float(eps))
    if weight is not None:
        factor = factor * wide(weight)
    y = (wide(x) - T.reshape(wide(mean), affine)) * T.reshape(factor, affine)
    if bias is not None:
        y = y + T.reshape(wide(bias), affine)
    return cast(y, kind)


def _update_running(stats: tuple[Any, ...], running_mean: Tensor, running_var: Tensor, momentum: Any, count: int) -> None:
    """Exponential averages of mean and unbiased variance, without history. `momentum` is a number or a 0-d tensor."""
    state = local.state
    before, state.grad = state.grad, False
    try:
        call(_averaged, (*stats, running_mean, running_var, momentum, count / (count - 1)))
    finally:
        state.grad = before


def _averaged(mean: Tensor, variance: Tensor, running_mean: Tensor, running_var: Tensor, momentum: Any, unbiased: float) -> tuple[Any, ...]:
    mean, variance = (T.reshape(v, tuple(running_mean._layout.shape)) for v in (mean, variance))
    variance = variance * unbiased
    for running, new in ((running_mean, mean), (running_var, variance)):
        kind = running._layout.dtype
        new = cast(new, kind)
        assign(running, cast(running * (1.0 - momentum) + new * momentum, kind))
    return ()


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
    grouped = (shape[0], num_groups, prod(shape[1:]) // num_groups)
    spread = (0, *range(2, len(shape)))
    kernel = _Kernel(shape, (2,), _per_channel(len(shape), shape[1]), spread, eps, grouped)
    return kernel("NativeGroupNormBackward0", input, weight, bias)


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
    count = prod(shape[d] for d in dims)
    if count <= 1:
        raise ShapeError(f"[instance_norm] Expected more than 1 spatial element when training, got input size {input._layout.shape!r}")
    kernel = _Kernel(shape, dims, affine, (0, *dims), eps)
    y = kernel("NativeBatchNormBackward0", input, weight, bias)
    if running_mean is not None and running_var is not None:
        stats = tuple(total(s.detach(), (0,)) / float(shape[0]) for s in kernel.stats)
        _update_running(stats, running_mean, running_var, momentum, count)
    return y


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha * mean of squares over `size` neighbouring channels) ** beta: (N, C, *) -> the same."""
    if input._layout.ndim < 3:
        raise ShapeError(f"[local_response_norm] Expected 3D or higher dimensionality input (got {input._layout.ndim} dimensions)")
    if size < 1:
        raise ArgumentError(f"[local_response_norm] expected size >= 1, got {size}; it counts neighbouring channels")
    channels = input._layout.shape[1]
    squares = input * input
    before, after = min(size // 2, channels - 1), min((size - 1) // 2, channels - 1)
    shifted: Any = None
    for step in range(-before, after + 1):
        low, high = max(0, -step), min(channels, channels - step)
        part = T.narrow(squares, 1, low + step, high - low)
        edges = [T.zeros_like(T.narrow(squares, 1, 0, n)) for n in (low, channels - high)]
        whole = T.cat([edges[0], part, edges[1]], 1) if low or high < channels else part
        shifted = whole if shifted is None else shifted + whole
    return input / (shifted * (alpha / size) + float(k)) ** float(beta)


def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Tensor:
    """x / max(norm_p(x), eps) along `dim`: (*) -> (*).

    >>> import calque
    >>> calque.nn.functional.normalize(calque.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    length = T.norm(input, p, dim, True)
    y = input / T.clamp(length, min=float(eps))
    return y if out is None else assign(out, y)
