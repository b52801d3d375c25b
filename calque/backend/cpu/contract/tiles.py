"""Register tiles fed from an offset table: ``C[i * c_step, 2 vectors] (=|+=) sum_k A[offset(k) + i] * B[k, 2 vectors]``.

Where an ordinary panel of A holds every element once for each tap that meets it, the table lets all taps read one padded
copy of the image. A tile covers ``lines`` runs of ``width`` neighbouring elements, ``line_step`` apart, so that narrow
images still fill the registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.depth import chains, each_depth_block
from calque.backend.cpu.contract.pack import transpose
from calque.backend.cpu.contract.target import Blocking

MOST_LINES = 3
TILE_PARAMETERS = ("i64 %depth", "ptr noalias readonly %a", "i64 %line_step", "ptr noalias readonly %table",
                   "ptr noalias readonly %b", "ptr %c", "i64 %c_step", "i1 %accumulate")
WIDEST = 64


def tile_size(blocking: Blocking) -> int:
    """Elements of A in a whole tile; a row of ``copy_out`` holds as many."""
    return min(blocking.tile_rows, 2 * blocking.lanes)


def tile_array(b: Builder) -> str:
    """Memory for one tile and for the whole vectors that are read behind its last row."""
    rows = max(tile_size(b.blocking), b.blocking.lanes)
    return b.array((-(-rows // b.blocking.lanes) * b.blocking.lanes + 1) * b.blocking.tile_columns)


def bias_parameter(blocking: Blocking) -> tuple[str, ...]:
    """What is added to all pixels of each output channel before they are rounded, side by side (null: nothing)."""
    return ("ptr %bias",) if blocking.narrow else ()


def tile_functions(blocking: Blocking) -> str:
    """Every tile, the function that chooses among them, and the way of a tile into a result of the type of its sums."""
    shapes = [(lines, width) for lines in range(1, MOST_LINES + 1) for width in range(1, tile_size(blocking) // lines + 1)]
    out = () if blocking.narrow else (_transpose_tile(blocking), _tile_out(blocking))
    return "".join([*(_tile(lines, width, blocking) for lines, width in shapes), _choose(shapes, blocking), *out])


def lines_at_once(b: Builder, width: Value) -> Value:
    """How many lines of ``width`` elements one tile covers."""
    size = tile_size(b.blocking)
    return b.clamp(b.div(size, b.max(width, 1)), 1, MOST_LINES)


def _choose(shapes: list[tuple[int, int]], blocking: Blocking) -> str:
    """``table_tile(lines, width, ...)``: a jump table for every chain of additions."""
    b = Builder("table_tile", ("i64 %lines", "i64 %width", *TILE_PARAMETERS), blocking, attributes="noinline")
    choices = [(lines * WIDEST + width, f"tile{lines}x{width}", f"table_tile_{lines}x{width}") for lines, width in shapes]
    with each_depth_block(b, "%depth", chains(b, "%depth")) as (start, length, later):
        table, right = b.byte_at("%table", b.mul(start, 4)), b.at("%b", b.mul(start, blocking.tile_columns))
        b.jump_table(b.add(b.mul("%lines", WIDEST), "%width"), choices, (
            f"i64 {length}", "ptr %a", "i64 %line_step", f"ptr {table}", f"ptr {right}", "ptr %c", "i64 %c_step",
            f"i1 {b.either('%accumulate', later)}"))
    return b.text()


@contextmanager
def table_loop(b: Builder, sums: list[list[str]], pointer: str, start: str, step: int) -> Iterator[None]:
    """``%k`` from 0 to ``%depth``: ``%offset = table[k]``, ``pointer`` is ``step`` elements further each time, ``sums`` start at zero."""
    with b.carrying("%depth", 1, [("ptr", pointer, start), *((b.vector, name, "zeroinitializer") for line in sums for name in line)]):
        b.emit("%place = getelementptr i32, ptr %table, i64 %k")
        b.emit("%narrow = load i32, ptr %place, align 4")
        b.emit("%offset = sext i32 %narrow to i64")
        yield
        b.emit(f"{pointer}.next = getelementptr {b.element}, ptr {pointer}, i64 {step}")


def _tile(lines: int, width: int, blocking: Blocking) -> str:
    b = Builder(f"table_tile_{lines}x{width}", TILE_PARAMETERS, blocking, attributes="noinline")
    lanes = blocking.lanes
    names = [[f"%s{row}.{half}" for half in (0, 1)] for row in range(lines * width)]
    starts = ["%a"]
    for _ in range(1, lines):
        starts.append(b.at(starts[-1], "%line_step"))
    with table_loop(b, names, "%pb", "%b", blocking.tile_columns):
        right = [b.load_vector(b.at("%pb", half * lanes)) for half in (0, 1)]
        for line, start in enumerate(starts):
            source = b.at(start, "%offset")
            for column in range(width):
                left = b.splat(b.load(b.at(source, column)), blocking.element)
                for half, name in enumerate(names[line * width + column]):
                    b.emit(f"{name}.next = {b.product(left, right[half], name)}")
    store_sums(b, names)
    return b.text()


def store_sums(b: Builder, names: list[list[str]], target: str = "%c", step: str = "%c_step") -> None:
    """The sums to rows of ``target`` that are ``step`` apart, added to what is there if ``%accumulate``."""

    def write(accumulate: bool) -> None:
        for row, pair in enumerate(names):
            line = b.at(target, b.mul(row, step))
            for half, value in enumerate(pair):
                address = b.at(line, half * b.blocking.lanes)
                total = b.op("fadd", b.load_vector(address), value) if accumulate else value
                b.store_vector(total, address)

    b.cases(("%accumulate", lambda: write(True)), default=lambda: write(False))


def _transpose_tile(blocking: Blocking) -> str:
    """``target[column * target_step + row] = tile[row][column]`` for all columns and row < rows, one vector at a time."""
    b = Builder("transpose_tile", ("ptr noalias %tile", "i64 %rows", "ptr %target", "i64 %target_step"), blocking,
                attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    with b.loop(0, "%rows", lanes) as row:
        mask = b.lanes_between(0, b.min(b.sub("%rows", row), lanes))
        for half in (0, 1):
            source = b.at("%tile", b.add(b.mul(row, width), half * lanes))
            block = transpose(b, [b.load_vector(b.at(source, line * width)) for line in range(lanes)])
            for lane, value in enumerate(block):
                target = b.at("%target", b.add(b.mul("%target_step", half * lanes + lane), row))
                b.store_masked(value, target, mask)
    return b.text()


def _tile_out(blocking: Blocking) -> str:
    """A tile of pixels x channels into planes: directly where its pixels follow each other, else by another copy."""
    b = Builder("tile_out", ("ptr %tile", "i64 %lines", "i64 %width", "i64 %channels", "ptr %target",
                             "i64 %channel_step", "i64 %row_step", "i64 %column_step"), blocking, attributes="noinline")
    columns = blocking.tile_columns
    turned = b.array((columns + 1) * columns)
    joined = b.either(b.compare("eq", "%lines", 1), b.compare("eq", "%row_step", "%width"))
    direct = b.both(b.both(joined, b.compare("eq", "%column_step", 1)), b.compare("eq", "%channels", columns))
    pixels = b.mul("%lines", "%width")

    def by_copy() -> None:
        b.call("transpose_tile", "ptr %tile", f"i64 {pixels}", f"ptr {turned}", f"i64 {columns}")
        with b.loop(0, "%lines") as line:
            b.call("copy_out", f"ptr {b.at(turned, b.mul(line, '%width'))}", "i64 %channels", "i64 %width",
                   f"ptr {b.at('%target', b.mul(line, '%row_step'))}", "i64 %channel_step", "i64 %column_step", "i1 false")

    b.cases((direct, lambda: b.call("transpose_tile", "ptr %tile", f"i64 {pixels}", "ptr %target", "i64 %channel_step")),
            default=by_copy)
    return b.text()
