"""ONNX's operators on elements, reductions and products, as functions of ours; what is one primitive comes from the exporter's table."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.dtypes import bool_, float32, float64, int8, int32, int64, uint8
from calque.base.shapes import contiguous_strides
from calque.exported.onnx.reading import Broken
from calque.exported.onnx.table import BY_TYPE, COMPARED, REDUCED, ROUNDED, SAME
from calque.exported.onnx.values import OPERATORS, Call, Operator, Refused, calque_dtype, dtype_of_kind, folded, operator, small, whole
from calque.functional.common import cast, prim
from calque.functional.einsum import einsum
from calque.nn import functional as F


def _primitive(name: str) -> Operator:
    """An operator that is a primitive."""
    function = getattr(T, name) if hasattr(T, name) else getattr(F, name)
    return lambda c: function(*c.all())


def _folding(name: str) -> Operator:
    """One that is n-ary in ONNX and has two operands here; of bools it is another one."""
    function = getattr(T, name)

    def apply(c: Call) -> Any:
        found, *rest = c.all()
        for x in rest:
            found = function(found, x)
        return found if rest or name == "bitwise_not" else T.clone(found)

    return apply


def _rounded(name: str) -> Operator:
    function = getattr(T, name)
    return lambda c: function(c.t(0)) if c.value(0).dtype.is_floating_point else T.clone(c.t(0))


OPERATORS.update({op: _primitive(name) for name, op in (SAME | COMPARED).items()})
OPERATORS.update({op: _rounded(name) for name, op in ROUNDED.items()})
OPERATORS.update({op: _folding(name) for name, (_, op) in BY_TYPE.items() if name != "bitwise_not"})
OPERATORS.update({"Sum": OPERATORS["Add"], "BitwiseNot": _primitive("bitwise_not"), "And": _primitive("logical_and")})
OPERATORS.update({"Or": _primitive("logical_or"), "Xor": _primitive("logical_xor"), "Not": _primitive("logical_not")})


def axes_of(c: Call, rank: int, default: str = "all") -> list[int] | None:
    """The dims that a reduction goes over; None: it does nothing."""
    axes = c.either("axes", 1)
    if axes:
        return c.axes(axes, rank)
    return None if c.attrs.get("noop_with_empty_axes", 0) and default == "all" else list(range(rank))


def _reduction(name: str) -> Operator:
    function = getattr(T, name)

    def apply(c: Call) -> Any:
        x = c.t(0)
        dims, keepdim, dtype = axes_of(c, x._layout.ndim), bool(c.attr("keepdims", 1)), x._layout.dtype
        if dims is None or not dims:
            return T.clone(x)
        if name in ("amax", "amin") and any(isinstance(x.shape[d], int) and x.shape[d] == 0 for d in dims):
            shape = [1 if d in dims else s for d, s in enumerate(x.shape) if keepdim or d not in dims]
            return T.expand(T.full((), _end(dtype, -1 if name == "amax" else 1), dtype=dtype), tuple(shape))
        if name in ("amax", "amin") and dtype is bool_:
            return getattr(T, "any" if name == "amax" else "all")(x, dims, keepdim)
        if name == "prod":
            for d in sorted(dims, reverse=True):
                x = T.prod(x, d, keepdim, dtype=dtype)
            return x
        return function(x, dims, keepdim, dtype=dtype) if name == "sum" else function(x, dims, keepdim)

    return apply


def _end(dtype: Any, sign: int) -> Any:
    """The largest number of a type, or the least."""
    if dtype.is_floating_point:
        return sign * float("inf")
    return sign > 0 if dtype is bool_ else int(np.iinfo(dtype.np).max if sign > 0 else np.iinfo(dtype.np).min)


OPERATORS.update({op: _reduction(name) for name, op in REDUCED.items()})


def _over(c: Call, first: Any, last: Any) -> Any:
    """last(sum(first(x)))."""
    x = c.t(0)
    dims, keepdim = axes_of(c, x._layout.ndim), bool(c.attr("keepdims", 1))
    if dims is None or not dims:  # an operator over nothing still is one
        return last(first(x)) if first is not _same or last is not _same else T.clone(x)
    return last(T.sum(first(x), dims, keepdim, dtype=x._layout.dtype))


def _same(x: Any) -> Any:
    return x


@operator("ReduceMean")
def _mean(c: Call) -> Any:
    x = c.t(0)
    dims, keepdim = axes_of(c, x._layout.ndim), bool(c.attr("keepdims", 1))
    if not dims:
        return T.clone(x)
    if x._layout.dtype.is_floating_point:
        return T.mean(x, dims, keepdim)
    return cast(T.div(T.sum(x, dims, keepdim), prod(x.shape[d] for d in dims), rounding_mode="trunc"), x._layout.dtype)


OPERATORS["ReduceL1"] = lambda c: _over(c, T.abs, _same)
OPERATORS["ReduceL2"] = lambda c: cast(_over(c, lambda x: x * x, lambda x: T.sqrt(_floating(x))), c.value(0).dtype)
OPERATORS["ReduceSumSquare"] = lambda c: _over(c, lambda x: x * x, _same)
OPERATORS["ReduceLogSum"] = lambda c: cast(_over(c, _same, lambda x: T.log(_floating(x))), c.value(0).dtype)


def _floating(x: Any) -> Any:
    return x if x._layout.dtype.is_floating_point else cast(x, float64)


@operator("ReduceLogSumExp")
def _log_sum_exp(c: Call) -> Any:
    x = _floating(c.t(0))
    dims = axes_of(c, x._layout.ndim)
    return T.clone(c.t(0)) if not dims else cast(T.logsumexp(x, dims, bool(c.attr("keepdims", 1))), c.value(0).dtype)


@operator("ArgMax", "ArgMin")
def _position(c: Call) -> Any:
    x, keepdim = c.t(0), bool(c.attr("keepdims", 1))
    axis, function = c.axis(c.attr("axis", 0), x._layout.ndim), T.argmax if c.node.op == "ArgMax" else T.argmin
    if x._layout.dtype is bool_:
        x = cast(x, uint8)
    if not c.attr("select_last_index", 0):
        return function(x, axis, keepdim)
    return x.shape[axis] - 1 - function(T.flip(x, [axis]), axis, keepdim)


@operator("Mean")
def _mean_of(c: Call) -> Any:
    return OPERATORS["Add"](c) / len(c.inputs)


@operator("Pow")
def _power(c: Call) -> Any:
    x, y = c.all()
    dtype = x._layout.dtype
    if dtype.is_floating_point or not y._layout.dtype.is_floating_point:
        return cast(T.pow(x, cast(y, dtype)), dtype)
    return cast(T.pow(cast(x, float64), cast(y, float64)), dtype)


@operator("Div")
def _divided(c: Call) -> Any:
    x, y = c.all()
    return T.div(x, y) if x._layout.dtype.is_floating_point else T.div(x, y, rounding_mode="trunc")


@operator("Mod")
def _mod(c: Call) -> Any:
    return (T.fmod if c.attr("fmod", 0) else T.remainder)(*c.all())


@operator("BitShift")
def _shifted(c: Call) -> Any:
    left = c.text("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    return (T.bitwise_left_shift if left else T.bitwise_right_shift)(*c.all())


@operator("Where")
def _where(c: Call) -> Any:
    return T.where(*c.all())


@operator("IsNaN")
def _is_nan(c: Call) -> Any:
    return T.isnan(c.t(0))


@operator("IsInf")
def _is_infinite(c: Call) -> Any:
    x = c.t(0)
    up, down = bool(c.attr("detect_positive", 1)), bool(c.attr("detect_negative", 1))
    if up and down:
        return T.isinf(x)
    return T.isinf(x) & (x > 0 if up else x < 0) if up or down else T.isnan(x) & T.isinf(x)


@operator("Cast", "CastLike")
def _cast(c: Call) -> Any:
    dtype = dtype_of_kind(c.attrs.get("to")) if c.node.op == "Cast" else c.value(1).dtype
    return cast(c.t(0), dtype) if c.value(0).dtype is not dtype else c.value(0)


@operator("BitCast")
def _bit_cast(c: Call) -> Any:
    x, dtype = c.t(0), dtype_of_kind(c.attrs.get("to"))
    if x._layout.dtype.itemsize != dtype.itemsize:
        raise Broken(f"bits of {x._layout.dtype.name} that are to be those of {dtype.name}, which has others in number")
    shape = tuple(x._layout.shape)
    return prim("view_as", x, shape, contiguous_strides(shape), 0, dtype)


@operator("Identity")
def _identity(c: Call) -> Any:
    return c.value(0)


@operator("Clip")
def _clip(c: Call) -> Any:
    x = c.t(0)
    low, high = (T.full((), c.attrs[name], dtype=x._layout.dtype) if name in c.attrs else c.maybe(k) for k, name in ((1, "min"), (2, "max")))
    x = x if low is None else T.maximum(x, low)
    return T.clone(x) if low is None and high is None else x if high is None else T.minimum(x, high)


@operator("LeakyRelu")
def _leaky(c: Call) -> Any:
    return F.leaky_relu(c.t(0), c.attr("alpha", 0.01))


@operator("PRelu")
def _prelu(c: Call) -> Any:
    x, slope = c.all()
    return T.where(x < 0, x * slope, x)


@operator("Elu")
def _elu(c: Call) -> Any:
    return F.elu(c.t(0), c.attr("alpha", 1.0))


@operator("Celu")
def _celu(c: Call) -> Any:
    return F.celu(c.t(0), c.attr("alpha", 1.0))


@operator("Selu")
def _selu(c: Call) -> Any:
    x, alpha, gamma = c.t(0), c.attr("alpha", 1.67326319217681884765625), c.attr("gamma", 1.05070102214813232421875)
    return T.where(x > 0, gamma * x, gamma * alpha * T.expm1(T.minimum(x, T.zeros_like(x))))


@operator("HardSigmoid")
def _hard_sigmoid(c: Call) -> Any:
    return T.clamp(c.t(0) * c.attr("alpha", 0.2) + c.attr("beta", 0.5), 0.0, 1.0)


@operator("Softplus")
def _softplus(c: Call) -> Any:
    return F.softplus(c.t(0))


@operator("Gelu")
def _gelu(c: Call) -> Any:
    return F.gelu(c.t(0), approximate=c.text("approximate", "none", ("none", "tanh")))


@operator("Softmax", "LogSoftmax", "Hardmax")
def _softmax(c: Call) -> Any:
    x = c.t(0)
    rank, shape = x._layout.ndim, x.shape
    axis = c.axis(c.attr("axis", -1 if c.opset >= 13 else 1), rank)
    if c.opset < 13:
        x, axis, rank = T.reshape(x, (*shape[:axis], -1)), axis, axis + 1
    if c.node.op == "Hardmax":
        found = cast(T.unsqueeze(T.argmax(x, axis), axis) == along(x.shape[axis], axis, rank), x._layout.dtype)
    else:
        found = (F.softmax if c.node.op == "Softmax" else F.log_softmax)(x, axis)
    return T.reshape(found, shape) if c.opset < 13 else found


def along(count: Any, axis: int, rank: int) -> Any:
    """0, 1, ... as a tensor with one dim that is not one."""
    return T.reshape(T.arange(count), tuple([-1 if d == axis else 1 for d in range(rank)]))


@operator("Gemm")
def _gemm(c: Call) -> Any:
    a = T.t(c.t(0)) if c.attr("transA", 0) else c.t(0)
    b = T.t(c.t(1)) if c.attr("transB", 0) else c.t(1)
    alpha, beta = c.attr("alpha", 1.0), c.attr("beta", 1.0)
    if c.has(2) and alpha == beta == 1.0 and c.attr("transB", 0) and not c.attr("transA", 0) and len(c.value(2).shape) == 1:
        return F.linear(a, c.t(1), c.t(2))
    found = T.matmul(a, b)
    found = found if alpha == 1.0 else found * _factor(alpha, found)
    return found if not c.has(2) else found + (c.t(2) if beta == 1.0 else c.t(2) * _factor(beta, found))


def _factor(x: float, like: Any) -> Any:
    return x if like._layout.dtype.is_floating_point else int(x)


@operator("Einsum")
def _einsum(c: Call) -> Any:
    return einsum(c.attr("equation", kind=str), *c.all())


@operator("MatMulInteger")
def _product_of_integers(c: Call) -> Any:
    if not (c.has(2) or c.has(3)) and all(c.value(k).dtype is int8 and len(c.value(k).shape) > 1 for k in (0, 1)):
        return prim("int8_matmul", c.t(0), c.t(1))
    a, b = (shifted(c, k, k + 2, -2 if k == 0 else -1) for k in (0, 1))
    return cast(T.matmul(a, b), int32)


def shifted(c: Call, k: int, zero: int, axis: int) -> Any:
    """A quantised input less its zero point (one, or one for each row), in double precision, in which sums of such products are exact."""
    x = cast(c.t(k), float64)
    if not c.has(zero):
        return x
    z = cast(c.t(zero), float64)
    return x - (T.unsqueeze(z, -1) if axis == -2 and z._layout.ndim == 1 and z._layout.numel != 1 else z)


@operator("CumSum", "CumProd")
def _cumulative(c: Call) -> Any:
    x = c.t(0)
    axis = c.axis(c.ints(1, "the axis")[0], x._layout.ndim)
    back = bool(c.attr("reverse", 0))
    given = T.flip(x, [axis]) if back else x
    if c.attr("exclusive", 0):
        first = T.full((), 0 if c.node.op == "CumSum" else 1, dtype=x._layout.dtype)
        first = T.expand(first, tuple(1 if d == axis else s for d, s in enumerate(x.shape)))
        given = T.narrow(T.cat([first, given], axis), axis, 0, x.shape[axis])
    found = (T.cumsum if c.node.op == "CumSum" else T.cumprod)(given, axis, dtype=x._layout.dtype)
    return T.flip(found, [axis]) if back else found


@operator("TopK")
def _top(c: Call) -> Any:
    x = c.t(0)
    count = c.ints(1, "how many there are")[0] if c.has(1) else c.attr("k", kind=int)
    axis = c.axis(c.attr("axis", -1), x._layout.ndim)
    return tuple(T.topk(x, count, axis, bool(c.attr("largest", 1)), bool(c.attr("sorted", 1))))


@operator("QuantizeLinear")
def _quantised(c: Call) -> Any:
    x, kind = c.t(0), c.attrs.get("output_dtype", 0)
    dtype = c.value(2).dtype if c.has(2) else dtype_of_kind(kind) if kind else uint8
    if dtype.is_floating_point:
        raise Refused(f"quantising to {dtype.name}")
    scale = _for_axis(c, 1, x)
    zero = cast(_for_axis(c, 2, x), int32) if c.has(2) else 0
    info = np.iinfo(dtype.np)
    found = T.round(cast(x, float32) / cast(scale, float32))
    return cast(T.clamp(cast(T.clamp(found, -(2.0**24), 2.0**24), int32) + zero, int(info.min), int(info.max)), dtype)


@operator("DequantizeLinear")
def _dequantised(c: Call) -> Any:
    x, scale = c.t(0), _for_axis(c, 1, c.t(0))
    found = cast(x, int32)
    if c.has(2):
        found = found - cast(_for_axis(c, 2, x), int32)
    kind = c.attrs.get("output_dtype", 0)
    return cast(cast(found, float32) * cast(scale, float32), dtype_of_kind(kind) if kind else c.value(1).dtype)


def _for_axis(c: Call, k: int, x: Any) -> Any:
    """A scale or zero point in the shape in which it meets x: one for all, for each position along an axis, or for each block along it."""
    given = c.t(k)
    if given._layout.numel == 1 and given._layout.ndim <= 1 and not c.attr("block_size", 0):
        return T.reshape(given, ())
    axis = c.axis(c.attr("axis", 1), x._layout.ndim)
    block = c.attr("block_size", 0)
    if block:
        return T.narrow(T.repeat_interleave(given, block, axis), axis, 0, x.shape[axis])
    return T.reshape(given, tuple([-1 if d == axis else 1 for d in range(x._layout.ndim)]))


# --------------------------------------------------------------------------------------------------------- known numbers

_NUMPY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum, "Neg": np.negative, "Abs": np.abs,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not, "Sqrt": np.sqrt, "Floor": np.floor, "Ceil": np.ceil,
}  # fmt: skip
_OF_BOOLS = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not"}


@folded(*_NUMPY)
def _numbers(c: Call) -> Any:
    given = [v.known for v in c.inputs if v is not None]
    if not small(np.broadcast_shapes(*[x.shape for x in given])):
        return None
    found = _NUMPY[c.node.op](*given[:2])
    for x in given[2:]:
        found = _NUMPY[c.node.op](whole(found), x)
    return np.asarray(whole(found), bool) if c.node.op in _OF_BOOLS else found


@folded("Div", "Mod")
def _quotients(c: Call) -> Any:
    a, b = c.value(0).known, c.value(1).known
    if not small(np.broadcast_shapes(a.shape, b.shape)):
        return None
    if calque_dtype(a.dtype).is_floating_point:
        return a / b if c.node.op == "Div" else None
    if any(isinstance(x, int) and x == 0 for x in b.reshape(-1).tolist()):
        raise Refused("a division by zero")
    if a.dtype == object or b.dtype == object:
        return a // b if c.node.op == "Div" else a % b
    if c.node.op == "Mod":
        return np.fmod(a, b) if c.attr("fmod", 0) else np.mod(a, b)
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


@folded("Cast")
def _cast_of_known(c: Call) -> Any:
    array, dtype = c.value(0).known, dtype_of_kind(c.attrs.get("to"))
    if array.dtype == object:
        return array if dtype is int64 or dtype is int32 else None
    if calque_dtype(array.dtype).is_floating_point and not dtype.is_floating_point and not np.isfinite(array).all():
        return None
    return array.astype(dtype.np)


@folded("Where")
def _where_of_known(c: Call) -> Any:
    given = [c.value(k).known for k in range(3)]
    return np.where(*given) if small(np.broadcast_shapes(*[x.shape for x in given])) else None


@folded("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduced(c: Call) -> Any:
    array = c.value(0).known
    if not array.size and c.node.op in ("ReduceMax", "ReduceMin"):
        return None  # the standard has an answer, NumPy has none
    dims, dtype = axes_of(c, array.ndim), calque_dtype(array.dtype)
    function: Any = {"ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}[c.node.op]
    given = array.astype(dtype.compute.np) if dtype.is_floating_point else array  # sums of 16 bits are rounded once
    found = function(given, axis=tuple(dims or ()), keepdims=bool(c.attr("keepdims", 1)))
    return whole(found) if array.dtype == object else np.asarray(found, array.dtype)


