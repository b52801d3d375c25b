"""Templates as Python functions, for places that are known.

`Template.append` reads its steps one by one and makes what is missing. Where every edge is there already, most of that time goes into reading: so the
source of a function is written that looks whether a node is one that the template is for, then for the edges, and gives None, with nothing changed,
if one is not there. Templates of the same steps share the source and its code; operations, layouts and numbers are what the function closes over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.cache import Cache
from calque.base.dataclass import dataclass
from calque.base.dtypes import get_default_dtype
from calque.base.layout import Layout, layout
from calque.ops.opdef import OpDef
from calque.record.nodes import GradNode
from calque.record.path import unknown
from calque.record.recorder import INPUT, VIEW, VIEW_AT, WITH_OFFSET, Storage
from calque.record.tape import BINARY, ENTER, GENERAL, NUMBER, OWN, SHOW, UNARY, Tape, attach, moved, remembered
from calque.tensor import Tensor

NOTHING, SAME, AGAIN, MADE, SHOWN, GIVEN, WITHIN = range(7)
"""What a gradient is: none; the handle of an operand; the same as the one before; a new value; a view of a new value; a view of an operand; the same,
told relative to the handle of the operand."""
MOST = 24  # gradients of one node: compiling the text for more takes milliseconds, and how many values are joined differs from time to time
Straight = Callable[[Any, Any, Any], "list[Any] | None"]
_shapes = Cache("views of any offset", 200, 1 / 512)
_codes = Cache("code of gradients", 6000, 3 / 1024)  # source -> code


def shape_of(view: Layout) -> Layout:
    """A view for which rules do the same: they see where it begins in what they make of it, and no further."""
    return _shapes.get(view) or _shapes.keep(  # type: ignore[no-any-return]
        view, layout(tuple(view.shape), view.strides, 1 if view.offset else 0, view.dtype, view.device)
    )


_NAMES = {
    "INPUT": INPUT, "VIEW": VIEW, "VIEW_AT": VIEW_AT, "Storage": Storage, "Tensor": Tensor, "new": object.__new__, "attach": attach, "moved": moved,
    "remembered": remembered, "default": get_default_dtype, "shape_of": shape_of,
}  # fmt: skip


@dataclass(slots=True)
class RuleOperand:
    """One value that a rule is given: its storage and handle by number (-1: none; a number of Python has neither), its layout and that of the
    storage. `again`: an earlier operand has the storage, `same`: and the handle; then layouts are compared as they are (`exact`)."""

    position: int
    storage: int = -1
    handle: int = -1
    shown: Any = None
    whole: Any = None
    value: Any = None
    again: bool = False
    same: bool = False
    exact: bool = False


class Operands:
    """The gradient and what a node has saved."""

    def __init__(self, node: GradNode, grad: Tensor, storages: list[Storage], handles: list[Any]) -> None:
        self.storages = len(storages)
        self.entries: list[RuleOperand] = []
        values = [(0, grad), *(node.saved.items() if node.edge is not None and node.saved is not None else ())]
        seen: list[Any] = []
        for position, value in values:
            storage = value if value.__class__ is Storage else getattr(value, "_storage", None)
            if storage is None:
                self.entries.append(RuleOperand(position, value=value))
                continue
            handle = next((k for k, other in enumerate(handles) if other is value), -1)
            shown = node.edge.layout if handle < 0 else value._layout
            entry = RuleOperand(position, storages.index(storage), handle, shown, storage.layout)
            entry.again = any(other is storage for other in seen)
            entry.same = any(other is value for other in seen)
            seen += storage, value
            self.entries.append(entry)
        if len(storages) + sum(entry.storage < 0 for entry in self.entries) < len(self.entries):
            for entry in self.entries:
                entry.exact = True


def straight(
    tape: Tape, created: tuple[tuple[int, Any], ...], results: tuple[tuple[Any, ...], ...], node: GradNode, operands: "Operands"
) -> Straight:
    """The function of a template: (trace, node, gradient) -> gradients of its operands, or None if the template is not for them, or some edge is
    missing."""
    if len(results) > MOST:
        return unknown
    writer = Writer(tape)
    writer.guards(node, operands)
    writer.steps()
    writer.commit()
    writer.results(created, results)
    return writer.function()


class Writer:
    """Writes the lines. Register j is `r<j>`, storage j `s<j>`, its buffer `b<j>`, handle j `h<j>`."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.constants: list[Any] = []
        self.lines: list[str] = []
        self.register = tape.operands
        self.numbers: list[Any] = []
        self.owned: list[tuple[int, int, int]] = []
        self.enters = self.shifts = False

    def function(self) -> Straight:
        """The function of the lines. Functions of the same text share its code."""
        names = [f"k{k}" for k in range(len(self.constants))]
        body = "\n".join(f"        {line}" for line in self.lines)
        source = f"def make({', '.join(names)}):\n    def gradients(trace, node, h0):\n{body}\n    return gradients\n"
        code = _codes.get(source) or _codes.keep(source, compile(source, __file__, "exec"))
        scope: dict[str, Any] = {}
        exec(code, _NAMES, scope)  # noqa: S102 - no text of anybody else's is in it
        made: Straight = scope["make"](*self.constants)  # type: ignore[operator]
        return made

    def constant(self, value: Any) -> str:
        """A name for a value that the function closes over."""
        self.constants.append(value)
        return f"k{len(self.constants) - 1}"

    def guards(self, node: GradNode, operands: "Operands") -> None:
        """Have the operands by name, or give up if they are others than those of `node`."""
        lines, targets = self.lines, node.next
        if len(targets) == 2:
            lines.append("first, second = node.next")
            which = [f"{name} is {'not ' if t is None else ''}None" for name, t in zip(("first", "second"), targets, strict=True)]
            lines.append(f"if {' or '.join(which)}: return None")
        elif len(targets) > 2:
            lines.append(f"if [t is None for t in node.next] != {self.constant([t is None for t in targets])}: return None")
        lines.append(f"if default() is not {self.constant(get_default_dtype())}: return None")
        self._operand("h0", operands.entries[0])
        if len(operands.entries) > 1:
            lines += ["saved, versions = node.saved, node.versions", "if saved is None: return None"]
        for k, entry in enumerate(operands.entries[1:]):
            if entry.storage < 0:
                same = f"v.__class__ is not {self.constant(entry.value.__class__)} or v != {self.constant(entry.value)}"
                zero = "" if entry.value else f" or str(v) != {self.constant(str(entry.value))}"
                lines += [f"v = saved[{entry.position}]", f"if {same}{zero}: return None"]
                continue
            if entry.handle >= 0 and not entry.same:
                lines.append(f"h{entry.handle} = saved[{entry.position}]")
            self._operand(f"h{entry.handle}" if entry.handle >= 0 else f"saved[{entry.position}]", entry)
            lines.append(f"if s{entry.storage}.version != versions[{k}]: return None")
        for j in range(1, operands.storages):
            lines.append(f"if {' or '.join(f's{j} is s{k}' for k in range(j))}: return None")

    def _operand(self, name: str, entry: "RuleOperand") -> None:
        storage = f"s{entry.storage}"
        value = f"{name}._storage" if entry.handle >= 0 else name
        whole, known = self.constant(entry.whole), self.lines
        if entry.same and entry.handle >= 0:  # another operand is the same handle
            known.append(f"if saved[{entry.position}] is not {name}: return None")
        elif entry.again:
            known.append(f"if {value} is not {storage}: return None")
        else:
            known.append(f"{storage} = {value}")
        wrong = f"{storage}.layout is not {whole}"
        if entry.handle >= 0:
            shown = f"{name}._layout"
            if entry.shown is entry.whole:
                wrong += f" or {shown} is not {whole}"
            elif entry.exact:
                wrong += f" or {shown} is not {self.constant(entry.shown)}"
            else:
                wrong += f" or shape_of({shown}) is not {self.constant(shape_of(entry.shown))}"
        known.append(f"if {wrong}: return None")

    def follow(self, key: str, cut: bool) -> None:
        """Take the edge of a key; its slot is the next register."""
        self.lines += [f"cur = cur.next.get({key})", f"if cur is None{' or cur.boundary' if cut else ''}: return None"]
        self._next()

    def _next(self) -> None:
        self.lines += [f"r{self.register} = n", "n += 1"]
        self.register += 1

    def _either(self, key: str, family: str, offset: str, cut: bool) -> None:
        """Take the edge of a key whose offset is baked into it, or that of a place which has met several."""
        self.lines += [
            f"e = cur.next.get({key})",
            "if e is None:",
            f"    e = cur.next.get({family})",
            "    if e is None: return None",
            f"    numbers += ({offset},)",
            *(["if e.boundary: return None"] if cut else []),
            "cur = e",
        ]

    def _number(self, values: list[Any]) -> None:
        """Python numbers that the last edge takes. Where offsets may be among them they are gathered in the order of the steps."""
        if not self.shifts:
            self.numbers += values
        elif values:
            self.lines.append(f"numbers += {self.constant(tuple(values))}")

    def steps(self) -> None:
        """Look for the edges."""
        if self.tape.steps:
            self.lines.append("cur, n = trace.cur, trace.n")
        self.enters = any(step[0] == ENTER for step in self.tape.steps)
        if self.enters:
            self.lines.append("entering = None")
        self.shifts = any(kind in (SHOW, OWN) or op in WITH_OFFSET for kind, op, *_ in self.tape.steps)
        if self.shifts:
            self.lines.append("numbers = ()")
        for kind, op, a, b, more in self.tape.steps:
            if kind == BINARY:
                self.follow(f"({self.constant(op)}, r{a}, r{b})", True)
            elif kind == UNARY:
                self.follow(f"({self.constant(op)}, r{a})", True)
            elif kind == NUMBER:
                self.follow(f"({self.constant(op)}, r{a}, {self.constant(b)})", True)
                self._number([more[0]] if b == "s" else [])
            elif kind == GENERAL:
                self._general(op, a, b, more[0])
            elif kind == ENTER:
                self._enter(a)
            elif kind == OWN:
                self._own(a, b)
            else:
                self._show(a, b, more)

    def _general(self, op: OpDef, pattern: tuple[Any, ...], attrs: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        sources = "".join(f"r{x}, " if x.__class__ is int else f"{self.constant(x)}, " for x in pattern)
        key = f"({self.constant(op)}, ({sources}), {self.constant(attrs)})"
        if op in WITH_OFFSET:
            family = "".join(f", {self.constant(attr)}" for attr in attrs[:-1])
            self._either(key, f"({self.constant(WITH_OFFSET[op])}, ({sources}){family})", self.constant(attrs[-1]), True)
            self._next()
        else:
            self.follow(key, True)
        self._number([v for v, x in zip(values, pattern, strict=False) if x.__class__ is tuple and x[0] == "s"])

    def _enter(self, k: int) -> None:
        self.lines += [
            f"if s{k}.trace is trace: r{k} = s{k}.slot",
            "else:",
            f"    b{k} = s{k}.buffer",
            f"    if b{k} is None or b{k}.owner is not None or b{k}.export is not None: return None",
            f"    cur = cur.next.get((INPUT, s{k}.layout))",
            "    if cur is None: return None",
            f"    r{k} = n",
            "    n += 1",
            f"    if entering is None: entering = [(s{k}, b{k}, r{k})]",
            f"    else: entering.append((s{k}, b{k}, r{k}))",
        ]

    def _alone(self, base: int) -> None:
        if base < self.tape.operands:
            self.lines += [f"b = s{base}.buffer", "if b is not None and (b.owner is not None or b.export is not None): return None"]

    def _show(self, base: int, handle: int | None, more: tuple[Any, ...]) -> None:
        self._alone(base)
        view = more[0]
        shape, strides = self.constant(tuple(view.shape)), self.constant(view.strides)
        shown = self.constant(view) if handle is None else f"moved({self.constant(more)}, h{handle}._layout.offset)[0]"
        self.lines.append(f"v = {shown}")
        self._either(f"(VIEW, r{base}, v)", f"(VIEW_AT, (r{base},), {shape}, {strides})", "v.offset", False)
        self._next()

    def _own(self, base: int, handle: int) -> None:
        self._alone(base)
        j = self.register
        self.lines += [
            f"r{j} = remembered(trace, h{handle}, s{base})",
            f"o{j} = r{j} is None",
            f"if o{j}:",
            f"    v = h{handle}._layout",
        ]
        before = len(self.lines)
        self._either(f"(VIEW, r{base}, v)", f"(VIEW_AT, (r{base},), tuple(v.shape), v.strides)", "v.offset", False)
        self.lines += [f"r{j} = n", "n += 1"]
        self.lines[before:] = ["    " + line for line in self.lines[before:]]
        self.owned.append((handle, base, j))
        self.register += 1

    def commit(self) -> None:
        """Have the trace stand where the steps end."""
        if not self.tape.steps:
            return
        if self.enters:
            self.lines.append("buffers = () if entering is None else [item[1] for item in entering]")
        if self.shifts:
            self.lines.append("trace.scalars += numbers")
        elif self.numbers:
            self.lines.append(f"trace.scalars += {self.constant(tuple(self.numbers))}")
        if self.enters:
            self.lines.append("trace.inputs += buffers")
        self.lines += ["trace.cur = cur", "trace.n = n"]
        if self.enters:
            self.lines.append("if entering is not None: attach(trace, entering)")
        for handle, base, j in self.owned:
            self.lines.append(f"if o{j}: h{handle}._cache = (trace, r{base}, r{j})")

    def results(self, created: tuple[tuple[int, Any], ...], results: tuple[tuple[Any, ...], ...]) -> None:
        """Make what is given back."""
        for k, (register, view) in enumerate(created):
            self.lines += [
                f"m{k} = new(Storage)",
                f"m{k}.trace, m{k}.slot, m{k}.version = trace, r{register}, 0",
                f"m{k}.layout = {self.constant(view)}",
                f"m{k}.buffer = m{k}.home = m{k}.writer = None",
                f"trace.storages.append(m{k})",
            ]
        names: list[str] = []
        for k, (how, which, view, seen) in enumerate(results):
            names.append("None" if how == NOTHING else f"h{which}" if how == SAME else names[which] if how == AGAIN else f"t{k}")
            if how < MADE:
                continue
            storage = f"s{which}" if how >= GIVEN else f"m{which}"
            if how == WITHIN:
                shown = f"moved({self.constant(view)}, h{view[1]}._layout.offset)[0]"
            else:
                shown = self.constant(view)
            remembered = "None" if seen is None else f"(trace, {storage}.slot, r{seen})"
            self.lines += [
                f"t{k} = new(Tensor)",
                f"t{k}._storage, t{k}._layout, t{k}._requires_grad = {storage}, {shown}, False",
                f"t{k}._grad_fn = t{k}._grad = t{k}._base = t{k}._views = t{k}._hooks = None",
                f"t{k}._cache = {remembered}",
            ]
        self.lines.append(f"return [{', '.join(names)}]")
