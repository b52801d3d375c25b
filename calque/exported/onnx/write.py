"""`Exported.onnx`: a program as an ONNX model."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from calque.backend.ref.interpret import interpret
from calque.base.errors import ArgumentError, CalqueError, DTypeError, ExportError
from calque.base.text import described
from calque.exported.graph import Entry, Variant, broken, guard_text, held
from calque.exported.onnx.builder import DIMS, PARAMETERS, Builder, unknown
from calque.exported.onnx.table import TABLE, constant, lstm
from calque.exported.onnx.views import _equal, _same
from calque.exported.pairs import in_pairs, real_spec
from calque.io.write import write_whole
from calque.ir.program import Node, Program
from calque.nn.parameter import Parameter
from calque.ops.opdef import get
from calque.tensor import read

LSTM, VIEW = get("lstm"), get("view")
OLDEST, NEWEST = 18, 26


def write_onnx(exported: Any, f: Any, entry: str | None, opset: int, names: tuple[Any, Any]) -> None:
    """Write an entry; see `Exported.onnx`."""
    if type(opset) is not int or not OLDEST <= opset <= NEWEST:
        raise ArgumentError(f"[onnx] expected an opset from {OLDEST} to {NEWEST}, got {opset!r}")
    if not isinstance(f, str | os.PathLike) and not callable(getattr(f, "write", None)):
        raise DTypeError(f"[onnx] expected a path or a file opened for writing bytes, got {described(f)}; pass 'model.onnx'")
    entries = exported.__dict__["_entries"]
    name = entry or ("forward" if "forward" in entries else next(iter(entries)))
    if name not in entries:
        raise ArgumentError(f"[onnx] expected the name of an entry, one of {', '.join(entries)}, got {name!r}")
    state = exported.__dict__["_state"]
    values: dict[str, Any] = {}
    for variant in entries[name].variants:
        values |= zip(variant.reads, held(entries[name], variant, state), strict=True)
    trained = {key for key, value in values.items() if isinstance(value, Parameter)}
    numbers = {key: read(value.detach(), "onnx") for key, value in values.items()}
    with entries[name].variants[0].extents.aside():
        model = model_of(_renamed(entries[name], *names), numbers, opset, trained)
    content = model.SerializeToString()
    if isinstance(f, str | os.PathLike):
        write_whole(os.fspath(f), len(content), lambda file: _put(file, content))
    else:
        f.write(content)


def _put(file: Any, content: bytes) -> None:
    file.write(content)


def _renamed(entry: Entry, inputs: Any, outputs: Any) -> Entry:
    """The entry with other names for what goes in and out."""
    found: list[Any] = []
    for what, names, specs in (("input", inputs, entry.inputs), ("output", outputs, entry.outputs)):
        if names is not None and (len(names) != len(specs) or not all(isinstance(name, str) and name for name in names)):
            raise ArgumentError(f"[onnx] expected as many {what} names as there are {what}s, {len(specs)}, got {len(names)}: {list(names)!r}")
        found.append(specs if names is None else tuple(replace(s, name=name) for s, name in zip(specs, names, strict=True)))
    given = [*(inputs or ()), *(outputs or ())]
    if len(set(given)) < len(given):
        raise ArgumentError(f"[onnx] expected another name for every input and output, got {given!r}; a model of ONNX tells values by their names")
    return replace(entry, inputs=found[0], outputs=found[1])


def model_of(entry: Entry, numbers: dict[str, Any], opset: int, trained: set[str]) -> Any:
    """The model of an entry with these values of its state, of which some are parameters."""
    variant = entry.variants[0]
    require_one(entry, numbers)
    b = Builder(entry, variant.extents, opset)
    b.reserved = {spec.name for spec in (*entry.inputs, *entry.outputs)} | set(variant.reads) | {f"{key}_out" for key in variant.writes}
    asked = len(variant.extents.asked)
    program = in_pairs(variant.program, unknown)
    if len(variant.extents.asked) > asked:
        text = guard_text(variant.extents, *list(variant.extents.asked.items())[asked])
        raise ExportError(
            f"[onnx] expected complex values whose sizes say what is done with them, but it depends on {text}; export with fixed sizes there"
        )
    entry = replace(entry, inputs=tuple(map(real_spec, entry.inputs)), outputs=tuple(map(real_spec, entry.outputs)))
    numbers = {key: _real(value) for key, value in numbers.items()}
    names: list[str] = [""] * len(program.nodes)
    inputs, parameters = [], []
    taken = [s.name for s in entry.inputs]
    for k, position in enumerate(program.inputs):
        node = program.nodes[position]
        if k < len(entry.inputs):
            names[position] = entry.inputs[k].name
            inputs.append(_info(b, names[position], node, entry.inputs[k].shape))
            continue
        key = variant.reads[k - len(entry.inputs)]
        names[position] = _free(key, taken)
        if key in variant.writes:
            inputs.append(_info(b, names[position], node, node.shape))
        else:
            b.initializers.append(b.tensor(names[position], _dense(numbers[key])))
            parameters += [names[position]] if key in trained else []
    needed = _needed(program)
    for position, node in enumerate(program.nodes):
        if position in needed and node.op.role not in ("input", "constant"):
            names[position] = _made(b, program, node, names)
    outputs = []
    for k, position in enumerate(program.outputs):
        spec = entry.outputs[k] if k < len(entry.outputs) else None
        name = _free(spec.name if spec is not None else f"{variant.writes[k - len(entry.outputs)]}_out", taken)
        node = program.nodes[position]
        b.nodes.append(b.onnx.helper.make_node("Identity", [_name(b, node, names[position])], [name]))
        outputs.append(_info(b, name, node, [s if type(s) is int else repr(s) for s in node.shape]))
    graph = b.onnx.helper.make_graph(b.nodes, f"calque {entry.name}", inputs, outputs, b.initializers)
    made = b.onnx.helper.make_model(graph, opset_imports=[b.onnx.helper.make_opsetid("", opset)], producer_name="calque")
    made.ir_version = max(8, b.onnx.helper.find_min_ir_version_for(made.opset_import))
    ranges = [f"{d.name} {d.min} {'any' if d.max is None else d.max} {d.multiple}" for d in entry.dims]
    b.onnx.helper.set_model_props(made, {PARAMETERS: "\n".join(parameters), DIMS: "\n".join(ranges)})
    b.onnx.checker.check_model(made, full_check=False)
    return made


def _real(array: Any) -> Any:
    """Complex numbers as pairs."""
    return _dense(array).view(array.real.dtype).reshape((*array.shape, 2)) if array.dtype.kind == "c" else array


def _dense(array: Any) -> Any:
    return array if array.flags.c_contiguous else array.copy(order="C")


def _free(name: str, taken: list[str]) -> str:
    """A name that no other value has."""
    found = name
    while found in taken:
        found += "_"
    taken.append(found)
    return found


def _info(b: Builder, name: str, node: Node, shape: Any) -> Any:
    return b.onnx.helper.make_tensor_value_info(name, b.kind(node.dtype), list(shape))


def _needed(program: Program) -> set[int]:
    """What the outputs are computed from: checks are not told in ONNX."""
    needed = set(program.outputs)
    for position in range(len(program.nodes) - 1, -1, -1):
        if position in needed:
            needed.update(program.nodes[position].inputs)
    return {p for p in needed if not _only_last(program, p)}


def _only_last(program: Program, position: int) -> bool:
    """Whether a value is all cells of an LSTM: views of them are looked at by themselves."""
    node = program.nodes[position]
    return node.op is LSTM and node.attrs[0] == "cells"


def _made(b: Builder, program: Program, node: Node, names: list[str]) -> str:
    """The name of the result of a node."""
    b.node = node
    given = [program.nodes[k] for k in node.inputs]
    if 0 in [size for size in node.shape if type(size) is int] and all(type(size) is int for size in node.shape):
        return b.constant(np.zeros(node.shape), node.dtype.np)  # there is nothing to compute
    if given and _only_last(program, node.inputs[0]):
        return _last_cell(b, program, node, given[0], names)
    maker = TABLE.get(node.op.name)
    if maker is None:
        raise b.refused("has no counterpart there")
    if any(_keeps_digits(one) for k, one in enumerate(given) if k in node.op.wide):
        return _beside_numbers(b, maker, node, [names[k] for k in node.inputs], given)
    return maker(b, node, [_name(b, one, names[k]) for k, one in zip(node.inputs, given, strict=True)], given)


def _name(b: Builder, node: Node, name: str) -> str:
    """The name of an operand: numbers are made where they are read, as some have another type there."""
    return constant(b, node) if node.op.role == "constant" else name


def _keeps_digits(node: Node) -> bool:
    """Whether this is a number beside 16-bit floats that is none of them: 0.1, or 100,000."""
    wide, value = node.dtype.compute, node.attrs[0] if node.op.role == "constant" else None
    if value is None or wide is node.dtype:
        return False
    with np.errstate(all="ignore"):
        return type(value) not in (int, float, bool) or np.asarray(value).astype(node.dtype.np).astype(wide.np) != np.asarray(value).astype(wide.np)


def _beside_numbers(b: Builder, maker: Any, node: Node, names: list[str], given: list[Node]) -> str:
    """An operation in which such numbers are as they were written: it is computed in float32 and rounded once."""
    narrow, wide = node.dtype, node.dtype.compute
    widened = [replace(one, dtype=wide, attrs=(one.attrs[0], wide) if one.op.role == "constant" else one.attrs) for one in given]
    x = [constant(b, one) if one.op.role == "constant" else b.add("Cast", name, to=b.kind(wide)) for name, one in zip(names, widened, strict=True)]
    return b.add("Cast", maker(b, replace(node, dtype=wide), x, widened), to=b.kind(narrow))  # type: ignore[no-any-return]


def _last_cell(b: Builder, program: Program, node: Node, cells: Node, names: list[str]) -> str:
    length, rows, columns = cells.shape
    if node.op is not VIEW or not _equal(node.attrs[2], (length - 1) * rows * columns) or not _same((node.attrs[0][-1],), (columns,)):
        raise b.refused("reads others than the last cell state of an LSTM")
    sources = [program.nodes[k] for k in cells.inputs]
    return b.reshape(lstm(b, [_name(b, one, names[k]) for k, one in zip(cells.inputs, sources, strict=True)], sources)[1], node.attrs[0])


def require_one(entry: Entry, numbers: dict[str, Any]) -> None:
    """Raise if the entry does something else for some sizes: an ONNX model has one program, which must be the others as well."""
    first = entry.variants[0]
    for other in entry.variants[1:]:
        sizes = tuple(int(other.extents.values[x.row]) for x in other.extents.free)
        if not _covers(entry, first, other, sizes, numbers):
            found = broken(first.extents, sizes)
            named = ", ".join(f"{d.name}={s * d.multiple}" for d, s in zip(entry.dims, sizes, strict=True))
            raise ExportError(
                f"[onnx] expected a function that does the same for all sizes, as an ONNX model has one program, but for {named} "
                f"{entry.name} does something else{f': {found[0]} ({found[1]})' if found else ''}; export with a smaller range"
            )


def _covers(entry: Entry, first: Variant, other: Variant, sizes: tuple[int, ...], numbers: dict[str, Any]) -> bool:
    """Whether the first program is right for sizes that another one is for: both are computed with some values. Integers may be positions, or what is
    divided by: those with which the other program fails say nothing."""
    rng = np.random.default_rng(0)
    try:
        programs = [variant.concrete(sizes) for variant in (first, other)]
    except (ValueError, CalqueError):
        return False
    leaves = [programs[1].nodes[k] for k in programs[1].inputs[: len(entry.inputs)]]
    compared = False
    for least, most in ((0, 1), (1, 2), (0, 2), (0, 8), (-9, 100)):
        given = [_drawn(rng, node, least, most) for node in leaves]
        wanted = _results(entry, other, programs[1], given, numbers)
        if wanted is None:
            continue
        compared, found = True, _results(entry, first, programs[0], given, numbers)
        if found is None or not all(map(_close, found, wanted)):
            return False
    return compared


def _close(a: Any, b: Any) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, 1e-4, 1e-5, equal_nan=True))


def _drawn(rng: Any, node: Node, least: int, most: int) -> Any:
    """Values for an input: floats, or integers from `least` to below `most`, of which bools are made."""
    values = rng.standard_normal(node.shape) if node.dtype.category == 2 else rng.integers(least, most, node.shape)
    return np.asarray(values).astype(node.dtype.np)


def _results(entry: Entry, variant: Variant, program: Program, given: list[Any], numbers: dict[str, Any]) -> list[Any] | None:
    """What a program computes, state in the order of its names; None if it finds positions that are none."""
    checked = replace(program, outputs=(*program.outputs, *(check.value for check in program.checks)), checks=())
    try:
        with np.errstate(all="ignore"):
            found = interpret(checked, [*given, *[_dense(numbers[key]) for key in variant.reads]])
    except IndexError:
        return None
    if any(int(value) >= 0 for value in found[len(program.outputs) :]):
        return None
    order = {key: len(entry.outputs) + k for k, key in enumerate(variant.writes)}
    return [*found[: len(entry.outputs)], *[found[order[key]] for key in sorted(order)]]
