"""`calque.load_onnx`: an ONNX model as an `Exported`."""

from __future__ import annotations

import inspect
import keyword
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from calque import functional as T
from calque.base.errors import ArgumentError, ExportError, UnsafeFileError
from calque.base.extras import need
from calque.base.text import shown, type_name
from calque.exported.api import export
from calque.exported.graph import Dim
from calque.exported.module import Exported, owner_of
from calque.exported.onnx.builder import DIMS, PARAMETERS
from calque.exported.onnx.reading import Broken, OpModel, read_model
from calque.exported.onnx.values import Refused, Value, calque_dtype
from calque.exported.onnx.walk import Walk, every_node, require_known
from calque.functional.common import is_tensor
from calque.nn.module import Module
from calque.nn.parameter import Parameter
from calque.tensor import read

OLDEST = 7
KEPT = 64  # numbers of a constant that is part of the program; larger ones are buffers
_NO_WEIGHTS = {"Resize", "Upsample", "Pad", "Range", "Clip", "QuantizeLinear", "DequantizeLinear", "ConstantOfShape"}
_STATISTICS = {("BatchNormalization", 3), ("BatchNormalization", 4)}


def load_onnx(
    f: str | os.PathLike[str] | BinaryIO | bytes, dynamic: Mapping[str, Dim | int] | None = None, *, fixed: Mapping[str, Any] | None = None
) -> Exported:
    """An ONNX model, whoever wrote it, as an `Exported`: a Module that runs, trains, is saved and compiled like any other export. Needs the package
    `onnx`.

    f: a path, an open file or bytes. dynamic: for sizes that the model leaves free, by the name that it gives them (`INPUT_AXIS` for those without
    one): a number, or a `Dim` for a range; by default from 1 on without limit. fixed: values of inputs, by name, that are no inputs any more: what a
    program has fixed, such as the shape of a Reshape.

    Constants of floating point that have dims are parameters under their names; the others are buffers, and small ones part of the program. The
    program is for evaluation, as the model is. Branches on values compute both sides; loops are unrolled.

    Nothing in the file is executed. Raises FileNotFoundError; CheckpointError for a file that is damaged or no model; ExportError, before anything is
    computed, for operators that are not there, all of them by name, and for sizes that depend on values.

    >>> import calque, io
    >>> file = io.BytesIO()
    >>> calque.export(calque.nn.Linear(4, 2), calque.ones(3, 4), {"input": {0: "batch"}}).onnx(file)
    >>> calque.load_onnx(file.getvalue())
    Exported(
      forward(input: float32[batch, 4]) -> output: float32[batch, 2]
        batch (1 to any)
    )
    """
    model = read_model(f)
    newest = need("onnx", "onnx", "onnx", "load_onnx").defs.onnx_opset_version()
    require_known(model)
    version = model.opsets.get("", 1)
    if not OLDEST <= version <= newest:
        raise ExportError(f"[load_onnx] expected operators of a version from {OLDEST} to {newest}, got {version}; write the model with another opset")
    values = _fixed(model, fixed or {})
    loaded = Loaded(model, values)
    inputs = tuple(_example(spec, dims) for spec, dims in zip(loaded._given, _dims(loaded, dynamic or {}), strict=True))
    free = {name: dims for name, (_, dims) in zip(loaded._names, inputs, strict=True) if dims}
    exported = export(loaded, tuple(x for x, _ in inputs), free)
    entry = exported.__dict__["_entries"]["forward"]
    taken = list(loaded._names)
    entry.outputs = tuple(replace(spec, name=_identifier(name, taken)) for spec, name in zip(entry.outputs, model.graph.outputs, strict=True))
    return exported


class Loaded(Module):
    """A graph as a module, for the time of its export."""

    def __init__(self, model: OpModel, fixed: dict[str, Value]) -> None:
        super().__init__()
        self.training = False
        taken: list[str] = []
        self._given = [spec for spec in model.graph.inputs if spec.name not in fixed]
        self._names = [_identifier(spec.name, taken) for spec in self._given]
        self._places: dict[str, str] = {}
        self._walk = Walk(model)
        self.__dict__["_known"] = fixed
        used: list[str] = []
        parameters = _parameters(model)
        for name, array in model.graph.values.items():
            weight = name in parameters
            if not weight and array.size <= KEPT:
                continue
            self._places[name] = place = _place(name, used)
            owner, last = owner_of(self, place, False)
            tensor = T.tensor(array, dtype=calque_dtype(array.dtype))
            if weight:
                owner._parameters[last] = Parameter(tensor)
            else:
                owner._buffers[last] = tensor

    @property
    def call_signature(self) -> inspect.Signature:
        """The inputs by name."""
        return inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self._names])

    def forward(self, *inputs: Any) -> Any:
        """The outputs: a tensor, or a tuple of several."""
        model = self._walk.model
        values = dict(self.__dict__["_known"])
        for name, array in model.graph.values.items():
            values[name] = Value(array, self._tensor(name), folds=name not in self._places)
        values |= {spec.name: Value(made=x) for spec, x in zip(self._given, inputs, strict=True)}
        try:
            found = [value.tensor for value in self._walk.run(values)]
        except Broken as error:
            raise UnsafeFileError(f"[load_onnx] expected a sound ONNX model, got one in which something is wrong: {error}") from None
        except Refused as error:
            raise ExportError(f"[load_onnx] expected a graph that is one program, got {error}") from None
        return found[0] if len(found) == 1 else tuple(found)

    def _tensor(self, name: str) -> Any:
        place = self._places.get(name)
        if place is None:
            return None
        owner, last = owner_of(self, place, False)
        return owner._parameters.get(last) if last in owner._parameters else owner._buffers[last]


