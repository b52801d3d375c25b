"""PyTorch's old constructors, one per element type: `FloatTensor(2, 3)`, `LongTensor([1, 2])`, `isinstance(t, FloatTensor)`."""

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
from calque.tensor import Tensor, register_type, wrap


class LegacyType(type):
    """Type of the constructors: an instance test asks for the element type."""

    dtype: dt.DType

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value._layout.dtype is cls.dtype

    def __call__(cls, *arguments: Any, device: Any = None) -> Tensor:
        """Sizes, or one `Size`, make an uninitialised tensor; a list or an array its values; a tensor of this type shares memory."""
        arguments = tuple(map(ordinary, arguments))
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
            return data.detach()  # type: ignore[no-any-return]
        if isinstance(data, np.ndarray):
            return cast(from_numpy(data).clone(), cls.dtype)
        if not hasattr(data, "__len__"):
            raise DTypeError(f"[{cls.__name__}] expected sizes, or a list, array or tensor, got {described(data)}; use calque.tensor")
        return tensor(data, dtype=cls.dtype, device=device)


def _make(name: str, dtype: dt.DType) -> Any:
    made = LegacyType(f"{name}Tensor", (), {"__doc__": f"Constructor of tensors of {dtype.name}; see `LegacyType.__call__`.", "dtype": dtype})
    made.__module__ = "calque"
    return made


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
