"""Convolution without patches: pixels are broadcast from one padded copy of the image, output channels are vectors.

A thread copies the input rows of a block of output rows once, padded with zeros and with columns sorted by their residue
modulo the stride, so that neighbouring output pixels read neighbouring elements for every tap. The whole sum over
channels and taps stays in registers; a finished tile is turned once on its way into the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.conv_words import read_conv
from calque.backend.cpu.contract.depth import packed_depth, panel_rows
from calque.backend.cpu.contract.finish import begin, finish
from calque.backend.cpu.contract.near import SAME_SETS_BYTES
from calque.backend.cpu.contract.pack import clear_second_vector, read_patch, valid_lanes
from calque.backend.cpu.contract.target import CONVOLUTION_BYTES, Blocking
from calque.backend.cpu.contract.tiles import bias_parameter, lines_at_once, tile_array, tile_size
from calque.base.dataclass import dataclass

IMAGE_BYTES = 256 << 10
"""Wanted size of a packed block: it shares the second-level cache with a panel of weights."""
TABLE_BYTES = 256 << 10
LEAST_DEPTH = 16
LONG_DEPTH = 96
LEAST_COLUMNS = 4
FEW_ROWS = 4
FEW_CHANNELS = 8
"""Fewer rows of a block share what is computed for a vector of all channels; fewer channels are copied one after the other."""
UNITS_PER_THREAD = 4
Words = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DirectRows:
    """How the rows of a block lie in private memory (in elements)."""

    taps: Value
    depth: Value
    first_row: Value
    first_column: Value
    phase: Value
    row: Value
    rows: Value
    channel: Value
    block_rows: Value


def read_words(b: Builder, block: str = "%block") -> tuple[dict[str, Value], dict[str, Value]]:
    """The words of a block. Channels are packed ones (those of bfloat16 hold two), all of them are ``inputs``."""
    p, w = read_patch(b, block), read_conv(b, block)
    return {**p}, {**w, "channels": packed_depth(b, w["channels"]), "inputs": w["channels"]}


def block_layout(b: Builder, p: Words, w: Words) -> DirectRows:
    """The layout for blocks of as many output rows as fit the wanted size, one at least."""
    lanes = b.blocking.lanes
    spread_rows, spread_columns = (b.mul(b.sub(p[f"tap_{axis}s"], 1), p[f"{axis}_dilation"]) for axis in ("row", "column"))
    first_row = b.add(p["row_offset"], b.min(spread_rows, 0))
    first_column = b.add(p["column_offset"], b.min(spread_columns, 0))
    spread_rows, spread_columns = (b.max(spread, b.sub(0, spread)) for spread in (spread_rows, spread_columns))
    phase = b.add(p["grid_columns"], b.div(spread_columns, p["column_stride"]))
    row = b.mul(phase, p["column_stride"])
    budget = b.div(IMAGE_BYTES // b.blocking.item_bytes, b.max(b.mul(w["channels"], row), 1))
    wanted = b.div(b.max(b.sub(budget, spread_rows), 0), p["row_stride"])
    most = b.clamp(wanted, 1, b.max(p["grid_rows"], 1))
    blocks = b.ceil_div(b.max(p["grid_rows"], 1), most)
    block_rows = b.ceil_div(p["grid_rows"], blocks)
    rows = b.add(b.add(b.mul(b.sub(block_rows, 1), p["row_stride"]), spread_rows), 1)
    # An odd number of vectors: channels must not compete for the same sets of the first-level cache.
    channel = b.mul(b.bits_or(b.ceil_div(b.mul(rows, row), lanes), 1), lanes)
    taps = b.mul(p["tap_rows"], p["tap_columns"])
    return DirectRows(taps, b.mul(w["channels"], taps), first_row, first_column, phase, row, rows, channel, block_rows)


def is_direct(b: Builder, p: Words, w: Words) -> str:
    """Whether a block of parameters takes this path: several taps, rows that fill their vectors, a long sum."""
    layout, lanes = block_layout(b, p, w), b.blocking.lanes
    room = (CONVOLUTION_BYTES - TABLE_BYTES) // b.blocking.item_bytes - 2 * lanes
    waste = b.sub(b.mul(b.ceil_div(w["rows"], 2 * lanes), 2 * lanes), w["rows"])
    conditions = [
        b.compare("eq", w["patches"], 0),
        *_worth(b, w, layout),
        b.compare("sle", layout.depth, TABLE_BYTES // 4),
        b.compare("sle", b.mul(waste, 4), w["rows"]),
        b.compare("sge", p["grid_columns"], LEAST_COLUMNS),
        b.compare("sle", b.mul(w["channels"], layout.channel), room),
    ]
    return b.both(*conditions)


def _worth(b: Builder, w: Words, layout: DirectRows) -> tuple[str, ...]:
    """Against the ways that pack patches, which bfloat16 has not."""
    if b.blocking.narrow:
        return ()
    # Tiles are turned into columns of planes; planes a multiple of 2 KiB apart compete for the same cache sets.
    apart = b.compare("ne", b.rem(w["result_channel_step"], SAME_SETS_BYTES // b.blocking.item_bytes), 0)
    return (b.compare("sgt", layout.taps, 1),
            b.both(b.compare("sge", layout.depth, LEAST_DEPTH), b.either(b.compare("sge", layout.depth, LONG_DEPTH), apart)))


def direct_functions(blocking: Blocking) -> str:
    """Everything specific to this path."""
    return "".join(make(blocking) for make in (_pack_weights, _table, _pack_image, _tiles, _convolve))


def _panels(b: Builder, w: Words) -> Value:
    return b.ceil_div(w["rows"], b.blocking.tile_columns)


def packed_size(b: Builder, p: Words, w: Words) -> Value:
    """Elements of the packed weights of a block on this path."""
    depth = b.mul(w["channels"], b.mul(p["tap_rows"], p["tap_columns"]))
    return b.mul(b.mul(b.mul(_panels(b, w), depth), b.blocking.tile_columns), w["groups"])


def _pack_weights(blocking: Blocking) -> str:
    """This thread's share of ``packed[group][panel][channel, tap][2 vectors of rows]``."""
    b = Builder("direct_pack_weights", ("i64 %thread", "i64 %threads", "ptr %weights", "ptr noalias %block", "ptr %shared"),
                blocking, attributes="noinline")
    p, w = read_words(b)
    width = blocking.tile_columns
    depth = b.mul(w["channels"], b.mul(p["tap_rows"], p["tap_columns"]))
    panels, parts = _panels(b, w), b.ceil_div(depth, blocking.depth)
    low, high = b.share(b.mul(b.mul(panels, parts), w["groups"]), "%thread", "%threads")
    with b.loop(low, high) as unit:
        part, rest = b.rem(unit, parts), b.div(unit, parts)
        group, panel = b.div(rest, panels), b.rem(rest, panels)
        start, first = b.mul(part, blocking.depth), b.mul(panel, width)
        source = b.operand_at("%weights", b.dot((group, w["weight_group_step"]), (first, w["weight_row_step"]), (w["weight_offset"], 1)))
        target = b.at("%shared", b.mul(b.add(b.mul(rest, depth), start), width))
        length, count = b.min(b.sub(depth, start), blocking.depth), b.min(b.sub(w["rows"], first), width)
        b.call("weight_panel", f"ptr {source}", "ptr %block", f"i64 {start}", f"i64 {length}", f"i64 {count}", f"ptr {target}", f"i64 {width}")
        clear_second_vector(b, target, length, count)
    return b.text()


