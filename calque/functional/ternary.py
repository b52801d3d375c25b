"""Arithmetic on three operands, which are promoted together: `addcmul`, `addcdiv`, `lerp`."""

from __future__ import annotations

from typing import Any

from calque.base import dtypes as dt
from calque.base.errors import DTypeError, UnsupportedTypeError
from calque.functional.arithmetic import _add as add
from calque.functional.arithmetic import _div as div
from calque.functional.arithmetic import _lt as lt
from calque.functional.arithmetic import _mul as mul
from calque.functional.arithmetic import _sub as sub
from calque.functional.common import Operand, cast, is_scalar, is_tensor, prim, require_tensors, result_dtype
from calque.functional.declared import public
from calque.functional.options import fill_number
from calque.tensor import Tensor


@public(in_place="method", out=True, steps=True)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """`input + value * tensor1 * tensor2`, broadcast."""
    require_tensors("addcmul", input, tensor1, tensor2)
    common = result_dtype(input, tensor1, tensor2)
    if common is dt.bool_:
        raise UnsupportedTypeError("[addcmul] expected numbers, got torch.bool; convert with .int() or .float()")
    if common.category == 1 or (common.category == 2 and isinstance(value, complex)):
        value = fill_number(value, common, "addcmul")
    a, b, c = (cast(x, common.compute) for x in (input, tensor1, tensor2))
    product = mul(b, c)
    return cast(add(a, product if value == 1 else mul(product, value)), common)


@public(in_place="method", out=True, steps=True)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """`input + value * tensor1 / tensor2`, broadcast; floating tensors only."""
    require_tensors("addcdiv", input, tensor1, tensor2)
    if result_dtype(tensor1, tensor2).category < 2:
        raise DTypeError(
            "[addcdiv] Integer division with addcdiv is no longer supported: expected floating tensors, got "
            f"{tensor1._layout.dtype!r} and "
            f"{tensor2._layout.dtype!r}; convert with .float()"
        )
    common = result_dtype(input, tensor1, tensor2)
    a, b, c = (cast(x, common.compute) for x in (input, tensor1, tensor2))
    if common.category == 2 and isinstance(value, complex):
        value = fill_number(value, common, "addcdiv")
    quotient = div(b, c)
    return cast(add(a, quotient if value == 1 else mul(quotient, value)), common)


@public(in_place="method", out=True, steps=True)
def lerp(input: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """Linear interpolation `input + weight * (end - input)`, broadcast. `weight`: number or Tensor.

    Written from the nearer end, so that weight 0 and 1 give the ends exactly.

    >>> import calque
    >>> calque.lerp(calque.tensor([0.0, 10.0]), calque.tensor([1.0, 20.0]), 0.5)
    tensor([ 0.5000, 15.0000])
    """
    if input._layout.dtype is not end._layout.dtype:
        raise DTypeError(
            f"[lerp] expected dtype {input._layout.dtype!r} for `end`, got {end._layout.dtype!r}; convert with .to(dtype)"
        )
    if is_tensor(weight) and not weight._layout.ndim:
        common = result_dtype(input, end, weight)
        input, end, weight = cast(input, common), cast(end, common), cast(weight, common)
    if is_tensor(weight) and weight._layout.dtype is not input._layout.dtype:
        raise DTypeError(
            f"[lerp] expected dtype {input._layout.dtype!r} for `weight`, got {weight._layout.dtype!r}; convert with .to(dtype)"
        )
    if input._layout.dtype.category < 2:
        raise UnsupportedTypeError(f"[lerp] expected a floating dtype, got {input._layout.dtype!r}; convert with .float()")
    kind = input._layout.dtype
    if kind.compute is not kind:  # rounded once
        wide = [cast(x, kind.compute) if is_tensor(x) else x for x in (input, end, weight)]
        return cast(lerp(*wide), kind)
    difference = sub(end, input)
    if is_scalar(weight):
        weight = weight if not isinstance(weight, complex) else fill_number(weight, input._layout.dtype, "lerp")
        if abs(weight) < 0.5:
            return add(input, mul(difference, weight))
        return sub(end, mul(difference, 1 - weight))
    near = add(input, mul(weight, difference))
    far = sub(end, mul(difference, sub(1, weight)))
    return prim("where", lt(prim("abs", weight), 0.5), near, far)
