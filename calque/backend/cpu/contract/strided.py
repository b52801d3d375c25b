"""1x1 convolutions of stride 2 and their input gradients: pixels are brought together, or spread, once for all channels.

Forward, the pixels that count of some rows of an image are copied side by side, ``dense[channel][pixel]``, and multiplied where they lie. The
input gradient multiplies g's pixels and writes every sum with the zeros that follow it, so that whole lines of dx are written, once. What is
read next, and the lines that are written next, are fetched before each tile: they lie too far apart for hardware prefetchers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import gcd

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.conv_words import read_conv
from calque.backend.cpu.contract.depth import depth_block, depth_blocks, panel_rows
from calque.backend.cpu.contract.finish import begin, finish
from calque.backend.cpu.contract.micro import panel_behind
from calque.backend.cpu.contract.near import SAME_SETS_BYTES
from calque.backend.cpu.contract.pack import read_patch
from calque.backend.cpu.contract.plane_tile import LINE_BYTES
from calque.backend.cpu.contract.target import Blocking
from calque.base.dataclass import dataclass

GATHERED, SPREAD = 1, 2
"""The word ``strided`` of a forward convolution and of an input gradient on this path."""
FEWEST_ROWS = 32
FEWEST_PIXELS = 128
GATHERED_BYTES, SPREAD_BYTES = 128 << 10, 256 << 10
"""Wanted size of the pixels that are multiplied with all weights: a part of the second-level cache, where the lines from which the next pixels
are gathered wait as well, four times as many bytes."""
LARGEST_BYTES = 2 << 20
"""Most that the smallest part of an image may take."""
MOST_PIXELS = 1024
SUMS_AT = 3 << 20
"""Where a thread's private memory holds the sums of a panel, behind the dense pixels."""
SLACK = 64
"""Elements behind a row of dense pixels that are read or written with its last vectors."""
SUMS_STEP = MOST_PIXELS + SLACK + 16
UNITS_PER_THREAD = 4
UNIT = 16
"""Lanes of the widest vector."""


