"""Running sums and products along a dim, in float64: a line is added up by one thread from its first element to its last.

Lines whose neighbours in memory are lines as well are taken as vectors of them; others four at a time, because an addition
that waits for the one before leaves the processor idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import Blocking, VectorUnit
from calque.base.shapes import contiguous_strides
from calque.ops.routines import ScanSpec

OPERATIONS = {"cumsum": ("fadd", "-0.0"), "cumprod": ("fmul", "1.0")}
"""The instruction of a step, and the number that changes nothing."""
BUFFERS = 3
WORDS = ("size", "step", "out_step", "lines", "side_by_side", "dims")
"""Elements of a line, steps from one to the next in operand and result, how many lines, how many of them lie side by side in both (or 1), and how
many (extent, step in the operand, step in the result) of lines follow, innermost first."""
TOGETHER = 4
"""Lines, or vectors of lines, that are added up at the same time."""
ENTRY = ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args")


@dataclass(frozen=True, slots=True)
class Scan:
    """Parameters of a running sum or product. Buffers: operand, result, workspace."""

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
    """The entries ``calque_cumsum_*`` and ``calque_cumprod_*`` and what they are made of."""
    parts = [(_columns(kind, blocking), _rows(kind, 1, blocking), _rows(kind, TOGETHER, blocking), _entry(kind, blocking)) for kind in OPERATIONS]
    return "".join(text for one in parts for text in one)


class _Steps:
    """Phi nodes of a loop over the elements of lines: pointers that walk, and totals in float64."""

    def __init__(self, b: Builder, kind: str, width: int, starts: Sequence[tuple[str, str]]) -> None:
        self.b, self.width = b, width
        self.operation, self.start = OPERATIONS[kind]
        self.starts = starts
        self.wide = "double" if width == 1 else f"<{width} x double>"
        self.narrow = b.element if width == 1 else b.vector
        start = self.start if width == 1 else "<" + ", ".join(f"double {self.start}" for _ in range(width)) + ">"
        b.emit("br label %head")
        b.label("head")
        b.emit("%k = phi i64 [0, %setup], [%k.next, %body]")
        for number, (x, y) in enumerate(starts):
            b.emit(f"%x{number} = phi ptr [{x}, %setup], [%x{number}.next, %body]")
            b.emit(f"%y{number} = phi ptr [{y}, %setup], [%y{number}.next, %body]")
            b.emit(f"%t{number} = phi {self.wide} [{start}, %setup], [%t{number}.next, %body]")
        b.emit(f"br i1 {b.compare('slt', '%k', '%size')}, label %body, label %finish")
        b.label("body")

    def step(self, number: int, value: str) -> str:
        """One more element of a line; returns what the result has there."""
        b = self.b
        same = b.element == "double"
        value = value if same else b.let(f"fpext {self.narrow} {value} to {self.wide}")
        b.emit(f"%t{number}.next = {self.operation} {self.wide} %t{number}, {value}")
        return f"%t{number}.next" if same else b.let(f"fptrunc {self.wide} %t{number}.next to {self.narrow}")

    def close(self) -> None:
        """The end of the loop."""
        b = self.b
        for number in range(len(self.starts)):
            for side, step in (("x", "%step"), ("y", "%out_step")):
                b.emit(f"%{side}{number}.next = getelementptr {b.element}, ptr %{side}{number}, i64 {step}")
        b.emit("%k.next = add nsw i64 %k, 1")
        b.emit("br label %head")
        b.label("finish")


def _columns(kind: str, blocking: Blocking) -> str:
    """``count`` lines that lie side by side, at most as many as four vectors have lanes."""
    b = Builder(f"{kind}_columns", ("i64 %size", "i64 %step", "i64 %out_step", "i64 %count", "ptr noalias %x", "ptr noalias %y"), blocking,
                attributes="noinline")
    lanes = blocking.lanes
    masks = [b.lanes_between(0, b.clamp(b.sub("%count", part * lanes), 0, lanes)) for part in range(TOGETHER)]
    places = [(b.at("%x", part * lanes), b.at("%y", part * lanes)) for part in range(TOGETHER)]
    steps = _Steps(b, kind, lanes, places)
    for part, mask in enumerate(masks):
        b.store_masked(steps.step(part, b.load_masked(f"%x{part}", mask)), f"%y{part}", mask)
    steps.close()
    return b.text()


def _rows(kind: str, count: int, blocking: Blocking) -> str:
    """So many lines, wherever they begin."""
    names = [(f"%a{line}", f"%b{line}") for line in range(count)]
    b = Builder(f"{kind}_rows_{count}", ("i64 %size", "i64 %step", "i64 %out_step", *(f"ptr {name}" for pair in names for name in pair)), blocking,
                attributes="noinline")
    steps = _Steps(b, kind, 1, names)
    for line in range(count):
        b.store(steps.step(line, b.load(f"%x{line}")), f"%y{line}")
    steps.close()
    return b.text()


def _entry(kind: str, blocking: Blocking) -> str:
    """This thread's share of the lines, in groups that are added up together."""
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
        return b.at(x, b.read(in_x)), b.at(y, b.read(in_y))

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
        for start, end, count in ((low, whole, TOGETHER), (whole, high, 1)):
            with b.loop(start, end, count) as first:
                places = [place(b.add(first, line)) for line in range(count)]
                b.call(f"{kind}_rows_{count}", f"i64 {w['size']}", f"i64 {w['step']}", f"i64 {w['out_step']}",
                       *(f"ptr {one}" for pair in places for one in pair))

    b.cases((b.compare("sge", w["side_by_side"], max(blocking.lanes // 2, 2)), columns), default=rows)
    return b.text()
