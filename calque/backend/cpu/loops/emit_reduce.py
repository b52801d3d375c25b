"""Reductions: partial accumulators, their initial values, steps and merges.

Sums and products of floats accumulate in float64 lanes. Widening a float32 costs several times as much as adding it, so vectors of float32 are
added in float32 for at most `BLOCK` turns of a loop; the sum of those goes into the float64 lanes (decision 0045). The error of a row sum does not
grow with the length of the row.
The order of every merge depends on the structure of the kernel and on extents only.

The largest or smallest of floats is found by the processor's own instruction, which drops NaN; a NaN waits beside it until the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calque.backend.cpu.loops.emit_ops import LOGICAL, SIGNED, UNSIGNED, Val, cast, round_to, widen
from calque.backend.cpu.text.emit_text import FLOAT_KINDS, Lanes, literal, register_kind
from calque.base.dataclass import dataclass
from calque.base.dtypes import DType, bool_, float64

BLOCK = 8  # float32 values per lane that are added before their sum is widened


@dataclass(frozen=True, slots=True)
class Reduction:
    """How one `reduce` instruction accumulates: element type `dtype` of its operand, `result` type, kind of the accumulator."""

    combine: str
    dtype: DType
    result: DType

    @property
    def indexed(self) -> bool:
        return self.combine.startswith("arg")

    @property
    def unset(self) -> int:
        """Index of an arg-reduction that has seen nothing."""
        return int((1 << self.result.bits - 1) - 1)

    @property
    def index_kind(self) -> str:
        """Kind of the index of an arg-reduction."""
        return register_kind(self.result)

    @property
    def accumulator(self) -> DType:
        """Type the partial results are held in."""
        if self.indexed:
            return self.dtype
        if self.combine in ("sum", "prod") and self.result.category == 2:
            return float64
        return self.result

    @property
    def kind(self) -> str:
        return register_kind(self.accumulator)

    @property
    def widens(self) -> bool:
        """Whether float32 values are summed in float64."""
        return self.combine == "sum" and self.kind == "double" and register_kind(self.dtype) == "float"

    @property
    def guarded(self) -> bool:
        """Whether a NaN is kept beside the value."""
        return self.combine in ("max", "min") and self.kind in FLOAT_KINDS

    @property
    def second_kind(self) -> str:
        """Kind of what stands beside the value: the index of an arg-reduction, a NaN (or 0), or "" for nothing."""
        return self.index_kind if self.indexed else self.kind if self.guarded else ""

    @property
    def second_start(self) -> int:
        """What stands there at the beginning."""
        return self.unset if self.indexed else 0

    def start(self) -> bool | int | float:
        """The neutral element."""
        dtype = self.accumulator
        if self.combine == "sum":
            return 0
        if self.combine == "prod":
            return 1
        largest = self.combine in ("max", "argmax")
        if dtype.category == 2:
            return -math.inf if largest else math.inf
        if dtype is bool_:
            return not largest
        low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
        return low if largest else low + (1 << dtype.bits) - 1

    def enter(self, s: Lanes, value: Val) -> str:
        """An element converted to the accumulator's type."""
        return cast(s, value, self.accumulator)

    def merge(self, s: Lanes, new: str, old: str) -> str:
        """Combine two partial values; a NaN among `new` is dropped by max and min."""
        kind, dtype = self.kind, self.accumulator
        name = {"sum": "add", "prod": "mul"}.get(self.combine, self.combine)
        if kind in FLOAT_KINDS:
            if name in ("add", "mul"):
                return s.op("f" + name, kind, old, new)
            return s.select(kind, s.compare("ogt" if name == "max" else "olt", kind, new, old), new, old)
        table = LOGICAL if dtype is bool_ else SIGNED if dtype.is_signed else UNSIGNED
        return table[name](s, kind, old, new)

    def keep(self, s: Lanes, new: str, old: str) -> str:
        """`new` where it is NaN, else `old`."""
        return s.select(self.kind, s.compare("uno", self.kind, new, new), new, old)

    def later_wins(self, s: Lanes, new: str, old: str) -> str:
        """Whether a value replaces one that came before it: it is more extreme, or the first NaN. Where nothing is more extreme than the neutral
        element, the index stays unset, which stands for the first."""
        kind, largest = self.kind, self.combine == "argmax"
        if kind in FLOAT_KINDS:
            beyond = s.compare("ugt" if largest else "ult", kind, new, old)
            return s.op("and", "i1", beyond, s.compare("ord", kind, old, old))
        return s.compare(("s" if self.accumulator.is_signed else "u") + ("gt" if largest else "lt"), kind, new, old)

    def better(self, s: Lanes, new: tuple[str, str], old: tuple[str, str]) -> str:
        """Whether the (value, index) `new` of one part of the elements replaces `old` of another."""
        kind, dtype = self.kind, self.accumulator
        if kind in FLOAT_KINDS:
            wins = s.compare("ogt" if self.combine == "argmax" else "olt", kind, new[0], old[0])
            new_nan, old_nan = s.compare("uno", kind, new[0], new[0]), s.compare("uno", kind, old[0], old[0])
            wins = s.op("or", "i1", wins, s.op("and", "i1", new_nan, s.op("xor", "i1", old_nan, s.const("i1", True))))
            equal = s.op("or", "i1", s.compare("oeq", kind, new[0], old[0]), s.op("and", "i1", new_nan, old_nan))
        else:
            sign = "s" if dtype.is_signed else "u"
            wins = s.compare(sign + ("gt" if self.combine == "argmax" else "lt"), kind, new[0], old[0])
            equal = s.compare("eq", kind, new[0], old[0])
        index = self.index_kind
        earlier = s.op("and", "i1", equal, s.compare("slt", index, new[1], old[1]))
        return s.op("or", "i1", wins, earlier)

    def finish(self, s: Lanes, value: str, index: str) -> Val:
        """The visible result of complete accumulators of the width of `s`."""
        if self.indexed:
            kind = self.index_kind
            unset = s.compare("eq", kind, index, s.const(kind, self.unset))
            return Val(s.select(kind, unset, s.const(kind, 0), index), self.result, s.width)
        if self.guarded:
            value = self.keep(s, index, value)
        if self.kind == "double" and self.result is not float64:
            value = round_to(s, s.convert("fptrunc", "double", "float", value), self.result)
        return Val(value, self.result, s.width)


