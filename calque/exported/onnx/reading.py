"""ONNX files as data that is checked: nodes, values and names. A file is believed in nothing, and nothing of it is executed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from calque.base.dataclass import dataclass
from calque.base.errors import CheckpointError, CheckpointNotFoundError, DTypeError, UnsafeFileError
from calque.base.extras import need
from calque.base.text import described, shown
from calque.exported.onnx.builder import KINDS
from calque.io.read import open_regular

DTYPES: dict[int, Any] = {number: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name, number in KINDS.items()}
"""NumPy's types by ONNX's numbers."""
_FIELDS = {1: "float_data", 11: "double_data", 7: "int64_data", 12: "uint64_data", 13: "uint64_data"}  # others: int32_data
_HALVES = (10, 16)  # kept as the bits of integers
LEVELS = 32  # of graphs in graphs, and of functions that call functions


class Broken(ValueError):
    """Something in the file is not as the standard says."""


@dataclass(frozen=True, slots=True)
class Ref:
    """An attribute whose value is that of the function's attribute of this name."""

    name: str


@dataclass(slots=True)
class OpNode:
    """An application of an operator. An input or output that is left out has the name ""."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]
    source: Any  # as it was in the file

    def __str__(self) -> str:
        return f"{self.domain + '.' if self.domain else ''}{self.op}{f' ({shown(self.name)})' if self.name else ''}"


@dataclass(slots=True)
class Given:
    """An input. Sizes that have no number have a name, or "" if they have none either; `shape` is None if not even their count is known."""

    name: str
    dtype: Any
    shape: tuple[int | str, ...] | None


@dataclass(slots=True)
class OpGraph:
    """Nodes in order, constants by name, and what goes in and out."""

    nodes: list[OpNode]
    values: dict[str, Any]
    inputs: list[Given]
    outputs: tuple[str, ...]


@dataclass(slots=True)
class OpFunction:
    """A function that the file (or the standard) writes with other operators."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]  # with their defaults; None: without
    nodes: list[OpNode]
    opsets: dict[str, int]


@dataclass(slots=True)
class OpModel:
    """A file."""

    graph: OpGraph
    opsets: dict[str, int]
    functions: dict[tuple[str, str], OpFunction]
    notes: dict[str, str] = field(default_factory=dict)