def _table(blocking: Blocking) -> str:
    """Where (channel, tap row, tap column) lies in a packed block, seen from output pixel (0, 0)."""
    b = Builder("direct_table", ("ptr noalias %block", "ptr %table"), blocking, attributes="noinline")
    p, w = read_words(b)
    layout = block_layout(b, p, w)
    entry = b.variable(0)
    bases = [b.max(b.mul(b.sub(1, p[f"tap_{axis}s"]), p[f"{axis}_dilation"]), 0) for axis in ("row", "column")]
    with b.loop(0, w["channels"]) as channel, b.loop(0, p["tap_rows"]) as u, b.loop(0, p["tap_columns"]) as v:
        y, x = b.add(bases[0], b.mul(u, p["row_dilation"])), b.add(bases[1], b.mul(v, p["column_dilation"]))
        place = b.dot((channel, layout.channel), (b.rem(x, p["column_stride"]), b.mul(layout.rows, layout.phase)), (y, layout.phase),
                      (b.div(x, p["column_stride"]), 1))
        here = b.read(entry)
        b.store_offset(place, "%table", here)
        b.assign(entry, b.add(here, 1))
    return b.text()


def _pack_image(blocking: Blocking) -> str:
    """The input rows of output rows i.. of one image: ``target[channel][column residue][row][column]``."""
    b = Builder("direct_pack_image", ("ptr %image", "ptr noalias %block", "i64 %i", "ptr %target"), blocking,
                attributes="noinline")
    p, w = read_words(b)
    layout = block_layout(b, p, w)
    top = b.add(b.mul("%i", p["row_stride"]), layout.first_row)
    if blocking.narrow:
        _pack_row_by_row(b, p, w, layout, top)
    else:
        b.cases((b.compare("sge", layout.rows, FEW_ROWS), lambda: _pack_planes(b, p, w, layout, top)),
                default=lambda: _pack_row_by_row(b, p, w, layout, top))
    return b.text()


