"""Rows times weights of four bits: bound by reading the weights once, as in decoding, so they are unpacked in registers and nowhere else.

A tile is a few rows times a few columns (rows of the weights). Along a group of weights one vector of bytes gives two vectors of numbers, which all
rows of the tile use; the sums of a group are multiplied by its scale as they are added to those of all groups.
"""

from __future__ import annotations

from functools import partial

from calque.backend.cpu.contract.attention_math import slots
from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.int8 import byte_declarations
from calque.backend.cpu.contract.micro import lane_sums
from calque.backend.cpu.contract.target import Blocking, VectorUnit
from calque.base.dataclass import dataclass
from calque.ops.routines import Int4Spec

COLUMNS = {1: 4, 2: 4, 3: 2, 4: 2}
"""Rows of a tile -> its columns: enough sums that no multiply-add waits for the one before, few enough for the registers."""
UNIT = max(COLUMNS.values())
CHUNK = 16 * UNIT
"""Columns that all rows take turns at: their weights stay in the second-level cache."""
STRAIGHT = (1, 2, 4)
"""Vectors of bytes in a group for which there is code without a loop."""
LOOK_UP, WIDE_FLOATS, WIDE_WORDS = "llvm.x86.avx512.permvar.sf.512", "<16 x float>", "<16 x i32>"
WORDS = ("rows", "columns", "groups", "half", "x_row", "packed_row", "scale_row")
"""Sizes, bytes of a group, and elements from one row of an operand to the next."""
BUFFERS = 5
TILE_PARAMETERS = ("i64 %count", "ptr noalias readonly %x", "i64 %x_row", "ptr noalias readonly %packed", "i64 %packed_row",
                   "ptr noalias readonly %scale", "i64 %scale_row", "ptr noalias %c", "i64 %c_row", "i64 %groups", "i64 %half")