def _parameters(model: OpModel) -> set[str]:
    """Which constants are parameters."""
    if PARAMETERS in model.notes:
        named = set(model.notes[PARAMETERS].split("\n"))
        return {name for name, array in model.graph.values.items() if name in named and calque_dtype(array.dtype).is_floating_point}
    weights: set[str] = set()
    statistics: set[str] = set()
    for node in every_node(model):
        for k, name in enumerate(node.inputs):
            if (node.op, k) in _STATISTICS:
                statistics.add(name)
            elif node.op not in _NO_WEIGHTS:
                weights.add(name)
    wanted = weights - statistics
    return {name for name, a in model.graph.values.items() if name in wanted and a.ndim and a.size and calque_dtype(a.dtype).is_floating_point}


def _identifier(name: str, taken: list[str]) -> str:
    """A name that Python can take for an argument, and that no other has."""
    found = "".join(ch if ch.isascii() and (ch.isalnum() or ch == "_") else "_" for ch in name) or "x"
    if found[0].isdigit() or keyword.iskeyword(found) or found in ("self", "args", "kwargs"):
        found = f"_{found}"
    while found in taken:
        found += "_"
    taken.append(found)
    return found


def _place(name: str, used: list[str]) -> str:
    """Where a constant is among the attributes of the module: its name, made one that no attribute and no module has."""
    parts = [part for part in "".join(ch if ch.isprintable() else "_" for ch in name).split(".") if part][:16] or ["constant"]
    if hasattr(Exported, parts[0]) or parts[0] in ("_known", "_given", "_names", "_places", "_walk"):
        parts[0] += "_"
    found = ".".join(parts)
    while any(found == other or found.startswith(f"{other}.") or other.startswith(f"{found}.") for other in used):
        parts[0] += "_"
        found = ".".join(parts)
    used.append(found)
    return found


def _fixed(model: OpModel, fixed: Mapping[str, Any]) -> dict[str, Value]:
    """The values that take the place of inputs."""
    specs = {spec.name: spec for spec in model.graph.inputs}
    found: dict[str, Value] = {}
    for name, value in fixed.items():
        if name not in specs:
            raise ArgumentError(f"[load_onnx] expected names of inputs in fixed ({', '.join(specs) or 'there are none'}), got {shown(name)}")
        array = read(value.detach(), "load_onnx") if is_tensor(value) else np.asarray(value)
        found[name] = Value(np.asarray(array).astype(specs[name].dtype))
    return found


def _dims(loaded: Loaded, dynamic: Mapping[str, Dim | int]) -> list[list[int | Dim]]:
    """The sizes of the inputs, in order."""
    ranges = _ranges(loaded._walk.model)
    known: dict[str, Dim | int] = {}
    names: list[str] = []
    found: list[list[int | Dim]] = []
    for spec, argument in zip(loaded._given, loaded._names, strict=True):
        if spec.shape is None:
            raise ExportError(
                f"[load_onnx] expected inputs that say how many dims they have, got {shown(spec.name)}, which does not; give its values in "
                "fixed={...}, or write the model with shapes"
            )
        sizes: list[int | Dim] = []
        for axis, size in enumerate(spec.shape):
            if isinstance(size, int):
                sizes.append(size)
                continue
            name = size or f"{argument}_{axis}"
            if name not in known:
                known[name] = _dim(name, dynamic.get(name), ranges.get(name), names)
            sizes.append(known[name])
        found.append(sizes)
    unknown = [name for name in dynamic if name not in known]
    if unknown:
        raise ArgumentError(f"[load_onnx] expected names of free sizes in dynamic ({', '.join(known) or 'there are none'}), got {shown(unknown[0])}")
    return found


def _dim(name: str, wanted: Any, own: Dim | None, taken: list[str]) -> Dim | int:
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted >= 0:
        return wanted
    if wanted is not None and not isinstance(wanted, Dim):
        raise ArgumentError(f"[load_onnx] expected a number or a Dim in dynamic[{name!r}], got {type_name(wanted)}")
    found = wanted or own or Dim(_identifier(f"{name}_" if name in ("nan", "inf", "f") else name, []))
    return replace(found, name=_identifier(found.name, taken))


def _ranges(model: OpModel) -> dict[str, Dim]:
    """Ranges of free sizes that a model of ours has noted."""
    found: dict[str, Dim] = {}
    for line in model.notes.get(DIMS, "").split("\n"):
        words = line.split(" ")
        if len(words) == 4 and all(word.isdecimal() and len(word) < 15 or word == "any" for word in words[1:]):
            try:
                least, most, multiple = (None if word == "any" else int(word) for word in words[1:])
                found[words[0]] = Dim(words[0], least or 0, most, multiple or 1)
            except ArgumentError:
                continue
    return found


def _example(spec: Any, dims: list[int | Dim]) -> tuple[Any, dict[int, Dim]]:
    """A tensor like an input, and which of its sizes are free."""
    shape = []
    names = [d.name for d in dims if isinstance(d, Dim)]
    for d in dims:
        if isinstance(d, int):
            shape.append(d)
            continue
        least, most = d.range
        shape.append(max(least, min(most, 3 + names.index(d.name))) * d.multiple)
    dtype = calque_dtype(spec.dtype)
    return T.expand(T.full((), 0, dtype=dtype), tuple(shape)), {k: d for k, d in enumerate(dims) if isinstance(d, Dim)}
