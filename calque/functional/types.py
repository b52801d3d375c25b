"""Conversions between element types and devices, and reading single values as Python numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from calque.autograd.moving import move
from calque.base import dtypes as dt
from calque.base.device import CPU, META, Device
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.layout import strided
from calque.base.native import hot
from calque.base.text import described, shown
from calque.functional.common import attribute, is_tensor, method, require_operands
from calque.functional.declared import public
from calque.functional.formats import converted
from calque.functional.options import resolve_device, resolve_dtype
from calque.run.memory import out_of_memory
from calque.tensor import Tensor, read_number

public(method=False)(is_tensor)


# ----------------------------------------------------------------------------------------------------------- conversion


@method("to")
def to(
    input: Tensor, *arguments: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, copy: bool = False, memory_format: Any = None
) -> Tensor:
    """The tensor with another dtype or device, in the forms `to(dtype)`, `to(device)`, `to(device, dtype)`, `to(other)`;
    itself if nothing changes.

    >>> import calque
    >>> calque.ones(2).to(calque.int64)
    tensor([1, 1])
    """
    for position, given in enumerate(arguments):
        if isinstance(given, dt.DType):
            dtype = given
        elif is_tensor(given):
            dtype, device = given._layout.dtype, given._layout.device
        elif isinstance(given, (str, Device)) or (isinstance(given, int) and not isinstance(given, bool) and position == 0):
            device = given
        elif isinstance(given, bool):
            copy = copy or (
                position == len(arguments) - 1 and position > 0 and isinstance(arguments[position - 1], bool) and given
            )
        elif given is not None:
            dtype = resolve_dtype(given, input._layout.dtype, "to")
    wanted = input._layout.dtype if dtype is None else resolve_dtype(dtype, input._layout.dtype, "to")
    if device is not None:
        where = resolve_device(device, "to")
        if where is not input._layout.device:
            return converted("to", move(input, where), wanted, memory_format)
    return converted("to", input, wanted, memory_format, copy)


def _conversion(names: tuple[str, ...], dtype: dt.DType) -> None:
    def convert(input: Tensor, memory_format: Any = None) -> Tensor:
        return converted(names[0], input, dtype, memory_format)

    convert.__name__ = names[0]
    convert.__doc__ = f"The tensor converted to {dtype.name}."
    method(*names)(convert)


for _names, _dtype in (
    (("float",), dt.float32), (("double",), dt.float64), (("half",), dt.float16), (("bfloat16",), dt.bfloat16),
    (("int",), dt.int32),    (("long",), dt.int64), (("short",), dt.int16), (("char",), dt.int8), (("byte",), dt.uint8),
    (("bool",), dt.bool_),   (("cfloat",), dt.complex64), (("cdouble",), dt.complex128),
):  # fmt: skip
    _conversion(_names, _dtype)

LEGACY = {
    "Float": dt.float32, "Double": dt.float64, "Half": dt.float16, "BFloat16": dt.bfloat16, "Int": dt.int32, "Long": dt.int64,
    "Short": dt.int16, "Char": dt.int8, "Byte": dt.uint8, "Bool": dt.bool_, "ComplexFloat": dt.complex64,
    "ComplexDouble": dt.complex128,
}  # fmt: skip
_LEGACY_NAME = {dtype: name for name, dtype in LEGACY.items()}


@method("type")
def type_(input: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The legacy type name without an argument, else the tensor converted.

    >>> import calque
    >>> calque.ones(1).type()
    'torch.FloatTensor'
    """
    device = input._layout.device
    if dtype is None:
        return f"torch.{'cuda.' if device.type == 'cuda' else ''}{_LEGACY_NAME[input._layout.dtype]}Tensor"
    if isinstance(dtype, str):
        place, _, name = dtype.rpartition(".")
        short = name.removesuffix("Tensor")
        if short not in LEGACY:
            raise DTypeError(f"[type] invalid type: {shown(dtype)}; expected a name like 'torch.FloatTensor' or a dtype")
        return converted("type", _of_kind(input, place.rpartition(".")[2].replace("torch", "")), LEGACY[short], None)
    if dtype is Tensor:  # the class stands for the type of which new tensors are
        dtype = dt.get_default_dtype()
    if not isinstance(dtype, dt.DType) and isinstance(getattr(dtype, "dtype", None), dt.DType):
        input, dtype = _of_kind(input, getattr(dtype, "kind", "")), dtype.dtype
    return converted("type", input, resolve_dtype(dtype, input._layout.dtype, "type"), None)


