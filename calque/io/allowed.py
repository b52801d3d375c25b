"""What a PyTorch checkpoint may name, and what of ours stands for it.

The table is closed. Names of tensors and storages belong to `torch_tensors`; here are Python's and NumPy's containers, numbers and dates, and
PyTorch's element types, sizes and devices. A name that is not in it is refused with the advice that fits.
"""

from __future__ import annotations

import datetime
import re
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.device import Device
from calque.base.dtypes import DType
from calque.base.layout import MOST_DIMS
from calque.base.shapes import Size
from calque.io.bounds import Damaged
from calque.io.unpickle import Known, Pending, Refused, check_key

_NUMERIC = re.compile(r"[<>=|]?[?biufcSU]\d{0,6}")
_PYTHON2 = {"__builtin__": "builtins", "copy_reg": "copyreg", "numpy.core.multiarray": "numpy._core.multiarray",
            "numpy.core.numeric": "numpy._core.numeric", "pathlib._local": "pathlib"}  # fmt: skip
_SAVE_STATE = "a whole object is code; save its state_dict() and load it with load_state_dict()"


def _factory(factory: Any = None, items: Any = None) -> defaultdict[Any, Any]:
    known = {"builtins.list": list, "builtins.dict": dict, "builtins.set": set, "builtins.int": int, "builtins.float": float,
             "builtins.bool": bool, "builtins.str": str, "builtins.tuple": tuple}  # fmt: skip
    if factory is not None and (not isinstance(factory, Known) or factory.name not in known):
        raise Refused(f"it makes a defaultdict with {getattr(factory, 'name', 'a value')}")
    return defaultdict(known[factory.name] if factory is not None else None, _pairs(items))


def _pairs(items: Any = None) -> dict[Any, Any]:
    """A dict of a dict, or of a list of pairs."""
    if items is None:
        return {}
    if isinstance(items, dict):
        return items
    if type(items) is not list or any(type(pair) not in (tuple, list) or len(pair) != 2 for pair in items):
        raise Damaged("its pickle makes a dict of something else than pairs")
    return {check_key(key): value for key, value in items}


def _members(items: Any = ()) -> list[Any]:
    if type(items) not in (list, tuple, set):
        raise Damaged("its pickle makes a set of something else than a list")
    return [check_key(item) for item in items]


def _members_of(items: Any) -> list[Any]:
    if type(items) not in (list, tuple):
        raise Damaged("its pickle makes a deque of something else than a list")
    return list(items)


def _length(length: Any) -> Any:
    if length is not None and type(length) is not int:
        raise Damaged("its pickle makes a deque of an impossible length")
    return length


def _bytes(text: Any = "", encoding: Any = "latin1") -> bytes:
    """`_codecs.encode`, which is how protocol 2 writes bytes."""
    if type(text) is bytes:
        return text
    if type(text) is not str or type(encoding) is not str or encoding not in ("latin1", "latin-1", "utf8", "utf-8", "ascii"):
        raise Damaged("its pickle makes bytes of something else than text")
    return text.encode(encoding)


def _size(sizes: Any = ()) -> Size:
    if type(sizes) not in (tuple, list) or not all(type(n) is int for n in sizes):
        raise Damaged("its pickle makes a torch.Size of something else than integers")
    return Size(sizes)


def _text_of(text: Any) -> str:
    if type(text) is not str:
        raise Damaged("its pickle makes a version or layout of something else than text")
    return text


def _reconstructor(cls: Any, base: Any, state: Any) -> Any:
    """`copyreg._reconstructor`, by which protocols 0 and 1 make objects."""
    if not isinstance(cls, Known) or cls.make is None or not isinstance(base, Known) or base.name != "builtins.object" or state is not None:
        raise Refused(f"it makes a {getattr(cls, 'name', 'value')} by copyreg")
    return cls.make()


# ---------------------------------------------------------------------------------------------------------------- NumPy


def _numpy_type(code: Any, align: Any = False, copy: Any = False) -> Pending:
    """`numpy.dtype(code)`; its byte order comes as the state."""
    if type(code) is not str or not _NUMERIC.fullmatch(code):
        raise Refused("it makes NumPy values of a type that is no number and no text")

    def build(state: Any) -> Any:
        if type(state) is not tuple or len(state) < 3 or type(state[1]) is not str or state[1] not in ("<", ">", "|", "=") or state[2] is not None:
            raise Refused("it makes NumPy values of a type with parts")
        order: Any = state[1]
        return np.dtype(code).newbyteorder(order) if order in "<>" else np.dtype(code)

    return Pending(build)


