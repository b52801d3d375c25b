"""Recordings as text, for people and for tests: what a replay finds, does and leaves. `tests/hybrid/reading.py` makes recordings of such text.

    expect $0 has a value, $1 is %0          how the storages stand that the stretch meets
    ask <step_numbers> for 1 number          numbers that a replay asks for again
    %1 = input($0) : float32[200, 100]       a value enters the trace
    %2 = mul(%1, scalar(0.99)) : ...         an operation; 0.5 is part of the program, scalar(0.99) is handed to it, number(0) asked for
    $0 becomes %2                            a storage has another value
    new %2                                   storages that outlive the stretch
    read $0 as float32[] by <item>           what Python looks at next; what it found stands before the stretch that comes then

`$k` is cell k: an argument, something that the function reaches, or a storage that the call has made; `%k` is slot k of the trace. A layout is
written with its strides, offset and device if it is not row-major, from 0 and on the CPU: `float32[2, 3] by [1, 2] from 4 on cpu:1`. `<name>` is a
Python object that has no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from calque.base.device import CPU, Device
from calque.base.dtypes import DType
from calque.base.layout import Layout, dense_layout
from calque.record.path import INPUT, Edge
from calque.record.places import path_of
from calque.replay.macro import ABSENT, ELSEWHERE, REALISED, SHARED, Fresh, Macro, Number, Test

STANDS = {
    REALISED: "has a value", SHARED: "has a value that others share", ELSEWHERE: "is recorded by another thread", ABSENT: "is not there",
}  # fmt: skip
OR = "or"  # between recordings that begin at the same place
SHOWN = 64  # elements of a constant that are written out


def text_of(macro: Macro, objects: list[Any] | None = None) -> str:
    """One stretch. `objects` gets what has no text, in the order in which the text names it."""
    return "\n".join(_Text(objects).stretch(macro))


def tree_of(macros: Iterable[Macro], objects: list[Any] | None = None) -> str:
    """The recordings of a place with all that may follow them: what a test gave stands before the stretch that comes then."""
    return "\n".join(_Text(objects).tree(macros))


class _Text:
    """Writes stretches, and keeps what has no text."""

    def __init__(self, objects: list[Any] | None) -> None:
        self.objects: list[Any] = [] if objects is None else objects

    def tree(self, macros: Iterable[Macro], indent: str = "") -> Iterator[str]:
        for k, macro in enumerate(macros):
            if k:
                yield indent + OR
            yield from (indent + line for line in self.stretch(macro))
            for key, following in macro.children.items():
                yield f"{indent}if it is {self.branch(key)}:" if key != () else f"{indent}whatever it is:"
                yield from self.tree(following, indent + "  ")

    def branch(self, key: Any) -> str:
        """What a test gave, see `key_of`."""
        kind, *values = key
        if kind in (list, tuple):
            left, right = "[]" if kind is list else ("(", ",)" if len(values) == 1 else ")")
            return f"{left}{', '.join([self.branch(value) for value in values])}{right}"
        if kind is complex:
            return str(values[0])
        return self.literal(float.fromhex(values[0])) if kind is float else self.literal(values[0])

    def stretch(self, macro: Macro) -> Iterator[str]:
        path = path_of(macro.end)  # edge k gives slot k
        edges, slots = path[macro.start.depth :], {edge: slot for slot, edge in enumerate(path)}
        if macro.expect:
            yield "expect " + ", ".join([f"${cell} {STANDS.get(stood, f'is %{stood}')}" for cell, stood in macro.expect])
        for cell, view, verdict, result in macro.peeks:
            yield f"peek {self.name(verdict)} of ${cell} as {layout_text(view)} is {self.literal(result)}"
        yield from (f"make {self.fresh(fresh)}" for fresh in macro.fresh)
        yield from (self.number(number) for number in macro.definitions)
        yield from self.operations(macro, edges)
        for slot, error, line in macro.checks:
            yield f"check %{slot} by {self.name(error)}{_where(line)}"
        for cell, slot, versions, view, writer in macro.written:
            usual = path[slot].layout is view
            by = "" if slots.get(writer) == slot else f" by %{slots[writer]}" if writer in slots else f" by {self.name(writer)}"
            yield f"${cell} becomes %{slot}{'' if usual else f' as {layout_text(view)}'}{by}{_writes(versions)}"
        for slot, view in macro.created:
            usual = path[slot].layout is view
            yield f"new %{slot}{'' if usual else f' as {layout_text(view)}'}"
        yield from self.left(macro)
        if macro.test is not None:
            yield self.test(macro.test)
        if macro.copies is not None:
            yield f"copy {', '.join([f'${cell} as {layout_text(view)}' for cell, view in macro.copies[0]])} to {macro.copies[1]}"
        if not macro.ready:
            yield "(recorded once)"

    def operations(self, macro: Macro, edges: list[Edge]) -> Iterator[str]:
        """What enters the trace, and what is computed of it."""
        entered = {slot: (cell, view) for cell, slot, view in macro.inputs}
        numbers = dict(macro.numbers)
        scalars = iter(enumerate(macro.scalars))
        for slot, edge in enumerate(edges, macro.start.depth):
            if edge.op is INPUT:
                cell, view = entered.get(slot, (-1, None))
                yield f"%{slot} = input(${cell}{'' if view is None else f', copied as {layout_text(view)}'}) : {layout_text(edge.layout)}"
                continue
            usual = next((lay.dtype for lay in edge.input_layouts if isinstance(lay, Layout)), edge.layout.dtype)
            operands = [self.operand(source, scalars, numbers, usual) for source in edge.inputs]
            attributes = [f"{name}={self.literal(value)}" for name, value in zip(edge.op.attrs, edge.attrs, strict=False)]
            fixed = ", as asked for" if edge.fixed else ""
            yield f"%{slot} = {edge.op.name}({', '.join([*operands, *attributes])}) : {layout_text(edge.layout)}{fixed}"

    def operand(self, source: Any, scalars: Iterator[tuple[int, Any]], numbers: dict[int, int], usual: DType) -> str:
        """A slot, or a number: its dtype is said if it is not that of the operands."""
        if source.__class__ is not tuple:
            return f"%{source}"
        dtype = "" if source[-1] is usual else f", {source[-1].name}"
        if source[0] != "s":
            return f"constant({self.literal(source[1])}{dtype})" if dtype else self.literal(source[1])
        position, value = next(scalars)
        return f"number({numbers[position]}{dtype})" if position in numbers else f"scalar({self.literal(value)}{dtype})"

    def left(self, macro: Macro) -> Iterator[str]:
        """What the stretch does besides."""
        if macro.dropped:
            yield f"drop {_cells(macro.dropped)}"
        if macro.order is not None:
            yield f"order {', '.join(map(str, macro.order))}"
        if macro.kept is not None:
            yield f"keep {_cells(macro.kept)}"
        if macro.ending:
            yield f"flush: {macro.ending}"

    def number(self, number: Number) -> str:
        """How numbers come about that a replay asks for."""
        if number.arguments is None:
            return f"ask {self.name(number.function)} for {number.count}"
        return f"{'compute' if number.count else 'tell'} {self.call(number)}"

    def call(self, number: Number) -> str:
        given = [f"number({a[1]})" if a.__class__ is tuple and a[:1] == ("live",) else self.literal(a) for a in number.arguments or ()]
        return f"{self.name(number.function)}({', '.join(given)})"

    def test(self, test: Test) -> str:
        """What Python looks at."""
        if test.decision is not None:
            return f"decide by {self.call(test.decision)}{_where(test.line)}"
        view = "" if test.view is None else f" as {layout_text(test.view)}"
        live, loss = ", as a number" if test.live else "", f", a loss of {test.loss!r}" if test.loss else ""
        return f"read ${test.cell}{view} by {self.name(test.convert)}{live}{loss}{_where(test.line)}"

    def fresh(self, fresh: Fresh) -> str:
        """A storage that the stretch begins with."""
        if fresh.source >= 0:
            return f"handle on ${fresh.source} : {layout_text(fresh.layout)}"
        values = fresh.values
        plain = values.size <= SHOWN and values.dtype.kind in "biuf" and np.dtype(values.dtype.name) == values.dtype
        shown = f"[{', '.join([self.literal(x) for x in values.tolist()])}]" if plain else self.name(values)
        return f"{'floating ' if fresh.floating else ''}constant {shown} : {layout_text(fresh.layout)}"

    def literal(self, value: Any) -> str:
        """A plain value as Python writes it; the name of another."""
        if isinstance(value, DType):
            return value.name
        if value.__class__ is tuple:
            return f"({', '.join([self.literal(x) for x in value])}{',' if len(value) == 1 else ''})"
        return repr(value) if value is None or value.__class__ in (bool, int, float, complex, str) else self.name(value)

    def name(self, thing: Any) -> str:
        """The name of what has no text."""
        self.objects.append(thing)
        found = getattr(thing, "__qualname__", None) or type(thing).__qualname__
        return f"<{found.replace('<locals>.', '').replace('<', '').replace('>', '')}>"


def _where(line: str) -> str:
    return f"  # {line}" if line else ""


def _writes(versions: int) -> str:
    """How often a storage was written: once if nothing is said."""
    count = abs(versions)
    return ("" if count == 1 else f", {count} writes") + (", through .data" if versions < 0 else "")


def _cells(numbers: Iterable[int]) -> str:
    return ", ".join([f"${k}" for k in numbers])


def layout_text(view: Layout) -> str:
    """A layout."""
    shape, device = tuple(view.shape), view.device
    strides = "" if view.strides == dense_layout(shape, view.dtype, device).strides else f" by {list(view.strides)}"
    return f"{view.dtype.name}{list(shape)}{strides}{f' from {view.offset}' if view.offset else ''}{_on(device)}"


def _on(device: Device) -> str:
    return "" if device is CPU else f" on {device}"
