"""Values while an ONNX graph is walked through: tensors, and what is known already, such as sizes, which is computed at once with NumPy.

Known integers may be sizes that are free: such arrays hold objects, whose arithmetic is that of `extents.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from calque import functional as T
from calque.base.dtypes import DType, from_numpy_dtype
from calque.exported.onnx.reading import DTYPES, OpNode
from calque.functional.common import is_tensor
from calque.ir.symint import SymInt

MOST_KNOWN = 1 << 16  # numbers that are computed at once


class Refused(Exception):
    """What a node asks for is not there."""


class Value:
    """`known`: its numbers, if they are; `tensor`: the tensor, made of them when it is wanted. `folds`: whether what is computed from it is known,
    too, which it is not from parameters."""

    __slots__ = ("folds", "known", "made")

    def __init__(self, known: Any = None, made: Any = None, folds: bool = True) -> None:
        self.known, self.made, self.folds = known, made, folds and known is not None

    @property
    def tensor(self) -> Any:
        """The tensor."""
        if self.made is None:
            self.made = tensor_of(self.known)
        return self.made

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes, free ones as symbols."""
        return tuple(self.known.shape) if self.made is None else tuple(self.made._layout.shape)

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return calque_dtype(self.known.dtype) if self.made is None else self.made._layout.dtype  # type: ignore[no-any-return]


def calque_dtype(dtype: Any) -> DType:
    """The same type; objects are sizes."""
    found = from_numpy_dtype(np.dtype(np.int64 if np.dtype(dtype).kind == "O" else dtype))
    if found is None:
        raise Refused(f"numbers of the type {dtype}")
    return found


def dtype_of_kind(kind: Any) -> DType:
    """The type with one of ONNX's numbers."""
    if kind not in DTYPES:
        raise Refused(f"a type of elements that is not there (number {kind})")
    return calque_dtype(DTYPES[kind])


def tensor_of(array: Any) -> Any:
    """Known numbers as a tensor."""
    if array.dtype == object:
        if not any(isinstance(x, SymInt) for x in array.reshape(-1).tolist()):
            return tensor_of(array.astype(np.int64))
        single = [T.full((), x, dtype=T.arange(0)._layout.dtype) for x in array.reshape(-1).tolist()]
        return T.reshape(T.stack(single, 0), array.shape) if array.ndim else single[0]
    dtype = calque_dtype(array.dtype)
    if array.size == 1:
        return T.full(array.shape, array.reshape(-1)[0].item(), dtype=dtype)
    return T.tensor(np.array(array), dtype=dtype)


def whole(x: Any) -> Any:
    """What NumPy gives, as an array, also where it gives the only object in one: a size must not become the number that it is now."""
    if not isinstance(x, SymInt):
        return np.asarray(x)
    found = np.empty((), object)
    found[()] = x
    return found


def sizes(values: Any) -> Any:
    """Sizes as a known value."""
    values = tuple(values)
    if not any(isinstance(x, SymInt) for x in values):
        return np.array(values, np.int64)
    found = np.empty(len(values), object)
    for k, x in enumerate(values):
        found[k] = x
    return found


