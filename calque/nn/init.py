"""Initial values of parameters, written in place without history. Same names and distributions as `torch.nn.init`.

Sources: Glorot and Bengio (2010) for xavier; He et al. (2015) for kaiming; Saxe, McClelland, Ganguli (2013) for orthogonal; Martens
(2010) for sparse.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from calque import functional as T
from calque.autograd.assign import assign
from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, ShapeError
from calque.functional.common import cast
from calque.observe.source import warn_user
from calque.tensor import Tensor, upload

__all__ = [
    "calculate_gain", "constant", "constant_", "dirac", "dirac_", "eye", "eye_", "kaiming_normal", "kaiming_normal_", "kaiming_uniform",
    "kaiming_uniform_", "normal", "normal_", "ones_", "orthogonal", "orthogonal_", "sparse", "sparse_", "trunc_normal_", "uniform",
    "uniform_", "xavier_normal", "xavier_normal_", "xavier_uniform", "xavier_uniform_", "zeros_",
]  # fmt: skip


def _silent(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Without autograd history."""

    @functools.wraps(function)
    def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if tensor._layout.device is META:
            return tensor  # there is nothing to write to
        return function(tensor, *args, **kwargs)

    return no_grad()(call)


def calculate_gain(nonlinearity: str, param: Any = None) -> float:
    """Recommended gain of a nonlinearity.

    >>> import calque
    >>> round(calque.nn.init.calculate_gain("relu"), 4)
    1.4142
    """
    linear = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid")
    if nonlinearity in linear:
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "selu":
        return 3.0 / 4
    if nonlinearity == "leaky_relu":
        if param is not None and (isinstance(param, bool) or not isinstance(param, (int, float))):
            raise ArgumentError(f"[calculate_gain] negative_slope {param} not a valid number")
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope**2))
    raise ArgumentError(f"[calculate_gain] Unsupported nonlinearity {nonlinearity}")


def _fans(t: Tensor) -> tuple[int, int]:
    shape = t.shape  # of whatever has one: programs ask for the fans of tensors that are factorised modules
    if len(shape) < 2:
        raise ShapeError(f"[init] Fan in and fan out can not be computed for tensor with fewer than 2 dimensions, got shape {tuple(shape)}")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _spread(t: Tensor, variance: float) -> float:
    """The square root of `variance` / (fan_in + fan_out); of a tensor without values any number will do."""
    return math.sqrt(variance / max(sum(_fans(t)), 1))


def _fan(t: Tensor, mode: str) -> int:
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ArgumentError(f"[init] Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan_in, fan_out = _fans(t)
    return fan_in if mode.lower() == "fan_in" else fan_out


@_silent
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Uniform in [a, b)."""
    return tensor.uniform_(a, b, generator=generator)


@_silent
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Normal with the given mean and standard deviation."""
    return tensor.normal_(mean, std, generator=generator)


@_silent
def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None) -> Tensor:
    """Normal limited to [a, b] (absolute values), by inverting the distribution function."""
    if mean < a - 2 * std or mean > b + 2 * std:
        warn_user("mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of values may be incorrect.")
    low, high = (0.5 * (1.0 + math.erf((v - mean) / std / math.sqrt(2.0))) for v in (a, b))
    uniform = T.rand(tuple(tensor._layout.shape), dtype=dt.float64, generator=generator) * (2 * (high - low)) + (2 * low - 1)
    values = T.clamp(T.erfinv(uniform) * (std * math.sqrt(2.0)) + mean, a, b)
    return assign(tensor, cast(values, tensor._layout.dtype))


@_silent
def constant_(tensor: Tensor, val: float) -> Tensor:
    """One value everywhere."""
    return tensor.fill_(val)


_uniform, _normal, _constant = uniform_, normal_, constant_  # the functions here call these, whatever a program puts in their place


