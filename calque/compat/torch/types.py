"""`torch.types`: names for annotations."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import IO, Any, Union

import calque

__all__ = [
    "Device", "FileLike", "Number", "Storage", "_TensorOrTensors", "_TensorOrTensorsOrGradEdge", "_bool", "_complex", "_device", "_dtype", "_float",
    "_int", "_layout", "_qscheme", "_size", "_symsize", "_dispatchkey", "_bytes", "_str", "py_sym_types",
]  # fmt: skip

_int, _float, _bool, _complex, _bytes, _str = builtins.int, builtins.float, builtins.bool, builtins.complex, builtins.bytes, builtins.str
_dtype, _device = calque.dtype, calque.device
_layout = _qscheme = _dispatchkey = Any
_size = _symsize = Union[calque.Size, list[builtins.int], tuple[builtins.int, ...]]  # noqa: UP007 - as a value, for whoever asks for its parts
_TensorOrTensors = _TensorOrTensorsOrGradEdge = Union[calque.Tensor, Sequence[calque.Tensor]]  # noqa: UP007
Number = Union[builtins.int, builtins.float, builtins.bool]  # noqa: UP007
Device = Union[calque.device, builtins.str, builtins.int, None]  # noqa: UP007
FileLike = Union[builtins.str, os.PathLike[builtins.str], IO[builtins.bytes]]  # noqa: UP007
Storage = Any
py_sym_types = ()
