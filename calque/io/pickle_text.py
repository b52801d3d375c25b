"""Writing the pickle of a `.pt` file: values to instructions that `torch.load(weights_only=True)` knows (protocol 2), tensors to numbered storages.

Two names for one container or tensor stay one; a value outside of the set is refused by its place, as in the default format.
"""

from __future__ import annotations

import copyreg
import struct
from argparse import Namespace
from collections import OrderedDict
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from calque.base.asked import ordinary
from calque.base.device import META, Device, place_elsewhere
from calque.base.dtypes import DType
from calque.base.shapes import Size, contiguous_strides
from calque.base.text import type_name
from calque.io.structure import MAX_DEPTH, Array, path_text
from calque.io.torch_tensors import TYPED
from calque.nn.parameter import Parameter
from calque.run.dispatch import raise_pending
from calque.tensor import Tensor, read, realise

_STORAGES = {dtype: f"{name}Storage" for name, dtype in TYPED.items()}
_ACCEPTED = "tensors, parameters, NumPy arrays, numbers, strings, bytes, None, dtypes, sizes, devices, and dicts, lists, tuples, sets of them"


class PickleText:
    """`text` of a value, and the `storages` it needs, in their order."""

    def __init__(self, value: object, objects: bool = False) -> None:
        self.objects = objects  # whether objects of any class are written, by the names of their classes
        self.parts: list[bytes] = [b"\x80\x02"]
        self.storages: list[Array] = []
        self.memo: dict[Any, int] = {}
        self.kept: list[object] = []  # what `memo` knows by its id must not make place for another
        self.keys: dict[int, int] = {}
        self.open: set[int] = set()
        self.put(value, ())
        self.text = b"".join([*self.parts, b"."])

    def emit(self, *parts: bytes) -> None:
        """Instructions."""
        self.parts += parts

    def remember(self, key: Any, value: object = None) -> None:
        """The value on top can be had again."""
        number = self.memo[key] = len(self.memo)
        self.kept.append(value)
        self.emit(b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number))

    def again(self, key: Any) -> bool:
        """Push a value that is known already."""
        number = self.memo.get(key)
        if number is not None:
            self.emit(b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number))
        return number is not None

    def name(self, full: str) -> None:
        """A class or function by its module and name."""
        if not self.again(("name", full)):
            module, _, name = full.rpartition(".")
            self.emit(b"c" + module.encode() + b"\n" + name.encode() + b"\n")
            self.remember(("name", full))

    def call(self, full: str, arguments: tuple[Any, ...], path: tuple[object, ...]) -> None:
        """A value made by a function."""
        self.name(full)
        self.tuple_of(arguments, path)
        self.emit(b"R")

    def put(self, value: Any, path: tuple[object, ...]) -> None:
        """A value."""
        kind = type(value)
        if value is None:
            self.emit(b"N")
        elif kind is bool:
            self.emit(b"\x88" if value else b"\x89")
        elif kind is int:
            self.emit(_integer(value))
        elif kind is float:
            self.emit(b"G" + struct.pack(">d", value))
        elif kind is str:
            self.string(value)
        elif not self.again(id(value)):
            self.fresh(value, path)

    def string(self, value: str) -> None:
        """A string."""
        if not self.again(("text", value)):
            data = value.encode("utf-8", "surrogatepass")
            self.emit(b"X" + struct.pack("<I", len(data)), data)
            self.remember(("text", value))

    def fresh(self, value: Any, path: tuple[object, ...]) -> None:
        """A value that was not there before."""
        kind = type(value)
        if id(value) in self.open:
            raise ValueError(f"[save] expected a tree of values; {path_text(path)} contains itself")
        if len(path) >= MAX_DEPTH:
            raise ValueError(f"[save] expected at most {MAX_DEPTH} levels of nesting, got more at {path_text(path[:4])}...")
        self.open.add(id(value))
        if isinstance(value, Tensor):
            self.tensor(ordinary(value), path)
        elif kind in (dict, OrderedDict, list, tuple, set, frozenset, Namespace):
            self.container(value, path)
        elif isinstance(value, np.ndarray | np.generic | np.dtype):
            self.numpy(value, path)
        else:
            self.small(value, path)
        self.open.discard(id(value))
        if kind is not tuple or value:
            self.remember(id(value), value)

    def small(self, value: Any, path: tuple[object, ...]) -> None:
        """A value that is made of a few others."""
        if isinstance(value, Size):
            self.call("torch.Size", (tuple(value),), path)
        elif isinstance(value, DType):
            self.name(repr(value))
        elif isinstance(value, Device):
            self.call("torch.device", (str(value),), path)
        elif isinstance(value, bytes):
            self.call("_codecs.encode", (value.decode("latin-1"), "latin1"), path)
        elif isinstance(value, bytearray):
            self.call("__builtin__.bytearray", (bytes(value),), path)
        elif isinstance(value, complex):
            self.call("__builtin__.complex", (value.real, value.imag), path)
        elif self.objects:
            self.foreign(value, path)
        elif callable(getattr(value, "state_dict", None)):
            raise TypeError(f"[save] expected {_ACCEPTED}; got {type_name(value)} at {path_text(path)}; save its state_dict() instead")
        else:
            raise TypeError(f"[save] expected {_ACCEPTED}; got {type_name(value)} at {path_text(path)}; convert it to one of these, or leave it out")

    def foreign(self, value: Any, path: tuple[object, ...]) -> None:
        """An object of any class as Python pickles it: what makes it, by name, and its state."""
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            self.named_object(value, value.__qualname__, path)
            return
        try:
            reduced = value.__reduce_ex__(2)
        except TypeError as error:
            raise TypeError(f"[save] expected what can be pickled, got {type_name(value)} at {path_text(path)}: {error}; leave it out") from None
        if isinstance(reduced, str):
            self.named_object(value, reduced, path)
            return
        function, arguments, state, listed, paired = (*reduced, *(None,) * (5 - len(reduced)))[:5]
        new = function is getattr(copyreg, "__newobj__")  # noqa: B009
        self.put(arguments[0] if new else function, path)
        self.tuple_of(tuple(arguments[1:] if new else arguments), path)
        self.emit(b"\x81" if new else b"R")
        for items, code in ((None if listed is None else list(listed), b"e"), (None if paired is None else [x for p in paired for x in p], b"u")):
            if items:
                self.emit(b"(")
                for number, item in enumerate(items):
                    self.put(item, (*path, number))
                self.emit(code)
        if state is not None:
            self.put(state, (*path, "state"))
            self.emit(b"b")

    def named_object(self, value: Any, name: str, path: tuple[object, ...]) -> None:
        """A class, function or constant of a module, by its name there."""
        module = getattr(value, "__module__", None) or "__main__"
        if "<" in name or "." in name:
            raise TypeError(f"[save] expected an object that its module has under a name, got {module}.{name} at {path_text(path)}; leave it out")
        self.name(f"{module}.{name}")

    def tuple_of(self, value: tuple[Any, ...], path: tuple[object, ...]) -> None:
        """A tuple, of any length."""
        if len(value) > 3:
            self.emit(b"(")
        for number, item in enumerate(value):
            self.put(item, (*path, number))
        self.emit(b")" if not value else (b"\x85", b"\x86", b"\x87")[len(value) - 1] if len(value) <= 3 else b"t")

    def container(self, value: Any, path: tuple[object, ...]) -> None:
        """A container and its items."""
        kind = type(value)
        if kind is tuple:
            self.tuple_of(value, path)
        elif kind in (set, frozenset):
            self.call(f"__builtin__.{kind.__name__}", (list(value),), path)
        elif kind is list:
            self.emit(b"](")
            for number, item in enumerate(value):
                self.put(item, (*path, number))
            self.emit(b"e")
        else:
            self.mapping(value, path)

    def mapping(self, value: Any, path: tuple[object, ...]) -> None:
        """A dict, with what is set on it."""
        if type(value) is Namespace:
            self.name("argparse.Namespace")
            self.emit(b")\x81")
        elif type(value) is dict:
            self.emit(b"}")
        else:
            self.call("collections.OrderedDict", (), path)
        if isinstance(value, dict):
            self.emit(b"(")
            for key, item in value.items():
                self.put(key, (*path, key))
                self.put(item, (*path, key))
            self.emit(b"u")
        if getattr(value, "__dict__", None):
            self.put(dict(vars(value)), (*path, "__dict__"))
            self.emit(b"b")

    # ----------------------------------------------------------------------------------------------------------- arrays

    def numpy(self, value: Any, path: tuple[object, ...]) -> None:
        """An array, a number or an element type of NumPy, as NumPy pickles them."""
        if isinstance(value, np.dtype):
            if value.kind not in "?biufcSU":
                raise TypeError(f"[save] expected a NumPy type of numbers or text, got {value} at {path_text(path)}; convert it with astype")
            self.call("numpy.dtype", (value.str[1:], False, True), path)
            wide = value.itemsize if value.kind in "SU" else -1
            self.put((3, value.str[0], None, None, None, wide, 4 if value.kind == "U" else 1 if wide > 0 else -1, 0), path)
            self.emit(b"b")
        elif isinstance(value, np.generic):
            self.call("numpy._core.multiarray.scalar", (value.dtype, value.tobytes()), path)
        else:
            self.name("numpy._core.multiarray._reconstruct")
            self.name("numpy.ndarray")
            self.tuple_of((0,), path)
            self.put(b"b", path)
            self.emit(b"\x87R")
            self.put((1, value.shape, value.dtype, False, value.tobytes()), path)
            self.emit(b"b")

    def tensor(self, value: Tensor, path: tuple[object, ...]) -> None:
        """A tensor, as PyTorch rebuilds it."""
        attributes = {name: item for name, item in value.__dict__.items() if not name.startswith("_")}
        is_parameter = isinstance(value, Parameter)
        if attributes and not is_parameter:
            self.name("torch._tensor._rebuild_from_type_v2")
            function = self.rebuild(value, path, named=False)
            assert function
            self.put(attributes, path)
            self.emit(b"tR")
        elif is_parameter:
            self.name(f"torch._utils._rebuild_parameter{'_with_state' if attributes else ''}")
            self.emit(b"(")
            self.rebuild(value, path)
            self.put(bool(value.requires_grad), path)
            self.call("collections.OrderedDict", (), path)
            if attributes:
                self.put(attributes, path)
            self.emit(b"tR")
        else:
            self.rebuild(value, path)

    def rebuild(self, value: Tensor, path: tuple[object, ...], named: bool = True) -> bool:
        """The tensor without what is set on it: a call, or (`named` false) a mark, the function, the class and the arguments."""
        view, dtype = value._layout, value._layout.dtype
        grad = bool(value.requires_grad) and not isinstance(value, Parameter)
        typed = _STORAGES.get(dtype.name)
        meta = view.device is META
        if not named:
            self.emit(b"(")
        self.name("torch._utils._rebuild_" + ("meta_tensor_no_storage" if meta else "tensor_v2" if typed else "tensor_v3"))
        if not named:
            self.name("torch.Tensor")
        self.emit(b"(")
        if meta:
            for item in (dtype, tuple(view.shape), view.strides, grad):
                self.put(item, path)
        else:
            offset, strides = self.storage(value, typed)
            for part in (offset, tuple(view.shape), strides, grad):
                self.put(part, path)
            self.call("collections.OrderedDict", (), path)
            if not typed:
                self.put(dtype, path)
        self.emit(b"t" if not named else b"tR")
        return True

    def storage(self, value: Tensor, typed: str | None) -> tuple[int, tuple[int, ...]]:
        """The storage behind a tensor, whole, as tensors that share one share it again; offset and strides of the tensor in it."""
        view, whole = value._layout, value._storage.layout
        buffer = realise(value, "save")
        flat = buffer.readable()
        raise_pending()
        offset, strides = view.offset, view.strides
        key = self.keys.get(id(value._storage))
        if flat.dtype != view.dtype.np or whole.dtype is not view.dtype:  # a view as another type, which a file cannot say
            flat, offset, strides, key = np.ascontiguousarray(read(value, "save")).reshape(-1), 0, contiguous_strides(tuple(view.shape)), None
        if key is None:
            key = len(self.storages)
            self.storages.append(flat)
            if offset == view.offset and flat.dtype == whole.dtype.np:
                self.keys[id(value._storage)] = key
                self.kept.append(value._storage)
        self.emit(b"(")
        self.string("storage")
        self.name(f"torch.{typed}" if typed else "torch.storage.UntypedStorage")
        self.string(str(key))
        self.string(str(place_elsewhere(view.device)))
        self.emit(_integer(flat.size if typed else flat.nbytes), b"tQ")
        return offset, strides


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 65536:
        return b"M" + struct.pack("<H", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data if len(data) < 256 else b"\x8b" + struct.pack("<i", len(data)) + data
