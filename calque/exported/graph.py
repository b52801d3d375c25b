"""What an export consists of: entries, which are called; variants of an entry, each a program that holds for the sizes that fulfil its guards; and
the names of values that they read and write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from calque.base.dtypes import EVERY, DType
from calque.base.errors import ArgumentError, ExportError
from calque.exported.extents import MOST, Extents
from calque.ir.program import Check, Node, Program
from calque.ir.symint import Guarded, SymInt

_TAKEN = {"nan", "inf", "f", *(d.name for d in EVERY)}
PARAMETERS, ALL = "*parameters", "*"  # in `Entry.cuts`, where names of arguments stand
_KEPT = 64  # rows of sizes for which a variant keeps the values of its expressions


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension that is free in an export: any multiple of `multiple` from `min` to `max` (None: no limit), the same wherever the name is the same.

    >>> import calque
    >>> calque.Dim("batch", max=64)
    Dim('batch', min=1, max=64)
    >>> calque.Dim("height", 16, 512, multiple=16)
    Dim('height', min=16, max=512, multiple=16)
    """

    name: str
    min: int = 1
    max: int | None = None
    multiple: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier() or self.name in _TAKEN:
            raise ArgumentError(f"[Dim] expected the name of a dimension as an identifier that is no dtype, got {self.name!r}; write Dim('batch')")
        numbers = [self.min, self.multiple, *([] if self.max is None else [self.max])]
        if any(type(x) is not int for x in numbers) or self.min < 0 or self.multiple < 1 or (self.max is not None and self.max < self.min):
            raise ArgumentError(f"[Dim] expected integers with 0 <= min <= max and multiple >= 1, got {self!r}")
        if self.range[0] > self.range[1] or self.range[1] > MOST:
            raise ArgumentError(f"[Dim] expected some multiple of {self.multiple} between min and max, below 2**40, got {self!r}")

    def __repr__(self) -> str:
        return f"Dim({self.name!r}, min={self.min}, max={self.max}{f', multiple={self.multiple}' if self.multiple > 1 else ''})"

    def holds(self, size: int) -> bool:
        """Whether a size is in the range."""
        return self.min <= size and (self.max is None or size <= self.max) and not size % self.multiple

    @property
    def symbol(self) -> str:
        """The name in programs of what it is a multiple of."""
        return self.name if self.multiple == 1 else f"{self.name}_by_{self.multiple}"

    @property
    def range(self) -> tuple[int, int]:
        """Limits of the symbol."""
        return -(-self.min // self.multiple), (MOST if self.max is None else self.max) // self.multiple

    @property
    def text(self) -> str:
        """For messages."""
        of = f" in steps of {self.multiple}" if self.multiple > 1 else ""
        return f"{self.name} ({self.min} to {'any' if self.max is None else self.max}{of})"


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor that goes in or out: its name, dtype, and sizes, each a number or an expression (of inputs: the name of a Dim)."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.name}[{', '.join(map(str, self.shape))}]"


class Variant:
    """A program and what it holds for. Inputs of the program are the entry's tensors, then the state in `reads`; its outputs are the entry's, then
    new values of the state in `writes`. `extents`: of its symbols."""

    def __init__(self, program: Program, extents: Extents, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        self.program, self.extents, self.reads, self.writes = program, extents, reads, writes
        symbols = {x.row: x for node in program.nodes for x in _symbols(node.attrs)}
        self.rows = list(symbols)
        self.guarded: Guarded = extents.compiled(self.rows)
        self.last_uses = _last_uses(program)
        self._known: dict[tuple[int, ...], list[tuple[Any, ...]] | None] = {}

    def holds(self, sizes: tuple[int, ...]) -> bool:
        """Whether the variant is for these values of the free sizes."""
        return self.guarded(sizes) is not None

    def attributes(self, sizes: tuple[int, ...]) -> list[tuple[Any, ...]] | None:
        """The attributes of all nodes for these values of the free sizes; None if the variant does not hold for them."""
        if sizes in self._known:
            return self._known[sizes]
        found = self.guarded(sizes)
        result = None
        if found is not None:
            values = dict(zip(self.rows, found, strict=True))
            result = [_exchanged(node.attrs, values) for node in self.program.nodes]
        if len(self._known) >= _KEPT:
            self._known = {}  # other threads may be looking at the old one
        self._known[sizes] = result
        return result

    def concrete(self, sizes: tuple[int, ...]) -> Program:
        """The program for these sizes, whatever its guards say."""
        found = evaluated(self.extents, self.rows, {})(sizes)
        if found is None:
            raise ValueError("sizes for which the program divides by zero")
        values = dict(zip(self.rows, found, strict=True))
        attributes = [_exchanged(node.attrs, values) for node in self.program.nodes]
        nodes: list[Node] = []
        for node, attrs in zip(self.program.nodes, attributes, strict=True):
            shape = node.op.shape([nodes[k].shape for k in node.inputs], attrs)
            nodes.append(Node(node.op, node.inputs, attrs, tuple(shape), node.dtype, node.line))
        return Program(tuple(nodes), self.program.outputs, checks=self.program.checks, name=self.program.name)


@dataclass(slots=True)
class Entry:
    """One way to call an export. `arguments`, `results`: descriptions of the trees of what goes in and out, see `tree.py`; `dims`: the free sizes;
    `grad`: whether results have a gradient; `cuts`: by name of an argument, or PARAMETERS, or ALL, why gradients to these would be others than the
    function's, with the line; `still`: the numbers of results that have none."""

    name: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    arguments: Any
    results: Any
    dims: tuple[Dim, ...]
    grad: bool
    variants: list[Variant] = field(default_factory=list)
    cuts: dict[str, str] = field(default_factory=dict)
    still: tuple[int, ...] = ()

    def without(self, tensors: Sequence[Any], state: Sequence[Any]) -> str:
        """Why a call with these arguments and values has no gradient, although some of them require one: what cuts the graph; "" otherwise."""
        wanted = [spec.name for spec, t in zip(self.inputs, tensors, strict=True) if t._requires_grad]
        if any(t._requires_grad for t in state):
            wanted.append(PARAMETERS)
        return next((self.cuts[name] for name in (*wanted, *([ALL] if wanted else [])) if name in self.cuts), "")

    def sizes(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """The values of the free sizes for these arguments; raises where an argument does not fit."""
        known: dict[Any, int] = {}
        ranges: dict[Any, Dim] = {d.name: d for d in self.dims}
        for spec, t in zip(self.inputs, tensors, strict=True):
            shape = tuple(t.shape)
            fits = t.dtype is spec.dtype and len(shape) == len(spec.shape)
            if fits:
                for size, wanted in zip(shape, spec.shape, strict=True):
                    free = isinstance(wanted, str)
                    fits = fits and (known.setdefault(wanted, size) == size and ranges[wanted].holds(size) if free else size == wanted)
            if not fits:
                raise ExportError(
                    f"[{self.name}] expected {spec.name} of shape {self._wanted(spec)} and dtype {spec.dtype.name}, got shape {shape} and dtype "
                    f"{getattr(t.dtype, 'name', t.dtype)}; export with dynamic={{...}} for other sizes, and convert with .to(...)"
                )
        return tuple([known[d.name] // d.multiple for d in self.dims])

    def _wanted(self, spec: Spec) -> str:
        ranges = {d.name: d for d in self.dims}
        return "[" + ", ".join(str(s) if isinstance(s, int) else ranges[s].text for s in spec.shape) + "]"

    def variant(self, sizes: tuple[int, ...]) -> tuple[Variant, list[tuple[Any, ...]]]:
        """The first variant that holds for these sizes, with its attributes."""
        for variant in self.variants:
            attributes = variant.attributes(sizes)
            if attributes is not None:
                return variant, attributes
        named = ", ".join(f"{d.name}={size * d.multiple}" for d, size in zip(self.dims, sizes, strict=True))
        raise ExportError(
            f"[{self.name}] expected sizes for which the exported function does what it did when it was exported, got {named}; {self.why_not(sizes)}"
        )

    def why_not(self, sizes: tuple[int, ...]) -> str:
        """What is another way for these sizes, and where."""
        found = broken(self.variants[0].extents, sizes) if self.variants else None
        return "export it with these sizes among its inputs" if found is None else f"for others {found[0]} ({found[1] or 'unknown line'})"


Places = dict[str, tuple[dict[str, Any], str]]
"""Where the tensor of a value stands: by each of its names, the registry of a module, and the key in it."""


def held(entry: Entry, variant: Variant, state: Mapping[str, Places], arguments: Sequence[Any] = ()) -> list[Any]:
    """The values that a variant reads, of which `state` has the places. Raises where somebody has put another kind of value in the place of one,
    others under some of its names, or memory that is written in two places: the program would compute something else with it."""
    values: list[Any] = []
    for name, node in zip(variant.reads, variant.program.nodes[len(entry.inputs) :], strict=False):
        places = state[name]
        found = [registry.get(last) for registry, last in places.values()]
        value = found[0]
        if value is None or value._layout.shape != node.shape or value._layout.dtype is not node.dtype:
            got = "none" if value is None else f"shape {tuple(value._layout.shape)} and dtype {value._layout.dtype.name}"
            raise ExportError(
                f"[{entry.name}] expected {name} of shape {node.shape} and dtype {node.dtype.name}, as it was exported, got {got}; export the model "
                "anew"
            )
        for other in found[1:]:
            if other is not value and (other is None or other._storage is not value._storage or other._layout is not value._layout):
                raise ExportError(
                    f"[{entry.name}] expected {' and '.join(places)} to be one tensor, as they were when it was exported, got several; put the new "
                    "one in all these places, or export the model anew"
                )
        values.append(value)
    if variant.writes:
        _require_apart(entry, variant, values, arguments)
    return values


def _require_apart(entry: Entry, variant: Variant, values: Sequence[Any], arguments: Sequence[Any]) -> None:
    """Raise if memory that a variant writes is that of another value or of an argument as well: in the program they are two."""
    names = [*variant.reads, *(spec.name for spec in entry.inputs)]
    groups: dict[int, list[tuple[str, Any]]] = {}
    for name, t in zip(names, (*values, *arguments), strict=False):
        storage, buffer = t._storage, t._storage.buffer
        foreign = buffer is not None and (buffer.owner is not None or buffer.export is not None)  # which others may look at, too
        groups.setdefault(0 if foreign else id(storage), []).append((name, buffer.wait() if foreign else None))
    for group in groups.values() if len(groups) < len(names) else ():
        for (one, array), (two, other) in combinations(group, 2):
            written = one if one in variant.writes else two
            if written in variant.writes and (array is None or np.may_share_memory(array, other)):
                raise ExportError(
                    f"[{entry.name}] expected {written}, which it writes, to have memory of its own, as when it was exported, got that of "
                    f"{two if written == one else one}; clone() one of them, or tie them before the export"
                )


def broken(extents: Extents, sizes: Sequence[int]) -> tuple[str, str] | None:
    """The first guard that does not hold for these values of the variables, as (text, line)."""
    for (name, a, b), answer in extents.asked.items():
        if evaluated(extents, (), {(name, a, b): answer})(sizes) is None:
            return guard_text(extents, (name, a, b), answer), extents.lines.get((name, a, b), "")
    return None


def evaluated(extents: Extents, rows: Sequence[int], guards: dict[Any, bool]) -> Guarded:
    """A function of the free sizes like `Extents.compiled`, with these guards alone."""
    one = Extents(extents.names, extents.ranges, [extents.values[x.row] for x in extents.free])
    one.rows, one.values, one.asked = extents.rows, extents.values, guards
    return Guarded(one, rows)


SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def guard_text(extents: Extents, key: tuple[str, int, int], answer: bool) -> str:
    """A guard as it is written in files."""
    name, a, b = key
    return f"{extents.text(a)} {SIGNS[name]} {extents.text(b)} is {answer}"


def _symbols(value: Any) -> Iterator[SymInt]:
    """The symbols in attributes."""
    if type(value) is tuple:
        for item in value:
            yield from _symbols(item)
    elif isinstance(value, SymInt):
        yield value


def _exchanged(value: Any, values: dict[int, Any]) -> Any:
    """Attributes with numbers in place of symbols."""
    if type(value) is tuple:
        return tuple([_exchanged(item, values) for item in value])
    return values[value.row] if isinstance(value, SymInt) else value


def _last_uses(program: Program) -> list[tuple[int, ...]]:
    """By node: the values that nobody reads after it."""
    last: dict[int, int] = {}
    for position, node in enumerate(program.nodes):
        for source in node.inputs:
            last[source] = position
    kept = {*program.outputs, *(c.value for c in program.checks)}
    gone: list[list[int]] = [[] for _ in program.nodes]
    for source, position in last.items():
        if source not in kept:
            gone[position].append(source)
    return [tuple(g) for g in gone]


def pruned(nodes: Sequence[Node], outputs: Sequence[int], checks: Sequence[Check], inputs: Sequence[int]) -> Program:
    """The program of these outputs, without what none of them needs, and with its inputs numbered in this order."""
    needed = {*outputs, *(c.value for c in checks), *inputs}
    for position in range(len(nodes) - 1, -1, -1):
        if position in needed:
            needed.update(nodes[position].inputs)
    order = [*inputs, *sorted(needed - set(inputs))]
    place = {old: new for new, old in enumerate(order)}
    made = []
    for number, old in enumerate(order):
        node = nodes[old]
        attrs = (number, *node.attrs[1:]) if node.op.role == "input" else tuple(map(_plain, node.attrs))
        made.append(Node(node.op, tuple([place[k] for k in node.inputs]), attrs, tuple(node.shape), node.dtype, node.line))
    kept = tuple([Check(place[c.value], c.make_error, c.line) for c in checks])
    return Program(tuple(made), tuple([place[k] for k in outputs]), checks=kept, name="exported")


def _plain(value: Any) -> Any:
    """A shape that prints as a tuple."""
    return tuple(map(_plain, value)) if isinstance(value, tuple) and not hasattr(value, "name") else value
