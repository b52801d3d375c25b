"""Element types and PyTorch's promotion rules.

Source: PyTorch documentation, "Tensor Attributes", type promotion; `c10/core/ScalarType` categories.

>>> from calque.base.dtypes import promote, float32, int64
>>> promote(int64, float32)
torch.float32
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from calque.base.errors import DTypeError
from calque.base.native import acyclic
from calque.base.text import shown


class DType:
    """An element type. `category` is 0 bool, 1 integer, 2 floating, 3 complex; `rank` orders types inside a category.

    `digits`: binary digits of what it holds exactly, that is the integers up to 2**digits. `hosted`: kernels do not know it, NumPy computes with it.
    `stored`: "unsigned" or "float8" for types that are there to be stored and moved, with the few operations that PyTorch has for them.
    `nameless`: there are no tensors of it, only its name.
    """

    __slots__ = (
        "name", "np", "itemsize", "category", "rank", "is_floating_point", "is_complex", "is_signed", "bits", "digits", "stored", "hosted",
        "nameless", "_compute",
    )  # fmt: skip

    def __init__(
        self, name: str, np_dtype: Any, category: int, rank: int, digits: int = 0, stored: str = "", signed: bool = True, nameless: bool = False
    ) -> None:
        self.name = name
        self.np: np.dtype[Any] = np.dtype(np_dtype)
        self.itemsize = self.np.itemsize
        self.category = category
        self.rank = rank
        self.is_floating_point = category == 2
        self.is_complex = category == 3
        self.is_signed = signed
        self.bits = self.itemsize * 8
        self.digits = digits or self.bits - signed
        self.stored = stored
        self.hosted = self.is_complex or bool(stored)
        self.nameless = nameless
        self._compute: DType = self
        acyclic(self)

    @property
    def compute(self) -> "DType":
        """The type arithmetic is done in: float32 for the 16-bit floats, else the type itself."""
        return self._compute

    def encode(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """An array of floats or integers as this type, rounded as PyTorch rounds: by way of float32 to float8, where what is too large for
        `float8_e4m3fn` becomes its largest number, and `float8_e8m0fnu` keeps the nearest power of two of the size.

        >>> float8_e4m3fn.encode(np.array([1.06, 1e6])).astype(np.float32)
        array([  1., 448.], dtype=float32)
        """
        if self.stored != "float8":
            return values.astype(self.np, copy=False)
        wide = values.astype(np.float32)
        if self is float8_e4m3fn:
            wide = np.clip(wide, -448.0, 448.0)
        if self is not float8_e8m0fnu:
            return wide.astype(self.np)
        bits = wide.view(np.uint32)
        exponent, rest = bits >> 23 & 255, bits & 0x7FFFFF
        above = (rest > 0x400000) | (rest == 0x400000) & (exponent > 0)
        return np.where(exponent == 255, 255, exponent + above).astype(np.uint8).view(self.np)

    def to_real(self) -> "DType":
        """The floating type of the parts of a complex type; another type itself."""
        return _REAL.get(self, self)

    def to_complex(self) -> "DType":
        """The complex type whose parts have this type or, if there is none, the default floating type; a complex type itself."""
        return self if self.category == 3 else _COMPLEX.get(self) or default_complex()

    def __repr__(self) -> str:
        # The text equals PyTorch's, so that printed tensors compare equal; see docs/decisions/0002.
        return f"torch.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype_by_name, (self.name,))

    def __copy__(self) -> "DType":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "DType":
        return self


bool_ = DType("bool", np.bool_, 0, 0, digits=1, signed=False)
uint8 = DType("uint8", np.uint8, 1, 0, signed=False)
int8 = DType("int8", np.int8, 1, 1)
int16 = DType("int16", np.int16, 1, 2)
int32 = DType("int32", np.int32, 1, 3)
int64 = DType("int64", np.int64, 1, 4)
float16 = DType("float16", np.float16, 2, 0, digits=11)
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, 2, 0, digits=8)
float32 = DType("float32", np.float32, 2, 2, digits=24)
float64 = DType("float64", np.float64, 2, 3, digits=53)
complex64 = DType("complex64", np.complex64, 3, 2, digits=24)
complex128 = DType("complex128", np.complex128, 3, 3, digits=53)
uint16 = DType("uint16", np.uint16, 1, 5, stored="unsigned", signed=False)
uint32 = DType("uint32", np.uint32, 1, 6, stored="unsigned", signed=False)
uint64 = DType("uint64", np.uint64, 1, 7, stored="unsigned", signed=False)
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, 2, -1, digits=4, stored="float8")
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, 2, -2, digits=3, stored="float8")
float8_e4m3fnuz = DType("float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz, 2, -3, digits=4, stored="float8")
float8_e5m2fnuz = DType("float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz, 2, -4, digits=3, stored="float8")
float8_e8m0fnu = DType("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, 2, -5, digits=1, stored="float8", signed=False)
_COMPLEX = {float16: complex64, bfloat16: complex64, float32: complex64, float64: complex128}
_REAL = {complex64: float32, complex128: float64}
float16._compute = float32
bfloat16._compute = float32

ALL: tuple[DType, ...] = (bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64)
"""Types of real numbers, which kernels know."""
COMPLEX: tuple[DType, ...] = (complex64, complex128)
STORED: tuple[DType, ...] = (
    uint16, uint32, uint64, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu,
)  # fmt: skip
EVERY: tuple[DType, ...] = ALL + COMPLEX + STORED
INTEGERS: tuple[DType, ...] = (uint8, int8, int16, int32, int64)


def _named(name: str, itemsize: int, category: int = 1, signed: bool = True) -> DType:
    return DType(name, f"V{itemsize}", category, 0, signed=signed, nameless=True)


# What libraries compare element types with: quantised numbers, bits, integers of fewer than eight bits.
NAMED: tuple[DType, ...] = (
    _named("complex32", 4, 3), _named("float4_e2m1fn_x2", 1, 2), _named("qint8", 1), _named("quint8", 1, signed=False), _named("qint32", 4),
    _named("quint4x2", 1, signed=False), _named("quint2x4", 1, signed=False), *[_named(f"int{n}", 1) for n in range(1, 8)],
    *[_named(f"uint{n}", 1, signed=False) for n in range(1, 8)], *[_named(f"bits{n}", 1, signed=False) for n in ("8", "1x8", "2x4", "4x2")],
    _named("bits16", 2, signed=False),
)  # fmt: skip
_BY_NAME = {d.name: d for d in EVERY + NAMED}
_BY_NP = {d.np: d for d in EVERY}
_ALIASES = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64", "short": "int16", "cfloat": "complex64",
    "cdouble": "complex128", "chalf": "complex32",
}  # fmt: skip


def dtype_by_name(name: str) -> DType:
    """The dtype called `name`, e.g. "float32"."""
    return _BY_NAME[_ALIASES.get(name, name)]


def with_values(dtype: DType, op: str = "tensor") -> DType:
    """The dtype, or a DTypeError if there are no tensors of it."""
    if dtype.nameless:
        raise DTypeError(f"[{op}] expected a dtype that tensors have, got {dtype!r}, which has a name here and no values; use another one")
    return dtype


def from_numpy_dtype(np_dtype: Any) -> DType | None:
    """The dtype of a NumPy dtype, or None when Calque has no such element type."""
    native = np.dtype(np_dtype)
    return _BY_NP.get(native if native.isnative else native.newbyteorder("="))


def _promote_rule(a: DType, b: DType) -> DType | None:
    if a is b:
        return a
    if a.stored or b.stored:  # integers of these types become a floating one and nothing else, and nothing becomes a float8
        stored, other = (a, b) if a.stored else (b, a)
        return other if stored.stored == "unsigned" and other.category == 2 and not other.stored else None
    if a.category + b.category == 5:  # a floating type and a complex one, whose parts may have to be wider
        return complex128 if float64 in (a, b) or complex128 in (a, b) else complex64
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


class _Table(dict[tuple[DType, DType], DType]):
    """Common types of two; asking for those of types that have none raises."""

    def __missing__(self, pair: tuple[DType, DType]) -> DType:
        a, b = pair
        if a is b:
            return a
        kinds = "uint16, uint32, uint64" if "unsigned" in (a.stored, b.stored) else "Float8" if "float8" in (a.stored, b.stored) else "such"
        raise DTypeError(f"[promote] Promotion for {kinds} types is not supported, attempted to promote {a} and {b}; convert one with .to(dtype)")


_TABLE = _Table({(a, b): common for a in EVERY for b in EVERY if (common := _promote_rule(a, b)) is not None})


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
    if not (isinstance(dtype, DType) and dtype.is_floating_point and not dtype.hosted and not dtype.nameless):
        raise TypeError(f"[set_default_dtype] expected a floating dtype, got {shown(dtype)}; use calque.float32 or calque.float64")
    _default_float = dtype


def default_complex() -> DType:
    """Complex type of new tensors made from Python complex numbers."""
    return _COMPLEX[_default_float]


def promote_scalar(a: DType, scalar: bool | int | float | complex) -> DType:
    """Result type of a tensor of type `a` with a Python number."""
    if isinstance(scalar, bool):
        return a
    if isinstance(scalar, int):
        return a if a.category >= 1 else int64
    if isinstance(scalar, complex):
        return a.to_complex()
    return a if a.category >= 2 else _default_float


def of_scalar(value: bool | int | float | complex) -> DType:
    """dtype of a tensor made from one Python number."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, complex):
        return default_complex()
    return int64 if isinstance(value, int) else _default_float