def _of_kind(input: Tensor, kind: str) -> Tensor:
    """The tensor on a device of a kind, as an old type names it; "": not on a CUDA device."""
    here = input._layout.device
    if here.type == kind or (not kind and here.type != "cuda"):
        return input
    return move(input, resolve_device(kind, "type") if kind else CPU)


@method("type_as")
def type_as(input: Tensor, other: Tensor) -> Tensor:
    """`input` converted to the dtype of `other`, where that is."""
    return converted("type_as", move(input, other._layout.device), other._layout.dtype, None)


@method("cpu")
def cpu(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor on the CPU."""
    return converted("cpu", move(input, CPU), input._layout.dtype, memory_format)


@method("to_device")
def to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """The tensor on a device, as the Array API standard names it; `stream` is for other libraries."""
    return to(self, device)


@method("cuda")
def cuda(input: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    """The tensor on a CUDA device; raises `DeviceError` saying what is missing."""
    return converted("cuda", move(input, resolve_device("cuda" if device is None else device, "cuda")), input._layout.dtype, memory_format)


@method("get_device")
def get_device(input: Tensor) -> int:
    """Number of the device, -1 for the CPU as a whole."""
    index = input._layout.device.index
    return -1 if index is None else index


@method("pin_memory")
def pin_memory(input: Tensor, device: Any = None) -> Tensor:
    """The tensor itself: without an accelerator there is nothing to pin for."""
    return input


@public()
def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is a floating type."""
    return input._layout.dtype.is_floating_point


@method("is_signed")
def is_signed(input: Tensor) -> bool:
    """Whether the dtype can hold negative numbers."""
    return input._layout.dtype.is_signed


@method("is_pinned")
def is_pinned(input: Tensor, device: Any = None) -> bool:
    """False: no device copies from pinned memory."""
    return False


@method("is_inference")
def _no(input: Tensor) -> bool:
    """False."""
    return False


@method("element_size")
def element_size(input: Tensor) -> int:
    """Bytes per element."""
    return input._layout.dtype.itemsize


@public(method=False)
def can_cast(from_: dt.DType, to: dt.DType) -> bool:
    """Whether PyTorch's in-place rules allow writing `from_` into `to`."""
    _require_dtypes("can_cast", from_=from_, to=to)
    return from_.category <= to.category


@public(method=False)
def promote_types(type1: dt.DType, type2: dt.DType) -> dt.DType:
    """The smallest dtype of at least the category of both.

    >>> import calque
    >>> calque.promote_types(calque.int64, calque.float32)
    torch.float32
    """
    _require_dtypes("promote_types", type1=type1, type2=type2)
    return dt.promote(type1, type2)


def _require_dtypes(op: str, **given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, dt.DType):
            raise DTypeError(f"[{op}] expected a dtype, got {described(value)} as {name!r}; pass one such as calque.float32")


@public(method=False)
def result_type(tensor1: Any, tensor2: Any) -> dt.DType:
    """dtype of an arithmetic operation on two operands, each a tensor or a number."""
    require_operands("result_type", tensor1, tensor2)
    from_tensor = is_tensor(tensor1), is_tensor(tensor2)
    if all(from_tensor):
        a, b = tensor1._layout, tensor2._layout
        return dt.promote_operands(a.dtype, a.ndim, b.dtype, b.ndim)
    if from_tensor[0]:
        return dt.promote_scalar(tensor1._layout.dtype, tensor2)
    if from_tensor[1]:
        return dt.promote_scalar(tensor2._layout.dtype, tensor1)
    return dt.promote(dt.of_scalar(tensor1), dt.of_scalar(tensor2))


attribute("dtype", lambda self: self._layout.dtype, "Element type.")
attribute("device", lambda self: self._layout.device, "Where the tensor lives.")
attribute("itemsize", lambda self: self._layout.dtype.itemsize, "Bytes per element.")
attribute("nbytes", lambda self: self._layout.nbytes, "Bytes of the elements.")
attribute("is_cuda", lambda self: self._layout.device.type == "cuda", "Whether the tensor is on a CUDA device.")
attribute("is_cpu", lambda self: self._layout.device.type == "cpu", "Whether the tensor is on the CPU or one of its logical devices.")
attribute("is_meta", lambda self: self._layout.device is META, "Whether the tensor has a shape and a dtype only.")
attribute("layout", lambda self: strided, "`torch.strided`: every element has its place in memory. Sparse tensors have other layouts.")
for _name in ("is_sparse", "is_sparse_csr", "is_quantized", "is_mkldnn", "is_nested", "is_mps", "is_xpu"):
    attribute(_name, lambda self: False, "False.")


# ------------------------------------------------------------------------------------------------------ Python numbers


def _asked(t: Tensor, reason: str) -> Any:
    """The only element of a tensor, where the compiled module can read it: nothing is pending. None: `read_number` is to read it."""
    return None


number: Callable[[Tensor, str], Any] = _asked if hot is None else hot.number


@method("item")
def item(input: Tensor) -> Any:
    """The only element, as a Python number.

    >>> import calque
    >>> calque.tensor([2.5]).item()
    2.5
    """
    if (found := number(input, "item")) is not None:
        return found
    if input._layout.numel != 1:
        raise ShapeError(
            f"[item] a Tensor with {input._layout.numel} elements cannot be converted to Scalar: expected one element, got shape "
            f"{tuple(input._layout.shape)}; index it first or use .tolist()"
        )
    return read_number(input, "item", _element)


@method("tolist")
def tolist(input: Tensor) -> Any:
    """Nested lists of Python numbers; a number for a 0-d tensor."""
    try:
        return read_number(input, "tolist", _nested)
    except MemoryError as error:
        raise out_of_memory(error, "tolist", f"the numbers of a tensor of shape {tuple(input._layout.shape)}") from None


_PYTHON = (float, int, bool, complex)  # a 16-bit float is none of them


def _element(values: Any) -> Any:
    value = values.item()
    return value if value.__class__ in _PYTHON else float(value)


def _nested(values: Any) -> Any:
    if values.dtype.itemsize <= 2 and values.dtype.kind not in "biu":
        values = values.astype("float64")
    return values.tolist()


def _is_true(values: Any) -> bool:
    return bool(values.item())


def _position(values: Any) -> int:
    return int(values.item())


def _truth(input: Tensor) -> bool:
    if (found := number(input, "bool")) is not None:
        return bool(found)
    view = input._layout
    if view.numel != 1:
        many = "no values" if view.numel == 0 else f"{view.numel} values"
        raise ArgumentError(
            f"[bool] Boolean value of Tensor with {many} is ambiguous: expected one value, got shape {tuple(view.shape)}; use "
            ".any() or .all()"
        )
    return bool(read_number(input, "bool", _is_true))


@public(method=False)
def is_nonzero(input: Tensor) -> bool:
    """Whether the only element is not zero."""
    return _truth(input)


def _real_item(input: Tensor) -> Any:
    value = item(input)
    if isinstance(value, complex):
        if value.imag:
            raise ArgumentError(f"[item] value cannot be converted to a real number without overflow: {value} has an imaginary part; use .real")
        value = value.real
    return value


def _integer(input: Tensor) -> int:
    if input._layout.dtype.category >= 2 or input._layout.numel != 1:
        raise TypeError(
            "[index] only integer tensors of a single element can be converted to an index, got shape "
            f"{tuple(input._layout.shape)} of "
            f"{input._layout.dtype}"
        )
    found = number(input, "index")
    return int(read_number(input, "index", _position) if found is None else found)


def _length(input: Tensor) -> int:
    shape = input._layout.shape
    if not shape:
        raise TypeError("[len] len() of a 0-d tensor; use .numel() or .item()")
    length: int = shape[0]
    return length


def _iterate(input: Tensor) -> Iterator[Tensor]:
    if not input.shape:
        raise TypeError("[iter] iteration over a 0-d tensor; use .item()")
    return iter(input.unbind(0))  # type: ignore[attr-defined]


def _contains(input: Tensor, element: Any) -> bool:
    if not (is_tensor(element) or isinstance(element, (bool, int, float, complex))):
        raise ArgumentError(f"[in] Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(element)}")
    return bool((input == element).any().item())  # type: ignore[union-attr]


method("__bool__")(_truth)
method("is_nonzero")(_truth)
method("__int__")(lambda self: int(_real_item(self) if (found := number(self, "item")) is None else found))
method("__float__")(lambda self: float(_real_item(self) if (found := number(self, "item")) is None else found))
method("__complex__")(lambda self: complex(item(self)))
method("__index__")(_integer)
method("__len__")(_length)
method("__iter__")(_iterate)
method("__contains__")(_contains)
method("__reversed__")(lambda self: self.flip(0) if self._layout.ndim else self)
