"""PyTorch's old constructors, one per element type: `FloatTensor(2, 3)`, `LongTensor([1, 2])`, `isinstance(t, FloatTensor)`. Those of another
kind of device (`on_device`) make their tensors there."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.asked import ordinary, plainly
from calque.base.errors import DTypeError
from calque.base.shapes import Size
from calque.base.text import described
from calque.functional.common import cast, is_tensor, method
from calque.functional.creation import empty, from_numpy, tensor
from calque.functional.declared import public
from calque.functional.subclasses import adopt, overrides
from calque.functional.types import LEGACY
from calque.tensor import Tensor, register_type, wrap


class LegacyType(type):
    """Type of the constructors: an instance test asks for the element type, and for the kind of device."""

    dtype: dt.DType
    kind: str = ""

    def __instancecheck__(cls, value: object) -> bool:
        if not isinstance(value, Tensor) or value._layout.dtype is not cls.dtype:
            return False
        return value._layout.device.type == cls.kind if cls.kind else value._layout.device.type != "cuda"

    def __call__(cls, *arguments: Any, device: Any = None) -> Tensor:
        """Sizes, or one `Size`, make an uninitialised tensor; a list or an array its values; a tensor of this type shares memory."""
        arguments = tuple(map(ordinary, arguments))
        device = cls.kind if cls.kind and device is None else device
        if len(arguments) == 1 and isinstance(arguments[0], Size):  # a tuple of the same numbers would be values
            return empty(tuple(arguments[0]), dtype=cls.dtype, device=device)
        if not arguments:
            return empty(0, dtype=cls.dtype, device=device)
        if all(isinstance(a, int | np.integer) and not isinstance(a, bool) for a in arguments):
            return empty(tuple(map(int, arguments)), dtype=cls.dtype, device=device)
        if len(arguments) > 1:
            raise DTypeError(f"[{cls.__name__}] expected sizes, or one list, array or tensor, got {len(arguments)} arguments")
        data = arguments[0]
        if is_tensor(data):
            if data._layout.dtype is not cls.dtype:
                raise DTypeError(f"[{cls.__name__}] expected a tensor of {cls.dtype}, got {data._layout.dtype}; convert it with .to({cls.dtype})")
            if cls.kind and data._layout.device.type != cls.kind:
                raise DTypeError(f"[{cls.__name__}] expected a tensor of a {cls.kind} device, got one on {data._layout.device}; move it with .to()")
            return data.detach()  # type: ignore[no-any-return]
        if isinstance(data, np.ndarray):
            made = cast(from_numpy(data).clone(), cls.dtype)
            return made if device is None else made.to(device)  # type: ignore[attr-defined, no-any-return]
        if not hasattr(data, "__len__"):
            raise DTypeError(f"[{cls.__name__}] expected sizes, or a list, array or tensor, got {described(data)}; use calque.tensor")
        return tensor(data, dtype=cls.dtype, device=device)


def _make(name: str, dtype: dt.DType, kind: str = "") -> Any:
    doc = f"Constructor of tensors of {dtype.name}{kind and ' on the current device of kind '}{kind}; see `LegacyType.__call__`."
    made = LegacyType(f"{name}Tensor", (), {"__doc__": doc, "dtype": dtype, "kind": kind})
    made.__module__ = f"calque.{kind}" if kind else "calque"
    return made


def on_device(kind: str) -> dict[str, Any]:
    """The constructors whose tensors are on the current device of a kind, by their names."""
    return {f"{name}Tensor": _make(name, dtype, kind) for name, dtype in LEGACY.items() if not dtype.is_complex}


FloatTensor, DoubleTensor, HalfTensor = _make("Float", dt.float32), _make("Double", dt.float64), _make("Half", dt.float16)
BFloat16Tensor, BoolTensor, ByteTensor = _make("BFloat16", dt.bfloat16), _make("Bool", dt.bool_), _make("Byte", dt.uint8)
CharTensor, ShortTensor = _make("Char", dt.int8), _make("Short", dt.int16)
IntTensor, LongTensor = _make("Int", dt.int32), _make("Long", dt.int64)

for _type in (
    FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor, BoolTensor, ByteTensor, CharTensor, ShortTensor, IntTensor, LongTensor,
):  # fmt: skip
    public(method=False)(_type)


@method()
def new(input: Tensor, *arguments: Any, device: Any = None) -> Any:
    """A tensor of this dtype by the old constructor: sizes make an uninitialised one, a list or an array one of its values.

    >>> import calque
    >>> calque.ones(2, dtype=calque.int64).new([3, 4])
    tensor([3, 4])
    """
    return _make("", input._layout.dtype)(*arguments, device=input._layout.device if device is None else device)


def _construct(cls: type, *arguments: Any, device: Any = None) -> Any:
    """`Tensor(2, 3)`, `Tensor([1, 2])`: the old constructor of the default floating type."""
    made = _make("", dt.get_default_dtype())(*arguments, device=device)
    return wrap(made._storage, made._layout, cls)


def _make_subclass(cls: type, data: Tensor, require_grad: bool = False) -> Any:
    """`data`, without its history, as an object of a subclass: what libraries call in `__new__`, when neither class can be asked about it yet."""
    with plainly():
        return data.detach().as_subclass(cls).requires_grad_(require_grad)  # type: ignore[attr-defined]


def _register(cls: type, **_: Any) -> None:
    """A subclass takes part in recording like `Tensor` itself, unless it says what functions mean for it."""
    register_type(cls)
    if overrides(cls):
        adopt(cls)


type.__setattr__(Tensor, "__new__", staticmethod(_construct))
type.__setattr__(Tensor, "__init_subclass__", classmethod(_register))
setattr(Tensor, "_make_subclass", staticmethod(_make_subclass))  # noqa: B010
