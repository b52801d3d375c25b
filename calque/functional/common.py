"""What the functional modules share: attaching methods, promoting operands, recording with casts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from calque.autograd.engine import link
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, IndexTypeError, RankError, UnsupportedTypeError, how_to_pass
from calque.base.native import hot
from calque.base.text import shown, type_name
from calque.ops.opdef import get, no_complex
from calque.record.at_once import possible
from calque.record.live import LIVE
from calque.record.recorder import local
from calque.run.interrupt import of_handler
from calque.tensor import TENSOR_TYPES, Tensor, record, unary, wrap

Number = bool | int | float
Operand = Any  # a Tensor or a number
Tensors = Any  # a Tensor, or a tuple or list of Tensors
Function = TypeVar("Function", bound=Callable[..., Any])

CAST = get("cast")
_LARGEST = 1 << 1023


def method(*names: str) -> Callable[[Function], Function]:
    """Attach a function to `Tensor` as methods of these names (its own name if none is given). A private one that is an operator is called as that:
    classes with a `__torch_function__` tell by the name what they are asked about."""

    def attach(function: Function) -> Function:
        if names and names[0].startswith("__") and function.__name__[0] in "_<" and not function.__name__.startswith("__"):
            called(function, names[0])
        for name in names or (function.__name__,):
            setattr(Tensor, name, function)
        return function

    return attach


def called(function: Function, name: str) -> Function:
    """The function, with the name that it has as a method in PyTorch."""
    function.__name__ = function.__qualname__ = name
    return function


def attribute(name: str, get: Callable[[Any], Any], doc: str, put: Callable[[Any, Any], None] | None = None) -> None:
    """Give `Tensor` a property."""
    setattr(Tensor, name, property(get, put, doc=doc))


def _prim(name: str, *arguments: Any) -> Tensor:
    """Record a primitive by name: tensor operands (or `(number, dtype)` pairs) first, then its attributes in order."""
    op = get(name)
    split = len(arguments) - len(op.attrs)
    return record(op, tuple(arguments[:split]), tuple(arguments[split:]))


prim: Callable[..., Tensor] = _prim if hot is None else hot.prim


def is_tensor(x: Any) -> bool:
    """Whether x is a Calque tensor."""
    return x.__class__ in TENSOR_TYPES or isinstance(x, Tensor)


def is_number(x: Any) -> bool:
    """Whether x is a Python or NumPy real number."""
    return isinstance(x, (bool, int, float, np.bool_, np.integer, np.floating))


def is_scalar(x: Any) -> bool:
    """Whether x is a Python or NumPy number, real or complex."""
    return isinstance(x, (bool, int, float, complex, np.bool_, np.integer, np.floating, np.complexfloating))


def number(x: Any) -> Number:
    """A plain Python number."""
    return x.item() if isinstance(x, np.generic) else x  # type: ignore[no-any-return]


def require_tensors(op: str, *values: Any) -> None:
    """Raise unless all are Tensors: for functions made of operators, which take numbers and arrays as well."""
    for x in values:
        if not is_tensor(x):
            raise DTypeError(f"[{op}] expected a Tensor, got {type_name(x)}; {how_to_pass(x)}")


def require_some_tensor(op: str, *values: Any) -> None:
    """Raise if all are numbers, of which PyTorch makes no tensor unless the function is arithmetic."""
    if not any(is_tensor(x) for x in values) and all(is_scalar(x) for x in values):
        raise DTypeError(f"[{op}] expected a Tensor among the operands, got {' and '.join(type_name(x) for x in values)}; use calque.tensor(...)")


def require_real(op: str, *values: Any) -> None:
    """Raise if any operand is complex: for functions made of others that are defined for complex numbers, where these are not."""
    found = [x._layout.dtype if is_tensor(x) else dt.of_scalar(x) for x in values if is_tensor(x) or isinstance(x, complex)]
    if any(d.is_complex for d in found):
        raise no_complex(op, found)


def require_numbers(op: str, *values: Any) -> None:
    """Raise if a Tensor of bools is among them: for functions that are not defined for those."""
    for x in values:
        if is_tensor(x) and x._layout.dtype is dt.bool_:
            raise UnsupportedTypeError(f"[{op}] expected a number dtype, got torch.bool: not implemented for it; convert with .int() or .float()")


def require_fractions(op: str, *values: Any, bits: int = 0) -> None:
    """Raise if a Tensor of integers, of bools, or of numbers of fewer bits is among them: for functions that are not defined for those."""
    for x in values:
        kind = x._layout.dtype if is_tensor(x) else None
        if kind is not None and (kind.category < 2 or kind.bits < bits):
            wanted = "a float32 or float64 dtype" if bits else "a floating dtype"
            raise UnsupportedTypeError(f"[{op}] expected {wanted}, got {kind!r}: not implemented for it; convert with .float()")


def require_one_dtype(op: str, first: Tensor, *others: Any) -> None:
    """Raise if a Tensor has another element type than the first: for functions that do not convert their operands."""
    for x in others:
        if is_tensor(x) and x._layout.dtype is not first._layout.dtype:
            raise DTypeError(
                f"[{op}] expected operands of one dtype, got {first._layout.dtype!r} and {x._layout.dtype!r}; convert one with .to(dtype)"
            )


def require_positions(op: str, index: Tensor) -> None:
    """Raise unless positions or labels are int64 or int32."""
    if index._layout.dtype not in (dt.int64, dt.int32):
        raise IndexTypeError(f"[{op}] Expected dtype int32/int64 for index, got {index._layout.dtype!r}; convert with .long()")


def require_dims(op: str, x: Tensor, least: int, most: int | None = None, name: str = "input") -> None:
    """Raise unless the tensor has at least so many dims, and at most."""
    ndim = x._layout.ndim
    if ndim < least or most is not None and ndim > most:
        count = f"{least}" if most == least else f"at least {least}" if most is None else f"{least} to {most}"
        hint = "add some with unsqueeze(...)" if ndim < least else "reshape it"
        raise RankError(f"[{op}] expected {name} with {count} dims, got shape {tuple(x._layout.shape)}; {hint}")


def require_operands(op: str, *values: Any) -> None:
    """Raise unless all are Tensors or numbers."""
    for x in values:
        if not is_tensor(x) and not is_scalar(x):
            raise DTypeError(f"[{op}] expected a Tensor or a number, got {type_name(x)}; {how_to_pass(x)}")


def dtype_of(dtype: Any, op: str) -> dt.DType:
    """The element type that a dtype, a NumPy dtype or a Python type names."""
    if isinstance(dtype, dt.DType):
        return dtype
    if isinstance(dtype, type):
        simple = dt.OF_PYTHON.get(dtype)
        if simple is not None:
            return simple
    try:
        found = dt.from_numpy_dtype(dtype)
    except Exception as error:  # NumPy asks objects for a dtype of theirs, which may raise anything
        if of_handler(error):
            raise
        found = None
    if found is None:
        names = ", ".join(d.name for d in dt.EVERY)
        raise DTypeError(f"[{op}] expected a dtype, got {shown(dtype)}; use one of calque.{names}")
    return found


def cast(x: Tensor, dtype: dt.DType) -> Tensor:
    """`x` converted to `dtype`; itself if it has that type already. Differentiable between floating types."""
    if x._layout.dtype is dtype:
        return x
    if dtype.__class__ is not dt.DType:
        return cast(x, dtype_of(dtype, "to"))
    return record(CAST, (x,), (dtype,))


def row_major(x: Tensor) -> Tensor:
    """`x`, copied if what is computed elementwise from it would lie in memory in another order."""
    return x if x._layout.upright else prim("copy", x)


def linked(value: Tensor, *sources: Any) -> Tensor:
    """`value` as a function of `sources` with derivative zero (see `autograd.engine.link`); what is no Tensor among them is left out."""
    if not local.state.grad:
        return value
    needed = [x for x in sources if is_tensor(x) and x._requires_grad]
    return link(value, tuple([x._grad_fn or x for x in needed]), tuple([x._layout for x in needed])) if needed else value


def unless_nan(x: Tensor) -> Tensor:
    """x itself, whose NaNs no gradient reaches."""
    if not (local.state.grad and x._requires_grad):
        return x
    return record(get("where"), (record(get("eq"), (x, x)), x, wrap(x._storage, x._layout)))


def result_dtype(a: Any, b: Any, *more: Any) -> dt.DType:
    """PyTorch's promotion for two operands or more, each a Tensor or a Python number."""
    if more:
        return _common_dtype(a, b, *more)
    if is_tensor(a) and is_tensor(b):
        la, lb = a._layout, b._layout
        return dt.promote_operands(la.dtype, la.ndim, lb.dtype, lb.ndim)
    if is_tensor(a):
        return dt.promote_scalar(a._layout.dtype, number(b))
    if is_tensor(b):
        return dt.promote_scalar(b._layout.dtype, number(a))
    return dt.promote(dt.of_scalar(number(a)), dt.of_scalar(number(b)))


