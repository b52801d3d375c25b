"""Activation functions, elementwise: (*) -> (*). `inplace=True` writes the result into the input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from calque import functional as T
from calque.base.cache import memoised
from calque.base.errors import ArgumentError, CalqueError, DTypeError, ShapeError
from calque.base.text import described, shown
from calque.functional.blame import signed
from calque.functional.common import cast, is_tensor, linked, require_fractions, require_numbers, require_real, row_major, unless_nan
from calque.functional.declared import public
from calque.functional.options import fill_number
from calque.functional.precision import lower_precision
from calque.functional.writing import old_value, write_back
from calque.nn.functional.checks import require_dtype
from calque.nn.functional.rows import choose, kinked, one_dim, wide
from calque.nn.gradient import Saved, formula, not_of_integers, with_gradient
from calque.ops.opdef import get
from calque.record.numbers import ROOT_HALF, ROOT_HALF_TWIN
from calque.tensor import Tensor, unary

_relu = unary(get("relu"))
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _operand(x: Tensor, inplace: bool) -> Tensor:
    """What a function computes with: if its result replaces `x`, the gradient needs `x` as it was."""
    return old_value(x) if inplace else x


def _result(op: str, x: Tensor, y: Tensor, inplace: bool) -> Tensor:
    try:
        return write_back(op, x, y) if inplace else y
    except ValueError as error:  # of an array, which is neither true nor false
        if isinstance(error, CalqueError):
            raise
        raise DTypeError(f"[{op}] expected inplace as a bool, got {described(inplace)}; pass True or False") from None


def _lasting(function: Callable[[Tensor], Tensor], backward: Callable[..., Any]) -> tuple[Any, Any]:
    """(forward, rule of the gradient) of a function of one operand that is rounded once."""

    def forward(x: Tensor) -> tuple[Tensor]:
        return (_once(function, x),)

    return forward, formula(forward, backward)


def _of_floats(label: str, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`_once` for a function without a formula of its own, which refuses what it would have to cut down to whole numbers."""
    if x._layout.dtype.category < 2:
        raise not_of_integers(label, x)
    return _once(function, x)


