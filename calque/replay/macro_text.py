"""Recordings as text, for people and for tests: what a replay finds, does and leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from calque.base.layout import Layout
from calque.record.path import INPUT, Edge
from calque.replay.macro import ABSENT, ELSEWHERE, REALISED, SHARED, Macro, Test

_STANDS = {
    REALISED: "has a value", SHARED: "has a value that others share", ELSEWHERE: "is recorded by another thread", ABSENT: "is not there",
}  # fmt: skip


def text_of(macro: Macro) -> str:
    """One stretch. `$k` is cell k: an argument, something that the function reaches, or a storage that the call has made; `%k` is slot k of the
    trace."""
    return "\n".join(_lines(macro))


def tree_of(macros: Iterable[Macro]) -> str:
    """The recordings of a place with all that may follow them: what a test gave stands before the stretch that comes then."""
    return "\n".join(_tree(macros, "", None))


def _tree(macros: Iterable[Macro], indent: str, branch: Any) -> Iterator[str]:
    for macro in macros:
        inside = indent
        if branch is not None:
            yield f"{indent}if it is {_branch(branch)}:" if branch != () else f"{indent}whatever it is:"
            inside += "  "
        yield from (inside + line for line in _lines(macro))
        for key, following in macro.children.items():
            yield from _tree(following, inside, key)


def _lines(macro: Macro) -> Iterator[str]:
    path = _path(macro)
    first = macro.slots - len(path)
    if macro.expect:
        yield "expect " + ", ".join(f"${cell} {_STANDS.get(stood, f'is %{stood}')}" for cell, stood in macro.expect)
    for k, fresh in enumerate(macro.fresh):
        yield f"new handle {k} on ${fresh.source}" if fresh.source >= 0 else f"new value {k}, always the same : {_value(fresh.layout)}"
    entered = {slot: (cell, view) for cell, slot, view in macro.inputs}
    numbers = dict(macro.numbers)
    scalars = iter(enumerate(macro.scalars))
    for slot, edge in enumerate(path, first):
        if edge.op is INPUT:
            cell, view = entered.get(slot, (-1, None))
            yield f"%{slot} = input(${cell}{'' if view is None else ', copied'}) : {_value(edge.layout)}"
            continue
        operands = [_operand(source, scalars, numbers) for source in edge.inputs]
        attributes = [f"{name}={value!r}" for name, value in zip(edge.op.attrs, edge.attrs, strict=False)]
        yield f"%{slot} = {edge.op.name}({', '.join([*operands, *attributes])}) : {_value(edge.layout)}"
    yield from (f"${cell} becomes %{slot}" for cell, slot, *_ in macro.written)
    if macro.created:
        yield "new " + ", ".join(f"%{slot}" for slot, _ in macro.created)
    if macro.ending:
        yield f"flush: {macro.ending}"
    if macro.test is not None:
        yield _test(macro.test)
    if macro.copies is not None:
        yield f"copy {', '.join(f'${cell}' for cell, _ in macro.copies[0])} to {macro.copies[1]}"
    if not macro.ready:
        yield "(recorded once)"


def _branch(key: Any) -> str:
    """What a test gave, see `key_of`."""
    kind, *values = key if key.__class__ is tuple else (None, key)
    if kind in (list, tuple):
        return f"[{', '.join(_branch(value) for value in values)}]"
    return str(float.fromhex(values[0])) if kind is float else repr(values[0])


def _path(macro: Macro) -> list[Edge]:
    found: list[Edge] = []
    edge: Edge | None = macro.end
    while edge is not None and edge is not macro.start:
        found.append(edge)
        edge = edge.parent
    return found[::-1]


def _operand(source: Any, scalars: Iterator[tuple[int, Any]], numbers: dict[int, int]) -> str:
    if source.__class__ is not tuple:
        return f"%{source}"
    if source[0] != "s":
        return repr(source[1])
    position, value = next(scalars)
    return f"number {numbers[position]}" if position in numbers else repr(value)


def _test(test: Test) -> str:
    where = f"  # {test.line}" if test.line else ""
    if test.decision is not None:
        return f"decide by {getattr(test.decision.function, '__name__', 'a function')} of numbers{where}"
    return f"read ${test.cell}{', as a number' if test.live else ''}{where}"


def _value(layout: Layout) -> str:
    return f"{layout.dtype.name}{list(layout.shape)}"