@dataclass(frozen=True, slots=True)
class Int4:
    """Parameters of a product with weights of four bits. Buffers: rows, weights, scales, result, workspace."""

    spec: Int4Spec

    def words(self) -> tuple[int, ...]:
        """See `WORDS`."""
        (x, x_steps), (packed, packed_steps), (scale, scale_steps) = self.spec.views
        return (x[0], packed[0], scale[1], packed[1] // scale[1], x_steps[0], packed_steps[0], scale_steps[0])

    def workspace_bytes(self, dtype: str, target: VectorUnit) -> int:
        """None."""
        return 0


def int4_functions(blocking: Blocking) -> str:
    """The entry ``calque_int4_matmul_*`` and its tiles."""
    wide = f"declare {WIDE_FLOATS} @{LOOK_UP}({WIDE_FLOATS}, {WIDE_WORDS})\n" if _looks_up(blocking) else ""
    return "".join([byte_declarations(blocking), wide, *(_tile(rows, blocking) for rows in COLUMNS), _entry(blocking)])


def _looks_up(blocking: Blocking) -> bool:
    """Whether a vector has as many lanes as there are integers of four bits, so that one instruction looks up a number for each lane."""
    return blocking.element == "float" and blocking.lanes == 16


def _numbers(b: Builder, address: str, mask: str | None) -> tuple[str, str]:
    """The weights in the low and in the high halves of a vector of bytes; those that are missing are finite."""
    lanes = b.blocking.lanes
    bytes_, words = f"<{lanes} x i8>", f"<{lanes} x i32>"
    if mask is None:
        value = b.let(f"load {bytes_}, ptr {address}, align 1")
    else:
        value = b.let(f"call {bytes_} @llvm.masked.load.v{lanes}i8.p0(ptr {address}, i32 1, {b.mask} {mask}, {bytes_} zeroinitializer)")
    value = b.let(f"sext {bytes_} {value} to {words}")
    high = b.let(f"ashr {words} {value}, {b.splat(4, 'i32')}")
    if _looks_up(b.blocking):  # by the last four bits of each lane
        found = [", ".join(f"float {float(n)}" for n in table) for table in (range(-8, 8), (*range(8), *range(-8, 0)))]
        first, second = (b.let(f"call {b.vector} @{LOOK_UP}({b.vector} <{table}>, {words} {place})")
                         for table, place in zip(found, (value, high), strict=True))
        return first, second
    low = b.let(f"and {words} {value}, {b.splat(15, 'i32')}")
    low = b.let(f"sub {words} {low}, {b.splat(8, 'i32')}")
    first, second = (b.let(f"sitofp {words} {whole} to {b.vector}") for whole in (low, high))
    return first, second


class _Tile:
    """The function for so many rows and ``count`` columns: ``c[row, column]``."""

    def __init__(self, rows: int, blocking: Blocking) -> None:
        self.b = b = Builder(f"int4_tile_{rows}", TILE_PARAMETERS, blocking, attributes="noinline")
        self.rows, self.columns, lanes = rows, COLUMNS[rows], blocking.lanes
        self.whole = b.mul(b.div("%half", lanes), lanes)
        self.rest = b.sub("%half", self.whole)
        self.mask = b.lanes_between(0, self.rest)
        self.totals: list[list[str]] = []

    def text(self) -> str:
        """IR text."""
        b, lanes = self.b, self.b.blocking.lanes
        with b.loop(0, "%count", self.columns) as column:
            # Columns beyond the last repeat it: their sums are computed and thrown away.
            places = [b.min(b.add(column, k), b.sub("%count", 1)) for k in range(self.columns)]
            self.weights = [b.byte_at("%packed", b.mul(place, "%packed_row")) for place in places]
            self.scales = [b.at("%scale", b.mul(place, "%scale_row")) for place in places]
            self.totals = [slots(b, self.columns, "zeroinitializer") for _ in range(self.rows)]
            b.cases(*((b.compare("eq", "%half", count * lanes), partial(self._groups, count)) for count in STRAIGHT),
                    default=partial(self._groups, 0))
            for row, line in enumerate(self.totals):
                for first in range(0, self.columns, lanes):
                    some = [b.load_vector(total) for total in line[first : first + lanes]]
                    seen = b.lanes_between(0, b.clamp(b.sub("%count", b.add(column, first)), 0, len(some)))
                    b.store_masked(lane_sums(b, some), b.at("%c", b.add(b.mul(row, "%c_row"), b.add(column, first))), seen)
        return b.text()

    def _groups(self, straight: int) -> None:
        """All groups. `straight`: how many vectors of bytes each has, without a loop; 0: any number."""
        b = self.b
        with b.loop(0, "%groups") as group:
            start = b.mul(group, "%half")
            inputs = [b.at("%x", b.add(b.mul(row, "%x_row"), b.mul(start, 2))) for row in range(self.rows)]
            sums = self._in_line(inputs, start, straight) if straight else self._in_a_loop(inputs, start)
            for k, scale in enumerate(self.scales):
                factor = b.splat(b.load(b.at(scale, group)), b.element)
                for line, mine in zip(self.totals, sums, strict=True):
                    b.store_vector(b.fma(b.op("fadd", *mine[k]), factor, b.load_vector(line[k])), line[k])

    def _in_line(self, inputs: list[str], start: Value, count: int) -> list[list[list[str]]]:
        """The sums of a group, by row, column and half of its bytes."""
        b, lanes = self.b, self.b.blocking.lanes
        sums: list[list[list[str]]] = [[["", ""] for _ in range(self.columns)] for _ in inputs]
        for turn in range(count):
            given = [[b.load_vector(b.at(x, b.add(part, turn * lanes))) for part in (0, "%half")] for x in inputs]
            for k, weight in enumerate(self.weights):
                numbers = _numbers(b, b.byte_at(weight, b.add(start, turn * lanes)), None)
                for mine, halves in zip(sums, given, strict=True):
                    for end, (x, number) in enumerate(zip(halves, numbers, strict=True)):
                        total = mine[k][end]
                        mine[k][end] = b.fma(x, number, total) if total else b.op("fmul", x, number)
        return sums

    def _in_a_loop(self, inputs: list[str], start: Value) -> list[list[list[str]]]:
        """The same for groups of any size."""
        b = self.b
        sums = [[slots(b, 2, "zeroinitializer") for _ in range(self.columns)] for _ in inputs]

        def step(at: Value, mask: str | None) -> None:
            places = [[b.at(x, b.add(at, part)) for part in (0, "%half")] for x in inputs]
            given = [[b.load_vector(p) if mask is None else b.load_masked(p, mask) for p in pair] for pair in places]
            for k, weight in enumerate(self.weights):
                numbers = _numbers(b, b.byte_at(weight, b.add(start, at)), mask)
                for mine, halves in zip(sums, given, strict=True):
                    for total, x, number in zip(mine[k], halves, numbers, strict=True):
                        b.store_vector(b.fma(x, number, b.load_vector(total)), total)

        with b.loop(0, self.whole, b.blocking.lanes) as at:
            step(at, None)
        with b.when(b.compare("sgt", self.rest, 0)):
            step(self.whole, self.mask)
        return [[[b.load_vector(total) for total in pair] for pair in line] for line in sums]


def _tile(rows: int, blocking: Blocking) -> str:
    return _Tile(rows, blocking).text()


def _entry(blocking: Blocking) -> str:
    b = Builder(f"calque_int4_matmul_{blocking.dtype}", ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking,
                linkage="")
    x, packed, scale, result = (b.pointer_word("%args", index) for index in range(4))
    w = {name: b.word("%args", BUFFERS + index) for index, name in enumerate(WORDS)}
    most = max(COLUMNS)
    first, last = (b.min(b.mul(unit, UNIT), w["columns"]) for unit in b.share(b.ceil_div(w["columns"], UNIT), "%thread", "%threads"))
    with b.loop(first, last, CHUNK) as column:
        count = b.min(b.sub(last, column), CHUNK)
        with b.loop(0, w["rows"], most) as row:
            operands = (
                f"i64 {count}", f"ptr {b.at(x, b.mul(row, w['x_row']))}", f"i64 {w['x_row']}",
                f"ptr {b.byte_at(packed, b.mul(column, w['packed_row']))}", f"i64 {w['packed_row']}",
                f"ptr {b.at(scale, b.mul(column, w['scale_row']))}", f"i64 {w['scale_row']}",
                f"ptr {b.at(result, b.add(b.mul(row, w['columns']), column))}", f"i64 {w['columns']}", f"i64 {w['groups']}", f"i64 {w['half']}",
            )  # fmt: skip
            left = b.sub(w["rows"], row)
            b.cases(*((b.compare("eq", left, rows), partial(b.call, f"int4_tile_{rows}", *operands)) for rows in range(1, most)),
                    default=partial(b.call, f"int4_tile_{most}", *operands))
    return b.text()