OF_PYTHON: dict[Any, DType] = {float: float64, int: int64, bool: bool_, complex: complex128}  # where a type of Python stands for a dtype


class FInfo:
    """Limits of a floating type, as `torch.finfo`; for a complex type those of its parts."""

    def __init__(self, dtype: DType | type | None = None) -> None:
        given = _default_float if dtype is None else OF_PYTHON.get(dtype, dtype) if isinstance(dtype, type) else dtype
        kind = given.to_real() if isinstance(given, DType) else given
        if not isinstance(kind, DType) or kind.category != 2 or kind.nameless:
            raise DTypeError(f"[finfo] torch.finfo() requires a floating point input type, got {shown(dtype)}; use calque.iinfo for integers")
        self.dtype = kind.name
        info: Any = ml_dtypes.finfo(kind.np)  # type: ignore[no-untyped-call, unused-ignore]
        self.bits, self.eps, self.max, self.min = info.bits, float(info.eps), float(info.max), float(info.min)
        self.tiny = self.smallest_normal = float(info.tiny)
        self.resolution = float(f"{float(info.resolution):.0e}") if not kind.stored else 1.0
        if kind is float8_e5m2fnuz:
            self.eps = 0.125  # as PyTorch says; neighbours of 1 are 0.25 apart

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        return f"finfo({', '.join(f'{name}={getattr(self, name):g}' for name in names)}, dtype={self.dtype})"


class IInfo:
    """Limits of an integer type, as `torch.iinfo`."""

    def __init__(self, dtype: DType | type) -> None:
        dtype = OF_PYTHON.get(dtype, dtype) if isinstance(dtype, type) else dtype
        if not isinstance(dtype, DType) or dtype.category != 1 or dtype.nameless:
            raise DTypeError(f"[iinfo] torch.iinfo() requires an integer input type, got {shown(dtype)}; use calque.finfo for floats")
        info = np.iinfo(dtype.np)
        self.dtype, self.bits, self.max, self.min = dtype.name, info.bits, int(info.max), int(info.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"
