"""Making arrays."""

from __future__ import annotations

import math
from typing import Any

import calque
from calque.array_api.helpers import checked, on, require, together
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.common import is_tensor
from calque.functional.dlpack import from_dlpack as _from_dlpack
from calque.tensor import Tensor


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """An array of numbers, nested sequences, an array or anything with a buffer. `copy`: True for its own memory, False for shared or an error."""
    wanted, where = checked("asarray", dtype), on(device, "asarray")
    shares = is_tensor(obj) or hasattr(obj, "__dlpack__") or hasattr(obj, "__array__")
    if not shares and isinstance(obj, (memoryview, bytes, bytearray)):
        obj, shares = memoryview(obj), True
    if copy is False and (not shares or is_tensor(obj) and wanted not in (None, obj._layout.dtype)):
        raise ArgumentError(f"[asarray] expected an array of that type, whose memory can be shared, for copy=False; got {shown(obj)}")
    if not shares:
        return calque.tensor(obj, dtype=wanted, device=where)
    if not is_tensor(obj):
        import_ = calque.from_dlpack if hasattr(obj, "__dlpack__") else calque.as_tensor
        made = import_(obj)
        if copy is False and wanted not in (None, made._layout.dtype):
            raise ArgumentError(f"[asarray] expected memory of {wanted!r} for copy=False, got {made._layout.dtype!r}")
    else:
        made = obj
    moved = made.to(wanted) if wanted is not None else made
    moved = moved.to(where) if where is not None else moved
    return moved.clone() if copy and moved is made else moved  # type: ignore[no-any-return]


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """An array over the memory of another library's."""
    return _from_dlpack(x, device=device, copy=copy)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """start, start + step, ... before stop; from 0 to the first argument if it is the only one. Nothing if there is no way."""
    first, last = (0, start) if stop is None else (start, stop)
    wanted = checked("arange", dtype)
    if wanted is None:
        wanted = dt.int64 if all(isinstance(n, int) for n in (first, last, step)) else dt.get_default_dtype()
    count = max(math.ceil((last - first) / step), 0)
    if count == 0:
        return calque.empty(0, dtype=wanted, device=on(device, "arange"))
    return calque.arange(first, last, step, dtype=wanted, device=on(device, "arange"))


def linspace(start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True) -> Tensor:
    """So many numbers at equal distances; without `endpoint` the last one is left out."""
    wanted, where = checked("linspace", dtype), on(device, "linspace")
    if wanted is None:
        wanted = dt.default_complex() if isinstance(start, complex) or isinstance(stop, complex) else dt.get_default_dtype()
    if wanted.is_complex:
        parts = [linspace(getattr(start, p), getattr(stop, p), num, dtype=wanted.to_real(), endpoint=endpoint) for p in ("real", "imag")]
        return calque.complex(*parts).to(where or "cpu")  # type: ignore[attr-defined, no-any-return]
    work = wanted if wanted.category == 2 else dt.float64
    made = calque.linspace(start, stop, num if endpoint else num + 1, dtype=work, device=where)
    made = made if endpoint else made[:num]
    return made.to(wanted)  # type: ignore[attr-defined, no-any-return]


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones on the k-th diagonal of zeros."""
    columns = n_rows if n_cols is None else n_cols
    rows, cols = calque.arange(n_rows).reshape(-1, 1), calque.arange(columns).reshape(1, -1)
    wanted = checked("eye", dtype) or dt.get_default_dtype()
    made = (cols - rows == k).to(wanted)
    return made if device is None else made.to(on(device, "eye"))


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """One number everywhere; its type follows the number unless given."""
    return calque.full((shape,) if isinstance(shape, int) else tuple(shape), fill_value, dtype=checked("full", dtype), device=on(device, "full"))


def full_like(x: Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`full` with shape and type of an array."""
    where = on(device, "full_like") or require("full_like", x)._layout.device
    return full(tuple(x._layout.shape), fill_value, dtype=checked("full_like", dtype) or x._layout.dtype, device=where)


def _filled(name: str, value: Any) -> tuple[Any, Any]:
    def make(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        return full(shape, value, dtype=checked(name, dtype) or dt.get_default_dtype(), device=device)

    def like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
        return full_like(x, value, dtype=dtype, device=device)

    make.__name__ = make.__qualname__ = name
    like.__name__ = like.__qualname__ = f"{name}_like"
    make.__doc__, like.__doc__ = f"`calque.{name}` of a shape.", f"`calque.{name}` with shape and type of an array."
    return make, like


zeros, zeros_like = _filled("zeros", 0)
ones, ones_like = _filled("ones", 1)
empty, empty_like = _filled("empty", 0)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinate arrays; "xy" swaps the first two axes of "ij"."""
    return list(calque.meshgrid(*together("meshgrid", *arrays), indexing=indexing)) if arrays else []


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangle of matrices, zeros above the k-th diagonal."""
    return calque.tril(require("tril", x), k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangle of matrices, zeros below the k-th diagonal."""
    return calque.triu(require("triu", x), k)
