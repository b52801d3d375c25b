"""1x1 convolutions on planes of whole vectors: the pixels are not packed.

Rows of a tile of pixels are read from the planes; all output channels use them while their lines stay in the second-level cache. What the next
tiles read is fetched meanwhile: planes lie pages apart, so that hardware prefetchers start anew for each of them. Weights are packed as for
patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.conv_words import read_conv
from calque.backend.cpu.contract.depth import depth_block, depth_blocks, panel_rows
from calque.backend.cpu.contract.finish import begin, finish
from calque.backend.cpu.contract.micro import panel_behind
from calque.backend.cpu.contract.pack import read_patch
from calque.backend.cpu.contract.target import Blocking

NEAR_PANELS = 16
"""Most column panels that are read in place at a time: their lines stay in the second-level cache."""
SAME_SETS_BYTES = 2 << 10
"""Planes a multiple of it apart compete for the same cache sets."""
Words = Mapping[str, str]


def is_one_tap(b: Builder, p: Words, w: Words) -> str:
    """Whether planes of the image become planes of the result pixel by pixel, both as they lie: one tap, nothing skipped, rows joined."""
    ones = (p["tap_rows"], p["tap_columns"], p["column_stride"], p["column_step"], p["grid_rows"], w["result_grid_rows"], w["result_column_step"])
    zeros: tuple[Value, ...] = (w["patches"], p["row_offset"], p["column_offset"])
    return b.both(*(b.compare("eq", value, 1) for value in ones), *(b.compare("eq", zero, 0) for zero in zeros))


def is_near(b: Builder, p: Words, w: Words) -> str:
    """Whether planes are read where they lie: one tap, whole vectors, and channels that do not compete for the same cache sets."""
    apart = b.compare("ne", b.rem(p["channel_step"], SAME_SETS_BYTES // b.blocking.item_bytes), 0)
    return b.both(is_one_tap(b, p, w), apart, b.compare("eq", b.rem(p["grid_columns"], b.blocking.lanes), 0))


def near_functions(blocking: Blocking) -> str:
    """Everything specific to this path."""
    return _near_chunk(blocking) + _near_convolve(blocking)


def _parts(b: Builder, w: Words) -> tuple[Value, Value]:
    """Blocks of depth and panels of rows of the packed weights."""
    return depth_blocks(b, w["channels"], b.blocking.depth), b.ceil_div(w["rows"], b.blocking.tile_rows)


def _near_chunk(blocking: Blocking) -> str:
    """``count`` columns of one image where they lie, all rows; before each tile a share of the columns that come next is fetched."""
    b = Builder("near_chunk", ("i64 %count", "ptr %image", "ptr %weights", "ptr %result", "ptr %next", "ptr noalias %block"),
                blocking, attributes="noinline")
    p, w, width = read_patch(b, "%block"), read_conv(b, "%block"), blocking.tile_columns
    blocks, panels = _parts(b, w)
    turns = b.mul(panels, b.ceil_div("%count", width))
    c_step = w["result_channel_step"]
    with b.loop(0, blocks) as index:
        start, end = depth_block(b, w["channels"], blocks, index)
        length, accumulate = b.sub(end, start), b.compare("sgt", index, 0)
        last = b.compare("eq", b.add(index, 1), blocks)
        begin, finish = depth_block(b, w["channels"], blocks, b.select(last, 0, b.add(index, 1)))
        following = b.at(b.select(last, "%next", "%image", "ptr"), b.mul(begin, p["channel_step"]))
        source = b.at("%image", b.mul(start, p["channel_step"]))
        with b.loop(0, panels) as panel:
            first_row, rows = panel_rows(b, w["rows"], panels, panel)
            a = b.at("%weights", b.mul(b.add(b.mul(start, panels), b.mul(panel, length)), blocking.row_stride))
            result = b.at("%result", b.mul(first_row, c_step))
            with b.loop(0, "%count", width) as column:
                low, high = b.share(b.sub(finish, begin), b.add(b.mul(panel, b.ceil_div("%count", width)), b.div(column, width)), turns)
                b.call("plane_fetch", f"ptr {following}", f"i64 {p['channel_step']}", f"i64 {low}", f"i64 {high}", "i64 0", "i64 1", "i64 %count")
                c = b.at(result, column)
                operands = (f"i64 {rows}", f"i64 {length}", f"ptr {a}", f"ptr {b.at(source, column)}", f"i64 {p['channel_step']}", f"ptr {c}",
                            f"ptr {b.at(c, blocking.lanes)}", f"i64 {c_step}", f"i1 {accumulate}", *panel_behind(b, a, length))
                b.cases((b.compare("sge", b.sub("%count", column), width), partial(b.call, "outer", *operands)),
                        default=partial(b.call, "outer_narrow", *operands))
    return b.text()


def _near_convolve(blocking: Blocking) -> str:
    """This thread's share of (group, image, some columns) of one block of parameters that is read where it lies."""
    b = Builder("near_convolve", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %shared", "ptr %result",
                                  "ptr noalias %block"), blocking, attributes="noinline")
    p, w, width = read_patch(b, "%block"), read_conv(b, "%block"), blocking.tile_columns
    begin(b, "%private")
    group_size = b.mul(b.mul(_parts(b, w)[1], w["channels"]), blocking.row_stride)
    total = b.ceil_div(p["grid_columns"], width)
    chunks = b.ceil_div(total, NEAR_PANELS)

    def place(unit: Value) -> tuple[str, Value, Value, Value, Value]:
        """Operand of a unit, its first column and number of columns, its group and its image."""
        chunk, rest = b.rem(unit, chunks), b.div(unit, chunks)
        n, group = b.rem(rest, w["images"]), b.div(rest, w["images"])
        first, end = depth_block(b, total, chunks, chunk)
        column = b.mul(first, width)
        source = b.at("%image", b.dot((n, p["batch_step"]), (group, w["image_group_step"]), (column, 1)))
        return source, column, b.sub(b.min(b.mul(end, width), p["grid_columns"]), column), group, n

    low, high = b.share(b.mul(b.mul(chunks, w["images"]), w["groups"]), "%thread", "%threads")
    with b.loop(low, high) as unit:
        source, column, count, group, n = place(unit)
        following = place(b.add(unit, 1))[0]
        result = b.at("%result", b.dot((n, w["result_batch_step"]), (group, w["result_group_step"]), (w["result_offset"], 1), (column, 1)))
        b.call("near_chunk", f"i64 {count}", f"ptr {source}", f"ptr {b.at('%shared', b.mul(group, group_size))}",
               f"ptr {result}", f"ptr {following}", "ptr %block")
        finish(b, "%private", b.mul(group, w["rows"]), w["rows"], column, count, n)
    return b.text()