def _common_dtype(*operands: Any) -> dt.DType:
    """Tensors with dimensions come first; then 0-d tensors and then numbers, which count if their category is higher."""
    groups: tuple[list[dt.DType], ...] = ([], [], [])
    for x in operands:
        if is_tensor(x):
            groups[0 if x._layout.ndim else 1].append(x._layout.dtype)
        else:
            groups[2].append(dt.of_scalar(number(x)))
    found: dt.DType | None = None
    for group in groups:
        if group:
            common = functools.reduce(dt.promote, group)
            found = common if found is None else dt.promote(found, common) if common.category > found.category else found
    assert found is not None
    return found


def complex_number(value: Any, dtype: dt.DType) -> Tensor:
    """A number as a 0-d tensor of a complex type; its parts are run-time arguments of a program as other numbers are."""
    if (trace := local.state.trace).eager and possible(local.state):
        full = get("full"), ((value, dtype),), ((),)
        found = None if hot is None else hot.record(*full, False)
        return trace.record(*full) if found is None else found
    if isinstance(value, complex):
        parts = value.real, value.imag
    else:
        parts = value, 0.0
    real = dtype.to_real()
    return prim("complex", *[prim("full", (part if part.__class__ in LIVE else float(part), real), ()) for part in parts])


def operand(op: str, x: Any, dtype: dt.DType) -> Any:
    """x as a recording operand of the given type: a cast tensor, or a (number, dtype) pair."""
    if is_tensor(x):
        return cast(x, dtype)
    if is_scalar(x):
        value = number(x)
        if dtype.category == 3:
            return complex_number(value, dtype)
        if isinstance(value, complex):
            if value.imag:
                raise ArgumentError(f"[{op}] value cannot be converted to type {dtype} without overflow: {value} has an imaginary part")
            value = value.real
        if dtype.category == 1 and isinstance(value, float):
            value = int(value)
        elif isinstance(value, int) and not -_LARGEST < value < _LARGEST:
            raise ArgumentError(f"[{op}] expected a number that a float can hold, got {shown(value)}; int too large to convert")
        return (value, dtype)
    raise DTypeError(f"[{op}] expected a Tensor or a number, got {type_name(x)}; {how_to_pass(x)}")


def unary_function(name: str, to_float: bool = False) -> Callable[[Tensor], Tensor]:
    """A unary elementwise function; with `to_float` integer inputs are converted to the default floating type first."""
    return unary(get(name), to_float)