def suits(rows: int, channels: int, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], out_size: tuple[int, int]) -> bool:
    """Whether a convolution (channels of its source, rows of weights, both per group) takes this path; the sizes alone decide."""
    plain = kernel == (1, 1) and stride == (2, 2) and padding == (0, 0)
    pixels = out_size[0] * out_size[1]
    part = min(UNIT // gcd(UNIT, max(out_size[1], 1)), out_size[0]) * out_size[1]  # rows that fill whole vectors
    room = part <= MOST_PIXELS and channels * (part + SLACK) * 8 <= LARGEST_BYTES
    return plain and rows >= FEWEST_ROWS and channels >= 1 and pixels >= FEWEST_PIXELS and room


def is_strided(b: Builder, p: Mapping[str, str], w: Mapping[str, str]) -> str:
    """Whether a block of parameters takes this path, which its words say."""
    return b.compare("ne", w["strided"], 0)


def strided_functions(blocking: Blocking) -> str:
    """Everything specific to this path."""
    return "".join(make(blocking) for make in (_gathered, _spread_out, _spread, _convolve))


@dataclass(frozen=True, slots=True)
class _Layout:
    """How an image is cut: rows of the grid in units that fill whole vectors; elements from one row of dense pixels to the next."""

    rows: Value
    columns: Value
    unit: Value
    units: Value
    chunks: Value
    step: Value


def _layout(b: Builder, p: Mapping[str, str], w: Mapping[str, str]) -> _Layout:
    lanes = b.blocking.lanes
    spread = b.compare("eq", w["strided"], SPREAD)
    rows, columns = (b.select(spread, w[f"result_grid_{axis}"], p[f"grid_{axis}"]) for axis in ("rows", "columns"))
    even = b.min(b.let(f"and i64 {columns}, {b.sub(0, columns)}"), lanes)
    unit = b.min(b.div(lanes, even), rows)
    units = b.ceil_div(rows, unit)
    room = b.select(spread, SPREAD_BYTES // b.blocking.item_bytes, GATHERED_BYTES // b.blocking.item_bytes)
    wanted = b.min(b.div(room, w["channels"]), MOST_PIXELS)
    chunks = b.ceil_div(units, b.max(b.div(wanted, b.mul(unit, columns)), 1))
    largest = b.mul(b.mul(b.ceil_div(units, chunks), unit), columns)
    # An odd number of vectors: channels must not compete for the same cache sets.
    step = b.mul(b.bits_or(b.ceil_div(b.add(largest, SLACK), lanes), 1), lanes)
    return _Layout(rows, columns, unit, units, chunks, step)


CHUNK = ("i64 %count", "ptr %dense", "i64 %step", "ptr %weights", "i64 %panels", "i64 %first", "i64 %stop", "ptr %result", "ptr %next",
         "i64 %next_row", "i64 %next_rows", "i64 %next_length", "ptr noalias %block")
"""Pixels; the dense ones and the elements between their rows; packed weights, the number of their panels and those to multiply; where the result
begins; what is read next (see ``plane_fetch``)."""


def _fetch_next(b: Builder, p: Mapping[str, str], w: Mapping[str, str], turn: Value, turns: Value) -> None:
    """A share of what is read next."""
    low, high = b.share(w["channels"], turn, turns)
    b.call("plane_fetch", "ptr %next", f"i64 {p['channel_step']}", f"i64 {low}", f"i64 {high}", "i64 %next_row", "i64 %next_rows",
           "i64 %next_length")


def _weights_at(b: Builder, start: Value, length: Value, panel: Value) -> str:
    return b.at("%weights", b.mul(b.add(b.mul(start, "%panels"), b.mul(panel, length)), b.blocking.row_stride))


def _gathered(blocking: Blocking) -> str:
    """All pixels of a chunk with the panels first..stop of weights."""
    b = Builder("strided_gathered", CHUNK, blocking, attributes="noinline")
    p, w, width = read_patch(b, "%block"), read_conv(b, "%block"), blocking.tile_columns
    blocks, tiles = depth_blocks(b, w["channels"], blocking.depth), b.ceil_div("%count", width)
    turns = b.mul(b.mul(b.sub("%stop", "%first"), tiles), blocks)
    turn = b.variable(0)
    with b.loop(0, blocks) as index, b.loop("%first", "%stop") as panel:
        start, end = depth_block(b, w["channels"], blocks, index)
        length, (row, rows) = b.sub(end, start), panel_rows(b, w["rows"], "%panels", panel)
        a, source = _weights_at(b, start, length, panel), b.at("%dense", b.mul(start, "%step"))
        result = b.at("%result", b.mul(row, w["result_channel_step"]))
        with b.loop(0, "%count", width) as column:
            _fetch_next(b, p, w, b.read(turn), turns)
            b.assign(turn, b.add(b.read(turn), 1))
            b.call("strided_tile", f"i64 {rows}", f"i64 {b.min(b.sub('%count', column), width)}", f"i64 {length}", f"ptr {a}",
                   f"ptr {b.at(source, column)}", "i64 %step", f"ptr {b.at(result, column)}", f"i64 {w['result_channel_step']}", "i64 1",
                   f"i1 {b.compare('sgt', index, 0)}")
    return b.text()


def _spread_out(blocking: Blocking) -> str:
    """``target[2 * row][2 * column] = sums[row * columns + column]``, zeros elsewhere, for ``rows`` rows of one channel of dx.

    Whole vectors are written, what goes beyond a row being overwritten by the zeros of the next; under masks where there is no such row.
    """
    b = Builder("spread_out", ("ptr noalias %sums", "i64 %rows", "i64 %columns", "ptr noalias %target", "i64 %width", "i64 %height"), blocking,
                attributes="noinline")
    lanes = blocking.lanes
    room = b.compare("sle", b.mul(b.ceil_div("%columns", lanes), 2 * lanes), b.mul("%width", 2))
    orders = [[part * lanes // 2 + place // 2 + (lanes if place % 2 else 0) for place in range(lanes)] for part in (0, 1)]

    def zeros(line: str) -> None:
        final = b.sub("%width", lanes)
        with b.loop(0, "%width", lanes) as place:
            b.store_vector("zeroinitializer", b.at(line, b.min(place, final)))

    def masked(line: str, source: str | None) -> None:
        with b.loop(0, "%columns", lanes) as column:
            value = b.load_vector(b.at(source, column)) if source else "zeroinitializer"
            for part, order in enumerate(orders):
                place = b.add(b.mul(column, 2), part * lanes)
                mask = b.lanes_between(0, b.clamp(b.sub("%width", place), 0, lanes))
                b.store_masked(b.shuffle(value, "zeroinitializer", order) if source else value, b.at(line, place), mask)

    with b.loop(0, "%rows") as row:
        source, line = b.at("%sums", b.mul(row, "%columns")), b.at("%target", b.mul(b.mul(row, 2), "%width"))
        below = b.at(line, "%width")
        follows = b.compare("slt", b.add(b.mul(row, 2), 1), "%height")

        def whole(source: str = source, line: str = line, below: str = below) -> None:
            with b.loop(0, "%columns", lanes) as column:
                value = b.load_vector(b.at(source, column))
                for part, order in enumerate(orders):
                    b.store_vector(b.shuffle(value, "zeroinitializer", order), b.at(line, b.add(b.mul(column, 2), part * lanes)))
            zeros(below)

        def exact(source: str = source, line: str = line, below: str = below, follows: str = follows) -> None:
            masked(line, source)
            with b.when(follows):
                masked(below, None)

        wide = b.compare("sge", "%width", lanes)
        b.cases((b.both(b.both(room, wide), follows), whole), default=exact)
    return b.text()


def _spread(blocking: Blocking) -> str:
    """The same for an input gradient: the sums of a panel, then its lines of dx (``rows`` rows of g, ``height`` rows of dx from here on)."""
    b = Builder("strided_spread", (*CHUNK, "ptr %sums", "i64 %rows", "i64 %height"), blocking, attributes="noinline")
    p, w, (width, lanes) = read_patch(b, "%block"), read_conv(b, "%block"), (blocking.tile_columns, blocking.lanes)
    blocks, tiles = depth_blocks(b, w["channels"], blocking.depth), b.ceil_div("%count", width)
    per_panel = b.mul(tiles, blocks)
    turns, turn = b.mul(b.sub("%stop", "%first"), per_panel), b.variable(0)
    line = b.div(w["result_row_step"], 2)
    written = b.mul(b.min(b.mul("%rows", 2), "%height"), line)
    with b.loop("%first", "%stop") as panel:
        row, rows = panel_rows(b, w["rows"], "%panels", panel)
        result = b.at("%result", b.mul(row, w["result_channel_step"]))
        before = b.mul(b.sub(panel, "%first"), per_panel)
        with b.loop(0, blocks) as index:
            start, end = depth_block(b, w["channels"], blocks, index)
            length = b.sub(end, start)
            a, source = _weights_at(b, start, length, panel), b.at("%dense", b.mul(start, "%step"))
            with b.loop(0, "%count", width) as column:
                _fetch_next(b, p, w, b.read(turn), turns)
                low, high = b.share(b.ceil_div(written, lanes), b.sub(b.read(turn), before), per_panel)
                with b.loop(0, rows) as channel, b.loop(low, high) as place:
                    b.prefetch(b.at(result, b.add(b.mul(channel, w["result_channel_step"]), b.mul(place, lanes))), 2)
                b.assign(turn, b.add(b.read(turn), 1))
                target = b.at("%sums", column)
                operands = (f"i64 {rows}", f"i64 {length}", f"ptr {a}", f"ptr {b.at(source, column)}", "i64 %step", f"ptr {target}",
                            f"ptr {b.at(target, lanes)}", f"i64 {SUMS_STEP}", f"i1 {b.compare('sgt', index, 0)}", *panel_behind(b, a, length))
                b.cases((b.compare("sgt", b.sub("%count", column), lanes), partial(b.call, "outer", *operands)),
                        default=partial(b.call, "outer_narrow", *operands))
        with b.loop(0, rows) as channel:
            b.call("spread_out", f"ptr {b.at('%sums', b.mul(channel, SUMS_STEP))}", "i64 %rows", f"i64 {w['result_grid_columns']}",
                   f"ptr {b.at(result, b.mul(channel, w['result_channel_step']))}", f"i64 {line}", "i64 %height")
    return b.text()


def _lies_dense(b: Builder, p: Mapping[str, str]) -> str:
    """Whether planes are read as they are: whole vectors, and channels that do not compete for the same cache sets."""
    result = b.compare("ne", b.rem(p["channel_step"], SAME_SETS_BYTES // b.blocking.item_bytes), 0)
    for value, wanted in ((p["grid_rows"], 1), (p["column_step"], 1), (b.rem(p["grid_columns"], b.blocking.lanes), 0)):
        result = b.both(result, b.compare("eq", value, wanted))
    return result


def _convolve(blocking: Blocking) -> str:
    """This thread's share of (group, image, some rows, part of the panels) of one block of parameters."""
    b = Builder("strided_convolve", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %shared", "ptr %result",
                                     "ptr noalias %block"), blocking, attributes="noinline")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    o, spread = _layout(b, p, w), b.compare("eq", w["strided"], SPREAD)
    begin(b, "%private")
    panels, pixels = b.ceil_div(w["rows"], blocking.tile_rows), b.mul(o.rows, o.columns)
    group_size = b.mul(b.mul(panels, w["channels"]), blocking.row_stride)
    units = b.mul(b.mul(o.chunks, w["images"]), w["groups"])
    parts = b.clamp(b.ceil_div(b.mul("%threads", UNITS_PER_THREAD), b.max(units, 1)), 1, panels)
    next_row = b.mul(p["row_stride"], p["row_step"])
    line = LINE_BYTES // blocking.item_bytes
    # A row that begins within a line of the caches ends within one more.
    within = b.select(b.compare("eq", b.rem(next_row, line), 0), 0, line - 1)
    next_line = b.add(b.mul(o.columns, b.mul(p["column_stride"], p["column_step"])), within)

    def place(unit: Value) -> tuple[str, Value, Value, Value, Value]:
        """Where the source of a unit begins; its first row, number of rows, group and image."""
        chunk, rest = b.rem(unit, o.chunks), b.div(unit, o.chunks)
        n, group = b.rem(rest, w["images"]), b.div(rest, w["images"])
        first, end = (b.min(b.mul(bound, o.unit), o.rows) for bound in depth_block(b, o.units, o.chunks, chunk))
        inside = b.select(spread, b.mul(first, o.columns), b.mul(first, next_row))
        return b.at("%image", b.dot((n, p["batch_step"]), (group, w["image_group_step"]), (inside, 1))), first, b.sub(end, first), group, n

    lies_dense = b.both(spread, _lies_dense(b, p))
    low, high = b.share(b.mul(units, parts), "%thread", "%threads")
    with b.loop(low, high) as turn:
        part, unit = b.rem(turn, parts), b.div(turn, parts)
        there, row, rows, group, n = place(unit)
        count = b.mul(rows, o.columns)
        source = b.at("%image", b.mul(group, w["image_group_step"]))
        new = b.either(b.compare("eq", part, 0), b.compare("eq", turn, low))
        with b.when(b.both(new, b.let(f"xor i1 {lies_dense}, true"))):
            b.call("pack_rows", f"ptr {source}", "ptr %block", f"i64 {b.dot((n, pixels), (row, o.columns))}", f"i64 {count}", "i64 0",
                   f"i64 {w['channels']}", "ptr %private", f"i64 {o.step}")
            b.call("zero_tails", "ptr %private", f"i64 {w['channels']}", f"i64 {o.step}", f"i64 {count}")
        following, _, next_rows, _, _ = place(b.add(unit, 1))
        panel, stop = depth_block(b, panels, parts, part)
        result = b.at("%result", b.dot((n, w["result_batch_step"]), (group, w["result_group_step"]), (w["result_offset"], 1)))
        shared = b.at("%shared", b.mul(group, group_size))
        dense, step = b.select(lies_dense, there, "%private", "ptr"), b.select(lies_dense, p["channel_step"], o.step)
        operands = (f"i64 {count}", f"ptr {dense}", f"i64 {step}", f"ptr {shared}", f"i64 {panels}", f"i64 {panel}", f"i64 {stop}")

        def gathered(operands: tuple[str, ...] = operands, result: str = b.at(result, b.mul(row, o.columns)),
                     following: str = following, next_rows: Value = next_rows) -> None:
            b.call("strided_gathered", *operands, f"ptr {result}", f"ptr {following}", f"i64 {next_row}", f"i64 {next_rows}", f"i64 {next_line}",
                   "ptr %block")

        def spread_all(operands: tuple[str, ...] = operands, result: str = b.at(result, b.mul(row, w["result_row_step"])), row: Value = row,
                       rows: Value = rows, following: str = following, next_rows: Value = next_rows) -> None:
            height = b.sub(b.div(w["result_channel_step"], b.div(w["result_row_step"], 2)), b.mul(row, 2))
            b.call("strided_spread", *operands, f"ptr {result}", f"ptr {following}", "i64 0", "i64 1", f"i64 {b.mul(next_rows, o.columns)}",
                   "ptr %block", f"ptr {b.byte_at('%private', SUMS_AT)}", f"i64 {rows}", f"i64 {height}")

        b.cases((spread, spread_all), default=gathered)
        first, count_rows = panel_rows(b, w["rows"], panels, panel)[0], panel_rows(b, w["rows"], panels, stop)[0]
        finish(b, "%private", b.add(b.mul(group, w["rows"]), first), b.sub(count_rows, first), b.mul(row, o.columns), count, n)
    return b.text()
