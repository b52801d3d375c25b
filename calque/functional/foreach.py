"""`_foreach_add`, `_foreach_sqrt_`, ...: one function over lists of tensors, as optimizers written for PyTorch call them.

Every name of PyTorch's is here, made from the function of the same name. Operations are recorded and fused in any case, so a call over a list is
worth as much as a loop; these exist so that such programs run as they are.

>>> import calque
>>> a = [calque.ones(2), calque.zeros(3)]
>>> calque._foreach_add(a, 1)
(tensor([2., 2.]), tensor([1., 1., 1.]))
>>> calque._foreach_mul_(a, [2.0, 3.0])
[tensor([2., 2.]), tensor([0., 0., 0.])]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import shown, type_name
from calque.functional.common import is_scalar, is_tensor
from calque.tensor import Tensor

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p",
    "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_max", "clamp_min")
_MEANING = {"maximum": "clamp_min", "minimum": "clamp_max"}  # as PyTorch's lists, which take numbers where its functions take none
_TERNARY = ("addcdiv", "addcmul")
_WITH_TENSOR = ("add", "sub", "mul", "div")  # a 0-d tensor counts as a number
_SECOND = ("other", "scalar", "scalars", "exponent")  # the names that PyTorch gives the second operand of different overloads
_THIRD = ("value", "scalars")


def _listed(op: str, given: Any, like: Any = None) -> Any:
    """A list of tensors, as long as `like`."""
    if not isinstance(given, (list, tuple)) or not all(is_tensor(x) for x in given):
        raise DTypeError(f"[{op}] expected a list or tuple of Tensors, got {type_name(given)}; put the Tensors into a list")
    if not given:
        raise ArgumentError(f"[{op}] Tensor list must have at least one tensor, got {shown(given)}; call it only where there is something to do")
    if like is not None and len(given) != len(like):
        raise ShapeError(f"[{op}] Tensor lists must have the same number of tensors, got {len(like)} and {len(given)}")
    return given


def _spread(op: str, given: Any, tensors: Any, zero_dim: bool) -> list[Any]:
    """What stands beside every tensor: itself for a number (or a 0-d tensor), the items of a list or of a tensor of numbers."""
    if is_scalar(given):
        return [given] * len(tensors)
    if is_tensor(given) and zero_dim:
        if given._layout.ndim:
            raise ShapeError(f"[{op}] scalar tensor expected to be 0 dim, got shape {list(given.shape)}; pass a list of Tensors, or numbers")
        return [given] * len(tensors)
    values = given.tolist() if is_tensor(given) and given._layout.ndim == 1 else given
    if not isinstance(values, (list, tuple)):
        raise DTypeError(f"[{op}] expected a number, a list of numbers or a list of Tensors, got {type_name(given)}")
    if len(values) != len(tensors):
        kind = "Tensor lists must have the same number of tensors" if any(map(is_tensor, values)) else "Tensor list must have same number of elements"
        raise ShapeError(f"[{op}] {kind} as the other list, got {len(tensors)} and {len(values)}")
    return list(values)


def _named(op: str, keywords: dict[str, Any], given: Any, names: tuple[str, ...], default: Any = None) -> Any:
    """An operand that PyTorch's overloads call by different names."""
    found = [keywords.pop(name) for name in names if name in keywords]
    if given is None:
        given = found.pop() if found else default
    if found or keywords or given is None:
        what = f"got the keywords {sorted(keywords)}" if keywords else "got none" if given is None else "got two"
        raise TypeError(f"[{op}] expected one operand as {' or '.join(names)}, {what}")
    return given


def _unary(op: str, each: Callable[..., Any], inside: bool) -> Callable[..., Any]:
    def function(self: Any) -> Any:
        results = [each(x) for x in _listed(op, self)]
        return self if inside else tuple(results)

    return function


def _binary(op: str, name: str, each: Callable[..., Any], inside: bool) -> Callable[..., Any]:
    def function(self: Any, other: Any = None, *, alpha: Any = None, **keywords: Any) -> Any:
        other = _named(op, keywords, other, _SECOND)
        if name == "pow" and is_scalar(self) and not inside:
            return tuple(each(self, x) for x in _listed(op, other))
        seconds = _spread(op, other, _listed(op, self), name in _WITH_TENSOR)
        if alpha is not None and (name not in ("add", "sub") or not is_tensor(seconds[0])):
            raise TypeError(f"[{op}] expected alpha beside Tensors to add or subtract alone, got alpha={shown(alpha)}; multiply the numbers by it")
        more = {} if alpha is None else {"alpha": alpha}
        results = [each(x, y, **more) for x, y in zip(self, seconds, strict=True)]
        return self if inside else tuple(results)

    return function