def _values(data: Any, dtype: Any, shape: Any, fortran: Any) -> np.ndarray[Any, Any]:
    """An array of the given bytes, which must be as many as it says."""
    if type(data) is str:
        data = data.encode("latin-1")
    if type(data) not in (bytes, bytearray) or not isinstance(dtype, np.dtype):
        raise Damaged("its pickle makes an array of something else than bytes")
    if type(shape) is not tuple or len(shape) > MOST_DIMS or not all(type(n) is int and n >= 0 for n in shape):
        raise Damaged("its pickle makes an array of an impossible shape")
    count = 1
    for extent in shape:
        count *= max(extent, 1)
    if (0 if 0 in shape else count * dtype.itemsize) != len(data) or count >= 2**62:
        raise Damaged(f"its pickle makes an array of shape {shape[:8]} of {len(data):,} bytes")
    order: Any = "F" if fortran is True else "C"
    made = np.zeros(shape, dtype) if 0 in shape or not dtype.itemsize else np.frombuffer(data, dtype).reshape(shape, order=order)
    return made.astype(dtype.newbyteorder("="), order="K", copy=True)


def _scalar(dtype: Any, data: Any = b"") -> Any:
    return _values(data, dtype, (), False)[()]


def _reconstruct(cls: Any, shape: Any, code: Any) -> Pending:
    """An array whose type, shape and bytes come as its state."""
    if not isinstance(cls, Known) or cls.name != "numpy.ndarray":
        raise Refused(f"it makes an array of class {getattr(cls, 'name', 'unknown')}")

    def build(state: Any) -> Any:
        if type(state) is not tuple or len(state) not in (4, 5):
            raise Damaged("its pickle gives an array a state of another form")
        shape, dtype, fortran, data = state[-4:]
        if type(data) is list:
            raise Refused("it holds an array of Python objects")
        return _values(data, dtype, shape, fortran)

    return Pending(build)


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any = "C") -> Any:
    return _values(data, dtype, shape, type(order) is str and order == "F")


# ------------------------------------------------------------------------------------------------------------- the table


def _date(kind: Any, size: int) -> Any:
    """A date or time, made of its packed bytes and a fixed time zone."""

    def make(packed: Any, *zone: Any) -> Any:
        packed = packed.encode("latin-1") if type(packed) is str else packed
        if type(packed) is not bytes or len(packed) != size or len(zone) > 1 or zone and not isinstance(zone[0], datetime.timezone):
            raise Damaged(f"its pickle makes a {kind.__name__} of something else than its bytes")
        return kind(packed, *zone)

    return make


TABLE: dict[str, Any] = {
    "collections.OrderedDict": lambda items=None: OrderedDict(_pairs(items)),
    "collections.Counter": lambda items=None: Counter(_pairs(items)),
    "collections.defaultdict": _factory,
    "collections.deque": lambda items=(), length=None: deque(_members_of(items), _length(length)),
    "pathlib.PosixPath": lambda *parts: Path(*map(_text_of, parts)),
    "pathlib.PurePosixPath": lambda *parts: Path(*map(_text_of, parts)),
    "pathlib.WindowsPath": lambda *parts: Path(*map(_text_of, parts)),
    "builtins.set": lambda items=(): set(_members(items)),
    "builtins.frozenset": lambda items=(): frozenset(_members(items)),
    "builtins.bytearray": lambda *text: bytearray(_bytes(*text)),
    "builtins.bytes": lambda *text: _bytes(*text),
    "builtins.complex": lambda real, imag: complex(float(real), float(imag)),
    "builtins.slice": lambda *bounds: slice(*[check_key(n) for n in bounds]),
    "builtins.range": lambda *bounds: range(*bounds),
    "builtins.xrange": lambda *bounds: range(*bounds),
    "_codecs.encode": _bytes,
    "copyreg._reconstructor": _reconstructor,
    "argparse.Namespace": lambda: Namespace(),
    "types.SimpleNamespace": lambda: Namespace(),
    "torch.Size": _size,
    "torch.device": lambda *name: Device(*name),
    "torch.serialization._get_layout": _text_of,
    "torch.torch_version.TorchVersion": _text_of,
    "numpy.dtype": _numpy_type,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy._core.numeric._frombuffer": _from_buffer,
    "datetime.datetime": _date(datetime.datetime, 10),
    "datetime.date": _date(datetime.date, 4),
    "datetime.time": _date(datetime.time, 6),
    "datetime.timedelta": lambda *parts: datetime.timedelta(*parts),
    "datetime.timezone": lambda offset, *name: datetime.timezone(offset, *name),
}
_PASSED_ON = {"builtins.list", "builtins.dict", "builtins.int", "builtins.float", "builtins.bool", "builtins.str", "builtins.tuple",
              "builtins.object", "numpy.ndarray"}  # fmt: skip


def find(module: str, name: str, more: dict[str, Any]) -> Any:
    """What stands for a name: a `Known`, or a value such as an element type. `more` is a table beside this one."""
    full = f"{_PYTHON2.get(module, module)}.{name}"
    if full in more:
        return more[full]
    if full in TABLE:
        return Known(full, TABLE[full])
    if full in _PASSED_ON:
        return Known(full, None)
    if module == "torch":
        dtype = getattr(dt, "bool_" if name == "bool" else name, None)
        if isinstance(dtype, DType):
            return dtype
    raise Refused(f"it needs the class or function {full[:160]!r}; {_SAVE_STATE}")