class Accumulator:
    """Variables of one partial result of one reduction: on the stack (promoted to registers), or where `places` say. A `blocked` one, if it
    `widens`, has a third: `part`, the float32 sum of the present block of turns, which `flush` takes in."""

    def __init__(self, reduction: Reduction, s: Lanes, places: tuple[str, str, str] | None = None, blocked: bool = False) -> None:
        self.reduction = reduction
        self.s = s
        code = s.code
        self.type = s.type(reduction.kind)
        self.index_type = s.type(reduction.second_kind) if reduction.second_kind else ""
        self.part_type = s.type("float") if blocked and reduction.widens and s.width > 1 else ""
        if places is not None:
            self.value, self.index, self.part = places
            return
        self.value = code.variable(type_=self.type)
        self.index = code.variable(type_=self.index_type) if self.index_type else ""
        self.part = code.variable(type_=self.part_type) if self.part_type else ""
        self.reset()

    def reset(self) -> None:
        """Set the neutral element."""
        code = self.s.code
        code.assign(self.value, self.s.const(self.reduction.kind, self.reduction.start()), self.type)
        if self.index_type:
            code.assign(self.index, self.s.const(self.reduction.second_kind, self.reduction.second_start), self.index_type)
        if self.part_type:
            code.assign(self.part, self.s.const("float", 0.0), self.part_type)

    def read(self) -> tuple[str, str]:
        """Present (value, index)."""
        code = self.s.code
        return code.read(self.value, self.type), code.read(self.index, self.index_type) if self.index_type else ""

    def add(self, args: list[Val], mask: str) -> None:
        """Take in one element per lane (those of the mask, if there is one)."""
        s, reduction, code = self.s, self.reduction, self.s.code
        if self.part_type:
            part = code.read(self.part, self.part_type)
            merged = s.op("fadd", "float", part, widen(s, args[0]))
            code.assign(self.part, s.select("float", mask, merged, part) if mask else merged, self.part_type)
            return
        old = self.read()
        if reduction.indexed:
            new = (reduction.enter(s, args[0]), _lanes_of(s, args[1]))
            self._replace(reduction.later_wins(s, new[0], old[0]), new, old, mask)
            return
        element = reduction.enter(s, args[0])
        if mask and reduction.guarded:  # outside the mask the neutral element changes nothing
            element = s.select(reduction.kind, mask, element, s.const(reduction.kind, reduction.start()))
            mask = ""
        merged = reduction.merge(s, element, old[0])
        code.assign(self.value, s.select(reduction.kind, mask, merged, old[0]) if mask else merged, self.type)
        if reduction.guarded:
            code.assign(self.index, reduction.keep(s, element, old[1]), self.type)

    def flush(self, others: Sequence[Accumulator] = ()) -> None:
        """Take in the float32 sums of a block of turns, this one's and those of `others`, and begin new ones."""
        if not self.part_type:
            return
        s, code = self.s, self.s.code
        parts = [code.read(a.part, self.part_type) for a in (self, *others)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [s.op("fadd", "float", a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
        for a in (self, *others):
            code.assign(a.part, s.const("float", 0.0), self.part_type)
        code.assign(self.value, s.op("fadd", "double", code.read(self.value, self.type), s.convert("fpext", "float", "double", parts[0])), self.type)

    def absorb(self, new: tuple[str, str]) -> None:
        """Merge another partial result of the same width."""
        old = self.read()
        if self.reduction.indexed:
            self._replace(self.reduction.better(self.s, new, old), new, old, "")
            return
        self.s.code.assign(self.value, self.reduction.merge(self.s, new[0], old[0]), self.type)
        if self.reduction.guarded:
            self.s.code.assign(self.index, self.reduction.keep(self.s, new[1], old[1]), self.type)

    def _replace(self, wins: str, new: tuple[str, str], old: tuple[str, str], mask: str) -> None:
        s = self.s
        if mask:
            wins = s.op("and", "i1", wins, mask)
        s.code.assign(self.value, s.select(self.reduction.kind, wins, new[0], old[0]), self.type)
        s.code.assign(self.index, s.select(self.reduction.index_kind, wins, new[1], old[1]), self.index_type)

    def fold_lanes(self) -> tuple[str, str]:
        """The lanes merged pairwise (upper half with lower half) to one scalar (value, index)."""
        value, index = self.read()
        code, reduction, width = self.s.code, self.reduction, self.s.width
        if reduction.guarded:
            found = self.s.any(self.s.compare("uno", reduction.kind, index, index))
            nan, zero = literal(reduction.kind, math.nan), literal(reduction.kind, 0)
            index = code.let(f"select i1 {found}, {reduction.kind} {nan}, {reduction.kind} {zero}")
        while width > 1:
            half = width // 2
            s = Lanes(code, self.s.module, half, self.s.target)
            low, high = _halves(s, reduction.kind, value)
            if reduction.indexed:
                low_index, high_index = _halves(s, reduction.index_kind, index)
                wins = reduction.better(s, (high, high_index), (low, low_index))
                value = s.select(reduction.kind, wins, high, low)
                index = s.select(reduction.index_kind, wins, high_index, low_index)
            else:
                value = reduction.merge(s, high, low)
            width = half
        return value, index


def _lanes_of(s: Lanes, value: Val) -> str:
    return value.text if value.width == s.width else s.splat(value.kind, value.text)


def _halves(s: Lanes, kind: str, value: str) -> tuple[str, str]:
    """Lower and upper half of a vector of twice the width of `s`."""
    full = f"<{2 * s.width} x {kind}>"
    if s.width == 1:
        return tuple(s.code.let(f"extractelement {full} {value}, i32 {i}") for i in (0, 1))  # type: ignore[return-value]
    picks = [", ".join(f"i32 {i + start}" for i in range(s.width)) for start in (0, s.width)]
    return tuple(  # type: ignore[return-value]
        s.code.let(f"shufflevector {full} {value}, {full} poison, <{s.width} x i32> <{p}>") for p in picks
    )
