"""Nested sequences of numbers, as which programs write down tensors: their values, and the dtype that they have together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError, how_to_pass
from calque.base.layout import MOST_DIMS
from calque.base.text import described, shown, type_name
from calque.functional.common import is_scalar, is_tensor
from calque.record.recorder import local


def _leaf(data: Any) -> Any:
    """The first element of nested sequences."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return data


def _plain(data: Any) -> Any:
    """Nested sequences with every tensor inside replaced by its values."""
    if is_tensor(data):
        array = data.detach().numpy()
        return data.detach().float().numpy() if array.dtype.kind == "V" else array  # types that NumPy puts together with no other one
    return [_plain(x) for x in data] if isinstance(data, (list, tuple)) else data


def _holds_tensor(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(_holds_tensor(x) for x in data[:64])
    return is_tensor(data)


def _offender(data: Any, path: str = "", shape: tuple[int, ...] | None = None, depth: int = 0) -> str:
    """Description of the first element that keeps nested data from being a rectangular array of numbers, or ""."""
    if shape is None:
        lengths = []
        probe = data
        while isinstance(probe, (list, tuple)):
            lengths.append(len(probe))
            probe = probe[0] if probe else None
        shape = tuple(lengths)
    if len(shape) > MOST_DIMS:
        return f"expected a sequence of at most {MOST_DIMS} dims, got {len(shape)}"
    if isinstance(data, (list, tuple)):
        if depth >= len(shape):
            return f"expected a number at index {path}, got a sequence of length {len(data)}"
        if len(data) != shape[depth]:
            return f"expected sequence of length {shape[depth]} at dim {depth} (got {len(data)}) at index {path}"
        for i, item in enumerate(data):
            found = _offender(item, f"{path}[{i}]", shape, depth + 1)
            if found:
                return found
        return ""
    if isinstance(data, np.ndarray):
        return ""
    if not is_scalar(data):
        return f"expected a number at index {path or '()'}, got {described(data)}"
    if depth < len(shape):
        return f"expected a sequence of length {shape[depth]} at dim {depth}, got the number {shown(data)} at index {path}"
    return ""


def refuse(data: Any, array: np.ndarray[Any, Any] | None) -> Exception:
    """The error for data that is no rectangular array of numbers."""
    if isinstance(data, np.ndarray):
        first = next(((i, x) for i, x in np.ndenumerate(data) if not is_scalar(x)), None)
        where = (
            f"; first odd element: {described(first[1])} at index {list(first[0])}" if first is not None else ""
        )
        return DTypeError(
            f"[tensor] expected an array of numbers, got dtype {data.dtype}{where}; convert it with .astype(...) first"
        )
    if array is not None and array.ndim and not isinstance(data, (list, tuple)):  # a table, say
        first = next(((i, x) for i, x in np.ndenumerate(array) if not is_scalar(x)), None)
        odd = f", with {described(first[1])} at index {list(first[0])}" if first is not None else ""
        return DTypeError(f"[tensor] expected numbers, got {described(data)}{odd}; {how_to_pass(data)}")
    reason = _offender(data)
    if not reason and array is not None and array.dtype == object:
        return ArgumentError(
            "[tensor] expected integers of at most 64 bits, got a larger one: overflow when unpacking long; use floats"
        )
    kind = f"; dtype {array.dtype} is not supported" if array is not None else ""
    text = f"[tensor] {reason or 'expected numbers'}{kind}; "
    if "at most" in reason:
        return ShapeError(text + "merge some dims")
    if "sequence" in reason:
        return ShapeError(text + "rows must have equal lengths: pad them")
    return DTypeError(text + "convert it to numbers first")


def _walked(data: Any) -> list[Any]:
    """What is in something that has a length."""
    try:
        return list(data)
    except TypeError:  # and nothing to walk through: a dtype of NumPy's
        raise refuse(data, None) from None


_PLAIN = {bool, int, float, complex}


def _kind(x: Any) -> type:
    """The type of an element; of a number of a class derived from Python's (an `IntEnum`, what `item()` gives while a call is recorded) that of
    Python's."""
    kind = type(x)
    if kind in _PLAIN or hasattr(x, "dtype"):
        return kind
    return next((base for base in (int, float, complex) if isinstance(x, base)), kind)


def _kinds(data: Any) -> set[type]:
    """The types of the elements of nested sequences."""
    if not isinstance(data, (list, tuple)):
        return {_kind(data)}
    kinds = set(map(type, data))
    return kinds if kinds <= _PLAIN else set().union(*map(_kinds, data))


def _dtypes(data: Any) -> set[dt.DType | None]:
    """The dtypes of the elements of nested sequences, as each would have it alone; None for what has none."""
    if isinstance(data, (list, tuple)):
        kinds = set(map(type, data))
        return {_DTYPE_OF[kind]() for kind in kinds} if kinds <= _PLAIN else set().union(*map(_dtypes, data))
    if is_tensor(data):
        return {data._layout.dtype}
    if hasattr(data, "dtype"):
        return {dt.from_numpy_dtype(data.dtype)}
    kind = _kind(data)
    return {_DTYPE_OF[kind]() if kind in _PLAIN else None}


_DTYPE_OF: dict[type, Callable[[], dt.DType]] = {
    bool: lambda: dt.bool_, int: lambda: dt.int64, float: dt.get_default_dtype, complex: dt.default_complex,
}  # fmt: skip


def _common(data: Any, array_has: dt.DType) -> dt.DType:
    """The dtype of nested sequences that NumPy makes floating or complex numbers of: to it a Python float among float32 is a float64."""
    found = _dtypes(data)
    known = [kind for kind in found if kind is not None]
    return functools.reduce(dt.promote, sorted(known, key=lambda kind: kind.category)) if len(known) == len(found) else array_has


def _large(data: Any, array: np.ndarray[Any, Any], dtype: dt.DType | None) -> np.ndarray[Any, Any]:
    """The array of data in which there may be Python ints that no int64 holds: NumPy makes unsigned numbers or objects of them, and of ints
    of both signs floats. They are floats where there is a float beside them, or where floats are asked for."""
    kinds = _kinds(data)
    if not kinds <= _PLAIN or (array.dtype.kind == "u" and (not array.size or array.max() < 2**63)):
        return array
    if kinds <= {bool, int} and not (dtype is not None and dtype.category >= 2):
        try:
            if dtype is dt.uint64:
                return np.array(data, np.uint64)
        except OverflowError:
            pass
        raise refuse(data, array.astype(object))
    return np.array(data, np.complex128 if complex in kinds or (dtype is not None and dtype.is_complex) else np.float64)


_SHORT = 64  # numbers in a list whose types are looked at one by one
_SMALL = 1 << 7  # every type has numbers of this size
_REAL = {dt.float32, dt.float64}
_SEQUENCES = {list, tuple}
_PLAIN_REAL = {bool, int, float}


def _own_dtype(data: Any) -> dt.DType | None:
    """The dtype of real numbers of Python's that have one type."""
    kinds = set(map(type, data)) if len(data) <= _SHORT else ()
    return _DTYPE_OF[kinds.pop()]() if len(kinds) == 1 and kinds <= _PLAIN_REAL else None  # type: ignore[union-attr]


def simple_array(data: Any, dtype: dt.DType | None) -> tuple[np.ndarray[Any, Any], dt.DType] | None:
    """`to_array` of what loops make tensors of again and again, converted to `dtype` if one is given: an array, a number, short rows of numbers of
    one type. None where more has to be looked at."""
    kind, numbers = data.__class__, (data,)
    if kind is np.ndarray:
        own = None if data.dtype.kind == "b" else dt.from_numpy_dtype(data.dtype)  # its bytes may be others than 0 and 1
    elif kind in _PLAIN_REAL:
        own = _DTYPE_OF[kind]()
    elif kind in _SEQUENCES:
        rows = 0 < len(data) <= _SHORT and data[0].__class__ in _SEQUENCES and len(data[0]) <= _SHORT
        numbers = tuple(chain.from_iterable(data)) if rows and _SEQUENCES.issuperset(map(type, data)) else data
        own = _own_dtype(numbers)
    else:
        own = None
    wanted = own if dtype is None else dtype
    if own is None or wanted is None or (wanted is not own and (wanted not in _REAL or not (own in _REAL or own is dt.int64))):
        return None
    if kind is np.ndarray and data.dtype is wanted.np:
        return data, wanted
    try:
        if kind is not np.ndarray and min(numbers) > -_SMALL and max(numbers) < _SMALL:  # where NaN stands first, both are NaN
            return np.array(data, wanted.np), wanted
        if (trace := local.state.trace).eager:  # which has a context without warnings at hand
            return trace.quietly(np.array, data, wanted.np), wanted
        with np.errstate(all="ignore"):
            return np.array(data, wanted.np), wanted
    except (OverflowError, ValueError):  # an integer of more than 64 bits, rows of several lengths
        return None


def to_array(data: Any, dtype: dt.DType | None = None) -> tuple[np.ndarray[Any, Any], dt.DType]:
    """Values and the dtype PyTorch would infer for them; `dtype` is the one they will have, if that is known."""
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        given = dt.from_numpy_dtype(array.dtype)
        if given is None:
            raise refuse(data, array)
        return array, given
    if isinstance(data, (dict, set, frozenset)):
        raise DTypeError(f"[tensor] Could not infer dtype of {type_name(data)}: expected numbers, got no sequence; pass a list of its values")
    plain = data
    if isinstance(data, (list, tuple)) and _holds_tensor(data):
        plain = _plain(data)
    elif not isinstance(data, (list, tuple, bool, int, float, complex)) and hasattr(data, "__len__") and not hasattr(data, "__array__"):
        plain = data = _walked(data)
    try:
        array = np.array(plain)
    except (ValueError, OverflowError):
        raise refuse(data, None) from None
    if array.dtype.kind in "uO" or (array.dtype.kind == "f" and _leaf(data).__class__ is int and array.size and abs(array).max() >= 2**63):
        array = _large(plain, array, dtype)
    inferred = dt.from_numpy_dtype(array.dtype)
    if inferred is None:
        raise refuse(data, array)
    if not isinstance(data, (list, tuple, bool, int, float, complex)):
        return array, inferred
    if array.size == 0 and isinstance(data, (list, tuple)):
        return array, dt.get_default_dtype()
    return array, _common(data, inferred) if array.dtype.kind in "fcV" else inferred
