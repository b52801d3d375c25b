"""Types, and what the namespace says about itself."""

from __future__ import annotations

from typing import Any

from calque.array_api.helpers import checked, common, on, require
from calque.base import dtypes as dt
from calque.base.device import CPU, Device
from calque.base.dtypes import DType
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import shown
from calque.functional.common import is_tensor
from calque.tensor import Tensor

__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]

_KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (dt.bool_,),
    "signed integer": (dt.int8, dt.int16, dt.int32, dt.int64),
    "unsigned integer": (dt.uint8, dt.uint16, dt.uint32, dt.uint64),
    "real floating": (dt.float32, dt.float64, dt.float16, dt.bfloat16),
    "complex floating": (dt.complex64, dt.complex128),
}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]
_COMPUTED = (dt.bool_, *_KINDS["signed integer"], dt.uint8, dt.float32, dt.float64, *_KINDS["complex floating"])


def astype(x: Tensor, dtype: DType, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The array with another type; `copy` false gives x itself if it has that type already."""
    made: Tensor = require("astype", x).to(checked("astype", dtype) or x.dtype)  # type: ignore[attr-defined]
    made = made if device is None else made.to(on(device, "astype"))  # type: ignore[attr-defined]
    return made.clone() if copy and made is x else made  # type: ignore[attr-defined, no-any-return]


def can_cast(from_: Any, to: DType, /) -> bool:
    """Whether every value of one type is kept by the type that it has together with the other one, which must be that one."""
    source = from_._layout.dtype if is_tensor(from_) else checked("can_cast", from_)
    try:
        return common("can_cast", source, to) is to
    except DTypeError:
        return False


class _Limits:
    """What `finfo` and `iinfo` say, with `dtype` as a type."""

    def __init__(self, limits: Any, dtype: DType) -> None:
        self.__dict__.update(vars(limits))
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"{', '.join(f'{name}={value}' for name, value in vars(self).items())}"


def finfo(type: Any, /) -> Any:
    """Limits of a floating type, or of the parts of a complex one."""
    dtype = type._layout.dtype if is_tensor(type) else type
    return _Limits(dt.FInfo(dtype), dtype.to_real())


def iinfo(type: Any, /) -> Any:
    """Limits of an integer type."""
    dtype = type._layout.dtype if is_tensor(type) else type
    return _Limits(dt.IInfo(dtype), dtype)


def isdtype(dtype: DType, kind: Any) -> bool:
    """Whether a type is of a kind: a dtype, a name such as "real floating", or a tuple of these."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, DType):
        return dtype is kind
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ArgumentError(f"[isdtype] expected a dtype or one of {', '.join(_KINDS)}, got {shown(kind)}")
    return dtype in _KINDS[kind]


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The type of what is computed from arrays, types and Python numbers."""
    return common("result_type", *arrays_and_dtypes)


class Info:
    """`__array_namespace_info__()`."""

    def capabilities(self) -> dict[str, Any]:
        """What arrays can do."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Where arrays are made."""
        return CPU

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Types of arrays made from Python numbers."""
        on(device, "default_dtypes")
        return {"real floating": dt.get_default_dtype(), "complex floating": dt.default_complex(), "integral": dt.int64, "indexing": dt.int64}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Types with arithmetic, by name."""
        on(device, "dtypes")
        return {d.name: d for d in _COMPUTED if kind is None or kind == () or isdtype(d, kind)}

    def devices(self) -> list[Device]:
        """Where arrays can be."""
        return [CPU]
