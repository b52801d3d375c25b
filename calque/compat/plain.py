"""Names that `torch` has because PyTorch's own source uses them: modules of Python, types of TorchScript, classes of storages; and functions that
PyTorch has removed, which say what to use."""

from __future__ import annotations

import builtins
import ctypes
import functools
import glob
import importlib
import inspect
import math
import os
import platform
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import calque
from calque.compat.refused import refused_class

MODULES = {
    m.__name__: m for m in (builtins, ctypes, functools, glob, importlib, inspect, math, os, platform, sys, textwrap, threading, warnings)
}  # fmt: skip
SCRIPT_TYPES = (  # names that are split where they are looked up
    "AnyType AwaitType BoolType ClassType ComplexType DeviceObjType DictType EnumType FloatType FutureType InferredType IntType InterfaceType "
    "ListType NoneType NumberType OptionalType PyObjectType RRefType StreamObjType StringType SymBoolType SymIntType TensorType TupleType Type "
    "UnionType Argument Block Code CompilationUnit FunctionSchema Graph Node ScriptDict ScriptList ScriptMethod ScriptObject "
    "TracingState Use Value"
)
STORAGES = {
    "BFloat16Storage": "bfloat16", "BoolStorage": "bool", "ByteStorage": "uint8", "CharStorage": "int8", "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64", "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "IntStorage": "int32",
    "LongStorage": "int64", "ShortStorage": "int16",
}  # fmt: skip
SCHEMES = "per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric per_channel_affine_float_qparams"
REMOVED = {
    "eig": "torch.linalg.eig", "lstsq": "torch.linalg.lstsq", "matrix_rank": "torch.linalg.matrix_rank", "solve": "torch.linalg.solve",
    "symeig": "torch.linalg.eigh",
}  # fmt: skip


class qscheme:
    """How a quantised tensor is scaled: a name, to compare with. There are no such tensors."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


def _removed(name: str) -> Callable[..., NoReturn]:
    def call(*args: Any, **keywords: Any) -> NoReturn:
        raise RuntimeError(f"[{name}] expected a function of this version of PyTorch, got one that was removed; use {REMOVED[name]} instead")

    call.__name__ = call.__qualname__ = name
    return call


@functools.cache
def lookup(name: str) -> Any:
    """The value of a name of this sort; None if it is none."""
    if name in MODULES:
        return MODULES[name]
    if name in SCRIPT_TYPES.split():
        return refused_class(f"torch.{name}")
    if name in STORAGES:
        found = refused_class(f"torch.{name}")
        found.dtype = getattr(calque, STORAGES[name])
        return found
    if name in ("Storage", "StorageBase"):
        return refused_class("torch.storage.TypedStorage")
    if name in REMOVED:
        return _removed(name)
    if name in SCHEMES.split():
        return qscheme(name)
    return qscheme if name == "qscheme" else None
