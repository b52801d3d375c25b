"""Exports as files: safetensors files with checksums, which `calque.save` writes, with the programs as text beside the tensors. None of it is code.

A reader believes nothing: programs are parsed by `ir/text.py`, their shapes and dtypes inferred again (with the free sizes as symbols, so for all
that the file's guards let through), and every name, number and tree is checked before it is used.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from math import prod
from typing import Any, BinaryIO

from calque.base.device import CPU
from calque.base.dtypes import DType, dtype_by_name, int64
from calque.base.errors import CheckpointError, UnsafeFileError
from calque.exported import tree
from calque.exported.extents import Extents
from calque.exported.graph import ALL, PARAMETERS, SIGNS, Dim, Entry, Spec, Variant
from calque.exported.module import Exported
from calque.exported.writing import MARK, VERSION
from calque.functional.common import is_tensor
from calque.io.checkpoint import load
from calque.ir.program import Program
from calque.ir.spec import verify
from calque.ir.text import evaluate, parse
from calque.nn.parameter import Parameter
from calque.ops import BUILTIN
from calque.ops.movement import check_view
from calque.ops.opdef import OpDef

_OPS = {op.name: op for op in BUILTIN if op.name not in ("hosted", "scalar")}
_GUARD = re.compile(r"(?P<left>[^<>=!]+) (?P<sign><=|>=|==|!=|<|>) (?P<right>[^<>=!]+) is (?P<answer>True|False)")
_NAMES = {sign: name for name, sign in SIGNS.items()}
_MOST = 1 << 50  # sizes, strides and offsets
_LONGEST = 1 << 16  # characters of a line


def load_exported(f: str | os.PathLike[str] | BinaryIO) -> Exported:
    """The export that a file holds (`Exported.save`), as a Module: it runs, trains and is saved again without the source it came from.

    Nothing in the file is executed. Raises FileNotFoundError, and CheckpointError for a file that is damaged, truncated, newer than this version of
    Calque, or no export.

    >>> import calque
    >>> calque.export(calque.nn.Linear(4, 2), (calque.ones(3, 4),)).save("example.calque")
    >>> calque.load_exported("example.calque")
    Exported(
      forward(input: float32[3, 4]) -> output: float32[3, 2]
    )
    """
    where = f"{os.fspath(f)!r}" if isinstance(f, str | os.PathLike) else "the file"
    data = load(f, map_location=CPU)
    if not isinstance(data, dict) or type(data.get(MARK)) is not int:
        raise CheckpointError(f"[load_exported] expected an export, got {where}, which is something else; read checkpoints with calque.load")
    if data[MARK] != VERSION:
        raise CheckpointError(
            f"[load_exported] expected an export of version {VERSION}, got {where}, which has version {data[MARK]}; update Calque, or export again"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)  # what Python's parser says of texts that nobody wrote
            return _exported(data)
    except CheckpointError:
        raise
    except (Exception, RecursionError) as error:
        raise UnsafeFileError(f"[load_exported] expected a sound export, got {where}, in which something is wrong: {error}") from None


def _exported(data: dict[str, Any]) -> Exported:
    values: list[tuple[tuple[str, ...], Any, bool]] = []
    known: dict[str, Any] = {}
    for names, is_parameter, persistent, t in _list(data["values"], list):
        if not names or not is_tensor(t) or type(is_parameter) is not bool or type(persistent) is not bool:
            raise ValueError("a value that is none")
        for name in _list(names, str):
            if name in known or not all(part.isprintable() and part for part in name.split(".")) or len(name.split(".")) > tree.MOST:
                raise ValueError(f"a value called {name!r}")
            known[name] = t
        values.append((tuple(names), Parameter(t.detach(), requires_grad=t._requires_grad) if is_parameter else t.detach(), persistent))
    _no_module_in_the_way(known)
    first = {names[0]: t for names, t, _ in values}
    entries: dict[str, Entry] = {}
    for item in _list(data["entries"], dict):
        entry = _entry(item, first)
        if entry.name in entries or (entry.name != "forward" and (not entry.name.isidentifier() or hasattr(Exported, entry.name))):
            raise ValueError(f"an entry called {entry.name!r}")
        entries[entry.name] = entry
    if not entries or data["mode"] not in (None, True, False):
        raise ValueError("no entries, or a mode that is none")
    return Exported(entries, values, data["mode"])


def _no_module_in_the_way(names: dict[str, Any]) -> None:
    """A value and a module cannot have one name."""
    for name in names:
        parts = name.split(".")
        if any(".".join(parts[:k]) in names for k in range(1, len(parts))):
            raise ValueError(f"a value called {name!r} inside another one")


def _list(value: Any, kind: type) -> list[Any]:
    """A list whose items are of one kind."""
    if not isinstance(value, list) or not all(type(item) is kind for item in value):
        raise ValueError(f"something else where a list of {kind.__name__} belongs")
    return value


def _entry(data: dict[str, Any], values: dict[str, Any]) -> Entry:
    dims = tuple(Dim(*item) for item in _list(data["dims"], list))
    names = {d.name for d in dims}
    if len(names) < len(dims) or type(data["name"]) is not str or type(data["grad"]) is not bool:
        raise ValueError("a header of an entry that is none")
    inputs, outputs = (tuple(_spec(item) for item in _list(data[key], list)) for key in ("inputs", "outputs"))
    free = {s for spec in inputs for s in spec.shape if isinstance(s, str)}
    if free != names:
        raise ValueError("free sizes that no argument has")
    tree.check(data["arguments"], len(inputs))
    tree.check(data["results"], len(outputs))
    if data["arguments"][0] != "dict":
        raise ValueError("arguments without names")
    entry = Entry(data["name"], inputs, outputs, data["arguments"], data["results"], dims, data["grad"])
    entry.cuts, entry.still = _cuts(data.get("cuts", {}), inputs), _still(data.get("still", []), len(outputs))
    for item in _list(data["variants"], dict):
        entry.variants.append(_variant(item, entry, values))
    if not entry.variants:
        raise ValueError("an entry without a program")
    return entry


def _cuts(value: Any, inputs: tuple[Spec, ...]) -> dict[str, str]:
    """Why there are no gradients; files that are older say nothing."""
    known = {PARAMETERS, ALL, *(spec.name for spec in inputs)}
    if not isinstance(value, dict) or not all(name in known and type(why) is str and len(why) <= _LONGEST for name, why in value.items()):
        raise ValueError("gradients that are missing to something else than arguments")
    return {name: "".join(c if c.isprintable() else " " for c in why) for name, why in value.items()}


def _still(value: Any, count: int) -> tuple[int, ...]:
    numbers = _list(value, int)
    if not all(0 <= k < count for k in numbers):
        raise ValueError("results without gradients that are none")
    return tuple(numbers)


def _spec(item: list[Any]) -> Spec:
    name, dtype, shape = item
    if type(name) is not str or type(dtype) is not str or not all(type(s) in (int, str) and (type(s) is str or s >= 0) for s in shape):
        raise ValueError("a tensor that is described wrongly")
    return Spec(name, dtype_by_name(dtype), tuple(shape))


def _lookup(name: str) -> Any:
    return _OPS[name]


def _variant(data: dict[str, Any], entry: Entry, values: dict[str, Any]) -> Variant:
    """A variant, with everything about it inferred again."""
    sizes, text = _list(data["sizes"], int), data["program"]
    for d, size in zip(entry.dims, sizes, strict=True):
        if not d.range[0] <= size <= d.range[1]:
            raise ValueError("sizes outside of their range")
    if type(text) is not str or any(len(line) > _LONGEST for line in text.splitlines()):
        raise ValueError("a program that is no text, or a line of it that is too long")
    extents = Extents([d.symbol for d in entry.dims], [d.range for d in entry.dims], sizes)
    symbols = dict(zip(extents.names, extents.free, strict=True))
    for guard in _list(data["guards"], str):
        _ask(extents, symbols, guard)
    program = parse(text, _lookup, symbols)
    if program.donated or program.updates or program.late:
        raise ValueError("a program that overwrites what it is given")
    for node in program.nodes:
        _check_attributes(node.op, node.attrs)
    verify(program)
    _check_bytes(program)
    reads, writes = _list(data["reads"], str), _list(data["writes"], str)
    _check_ends(program, entry, reads, writes, values, {d.name: x * d.multiple for d, x in zip(entry.dims, extents.free, strict=True)})
    return Variant(program, extents, tuple(reads), tuple(writes))


def _ask(extents: Extents, symbols: dict[str, Any], guard: str) -> None:
    """Let a guard hold from here on."""
    found = _GUARD.fullmatch(guard)
    if found is None or len(guard) > _LONGEST:
        raise ValueError(f"a guard that is none: {guard[:80]!r}")
    left, right = (evaluate(found[side].strip(), symbols) for side in ("left", "right"))
    if not all(isinstance(x, int | float) for x in (left, right)):
        raise ValueError("a guard about something that is no number")
    answer = extents.ask(_NAMES[found["sign"]], left, right)
    if answer is not (found["answer"] == "True"):
        raise ValueError(f"a guard that does not hold for the sizes that it was found with: {guard[:80]!r}")


_Kind = Callable[[Any], bool]


def _int(value: Any) -> bool:
    """An integer with which bytes can be counted: the stride of a dim of one element, which is never taken, is no exception."""
    return isinstance(value, int) and not isinstance(value, bool) and (type(value) is not int or abs(value) <= _MOST)


def _ints(value: Any) -> bool:
    return type(value) is tuple and all(map(_int, value))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_KINDS: dict[str, _Kind] = {
    "shape": _ints, "strides": _ints, "dims": _ints, "stride": _ints, "padding": _ints, "dilation": _ints, "input_hw": _ints, "kernel_hw": _ints,
    "offset": _int, "dim": _int, "groups": _int, "index": _int, "start": _int, "stop": _int, "n": _int, "size": _int,
    "keepdim": lambda value: type(value) is bool, "causal": lambda value: type(value) is bool, "descending": lambda value: type(value) is bool,
    "inverse": lambda value: type(value) is bool, "scale": _number, "alpha": _number, "beta": _number,
    "value": lambda value: isinstance(value, int | float | bool), "dtype": lambda value: isinstance(value, DType),
    "part": lambda value: type(value) is str, "turned": lambda value: type(value) in (bool, tuple),
    "skip": lambda value: isinstance(value, int | bool) or value is None,
}  # fmt: skip


def _check_attributes(op: OpDef, attrs: tuple[Any, ...]) -> None:
    """What the rules of operations take for granted."""
    for name, value in zip(op.attrs, attrs, strict=True):
        if name not in _KINDS or not _KINDS[name](value):
            raise ValueError(f"{op.name} with {name}={value!r}")
    if op.parts and attrs[0] not in op.parts:
        raise ValueError(f"{op.name} with part={attrs[0]!r}")


def _check_bytes(program: Program) -> None:
    """Views of a value as elements of another type lie inside its bytes: rules of shapes know no types."""
    for node in program.nodes:
        if node.op.name in ("view_as", "update_as"):
            base, last = (program.nodes[k] for k in (node.inputs[0], node.inputs[-1]))
            seen = node.dtype if node.op.name == "view_as" else last.dtype
            shape, strides, offset = node.attrs[:3]
            check_view(node.op.name, (prod(base.shape) * base.dtype.itemsize // seen.itemsize,), shape, strides, offset)
            if node.op.name == "update_as" and tuple(last.shape) != tuple(shape):
                raise ValueError("a value of another shape than the view that it is written through")


def _check_ends(
    program: Program, entry: Entry, reads: list[str], writes: list[str], values: dict[str, Any], dims: dict[str, Any]
) -> None:
    """Inputs and outputs of a program are those of its entry and of the values that it reads and writes."""
    if len(set(writes)) < len(writes) or not set(writes) <= set(reads):
        raise ValueError("values that are written without being read")
    ends = [([dims[s] if isinstance(s, str) else s for s in spec.shape], spec.dtype) for spec in entry.inputs]
    ends += [(list(values[name]._layout.shape), values[name]._layout.dtype) for name in reads]
    inputs = [program.nodes[k] for k in program.inputs]
    if [node.attrs[0] for node in inputs] != list(range(len(ends))):
        raise ValueError("inputs that are not those of the entry")
    if len(program.outputs) != len(entry.outputs) + len(writes) or any(not 0 <= k < len(program.nodes) for k in program.outputs):
        raise ValueError("outputs that are not those of the entry")
    for node, (shape, dtype) in zip(inputs, ends, strict=True):
        if list(node.shape) != shape or node.dtype is not dtype:
            raise ValueError("an input of another shape or dtype than its tensor")
    outputs = [program.nodes[k] for k in program.outputs]
    for node, spec in zip(outputs, entry.outputs, strict=False):
        if node.dtype is not spec.dtype or len(node.shape) != len(spec.shape):
            raise ValueError("an output of another dtype or number of dims than is said")
    for node, name in zip(outputs[len(entry.outputs) :], writes, strict=True):
        if list(node.shape) != list(values[name]._layout.shape) or node.dtype is not values[name]._layout.dtype:
            raise ValueError("a new value of another shape or dtype than the old one")
    for check in program.checks:
        if program.nodes[check.value].dtype is not int64 or program.nodes[check.value].shape != ():
            raise ValueError("a check of something that is no number")
