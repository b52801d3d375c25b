"""Running sums and products along a dim, in float64, and positions of running extremes: one thread walks from a line's first element to its last.

Lines whose neighbours in memory are lines as well are taken as vectors of them; others four at a time, because a step
that waits for the one before leaves the processor idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import Blocking, VectorUnit
from calque.base.dataclass import dataclass
from calque.base.shapes import contiguous_strides
from calque.ops.routines import ScanSpec

TOTALS = {"cumsum": ("fadd", "0.0"), "cumprod": ("fmul", "1.0")}
"""The instruction of a step, and the number that changes nothing."""
EXTREMES = {"cumargmax": ("ogt", "oge", "0xFFF0000000000000"), "cumargmin": ("olt", "ole", "0x7FF0000000000000")}
"""How an element compares with the extreme so far if it exceeds it or takes its place, and the number (an infinity) that no other falls short of."""
KINDS = (*TOTALS, *EXTREMES)
BUFFERS = 3
WORDS = ("size", "step", "out_step", "lines", "side_by_side", "dims")
"""Elements of a line, steps from one to the next in operand and result, how many lines, how many of them lie side by side in both (or 1), and how
many (extent, step in the operand, step in the result) of lines follow, innermost first."""
TOGETHER = 4
"""Lines, or vectors of lines, that are walked at the same time."""
ENTRY = ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args")


@dataclass(frozen=True, slots=True)
class Scan:
    """Parameters of a running sum, product or position. Buffers: operand, result, workspace."""

    spec: ScanSpec

    def words(self) -> tuple[int, ...]:
        """See `WORDS`."""
        (shape, strides), dim = self.spec.view, self.spec.dim
        out = contiguous_strides(shape)
        rest = [(shape[d], strides[d], out[d]) for d in reversed(range(len(shape))) if d != dim and shape[d] != 1]
        merged: list[tuple[int, int, int]] = []
        for extent, step, out_step in rest:
            if merged and (step, out_step) == (merged[-1][0] * merged[-1][1], merged[-1][0] * merged[-1][2]):
                merged[-1] = (merged[-1][0] * extent, *merged[-1][1:])
            else:
                merged.append((extent, step, out_step))
        beside = merged[0][0] if merged and merged[0][1:] == (1, 1) else 1
        lines = prod(extent for extent, _, _ in merged)
        return (shape[dim], strides[dim], out[dim], lines, beside, len(merged), *(word for one in merged for word in one))

    def workspace_bytes(self, dtype: str, target: VectorUnit) -> int:
        """None."""
        return 0


def scan_functions(blocking: Blocking) -> str:
    """The entries ``calque_cumsum_*`` and so on, and what they are made of."""
    rows = [_row_of_extremes(kind, blocking) for kind in EXTREMES] + [_rows(kind, count, blocking) for kind in TOTALS for count in (1, TOGETHER)]
    return "".join([*rows, *(make(kind, blocking) for kind in KINDS for make in (_columns, _entry))])


def _result(kind: str, blocking: Blocking) -> tuple[str, int]:
    """Element type of the result and its bytes."""
    return ("i64", 8) if kind in EXTREMES else (blocking.element, blocking.item_bytes)


class _Steps:
    """Phi nodes of a loop over the elements of lines: pointers that walk, and what is carried from one element to the next."""

    def __init__(self, b: Builder, kind: str, width: int, starts: Sequence[tuple[str, str]]) -> None:
        self.b, self.width, self.kind, self.starts = b, width, kind, starts
        self.wide, self.narrow, self.places, self.mask = (self._of(element) for element in ("double", b.element, "i64", "i1"))
        self.result, _ = _result(kind, b.blocking)
        carried = {"t": (self.wide, f"double {TOTALS[kind][1]}")} if kind in TOTALS else {
            "best": (self.narrow, f"{b.element} {EXTREMES[kind][2]}"), "at": (self.places, "i64 0"), "nan": (self.places, "i64 -1")}
        b.emit("br label %head")
        b.label("head")
        b.emit("%k = phi i64 [0, %setup], [%k.next, %body]")
        for number, (x, y) in enumerate(starts):
            b.emit(f"%x{number} = phi ptr [{x}, %setup], [%x{number}.next, %body]")
            b.emit(f"%y{number} = phi ptr [{y}, %setup], [%y{number}.next, %body]")
            for name, (element, start) in carried.items():
                b.emit(f"%{name}{number} = phi {element} [{self._filled(start)}, %setup], [%{name}{number}.next, %body]")
        b.emit(f"br i1 {b.compare('slt', '%k', '%size')}, label %body, label %finish")
        b.label("body")
        self.position = "%k" if width == 1 or kind in TOTALS else b.splat("%k", "i64")

    def _of(self, element: str) -> str:
        return element if self.width == 1 else f"<{self.width} x {element}>"

    def _filled(self, number: str) -> str:
        """A constant such as ``double 1.0`` in every lane."""
        return number.split()[1] if self.width == 1 else f"<{', '.join([number] * self.width)}>"

    def step(self, number: int, value: str) -> str:
        """One more element of a line; returns what the result has there."""
        return self._total(number, value) if self.kind in TOTALS else self._place(number, value)

    def _total(self, number: int, value: str) -> str:
        b = self.b
        same = b.element == "double"
        value = value if same else b.let(f"fpext {self.narrow} {value} to {self.wide}")
        b.emit(f"%t{number}.next = {TOTALS[self.kind][0]} {self.wide} %t{number}, {value}")
        return f"%t{number}.next" if same else b.let(f"fptrunc {self.wide} %t{number}.next to {self.narrow}")

    def _place(self, number: int, value: str) -> str:
        """The last of equal elements, or the last NaN. Only the extreme among the numbers waits for the element before, for one instruction."""
        b, (exceeds, takes, _) = self.b, EXTREMES[self.kind]
        b.emit(f"%best{number}.next = {self._if(exceeds, value, f'%best{number}', (self.narrow, value, f'%best{number}'))}")
        b.emit(f"%at{number}.next = {self._if(takes, value, f'%best{number}', (self.places, self.position, f'%at{number}'))}")
        b.emit(f"%nan{number}.next = {self._if('uno', value, value, (self.places, self.position, f'%nan{number}'))}")
        found = b.let(f"icmp sge {self.places} %nan{number}.next, {self._filled('i64 0')}")
        return b.let(f"select {self.mask} {found}, {self.places} %nan{number}.next, {self.places} %at{number}.next")

    def _if(self, predicate: str, first: str, second: str, choice: tuple[str, str, str]) -> str:
        """An instruction that chooses between two values of one type by a comparison of elements."""
        holds = self.b.let(f"fcmp {predicate} {self.narrow} {first}, {second}")
        kind, then, other = choice
        return f"select {self.mask} {holds}, {kind} {then}, {kind} {other}"

    def close(self) -> None:
        """The end of the loop."""
        b = self.b
        for number in range(len(self.starts)):
            for side, element, step in (("x", b.element, "%step"), ("y", self.result, "%out_step")):
                b.emit(f"%{side}{number}.next = getelementptr {element}, ptr %{side}{number}, i64 {step}")
        b.emit("%k.next = add nsw i64 %k, 1")
        b.emit("br label %head")
        b.label("finish")


def _columns(kind: str, blocking: Blocking) -> str:
    """``count`` lines that lie side by side, at most as many as four vectors have lanes."""
    b = Builder(f"{kind}_columns", ("i64 %size", "i64 %step", "i64 %out_step", "i64 %count", "ptr noalias %x", "ptr noalias %y"), blocking,
                attributes="noinline")
    lanes = blocking.lanes
    masks = [b.lanes_between(0, b.clamp(b.sub("%count", part * lanes), 0, lanes)) for part in range(TOGETHER)]
    element, size = _result(kind, blocking)
    places = [(b.at("%x", part * lanes), b.byte_at("%y", part * lanes * size)) for part in range(TOGETHER)]
    steps = _Steps(b, kind, lanes, places)
    for part, mask in enumerate(masks):
        found = steps.step(part, b.load_masked(f"%x{part}", mask))
        if element == "i64":
            b.store_masked_words(found, f"%y{part}", mask)
        else:
            b.store_masked(found, f"%y{part}", mask)
    steps.close()
    return b.text()


def _rows(kind: str, count: int, blocking: Blocking) -> str:
    """So many lines, wherever they begin."""
    names = [(f"%a{line}", f"%b{line}") for line in range(count)]
    b = Builder(f"{kind}_rows_{count}", ("i64 %size", "i64 %step", "i64 %out_step", *(f"ptr {name}" for pair in names for name in pair)), blocking,
                attributes="noinline")
    element, size = _result(kind, blocking)
    steps = _Steps(b, kind, 1, names)
    for line in range(count):
        b.emit(f"store {element} {steps.step(line, b.load(f'%x{line}'))}, ptr %y{line}, align {size}")
    steps.close()
    return b.text()


def _row_of_extremes(kind: str, blocking: Blocking) -> str:
    """A line, wherever it begins. What changes nothing, as nearly all elements do, costs a comparison that nothing waits for."""
    names = ("i64 %size", "i64 %step", "i64 %out_step", "ptr %a0", "ptr %b0")
    b = Builder(f"{kind}_rows_1", names, blocking, attributes="noinline")
    element, falls_short = blocking.element, {"ogt": "olt", "olt": "ogt"}[EXTREMES[kind][0]]
    carried = {"best": (element, EXTREMES[kind][2]), "at": ("i64", "0"), "nan": ("i1", "false")}
    b.emit("br label %head")
    b.label("head")
    for name, (type_, start) in {"k": ("i64", "0"), "x": ("ptr", "%a0"), "y": ("ptr", "%b0"), **carried}.items():
        b.emit(f"%{name} = phi {type_} [{start}, %setup], [%{name}.next, %join]")
    b.emit(f"br i1 {b.compare('slt', '%k', '%size')}, label %body, label %finish")
    b.label("body")
    value = b.load("%x")
    b.emit(f"br i1 {b.let(f'fcmp {falls_short} {element} {value}, %best')}, label %join, label %look")
    b.label("look")
    is_nan = b.let(f"fcmp uno {element} {value}, {value}")
    b.emit(f"%nan.look = or i1 %nan, {is_nan}")  # from the first NaN on only another one is the extreme
    b.emit(f"%best.look = select i1 %nan.look, {element} %best, {element} {value}")
    b.emit(f"%at.look = select i1 {b.let(f'icmp eq i1 %nan.look, {is_nan}')}, i64 %k, i64 %at")
    b.emit("br label %join")
    b.label("join")
    for name, (type_, _) in carried.items():
        b.emit(f"%{name}.next = phi {type_} [%{name}, %body], [%{name}.look, %look]")
    b.emit("store i64 %at.next, ptr %y, align 8")
    b.emit(f"%x.next = getelementptr {element}, ptr %x, i64 %step")
    b.emit("%y.next = getelementptr i64, ptr %y, i64 %out_step")
    b.emit("%k.next = add nsw i64 %k, 1")
    b.emit("br label %head")
    b.label("finish")
    return b.text()


def _entry(kind: str, blocking: Blocking) -> str:
    """This thread's share of the lines, in groups that are walked together."""
    b = Builder(f"calque_{kind}_{blocking.dtype}", ENTRY, blocking, linkage="")
    x, y = (b.pointer_word("%args", index) for index in range(2))
    w = {name: b.word("%args", BUFFERS + index) for index, name in enumerate(WORDS)}
    dims = b.byte_at("%args", 8 * (BUFFERS + len(WORDS)))
    rest, in_x, in_y = b.variable(0), b.variable(0), b.variable(0)

    def place(line: Value) -> tuple[str, str]:
        """Where a line begins in operand and result."""
        for variable, value in ((rest, line), (in_x, 0), (in_y, 0)):
            b.assign(variable, value)
        with b.loop(0, w["dims"]) as dim:
            extent, x_step, y_step = (b.word(b.byte_at(dims, b.mul(dim, 24)), word) for word in range(3))
            index = b.rem(b.read(rest), extent)
            b.assign(rest, b.div(b.read(rest), extent))
            b.assign(in_x, b.add(b.read(in_x), b.mul(index, x_step)))
            b.assign(in_y, b.add(b.read(in_y), b.mul(index, y_step)))
        return b.at(x, b.read(in_x)), b.byte_at(y, b.mul(b.read(in_y), _result(kind, blocking)[1]))

    def columns() -> None:
        wide = TOGETHER * blocking.lanes
        blocks = b.ceil_div(w["side_by_side"], wide)
        low, high = b.share(b.mul(b.div(w["lines"], w["side_by_side"]), blocks), "%thread", "%threads")
        with b.loop(low, high) as unit:
            column = b.mul(b.rem(unit, blocks), wide)
            source, target = place(b.add(b.mul(b.div(unit, blocks), w["side_by_side"]), column))
            b.call(f"{kind}_columns", f"i64 {w['size']}", f"i64 {w['step']}", f"i64 {w['out_step']}", f"i64 {b.sub(w['side_by_side'], column)}",
                   f"ptr {source}", f"ptr {target}")

    def rows() -> None:
        low, high = b.share(w["lines"], "%thread", "%threads")
        whole = b.sub(high, b.rem(b.sub(high, low), TOGETHER))
        for start, end, count in ((low, high, 1),) if kind in EXTREMES else ((low, whole, TOGETHER), (whole, high, 1)):
            with b.loop(start, end, count) as first:
                places = [place(b.add(first, line)) for line in range(count)]
                b.call(f"{kind}_rows_{count}", f"i64 {w['size']}", f"i64 {w['step']}", f"i64 {w['out_step']}",
                       *(f"ptr {one}" for pair in places for one in pair))

    b.cases((b.compare("sge", w["side_by_side"], max(blocking.lanes // 2, 2)), columns), default=rows)
    return b.text()