def ones_(tensor: Tensor) -> Tensor:
    """1 everywhere."""
    return _constant(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """0 everywhere."""
    return _constant(tensor, 0.0)


def _write(tensor: Tensor, values: Any) -> Tensor:
    kind = tensor._layout.dtype
    return assign(tensor, upload(np.ascontiguousarray(values).astype(kind.np), kind))


@_silent
def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix (2-d tensors)."""
    if tensor._layout.ndim != 2:
        raise ShapeError(f"[eye_] Only tensors with 2 dimensions are supported, got shape {tuple(tensor._layout.shape)}")
    return _write(tensor, np.eye(*tensor._layout.shape))


@_silent
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Convolution weights that pass channels through (3, 4 or 5 dims)."""
    shape = tuple(tensor._layout.shape)
    if len(shape) not in (3, 4, 5):
        raise ShapeError(f"[dirac_] Only tensors with 3, 4, or 5 dimensions are supported, got shape {shape}")
    if groups < 1 or shape[0] % groups:
        raise ArgumentError(f"[dirac_] dim 0 must be divisible by groups, got {shape[0]} and groups={groups}")
    if 0 in shape[2:]:
        raise ShapeError(f"[dirac_] expected a kernel with a middle, got shape {shape}")
    values = np.zeros(shape)
    per_group = shape[0] // groups
    for g in range(groups):
        for d in range(min(per_group, shape[1])):
            values[(g * per_group + d, d, *(n // 2 for n in shape[2:]))] = 1.0
    return _write(tensor, values)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Uniform with variance 2 gain^2 / (fan_in + fan_out)."""
    bound = gain * _spread(tensor, 6.0)
    return _uniform(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Normal with variance 2 gain^2 / (fan_in + fan_out)."""
    return _normal(tensor, 0.0, gain * _spread(tensor, 2.0), generator)


def _empty_warning(tensor: Tensor) -> bool:
    if 0 in tensor._layout.shape:
        warn_user("Initializing zero-element tensors is a no-op")
        return True
    return False


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None) -> Tensor:
    """Uniform with variance gain^2 / fan."""
    if _empty_warning(tensor):
        return tensor
    bound = math.sqrt(3.0) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return _uniform(tensor, -bound, bound, generator)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None) -> Tensor:
    """Normal with variance gain^2 / fan."""
    if _empty_warning(tensor):
        return tensor
    return _normal(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)), generator)


@_silent
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Any = None) -> Tensor:
    """A (semi-)orthogonal matrix, after flattening all dims but the first."""
    shape = tuple(tensor._layout.shape)
    if len(shape) < 2:
        raise ShapeError(f"[orthogonal_] Only tensors with 2 or more dimensions are supported, got shape {shape}")
    if 0 in shape:
        return tensor
    rows, columns = shape[0], math.prod(shape[1:])
    noise = T.randn((rows, columns), dtype=dt.float64, generator=generator).numpy()
    q, r = np.linalg.qr(noise.T if rows < columns else noise)
    q = q * np.sign(np.diag(r))
    return _write(tensor, (q.T if rows < columns else q).reshape(shape) * gain)


@_silent
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Normal with a fraction `sparsity` of each column set to 0."""
    shape = tuple(tensor._layout.shape)
    if len(shape) != 2:
        raise ShapeError(f"[sparse_] Only tensors with 2 dimensions are supported, got shape {shape}")
    if not 0 <= sparsity <= 1:
        raise ArgumentError(f"[sparse_] expected sparsity in [0, 1], the fraction of zeros in a column, got {sparsity}")
    rows, columns = shape
    values = (T.randn(shape, generator=generator) * std).numpy().copy()
    order = T.rand((rows, columns), generator=generator).numpy().argsort(axis=0)
    values[order[: math.ceil(sparsity * rows)], np.arange(columns)] = 0.0
    return _write(tensor, values)


def _deprecated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        name = function.__name__
        warn_user(f"`nn.init.{name[:-1]}` is now deprecated in favor of `nn.init.{name}`.", FutureWarning)
        return function(*args, **kwargs)

    return call


kaiming_normal, kaiming_uniform, orthogonal, xavier_normal, xavier_uniform = (
    _deprecated(f) for f in (kaiming_normal_, kaiming_uniform_, orthogonal_, xavier_normal_, xavier_uniform_)
)
constant, dirac, eye, normal, sparse, uniform = (_deprecated(f) for f in (constant_, dirac_, eye_, normal_, sparse_, uniform_))