def _pack_planes(b: Builder, p: Words, w: Words, layout: DirectRows, top: Value) -> None:
    """All rows of a part of a channel before the next one. Many channels share what is computed for that part, but not where they compete for
    the same cache sets."""
    same_sets = b.compare("eq", b.rem(p["channel_step"], SAME_SETS_BYTES // b.blocking.item_bytes), 0)
    alone = b.either(b.compare("slt", w["channels"], FEW_CHANNELS), same_sets)
    planes = b.select(alone, 1, w["channels"])
    with b.loop(0, w["channels"], planes) as channel:
        b.call("flat_pack_plane", f"ptr {b.at('%image', b.mul(channel, p['channel_step']))}", f"i64 {p['row_step']}", f"i64 {p['column_step']}",
               f"i64 {p['height']}", f"i64 {p['width']}", "i64 1", f"i64 {p['column_stride']}", f"i64 {top}", f"i64 {layout.first_column}",
               f"i64 {layout.rows}", f"i64 {layout.phase}", f"i64 {planes}", f"i64 {p['channel_step']}", f"i64 {layout.channel}",
               f"ptr {b.at('%target', b.mul(channel, layout.channel))}")


def _pack_row_by_row(b: Builder, p: Words, w: Words, layout: DirectRows, top: Value) -> None:
    """One vector of a row of all channels at a time."""
    stride, lanes = p["column_stride"], b.blocking.lanes
    with b.loop(0, stride) as residue, b.loop(0, layout.phase, lanes) as column:
        length = b.min(b.sub(layout.phase, column), lanes)
        x0 = b.add(b.add(layout.first_column, residue), b.mul(column, stride))
        low, high = valid_lanes(b, x0, stride, p["width"], length)
        with b.loop(0, layout.rows) as row:
            y, inner = b.add(top, row), b.dot((b.add(b.mul(residue, layout.rows), row), layout.phase), (column, 1))
            end = b.select(b.let(f"icmp ult i64 {y}, {p['height']}", "c"), high, low)
            b.call("copy_channels", f"ptr {b.operand_at('%image', b.dot((y, p['row_step']), (x0, p['column_step'])))}",
                   f"i64 {p['channel_step']}", f"i64 {b.mul(stride, p['column_step'])}", f"i64 {low}", f"i64 {end}",
                   f"ptr {b.at('%target', inner)}", f"i64 {layout.channel}", f"i64 {w['inputs']}", f"i64 {length}")


def _tiles(blocking: Blocking) -> str:
    """Panels [first, stop) of output channels for ``count`` output rows from row i on, from one packed block."""
    b = Builder("direct_tiles", ("i64 %first", "i64 %stop", "i64 %i", "i64 %count", "ptr %packed", "ptr %table",
                                 "ptr %weights", "ptr %result", "ptr noalias %block", *bias_parameter(blocking)), blocking, attributes="noinline")
    p, w = read_words(b)
    layout, columns = block_layout(b, p, w), blocking.tile_columns
    tile = tile_array(b)
    width = p["grid_columns"]
    runs, lines = b.ceil_div(width, tile_size(blocking)), lines_at_once(b, width)
    groups = b.ceil_div("%count", lines)
    line_step = b.mul(layout.phase, p["row_stride"])
    whole = b.compare("ne", w["result_grid_columns"], width)
    row_step = b.select(whole, b.mul(width, w["result_column_step"]), w["result_row_step"])
    with b.loop("%first", "%stop") as panel:
        channel = b.mul(panel, columns)
        channels = b.min(b.sub(w["rows"], channel), columns)
        weights = b.at("%weights", b.mul(b.mul(panel, layout.depth), columns))
        plane = b.operand_at("%result", b.mul(channel, w["result_channel_step"]))
        add = b.let("icmp ne ptr %bias, null", "c") if blocking.narrow else "false"
        with b.loop(0, groups) as group, b.loop(0, runs) as run:
            line, height = panel_rows(b, "%count", groups, group)
            column, length = panel_rows(b, width, runs, run)
            source = b.at("%packed", b.add(b.mul(line, line_step), column))
            if blocking.narrow:  # sums begin at the bias
                with b.when(add):
                    b.call("spread_bias", f"ptr {b.operand_at('%bias', channel)}", f"i64 {channels}", f"i64 {b.mul(height, length)}", f"ptr {tile}")
            b.call("table_tile", f"i64 {height}", f"i64 {length}", f"i64 {layout.depth}", f"ptr {source}", f"i64 {line_step}",
                   "ptr %table", f"ptr {weights}", f"ptr {tile}", f"i64 {columns}", f"i1 {add}")
            target = b.operand_at(plane, b.dot((b.add("%i", line), row_step), (column, w["result_column_step"])))
            b.call("tile_out", f"ptr {tile}", f"i64 {height}", f"i64 {length}", f"i64 {channels}", f"ptr {target}",
                   f"i64 {w['result_channel_step']}", f"i64 {row_step}", f"i64 {w['result_column_step']}")
    return b.text()


def _convolve(blocking: Blocking) -> str:
    """This thread's share of (group, image, block of rows, part of the panels)."""
    b = Builder("direct_convolve", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %weights",
                                    "ptr %result", "ptr noalias %block", *bias_parameter(blocking)), blocking, attributes="noinline")
    p, w = read_words(b)
    begin(b, "%private")
    layout = block_layout(b, p, w)
    packed = b.byte_at("%private", TABLE_BYTES)
    b.call("direct_table", "ptr %block", "ptr %private")
    panels, blocks = _panels(b, w), b.ceil_div(p["grid_rows"], b.max(layout.block_rows, 1))
    group_size = b.mul(b.mul(panels, layout.depth), blocking.tile_columns)
    units = b.mul(b.mul(w["groups"], w["images"]), blocks)
    parts = b.clamp(b.ceil_div(b.mul("%threads", UNITS_PER_THREAD), b.max(units, 1)), 1, panels)
    low, high = b.share(b.mul(units, parts), "%thread", "%threads")
    there = b.let("icmp ne ptr %bias, null", "c") if blocking.narrow else ""
    with b.loop(low, high) as unit:
        part, rest = b.rem(unit, parts), b.div(unit, parts)
        block, rest = b.rem(rest, blocks), b.div(rest, blocks)
        image, group = b.rem(rest, w["images"]), b.div(rest, w["images"])
        i = b.mul(block, layout.block_rows)
        source = b.operand_at("%image", b.dot((image, p["batch_step"]), (group, w["image_group_step"])))
        b.call("direct_pack_image", f"ptr {source}", "ptr %block", f"i64 {i}", f"ptr {packed}")
        target = b.operand_at("%result", b.dot((image, w["result_batch_step"]), (group, w["result_group_step"]), (w["result_offset"], 1)))
        first, count = panel_rows(b, panels, parts, part)
        lines = b.min(layout.block_rows, b.sub(p["grid_rows"], i))
        bias = b.select(there, b.operand_at("%bias", b.mul(group, w["rows"])), "null", "ptr") if blocking.narrow else ""
        b.call("direct_tiles", f"i64 {first}", f"i64 {b.add(first, count)}", f"i64 {i}", f"i64 {lines}", f"ptr {packed}", "ptr %private",
               f"ptr {b.at('%weights', b.mul(group, group_size))}", f"ptr {target}", "ptr %block", *([f"ptr {bias}"] if blocking.narrow else []))
        channel = b.mul(first, blocking.tile_columns)
        channels = b.min(b.mul(count, blocking.tile_columns), b.sub(w["rows"], channel))
        finish(b, "%private", b.add(b.mul(group, w["rows"]), channel), channels, b.mul(i, p["grid_columns"]),
               b.mul(lines, p["grid_columns"]), image)
    return b.text()