def _once(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function(x)`, rounded once: the 16-bit floats are computed with in float32."""
    return cast(function(wide(x)), x._layout.dtype)


@public(of="nn.functional")
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0).

    >>> import calque
    >>> calque.nn.functional.relu(calque.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    y = _relu(input)
    return _result("relu", input, y, inplace)  # the gradient needs the result alone


def _where_above(x: Tensor, above: Any, below: Any) -> Tensor:
    """`above` where x > 0, else `below`; NaN goes to `below`, which only its gradient shows."""
    return choose(T.gt(x, 0.0), kinked(x) if above is x else above, below, x._layout.dtype)


def _where_below(x: Tensor, bound: float, below: Any, above: Any) -> Tensor:
    """`below` where x <= bound, else `above`; NaN goes to `above`."""
    above = kinked(x) if above is x else above
    return choose(T.le(x, bound), below, above, x._layout.dtype)


@public(of="nn.functional", steps=True)
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6)."""
    require_numbers("relu6", input)
    return hardtanh(input, 0.0, 6.0, inplace)


@public(of="nn.functional", steps=True)
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x limited to [min_val, max_val]; the gradient is zero at and outside the limits."""
    bounds: tuple[tuple[str, Any], ...] = (("min_val", min_val), ("max_val", max_val))
    for name, bound in bounds:
        if is_tensor(bound) and bound._layout.ndim:
            raise DTypeError(f"[hardtanh] expected {name} as a number, got a Tensor of shape {tuple(bound.shape)}; use clamp for such limits")
    if min_val > max_val:
        raise ArgumentError(f"[hardtanh] expected min_val <= max_val, got {min_val} > {max_val}")
    low, high = float(min_val), float(max_val)
    if not input._layout.dtype.is_floating_point:
        if not input._layout.dtype.is_signed and min(low, high) < 0:
            raise ArgumentError(f"[hardtanh] cannot do hardtanh on an unsigned type with negative limits: expected limits >= 0, got {low}, {high}")
        low, high = (fill_number(bound, input._layout.dtype, "hardtanh") for bound in (min_val, max_val))
    x = _operand(input, inplace)
    if low != low or high != high:
        return _result("hardtanh", input, x * math.nan, inplace)

    def inside(x: Tensor) -> Tensor:
        return T.logical_and(T.gt(x, low), T.lt(x, high))

    y = _passing("HardtanhBackward0", lambda x: choose(T.ge(x, high), high, _where_below(x, low, low, x), x._layout.dtype), inside, x)
    return _result("hardtanh", input, y, inplace)


def _passing(label: str, forward: Callable[[Tensor], Tensor], inside: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`forward(x)`, whose gradient passes where x is inside; not where it is NaN, which is nowhere."""

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        (x,) = saved.inputs
        return (linked(choose(inside(x), g, 0.0, g._layout.dtype), x),)

    return with_gradient(label, lambda x: (forward(x),), backward, (x,)) if x._layout.dtype.category == 2 else forward(x)


def _exponential(op: str, input: Tensor, factor: float, rate: float, slope: float, inplace: bool) -> Tensor:
    """factor (exp(rate x) - 1) for x <= 0, else slope x. The derivative at 0 is that of the exponential, and has derivative 0 there, as PyTorch's;
    at NaN it is NaN."""

    def limited(x: Tensor) -> Tensor:  # the exponential beside a branch that is chosen elsewhere must not overflow
        below = choose(T.ge(x, 0.0), 0.0, x, x._layout.dtype)
        return below if rate == 1.0 else below * rate

    def forward(x: Tensor) -> Tensor:
        below = choose(T.gt(x, 0.0), 0.0, x, x._layout.dtype)  # derived at 0 as well, by forward mode and exports
        below = below if rate == 1.0 else below * rate
        return choose(T.le(x, 0.0), T.expm1(below) * factor, x if slope == 1.0 else x * slope, x._layout.dtype)

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        x = wide(saved.inputs[0])
        return (cast(wide(g) * choose(T.gt(x, 0.0), slope, T.exp(limited(x)) * (factor * rate), x._layout.dtype), g._layout.dtype),)

    label = "CeluBackward0" if op == "celu" else "EluBackward0"  # PyTorch's SELU is an ELU
    y = with_gradient(label, lambda x: (_once(forward, x),), backward, (_operand(input, inplace),))
    return _result(op, input, y, inplace)


@public(of="nn.functional", steps=True)
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x for x > 0, else alpha (exp(x) - 1)."""
    return _exponential("elu", input, float(alpha), 1.0, 1.0, inplace)


@public(method=False, of="calque nn.functional", steps=True)
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """max(x, 0) + min(0, alpha (exp(x / alpha) - 1))."""
    a = float(alpha)
    if not a:
        raise ArgumentError("[celu] expected alpha other than 0, got 0.0: alpha cannot be 0 for CELU; use relu")
    return _exponential("celu", input, a, 1.0 / a, 1.0, inplace)


@public(method=False, of="calque nn.functional", steps=True)
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Scaled ELU. Source: Klambauer et al., "Self-Normalizing Neural Networks" (2017)."""
    return _exponential("selu", input, _SELU_ALPHA * _SELU_SCALE, 1.0, _SELU_SCALE, inplace)


@public(of="nn.functional", steps=True)
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x for x > 0, else negative_slope * x."""
    x = _operand(input, inplace)
    y = _where_above(x, x, x * float(negative_slope))
    return _result("leaky_relu", input, y, inplace)


@public(of="calque nn.functional", steps=True)
@lower_precision
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Leaky ReLU with a learned slope: one, or one per channel (dim 1)."""
    if weight._layout.ndim > 1:
        raise ShapeError(f"[prelu] expected a weight with one dimension or none, got shape {tuple(weight._layout.shape)}; flatten it")
    require_dtype("prelu", input, weight)
    channels = input._layout.shape[1] if input._layout.ndim > 1 else 1
    count = weight._layout.numel
    if count not in (1, channels):
        raise ShapeError(f"[prelu] Mismatch of parameter numbers and input channel size: expected 1 or {channels} slopes, got {count}")
    if count != 1:
        weight = weight.reshape([count] + [1] * (input._layout.ndim - 2))
    elif not input._layout.ndim:
        weight = weight.reshape(())
    slopes = T.expand(weight, tuple(input._layout.shape))
    return with_gradient(  # type: ignore[no-any-return]
        "PreluKernelBackward0", lambda x, w: (_where_above(x, x, x * w),), _prelu_backward, (input, slopes)
    )


def _prelu_gradients(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return _where_above(x, g, g * w), _where_above(x, 0.0, g * x)


def _prelu_backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
    return with_gradient("PreluKernelBackwardBackward0", _prelu_gradients, _prelu_twice, (*saved.inputs, g), 2)  # type: ignore[no-any-return]


def _prelu_twice(saved: Saved, of_x: Tensor | None, of_w: Tensor | None) -> tuple[Any, ...]:
    """The second pass, which counts 0 as above, as PyTorch's does: the first counts it as below."""
    x, w, g = saved.inputs
    of_x, of_w = (T.zeros_like(x) if t is None else t for t in (of_x, of_w))
    below, kind = T.lt(x, 0.0), x._layout.dtype
    to_x, to_w = choose(below, of_w * g, 0.0, kind), choose(below, of_x * g, 0.0, kind)
    return to_x, to_w, choose(below, of_x * w + of_w * x, of_x, kind)


@public(method=False, of="calque nn.functional")
def rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False) -> Tensor:
    """Leaky ReLU with a random slope in [lower, upper] per element while training, else their mean."""
    if lower > upper:
        raise ArgumentError(f"[rrelu] Lower bound should be less than or equal to the upper bound, got {lower} > {upper}")
    x = row_major(_operand(input, inplace))
    if not training:
        return _result("rrelu", input, _where_above(x, x, x * ((lower + upper) / 2)), inplace)
    slope = T.rand_like(input.detach()) * (upper - lower) + lower
    return _result("rrelu", input, _where_below(x, 0.0, x * slope, x), inplace)


@public(method=False, out=True, of="calque nn.functional", steps=True)
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x for x > threshold, else value."""
    require_numbers("threshold", input)
    x = _operand(input, inplace)
    fill_number(value, input._layout.dtype, "threshold")
    return _result("threshold", input, _where_below(x, float(threshold), float(value), x), inplace)


def _gelu_exact(saved: Saved, g: Tensor) -> tuple[Any, ...]:
    x, kind = wide(saved.inputs[0]), g._layout.dtype
    density = T.exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    # With the number of the forward pass erf would be one value, kept from there to here. With its twin it is computed again; a kernel that also
    # computes the result again (`graph/rematerialise.py`) then has one erf in float32, because both numbers are the same there.
    return (cast(wide(g) * ((T.erf(x * ROOT_HALF_TWIN) + 1.0) * 0.5 + x * density), kind),)


_TANH_SCALE, _TANH_CUBE = math.sqrt(2.0 / math.pi), 0.044715


def _gelu_inner(x: Tensor) -> Tensor:
    return T.tanh((x + x * x * x * _TANH_CUBE) * _TANH_SCALE)


def _gelu_tanh(saved: Saved, g: Tensor) -> tuple[Any, ...]:
    x, kind = wide(saved.inputs[0]), g._layout.dtype
    t = _gelu_inner(x)
    slope = (x * x * (3.0 * _TANH_CUBE) + 1.0) * _TANH_SCALE
    return (cast(wide(g) * ((t + 1.0) * 0.5 + x * 0.5 * (1.0 - t * t) * slope), kind),)


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (T.erf(x * ROOT_HALF) + 1.0)


def _gelu_like(x: Tensor) -> Tensor:
    return x * 0.5 * (_gelu_inner(x) + 1.0)


_GELU, _GELU_TANH = _lasting(_gelu, _gelu_exact), _lasting(_gelu_like, _gelu_tanh)


@public(of="nn.functional", steps=True)
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal cumulative distribution of x; `approximate="tanh"` uses Hendrycks and Gimpel's formula (2016)."""
    if approximate == "none":
        return with_gradient("GeluBackward0", *_GELU, (input,))  # type: ignore[no-any-return]
    if approximate == "tanh":
        return with_gradient("GeluBackward0", *_GELU_TANH, (input,))  # type: ignore[no-any-return]
    raise ArgumentError(f"[gelu] approximate argument must be either 'none' or 'tanh', got {shown(approximate)}")


def _silu_backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
    x = wide(saved.inputs[0])
    s = T.sigmoid(x)
    return (cast(wide(g) * s * (x * (1.0 - s) + 1.0), g._layout.dtype),)


def _silu(x: Tensor) -> Tensor:
    return x * T.sigmoid(x)


_SILU = _lasting(_silu, _silu_backward)


@public(of="nn.functional", steps=True)
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x sigmoid(x). Source: Elfwing, Uchibe, Doya (2017)."""
    y = with_gradient("SiluBackward0", *_SILU, (_operand(input, inplace),))
    return _result("silu", input, y, inplace)


@public(of="nn.functional", steps=True)
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x tanh(softplus(x))."""
    return _result("mish", input, _of_floats("mish", _operand(input, inplace), lambda x: x * T.tanh(softplus(x))), inplace)


@public(of="nn.functional", steps=True)
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""
    return with_gradient("SoftplusBackward0", *_softplus(float(beta), float(threshold)), (input,))  # type: ignore[no-any-return]


@memoised("formulas of softplus", 1500, 1 / 2048)
def _softplus(b: float, limit: float) -> tuple[Any, Any]:
    """(forward, rule of the gradient)."""
    inverse = 1.0 / b if b else math.copysign(math.inf, b)

    def function(x: Tensor) -> Tensor:
        scaled = x * b
        limited = choose(T.gt(scaled, limit), limit, scaled, scaled._layout.dtype)
        return choose(T.gt(scaled, limit), x, T.log1p(T.exp(limited)) * inverse, x._layout.dtype)

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        scaled = wide(saved.inputs[0]) * b
        kind = scaled._layout.dtype
        limited = choose(T.ge(scaled, limit), limit, scaled, kind)  # at the threshold the derivative has derivative 0, as PyTorch's
        return (cast(wide(g) * choose(T.gt(scaled, limit), 1.0, T.sigmoid(limited), kind), g._layout.dtype),)

    return _lasting(function, backward)


def _logsigmoid(x: Tensor) -> Tensor:
    below = T.lt(x, 0.0)  # one side for both parts, so that the derivative of these operations at 0 is 1/2: forward mode and exports take it
    low, far = choose(below, x, 0.0, x._layout.dtype), choose(below, x, -x, x._layout.dtype)
    return low - T.log1p(T.exp(far))


def _logsigmoid_backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
    return (cast(wide(g) * T.sigmoid(-wide(saved.inputs[0])), g._layout.dtype),)


_LOGSIGMOID = _lasting(_logsigmoid, _logsigmoid_backward)


@public(of="nn.functional", steps=True)
def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)), computed stably."""
    return with_gradient("LogSigmoidBackward0", *_LOGSIGMOID, (row_major(input),))  # type: ignore[no-any-return]


@public(of="nn.functional", steps=True)
def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return input / (T.abs(input) + 1.0)


@public(of="nn.functional")
def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return T.tanh(input)


@public(of="nn.functional")
def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return T.sigmoid(input)


@public(of="nn.functional", steps=True)
def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return input - T.tanh(input)


@public(out=True, of="calque nn.functional", steps=True)
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x where |x| > lambd, else 0."""
    require_fractions("hardshrink", input)
    return _shrunk("HardshrinkBackward0", input, float(lambd), lambda x: x)


@public(of="nn.functional", steps=True)
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x - lambd for x > lambd, x + lambd for x < -lambd, else 0."""
    if lambd < 0:
        raise ArgumentError(f"[softshrink] lambda must be greater or equal to 0, but found to be {lambd}")
    return _shrunk("SoftshrinkBackward0", input, float(lambd), lambda x: _of_floats("softshrink", x, lambda x: x - T.sign(x) * float(lambd)))


def _shrunk(label: str, x: Tensor, bound: float, outside: Callable[[Tensor], Tensor]) -> Tensor:
    """0 where |x| <= bound, else `outside(x)`, which has derivative 1."""
    require_real("shrink", x)
    return _passing(label, lambda x: choose(T.le(T.abs(x), bound), 0.0, outside(x), x._layout.dtype), lambda x: T.gt(T.abs(x), bound), x)


def _hardsigmoid(x: Tensor) -> Tensor:
    return relu6(unless_nan(x) + 3.0) * (1.0 / 6.0)


def _hardswish(x: Tensor) -> Tensor:
    return x * relu6(x + 3.0) * (1.0 / 6.0)


@public(of="nn.functional", steps=True)
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """relu6(x + 3) / 6."""
    return _result("hardsigmoid", input, _of_floats("hardsigmoid", _operand(input, inplace), _hardsigmoid), inplace)


@public(of="nn.functional", steps=True)
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x relu6(x + 3) / 6."""
    return _result("hardswish", input, _of_floats("hardswish", _operand(input, inplace), _hardswish), inplace)


@public(of="nn.functional", steps=True)
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """First half times sigmoid of the second half along `dim`: (*, 2 n, *) -> (*, n, *)."""
    require_real("glu", input)
    if input._layout.ndim == 0:
        raise ShapeError("[glu] expected at least one dimension, got a 0-d tensor: glu does not support 0-dimensional tensors")
    d = one_dim(input, dim, "glu")
    size = input._layout.shape[d]
    if size % 2:
        raise ShapeError(f"[glu] Halving dimension must be even, but dimension {d} is size {size}")
    return _of_floats("glu", input, lambda x: T.narrow(x, d, 0, size // 2) * T.sigmoid(T.narrow(x, d, size // 2, size // 2)))


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(input, *args, inplace=True, **kwargs)

    call.__name__ = call.__qualname__ = function.__name__ + "_"
    call.__doc__ = f"`{function.__name__}` written into the input."
    return signed(call, function, without=("inplace",))


_IN_PLACE: dict[str, tuple[Callable[..., Tensor], ...]] = {
    "nn.functional": (elu, hardtanh, leaky_relu, relu),
    "calque nn.functional": (celu, rrelu, selu, threshold),
}
for _of, _functions in _IN_PLACE.items():
    for _function in _functions:
        public(of=_of, method=False)(_in_place(_function))
