"""Element types and PyTorch's promotion rules.

Source: PyTorch documentation, "Tensor Attributes", type promotion; `c10/core/ScalarType` categories.

>>> from calque.base.dtypes import promote, float32, int64
>>> promote(int64, float32)
torch.float32
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.base.text import shown


class DType:
    """An element type. `category` is 0 bool, 1 integer, 2 floating; `rank` orders types inside a category."""

    __slots__ = ("name", "np", "itemsize", "category", "rank", "is_floating_point", "is_signed", "bits", "_compute")

    def __init__(self, name: str, np_dtype: Any, category: int, rank: int) -> None:
        self.name = name
        self.np: np.dtype[Any] = np.dtype(np_dtype)
        self.itemsize = self.np.itemsize
        self.category = category
        self.rank = rank
        self.is_floating_point = category == 2
        self.is_signed = name not in ("uint8", "bool")
        self.bits = self.itemsize * 8
        self._compute: DType = self

    @property
    def compute(self) -> "DType":
        """The type arithmetic is done in: float32 for the 16-bit floats, else the type itself."""
        return self._compute

    @property
    def is_complex(self) -> bool:
        return False

    def __repr__(self) -> str:
        # The text equals PyTorch's, so that printed tensors compare equal; see docs/decisions/0002.
        return f"torch.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype_by_name, (self.name,))

    def __copy__(self) -> "DType":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "DType":
        return self


def _bfloat16_storage() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


bool_ = DType("bool", np.bool_, 0, 0)
uint8 = DType("uint8", np.uint8, 1, 0)
int8 = DType("int8", np.int8, 1, 1)
int16 = DType("int16", np.int16, 1, 2)
int32 = DType("int32", np.int32, 1, 3)
int64 = DType("int64", np.int64, 1, 4)
float16 = DType("float16", np.float16, 2, 0)
bfloat16 = DType("bfloat16", _bfloat16_storage(), 2, 0)
float32 = DType("float32", np.float32, 2, 2)
float64 = DType("float64", np.float64, 2, 3)
float16._compute = float32
bfloat16._compute = float32

ALL: tuple[DType, ...] = (bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64)
INTEGERS: tuple[DType, ...] = (uint8, int8, int16, int32, int64)
_BY_NAME = {d.name: d for d in ALL}
_BY_NP = {d.np: d for d in ALL}
_ALIASES = {"float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64", "short": "int16"}


def dtype_by_name(name: str) -> DType:
    """The dtype called `name`, e.g. "float32"."""
    return _BY_NAME[_ALIASES.get(name, name)]


def from_numpy_dtype(np_dtype: Any) -> DType | None:
    """The dtype of a NumPy dtype, or None when Calque has no such element type."""
    native = np.dtype(np_dtype)
    return _BY_NP.get(native if native.isnative else native.newbyteorder("="))


def _promote_rule(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if a.category != b.category:
        return a if a.category > b.category else b
    if a.category == 1:
        if uint8 in (a, b):  # uint8 with a signed type: the smallest signed type that holds both
            other = b if a is uint8 else a
            return int16 if other is int8 else other
        return a if a.rank > b.rank else b
    if a.rank == b.rank:  # float16 with bfloat16
        return float32
    return a if a.rank > b.rank else b


_TABLE: dict[tuple[DType, DType], DType] = {(a, b): _promote_rule(a, b) for a in ALL for b in ALL}


def promote(a: DType, b: DType) -> DType:
    """Result type of an operation on two tensors that both have dimensions."""
    return _TABLE[a, b]


def promote_operands(a: DType, a_dim: int, b: DType, b_dim: int) -> DType:
    """Result type of two tensors, where a 0-d tensor counts only if its category is higher (PyTorch's rule)."""
    if (a_dim == 0) == (b_dim == 0) or a.category == b.category and a_dim == b_dim:
        return _TABLE[a, b]
    dimensioned, zero = (a, b) if a_dim else (b, a)
    if zero.category > dimensioned.category:
        return _TABLE[a, b]
    return dimensioned


_default_float = float32


def get_default_dtype() -> DType:
    """Floating type of new tensors made from Python floats."""
    return _default_float


def set_default_dtype(dtype: DType) -> None:
    """Set the floating type of new tensors made from Python floats."""
    global _default_float
    if not (isinstance(dtype, DType) and dtype.is_floating_point):
        raise TypeError(f"[set_default_dtype] expected a floating dtype, got {shown(dtype)}; use calque.float32 or calque.float64")
    _default_float = dtype


def promote_scalar(a: DType, scalar: bool | int | float) -> DType:
    """Result type of a tensor of type `a` with a Python number."""
    if isinstance(scalar, bool):
        return a
    if isinstance(scalar, int):
        return a if a.category >= 1 else int64
    return a if a.category == 2 else _default_float


def of_scalar(value: bool | int | float) -> DType:
    """dtype of a tensor made from one Python number."""
    if isinstance(value, bool):
        return bool_
    return int64 if isinstance(value, int) else _default_float


class FInfo:
    """Limits of a floating type, as `torch.finfo`."""

    def __init__(self, dtype: DType | None = None) -> None:
        import ml_dtypes

        self.dtype = (dtype or _default_float).name
        info: Any = ml_dtypes.finfo((dtype or _default_float).np)  # type: ignore[no-untyped-call, unused-ignore]
        self.bits, self.eps, self.max, self.min = info.bits, float(info.eps), float(info.max), float(info.min)
        self.tiny = self.smallest_normal = float(info.tiny)
        self.resolution = float(info.resolution)

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        return f"finfo({', '.join(f'{name}={getattr(self, name):g}' for name in names)}, dtype={self.dtype})"


class IInfo:
    """Limits of an integer type, as `torch.iinfo`."""

    def __init__(self, dtype: DType) -> None:
        info = np.iinfo(dtype.np)
        self.dtype, self.bits, self.max, self.min = dtype.name, info.bits, int(info.max), int(info.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"
