"""`Exported.stablehlo`: a program as StableHLO text, as JAX writes it of what the XLA backend makes of the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from calque.backend.xla.backend import xla
from calque.backend.xla.translate import Translation
from calque.base.config import settings
from calque.base.errors import ArgumentError, ExportError
from calque.base.text import shown
from calque.exported.graph import Entry, Variant, held
from calque.ir.program import Program


def stablehlo_text(exported: Any, name: str | None, sizes: Mapping[str, int]) -> str:
    """The text of an entry; see `Exported.stablehlo`."""
    entries = exported.__dict__["_entries"]
    name = name or ("forward" if "forward" in entries else next(iter(entries)))
    if name not in entries:
        raise ArgumentError(f"[stablehlo] expected the name of an entry, one of {', '.join(entries)}, got {shown(name)}")
    entry = entries[name]
    row = _row(entry, sizes)
    variant, _ = entry.variant(row)
    program = replace(variant.concrete(row), checks=())
    _refuse(program)
    read = dict(zip(variant.reads, held(entry, variant, exported.__dict__["_state"]), strict=True))
    text = _lowered(program, [tuple(read[name]._layout.shape) for name in variant.writes], len(entry.outputs))
    return _heading(entry, variant, program) + text


def _row(entry: Entry, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The values of the free sizes."""
    known = {d.name: d for d in entry.dims}
    for key in sizes:
        if key not in known:
            raise ArgumentError(f"[stablehlo] expected sizes of {', '.join(known) or 'nothing, as no size is free'}, got {shown(key)}")
    row = []
    for d in entry.dims:
        size = sizes.get(d.name)
        if type(size) is not int or not d.holds(size):
            raise ArgumentError(f"[stablehlo] expected sizes={{{d.name!r}: number}} for the free size {d.text}, got {shown(size)}")
        row.append(size // d.multiple)
    return tuple(row)


def _refuse(program: Program) -> None:
    """Raise for what the XLA backend does not translate."""
    for node in program.nodes:
        dtypes = [program.nodes[k].dtype for k in node.inputs]
        why = xla().refusal(node.op, dtypes, node.dtype)
        if why:
            raise ExportError(f"[stablehlo] expected operations that XLA has, got {node.op.name} ({node.line or 'unknown line'}): {why}")


def _lowered(program: Program, written: list[tuple[int, ...]], outputs: int) -> str:
    """The module whose function `main` has all inputs of the program as arguments."""
    jax = xla().jax
    leaves = [program.nodes[i] for i in program.inputs]
    shapes = [tuple(program.nodes[o].shape) for o in program.outputs[:outputs]] + written

    def main(*inputs: Any) -> Any:
        found, _ = Translation(jax, program, not settings.tf32, False).run(inputs, None)
        return tuple([x.reshape(shape) for x, shape in zip(found, shapes, strict=True)])

    with jax.enable_x64(True):
        given = [jax.ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype.np) for leaf in leaves]
        lowered = jax.jit(main, keep_unused=True).lower(*given)
        return str(lowered.compiler_ir(dialect="stablehlo"))


def _heading(entry: Entry, variant: Variant, program: Program) -> str:
    """What goes in and out, as comments."""
    lines = [f"// {entry.name}, written by Calque"]
    names = [*(s.name for s in entry.inputs), *variant.reads]
    for k, (name, i) in enumerate(zip(names, program.inputs, strict=True)):
        leaf = program.nodes[i]
        lines.append(f"// argument {k}: {name}: {leaf.dtype.name}[{', '.join(map(str, leaf.shape))}]")
    results = [*(s.name for s in entry.outputs), *(f"{name} (new value)" for name in variant.writes)]
    lines += [f"// result {k}: {name}" for k, name in enumerate(results)]
    return "\n".join(lines) + "\n"