def _ternary(op: str, each: Callable[..., Any], inside: bool) -> Callable[..., Any]:
    def function(self: Any, tensor1: Any, tensor2: Any, value: Any = None, **keywords: Any) -> Any:
        value = _named(op, keywords, value, _THIRD, 1)
        factors = _spread(op, value, _listed(op, self), False)
        rows = zip(self, _listed(op, tensor1, self), _listed(op, tensor2, self), factors, strict=True)
        results = [each(x, a, b, value=factor) for x, a, b, factor in rows]
        return self if inside else tuple(results)

    return function


def _lerp(op: str, each: Callable[..., Any], inside: bool) -> Callable[..., Any]:
    def function(self: Any, tensors1: Any, weight: Any = None, **keywords: Any) -> Any:
        weight = _named(op, keywords, weight, ("weight", "weights"))
        rows = zip(_listed(op, self), _listed(op, tensors1, self), _spread(op, weight, self, False), strict=True)
        results = [each(x, end, w) for x, end, w in rows]
        return self if inside else tuple(results)

    return function


def _foreach_copy_(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """Copy each tensor of `src` into the one at its place. Returns `self`."""
    for x, y in zip(_listed("_foreach_copy_", self), _listed("_foreach_copy_", src, self), strict=True):
        x.copy_(y, non_blocking)
    return self


def _foreach_zero_(self: Any) -> Any:
    """Fill each tensor with zeros. Returns `self`."""
    for x in _listed("_foreach_zero_", self):
        x.zero_()
    return self


def _foreach_clone(self: Any, *, memory_format: Any = None) -> tuple[Any, ...]:
    """A copy of each tensor."""
    return tuple(x.clone(**({} if memory_format is None else {"memory_format": memory_format})) for x in _listed("_foreach_clone", self))


def _foreach_mm(self: Any, mat2: Any) -> tuple[Any, ...]:
    """The matrix product of each pair."""
    return tuple(T.mm(x, y) for x, y in zip(_listed("_foreach_mm", self), _listed("_foreach_mm", mat2, self), strict=True))


def _foreach_max(self: Any) -> tuple[Any, ...]:
    """The largest element of each tensor; none of them may be empty."""
    return tuple(T.max(x) for x in _listed("_foreach_max", self))


def _foreach_norm(self: Any, ord: Any = 2, dtype: Any = None) -> tuple[Any, ...]:
    """The norm of each tensor, flattened: of order 2, or of another one, inf too."""
    return tuple(T.norm(x, ord, dtype=dtype) for x in _listed("_foreach_norm", self))


def _foreach_powsum(self: Any, ord: Any = 2, dtype: Any = None) -> tuple[Any, ...]:
    """The sum of |x| ** ord of each tensor: its norm of that order without the root."""
    tensors = _listed("_foreach_powsum", self)
    return tuple(T.sum(T.abs(x if dtype is None else x.to(dtype)) ** ord) for x in tensors)


def _written(each: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place form of a function that has none as a method."""
    return lambda x, y: x.copy_(each(x, y))


def _all() -> dict[str, Callable[..., Any]]:
    """The functions that are made from others, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for name in (*_UNARY, *_BINARY, *_TERNARY, "lerp"):
        for inside in (False, True):
            op = f"_foreach_{name}{'_' * inside}"
            meaning = _MEANING.get(name, name)
            each = getattr(T, meaning)
            if inside:
                each = getattr(Tensor, f"{meaning}_", None) or _written(each)
            if name in _UNARY:
                made = _unary(op, each, inside)
            elif name in _BINARY:
                made = _binary(op, name, each, inside)
            else:
                made = _ternary(op, each, inside) if name in _TERNARY else _lerp(op, each, inside)
            made.__name__ = made.__qualname__ = op
            made.__doc__ = f"`{name}{'_' * inside}` of each tensor of the list `self`; {'returns the list' if inside else 'a tuple of the results'}."
            found[op] = made
    return found


globals().update(_all())