def read_model(f: Any) -> OpModel:
    """The model in a file (a path, an open file, or bytes). Raises UnsafeFileError for what is none."""
    onnx = need("onnx", "onnx", "onnx", "load_onnx")
    where, folder = "the file", None
    if isinstance(f, str | os.PathLike):
        where, folder = repr(os.fspath(f)), Path(f).resolve().parent
        try:
            with os.fdopen(open_regular(os.fspath(f), "load_onnx", "an ONNX file"), "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            raise CheckpointNotFoundError(f"[load_onnx] expected an ONNX file, got {where}, which does not exist") from None
        except CheckpointError:
            raise
        except OSError as error:
            raise CheckpointError(f"[load_onnx] expected an ONNX file, got {where}, which cannot be read: {error.strerror}; pass a file") from error
    elif isinstance(f, bytes | bytearray | memoryview):
        raw = bytes(f)
    elif not callable(getattr(f, "read", None)) or not isinstance(raw := f.read(), bytes):
        raise DTypeError(f"[load_onnx] expected a path, bytes or a file opened in binary mode, got {described(f)}; pass one of these")
    try:
        proto = onnx.ModelProto()
        proto.ParseFromString(raw)
        return Reader(folder).model(proto)
    except Broken as error:
        raise UnsafeFileError(f"[load_onnx] expected a sound ONNX model, got {where}, in which something is wrong: {error}") from None
    except (Exception, RecursionError) as error:  # what the parser of messages raises has no class of its own
        if isinstance(error, OSError):
            raise
        raise UnsafeFileError(f"[load_onnx] expected a sound ONNX model, got {where}, which is none: {error}") from None


def _text(x: Any) -> str:
    """A name; what is no UTF-8 comes as bytes."""
    if not isinstance(x, str):
        raise Broken(f"a name that is no text: {shown(x)}")
    return x


def _positions(shape: Sequence[int]) -> int:
    """The product of the sizes without those of 0: what they are to their strides, also where nothing is held."""
    return prod(s for s in shape if s > 0)


def _texts(values: Any) -> tuple[str, ...]:
    return tuple([_text(x) for x in values])


class Reader:
    """Makes data of messages. `folder`: where values in files of their own may lie; None: nowhere."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.named: dict[tuple[int, int], int] = {}  # by file, whatever its names: bytes of it that constants name

    def model(self, proto: Any) -> OpModel:
        """A whole model."""
        if not proto.HasField("graph") or not proto.graph.output:
            raise Broken("it has no graph with outputs")
        functions = {(_text(one.domain), _text(one.name)): self.function(one) for one in proto.functions}
        notes = {_text(item.key): _text(item.value) for item in proto.metadata_props}
        return OpModel(self.graph(proto.graph, 0), self.opsets(proto.opset_import), functions, notes)

    def opsets(self, imports: Any) -> dict[str, int]:
        """Versions by domain."""
        found = {"" if one.domain == "ai.onnx" else _text(one.domain): int(one.version) for one in imports}
        if any(not 0 < version < 1000 for version in found.values()):
            raise Broken(f"versions of operators that are none: {found}")
        return found

    def function(self, proto: Any) -> OpFunction:
        """A function."""
        attrs: dict[str, Any] = dict.fromkeys(_texts(proto.attribute))
        attrs |= {_text(one.name): self.attribute(one, 1) for one in proto.attribute_proto}
        nodes = [self.node(one, 1) for one in proto.node]
        return OpFunction(_texts(proto.input), _texts(proto.output), attrs, nodes, self.opsets(proto.opset_import))

    def graph(self, proto: Any, depth: int) -> OpGraph:
        """A graph, also one inside a node."""
        if depth > LEVELS:
            raise Broken(f"graphs inside graphs, more than {LEVELS} deep")
        if proto.sparse_initializer:
            raise Broken("it has sparse constants, which are not read")
        values: dict[str, Any] = {}
        for tensor in proto.initializer:
            if not _text(tensor.name) or tensor.name in values:
                raise Broken(f"two constants, or one without a name: {shown(tensor.name)}")
            values[tensor.name] = self.array(tensor)
        inputs = [self.given(one) for one in proto.input if one.name not in values]
        return OpGraph([self.node(one, depth) for one in proto.node], values, inputs, _texts(one.name for one in proto.output))

    def given(self, proto: Any) -> Given:
        """An input."""
        kind = proto.type.tensor_type
        _text(proto.name)
        if not proto.type.HasField("tensor_type"):
            if proto.type.WhichOneof("value") is None:  # of graphs inside of nodes
                return Given(proto.name, None, None)
            raise Broken(f"the input {shown(proto.name)} is no tensor, but a {proto.type.WhichOneof('value')}")
        if kind.elem_type not in DTYPES:
            raise Broken(f"the input {shown(proto.name)} has a type of elements that is not read (number {kind.elem_type})")
        if not kind.HasField("shape"):
            return Given(proto.name, DTYPES[kind.elem_type], None)
        shape: list[int | str] = []
        for d in kind.shape.dim:
            if d.HasField("dim_value") and d.dim_value < 0:
                raise Broken(f"the input {shown(proto.name)} has a size of {d.dim_value}")
            shape.append(int(d.dim_value) if d.HasField("dim_value") else _text(d.dim_param))
        if len(shape) > 64 or _positions([s for s in shape if isinstance(s, int)]) > 1 << 40:
            raise Broken(f"the input {shown(proto.name)} has the sizes {shown(shape)}")
        return Given(proto.name, DTYPES[kind.elem_type], tuple(shape))

    def node(self, proto: Any, depth: int) -> OpNode:
        """A node."""
        domain = "" if proto.domain == "ai.onnx" else _text(proto.domain)
        attrs = {_text(one.name): self.attribute(one, depth) for one in proto.attribute}
        return OpNode(_text(proto.op_type), domain, _text(proto.name), _texts(proto.input), _texts(proto.output), attrs, proto)

    def attribute(self, proto: Any, depth: int) -> Any:
        """The value of an attribute."""
        if proto.ref_attr_name:
            return Ref(_text(proto.ref_attr_name))
        kind = proto.type
        if kind in (1, 2):
            return float(proto.f) if kind == 1 else int(proto.i)
        if kind in (3, 8):
            return proto.s.decode("utf-8", "replace") if kind == 3 else [s.decode("utf-8", "replace") for s in proto.strings]
        if kind == 4:
            return self.array(proto.t)
        if kind == 5:
            return self.graph(proto.g, depth + 1)
        if kind in (6, 7):
            return [float(x) for x in proto.floats] if kind == 6 else [int(x) for x in proto.ints]
        if kind == 9:
            return [self.array(t) for t in proto.tensors]
        if kind == 10:
            return [self.graph(g, depth + 1) for g in proto.graphs]
        if kind == 13 and proto.tp.HasField("tensor_type"):
            return int(proto.tp.tensor_type.elem_type)
        raise Broken(f"the attribute {shown(proto.name)} has a type that is not read (number {kind})")

    def array(self, proto: Any) -> Any:
        """The values of a constant."""
        if proto.data_type not in DTYPES:
            raise Broken(f"the constant {shown(proto.name)} has a type of elements that is not read (number {proto.data_type})")
        if proto.HasField("segment"):
            raise Broken(f"the constant {shown(proto.name)} comes in parts")
        dtype, shape = DTYPES[proto.data_type], tuple(int(d) for d in proto.dims)
        count = prod(shape)
        if len(shape) > 64 or any(d < 0 for d in shape) or _positions(shape) > 1 << 40:
            raise Broken(f"the constant {shown(proto.name)} has the sizes {shape}")
        if proto.data_location == 1:
            raw = self.outside(proto, count * dtype.itemsize)
        elif proto.HasField("raw_data"):
            raw = proto.raw_data
        else:
            held = getattr(proto, _FIELDS.get(proto.data_type, "int32_data"))
            if len(held) != count:
                raise Broken(f"the constant {shown(proto.name)} has {len(held)} numbers for the sizes {shape}")
            return self._listed(held, proto.data_type, dtype).reshape(shape)
        if len(raw) != count * dtype.itemsize:
            raise Broken(f"the constant {shown(proto.name)} has {len(raw)} bytes for the sizes {shape} of {dtype}")
        return np.frombuffer(raw, dtype.newbyteorder("<") if dtype.kind in "fiu" else dtype).astype(dtype).reshape(shape)

    def _listed(self, held: Any, kind: int, dtype: Any) -> Any:
        if kind in _HALVES:
            return np.array([x & 0xFFFF for x in held], np.uint16).view(dtype)
        if kind in _FIELDS:
            return np.array(held, dtype)
        return np.array(held, np.int64).astype(dtype)

    def outside(self, proto: Any, wanted: int) -> bytes:
        """The bytes of a constant, so many, that lie in another file of the same folder. A file may be named by two constants everywhere, as where
        weights are tied, and by no more: a few bytes that name one large file again and again would take all memory."""
        entries = {_text(item.key): _text(item.value) for item in proto.external_data}
        location, name = entries.get("location", ""), shown(proto.name)
        if self.folder is None:
            raise Broken(f"the constant {name} lies in another file, {location!r}: load the model by its path")
        path = self.folder / location
        parts = Path(location).parts
        if not location or Path(location).is_absolute() or ".." in parts or not path.resolve().is_relative_to(self.folder):
            raise Broken(f"the constant {name} lies outside of the model's folder, in {location!r}")
        try:
            found = path.stat()
            offset, size = int(entries.get("offset", "0")), found.st_size
            length = int(entries["length"]) if "length" in entries else size - offset
        except (ValueError, OSError) as error:
            raise Broken(f"the constant {name} lies in {location!r}, which cannot be read: {error}") from None
        if not path.is_file() or offset < 0 or length < 0 or offset + length > size:
            raise Broken(f"the constant {name} lies behind the end of {location!r}")
        if length != wanted:
            raise Broken(f"the constant {name} has {length} bytes in {location!r}, and {wanted} by its sizes")
        file_of = (found.st_dev, found.st_ino)
        self.named[file_of] = self.named.get(file_of, 0) + length
        if self.named[file_of] > 2 * size:
            raise Broken(f"constants, up to {name}, that take more than twice the {size} bytes of {location!r}")
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