class Call:
    """A node with its inputs. `opset`: the version of the operators; `walk`: applies graphs inside of the node (name -> values)."""

    def __init__(self, node: OpNode, inputs: list[Value | None], attrs: dict[str, Any], opset: int, graph: Any) -> None:
        self.node, self.inputs, self.attrs, self.opset, self.graph = node, inputs, attrs, opset, graph
        self.outputs = len(node.outputs)

    def has(self, k: int) -> bool:
        """Whether there is an input at this place."""
        return k < len(self.inputs) and self.inputs[k] is not None

    def value(self, k: int) -> Value:
        """An input."""
        found = self.inputs[k] if k < len(self.inputs) else None
        if found is None:
            raise Refused(f"input {k} is missing")
        return found

    def t(self, k: int) -> Any:
        """An input as a tensor."""
        return self.value(k).tensor

    def maybe(self, k: int) -> Any:
        """An input as a tensor, or None."""
        return self.t(k) if self.has(k) else None

    def all(self) -> list[Any]:
        """All inputs as tensors."""
        return [self.t(k) for k in range(len(self.inputs))]

    def known(self, k: int, what: str) -> Any:
        """The numbers of an input that a program cannot choose when it runs."""
        found = self.value(k)
        if found.known is None:
            raise Refused(
                f"{what} are computed from values when it runs, and a program has fixed ones; if they are an input of the model, give their "
                "values by its name in fixed={...}"
            )
        return found.known

    def ints(self, k: int, what: str) -> list[Any]:
        """The same as a list; free sizes stay symbols."""
        found = self.known(k, what)
        if found.dtype.kind not in "iuO":
            raise Refused(f"{what} are {found.dtype}, no integers")
        return found.reshape(-1).tolist()  # type: ignore[no-any-return]

    def either(self, name: str, k: int, default: Any = None) -> Any:
        """Integers that are an attribute, or in newer versions an input."""
        if self.has(k):
            return self.ints(k, name)
        return self.attrs.get(name, default)

    def attr(self, name: str, default: Any = None, kind: Any = None) -> Any:
        """An attribute."""
        found = self.attrs.get(name, default)
        wanted = type(default) if kind is None and default is not None else kind
        if wanted is not None and found is not None and not isinstance(found, wanted) and not (wanted is float and isinstance(found, int)):
            raise Refused(f"the attribute {name} is {found!r}")
        return found

    def ints_of(self, name: str, count: int, default: int) -> list[int]:
        """An attribute with a number for each of some dims."""
        found = self.attrs.get(name)
        if found is None:
            return [default] * count
        if not isinstance(found, list) or len(found) != count or not all(type(x) is int for x in found):
            raise Refused(f"the attribute {name} is {found!r}, where {count} integers belong")
        return found

    def axis(self, axis: Any, rank: int) -> int:
        """A dim, counted from the first."""
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise Refused(f"axis {axis} of a tensor with {rank} dims")
        return int(axis) % rank

    def axes(self, axes: Any, rank: int) -> list[int]:
        """The same for several."""
        found = [self.axis(a, rank) for a in axes]
        if len(set(found)) < len(found):
            raise Refused(f"an axis twice in {list(axes)}")
        return found

    def text(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """An attribute that is one of some words."""
        found = self.attrs.get(name, default)
        if found not in known:
            raise Refused(f"{name}={found!r}, which is none of {', '.join(known)}")
        return found  # type: ignore[no-any-return]


Operator = Callable[[Call], Any]
OPERATORS: dict[str, Operator] = {}
"""By the name of an operator: the function that computes its results (a tensor, known numbers, or a tuple of such)."""
FOLDED: dict[str, Operator] = {}
"""The same for inputs that are known; it may return None."""


def operator(*names: str) -> Callable[[Operator], Operator]:
    """Add a row to the table."""

    def add(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return add


def folded(*names: str) -> Callable[[Operator], Operator]:
    """Add a row for known inputs."""

    def add(function: Operator) -> Operator:
        FOLDED.update(dict.fromkeys(names, function))
        return function

    return add


def small(shape: Any) -> bool:
    """Whether numbers of this shape are computed at once."""
    return all(not isinstance(s, SymInt) for s in shape) and prod(int(s) for s in shape) <= MOST_KNOWN


def as_value(result: Any) -> Value:
    """A result as a value."""
    if is_tensor(result):
        return Value(made=result)
    if isinstance(result, Value):
        return result
    array = whole(result)
    if array.dtype.kind not in "biufO" and array.dtype != ml_dtypes.bfloat16:
        raise Refused(f"numbers of the type {array.dtype}")
    return Value(known=array)
