"""Recordings read from text: the other direction of `calque/replay/macro_text.py`, whose docstring describes the text."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.device import CPU, Device
from calque.base.dtypes import EVERY, DType, dtype_by_name
from calque.base.layout import Layout, dense_layout, layout
from calque.ops import opdef
from calque.record.numbers import scalar_tag
from calque.record.path import INPUT, Edge
from calque.record.places import path_of
from calque.record.recorder import VIEW, VIEW_AS, Trace, grow, grow_constant, grow_general, grow_view, input_edge, local
from calque.record.trie import root
from calque.replay.capture import _nothing
from calque.replay.macro import Fresh, Macro, Number, Test, key_of
from calque.replay.macro_text import OR, STANDS

_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|<[^<>]*>|%\d+|\$\d+")
_STOOD = {words: stood for stood, words in STANDS.items()}
_DTYPES = {dtype.name for dtype in EVERY}
_LAYOUT = re.compile(r"(?P<dtype>\w+)(?P<shape>\[[\d, ]*\])(?: by (?P<strides>\[[\d, -]*\]))?(?: from (?P<offset>\d+))?(?: on (?P<device>[\w:]+))?")


def read(text: str, objects: Sequence[Any] = (), start: Edge | None = None) -> list[Macro]:
    """The recordings that a text describes, beginning at `start` (at an empty trace). `objects`: the Python objects that it names, in its order."""
    reader = _Reader(text, objects)
    found = reader.level(0, root() if start is None else start)
    assert not reader.lines, f"unexpected {reader.lines[0]!r}"
    assert not reader.objects, f"{len(reader.objects)} objects that no line names"
    return found


def _layout(text: str) -> Layout:
    found = _LAYOUT.fullmatch(text.strip())
    assert found, f"expected a layout, got {text!r}"
    shape, dtype = tuple(ast.literal_eval(found["shape"])), dtype_by_name(found["dtype"])
    device = Device(found["device"] or "cpu")
    strides = tuple(ast.literal_eval(found["strides"])) if found["strides"] else dense_layout(shape, dtype, device).strides
    return layout(shape, strides, int(found["offset"] or 0), dtype, device)


def _cells(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"\$(\d+)", text)]


class _Reader:
    """Takes line after line, and object after object."""

    def __init__(self, text: str, objects: Sequence[Any]) -> None:
        self.lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines() if line.strip()]
        self.objects = list(objects)

    def level(self, indent: int, start: Edge) -> list[Macro]:
        """Recordings that begin at one place."""
        found = [self.stretch(indent, start)]
        while self.lines and self.lines[0] == (indent, OR):
            self.lines.pop(0)
            found.append(self.stretch(indent, start))
        return found

    def stretch(self, indent: int, start: Edge) -> Macro:
        made = _Stretch(self, start)
        while self.lines and self.lines[0][0] == indent and self.lines[0][1] != OR and not _is_branch(self.lines[0][1]):
            made.line(self.lines.pop(0)[1])
        macro = made.macro()
        while self.lines and self.lines[0][0] == indent and _is_branch(self.lines[0][1]):
            line = self.lines.pop(0)[1]
            key = () if line == "whatever it is:" else key_of(self.value(line.removeprefix("if it is ").removesuffix(":")))
            macro.children[key] = self.level(indent + 2, root(macro.ending) if macro.ending else macro.end)
        return macro

    def named(self, token: str) -> Any:
        """The next object, which must have this name."""
        assert self.objects, f"no object for {token}"
        thing = self.objects.pop(0)
        name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
        assert name.replace("<locals>.", "").replace("<", "").replace(">", "") == token[1:-1], (thing, token)
        return thing

    def expression(self, text: str) -> tuple[ast.expr, dict[str, Any]]:
        """A Python expression with names in the place of slots, cells and objects."""
        names: dict[str, Any] = {}

        def name(match: re.Match[str]) -> str:
            token = match[0]
            if token[0] in "'\"":
                return token
            word = f"_{len(names)}"
            names[word] = _Slot(int(token[1:])) if token[0] == "%" else _Cell(int(token[1:])) if token[0] == "$" else self.named(token)
            return word

        return ast.parse(_TOKEN.sub(name, text), mode="eval").body, names

    def value(self, text: str) -> Any:
        """The value of a text without operands."""
        return _value(*self.expression(text))

    def call(self, text: str) -> tuple[Any, tuple[Any, ...]]:
        """`<f>(number(0), 2)`: the function and its arguments, a number of the call as ("live", 0)."""
        node, names = self.expression(text)
        assert isinstance(node, ast.Call)
        arguments = [("live", _value(a.args[0], names)) if _called(a) == "number" else _value(a, names) for a in node.args]
        return _value(node.func, names), tuple(arguments)


class _Slot(int):
    pass


class _Cell(int):
    pass


def _called(node: ast.expr) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        if node.id in names:
            return names[node.id]
        return dtype_by_name(node.id) if node.id in _DTYPES else float(node.id)  # nan, inf
    if isinstance(node, ast.Tuple):
        return tuple([_value(item, names) for item in node.elts])
    if isinstance(node, ast.List):
        return [_value(item, names) for item in node.elts]
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, names)
    return complex(ast.unparse(node).replace(" ", "")) if isinstance(node, ast.BinOp) else ast.literal_eval(node)


def _is_branch(line: str) -> bool:
    return line.startswith("if it is ") or line == "whatever it is:"


class _Stretch:
    """Lines of one stretch. Edges are those that exist, or new ones."""

    def __init__(self, reader: _Reader, start: Edge) -> None:
        self.reader, self.start = reader, start
        self.trace = Trace(start)
        self.path = path_of(start)
        self.trace.n = len(self.path)
        self.inputs: list[Any] = []
        self.expect: list[Any] = []
        self.peeks: list[Any] = []
        self.fresh: list[Fresh] = []
        self.definitions: list[Number] = []
        self.scalars: list[Any] = []
        self.numbers: list[Any] = []
        self.checks: list[Any] = []
        self.created: list[Any] = []
        self.written: list[Any] = []
        self.dropped: list[int] = []
        self.rest: dict[str, Any] = {}
        self.ending, self.ready = "", True

    def macro(self) -> Macro:
        order = self.rest.pop("order", None)
        made = Macro(
            self.start, self.trace.cur, self.trace.n, self.inputs, self.expect, self.scalars, self.numbers, self.definitions, self.checks,
            self.created, self.written, self.ending, self.peeks, self.dropped, self.fresh, **self.rest,
        )  # fmt: skip
        made.ready, made.order = self.ready, order
        return made

    def line(self, line: str) -> None:
        if line.startswith("%"):
            self.operation(line)
        elif line.startswith("$"):
            self.becomes(line)
        elif line == "(recorded once)":
            self.ready = False
        else:
            word, _, rest = line.partition(" ")
            getattr(self, word.rstrip(":") + "_")(rest)

    # Each word at the beginning of a line.

    def expect_(self, rest: str) -> None:
        for cell, words in re.findall(r"\$(\d+) (has a value that others share|has a value|is [^,$]*)", rest):
            self.expect.append((int(cell), _STOOD.get(words) or int(words.removeprefix("is %"))))

    def peek_(self, rest: str) -> None:
        found = re.fullmatch(r"(<.*?>) of \$(\d+) as (.*) is (.*?)", rest)
        assert found, rest
        self.peeks.append((int(found[2]), _layout(found[3]), self.reader.named(found[1]), self.reader.value(found[4])))

    def make_(self, rest: str) -> None:
        what, _, view = rest.rpartition(" : ")
        if what.startswith("handle on $"):
            self.fresh.append(Fresh(int(what.removeprefix("handle on $")), None, _layout(view)))
            return
        floating = what.startswith("floating ")
        shown = self.reader.value(what.removeprefix("floating ").removeprefix("constant "))
        values = np.array(shown, _layout(view).dtype.np) if isinstance(shown, list) else shown
        self.fresh.append(Fresh(-1, values, _layout(view), floating))

    def ask_(self, rest: str) -> None:
        found = re.fullmatch(r"(<.*>) for (\d+)", rest)
        assert found, rest
        self.definitions.append(Number(self.reader.named(found[1]), int(found[2])))

    def compute_(self, rest: str) -> None:
        function, arguments = self.reader.call(rest)
        self.definitions.append(Number(function, 1, arguments))

    def tell_(self, rest: str) -> None:
        function, arguments = self.reader.call(rest)
        self.definitions.append(Number(function, 0, arguments))

    def check_(self, rest: str) -> None:
        rest, _, line = rest.partition("  # ")
        slot, _, name = rest.partition(" by ")
        self.checks.append((int(slot[1:]), self.reader.named(name), line))

    def new_(self, rest: str) -> None:
        slot, _, view = rest.partition(" as ")
        number = int(slot[1:])
        self.created.append((number, _layout(view) if view else self.path[number].layout))

    def drop_(self, rest: str) -> None:
        self.dropped = _cells(rest)

    def order_(self, rest: str) -> None:
        self.rest["order"] = [int(word) for word in rest.split(", ")]

    def keep_(self, rest: str) -> None:
        self.rest["kept"] = _cells(rest)

    def flush_(self, rest: str) -> None:
        self.ending = rest

    def copy_(self, rest: str) -> None:
        values, _, device = rest.rpartition(" to ")
        pairs = [item.partition(" as ") for item in re.split(r", (?=\$)", values)]
        self.rest["copies"] = ([(int(cell[1:]), _layout(view)) for cell, _, view in pairs], Device(device))

    def read_(self, rest: str) -> None:
        found = re.fullmatch(r"\$(\d+)(?: as (.*?))? by (<[^<>]*>)(, as a number)?(?:, a loss of ('.*?'))?(?:  # (.*))?", rest)
        assert found, rest
        view = _layout(found[2]) if found[2] else None
        loss = ast.literal_eval(found[5]) if found[5] else ""
        self.rest["test"] = Test(int(found[1]), view, self.reader.named(found[3]), bool(found[4]), None, found[6] or "", loss)

    def decide_(self, rest: str) -> None:
        rest, _, line = rest.removeprefix("by ").partition("  # ")
        function, arguments = self.reader.call(rest)
        self.rest["test"] = Test(-1, None, _nothing, False, Number(function, 1, arguments), line)

    def becomes(self, line: str) -> None:
        found = re.fullmatch(r"\$(\d+) becomes %(\d+)(?: as (.*?))?(?: by (?:%(\d+)|(<.*>)))?(?:, (\d+) writes)?(, through .data)?", line)
        assert found, line
        slot = int(found[2])
        writer = self.reader.named(found[5]) if found[5] else self.path[int(found[4] or slot)]
        view = _layout(found[3]) if found[3] else self.path[slot].layout
        self.written.append((int(found[1]), slot, int(found[6] or 1) * (-1 if found[7] else 1), view, writer))

    # Operations.

    def operation(self, line: str) -> None:
        left, _, result = line.rpartition(" : ")
        fixed = result.endswith(", as asked for")
        view = _layout(result.removesuffix(", as asked for"))
        slot, _, text = left.partition(" = ")
        assert slot == f"%{self.trace.n}", f"expected %{self.trace.n}, got {line!r}"
        if text.startswith("input("):
            found = re.fullmatch(r"input\(\$(\d+)(?:, copied as (.*))?\)", text)
            assert found, text
            self.inputs.append((int(found[1]), self.trace.n, _layout(found[2]) if found[2] else None))
            edge = self.trace.cur.next.get((INPUT, view)) or input_edge(self.trace.cur, view, sum(e.op is INPUT for e in self.path))
        else:
            edge = self.computed(text, view, fixed)
        self.path.append(edge)
        self.trace.cur, self.trace.n = edge, self.trace.n + 1

    def computed(self, text: str, view: Layout, fixed: bool) -> Edge:
        node, names = self.reader.expression(text)
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name), text
        op = opdef.get(node.func.id)
        slots = [names[a.id] for a in node.args if isinstance(a, ast.Name) and isinstance(names.get(a.id), _Slot)]
        usual = self.path[slots[0]].layout.dtype if slots else view.dtype
        inputs = tuple([self.operand(a, names, usual) for a in node.args])
        attrs = {k.arg: _value(k.value, names) for k in node.keywords}
        values = tuple([attrs[name] for name in op.attrs if name in attrs])
        for found in self.trace.cur.next.values():
            if found.op is op and found.inputs == inputs and found.layout is view and found.fixed == fixed and same(found.attrs, values):
                if all(map(same, found.inputs, inputs)):  # 1 and True differ
                    return found
        return self.grown(op, inputs, values, view, fixed)

    def operand(self, node: ast.expr, names: dict[str, Any], usual: DType) -> Any:
        """A source of an edge."""
        word = _called(node)
        if not word:
            value = _value(node, names)
            return int(value) if isinstance(value, _Slot) else ("c", value, usual)
        assert isinstance(node, ast.Call)
        value, dtype = [*(_value(a, names) for a in node.args), usual][:2]
        if word == "constant":
            return ("c", value, dtype)
        if word == "number":
            self.numbers.append((len(self.scalars), value))
            value = None
        self.scalars.append(value)
        return ("s", dtype)

    def grown(self, op: Any, inputs: tuple[Any, ...], attrs: tuple[Any, ...], view: Layout, fixed: bool) -> Edge:
        """A new edge, under the key that the recorder looks for."""
        state = local.state
        before, state.device = state.device, view.device if fixed or view.device is not CPU else None
        try:
            edge = self.new_edge(op, inputs, attrs, view, (attrs, view.device) if fixed else attrs)
        finally:
            state.device = before
        edge.fixed = fixed
        assert edge.layout is view, f"{op.name} gives {edge.layout}, not {view}"
        return edge

    def new_edge(self, op: Any, inputs: tuple[Any, ...], attrs: tuple[Any, ...], view: Layout, there: Any) -> Edge:
        trace = self.trace
        layouts = tuple([x[-1] if x.__class__ is tuple else self.path[x].layout for x in inputs])
        numbers = [x for x in inputs if x.__class__ is tuple]
        if op is VIEW or op is VIEW_AS:
            seen = layout(attrs[0], attrs[1], attrs[2], view.dtype, view.device)
            return grow_view(trace, (VIEW, inputs[0], seen), inputs[0], layouts[0], seen)
        if not attrs and not numbers and there is attrs:
            return grow(trace, (op, *inputs), op, inputs, attrs, layouts)
        if not attrs and len(inputs) == 2 and inputs[1].__class__ is tuple and there is attrs:
            tag = "s" if inputs[1][0] == "s" else scalar_tag(inputs[1][1])
            return grow_constant(trace, (op, inputs[0]), tag, op, inputs, attrs, layouts)[0]
        return grow_general(trace, op, inputs, attrs, there, layouts, any(x[0] == "c" for x in numbers))


def same(a: Any, b: Any) -> bool:
    """Equal, and of equal types: 1, 1.0 and True differ."""
    return key_of(a) == key_of(b) or (a is b)
