"""Convolution as an implicit matrix product: rows = output channels, columns = output pixels, depth = (channel, tap).

The weights are packed once by all threads; each thread then packs patches of its own pixels straight from the image
and multiplies, or multiplies the planes of a 1x1 convolution where they lie. The input gradient is the same computation
on the output gradient, one block of parameters for each residue class of the stride, so that no inserted zero is ever
multiplied.
"""

from __future__ import annotations

from collections.abc import Callable

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.claims import BLOCKS, CONVOLUTIONS, hand_over
from calque.backend.cpu.contract.conv_words import BLOCK_WORDS, read_conv
from calque.backend.cpu.contract.depth import chains, depth_block, depth_blocks, each_depth_block, panel_rows
from calque.backend.cpu.contract.direct import packed_size
from calque.backend.cpu.contract.finish import WHOLE, begin, finish, note
from calque.backend.cpu.contract.micro import panel_behind
from calque.backend.cpu.contract.pack import first_channel, read_patch
from calque.backend.cpu.contract.packed import weights_of
from calque.backend.cpu.contract.target import Blocking

BUFFERS = 4
PREFETCH_CHANNELS = 3


def conv_functions(blocking: Blocking) -> str:
    """The entry ``calque_conv2d_*`` and everything specific to it."""
    return "".join(make(blocking) for make in (_weight_panel, _pack_weights, _scatter_tile, _conv_tile, _conv_chunk,
                                               _convolve, _clear_share, _entry))


def _weight_panel(blocking: Blocking) -> str:
    """Depths [start, start + length) of ``count`` rows of weights, whatever their strides."""
    b = Builder("weight_panel", ("ptr %source", "ptr noalias %block", "i64 %start", "i64 %length", "i64 %count",
                                 "ptr %target", "i64 %width"), blocking, attributes="noinline")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    width = "%width"
    taps = b.mul(p["tap_rows"], p["tap_columns"])

    def as_matrix() -> None:
        b.call("pack_panel", f"ptr {b.at('%source', '%start')}", f"i64 {w['weight_row_step']}", "i64 1", "i64 %count",
               "i64 %length", "ptr %target", f"i64 {width}")

    def tap_by_tap() -> None:
        with b.loop(0, p["tap_rows"]) as u, b.loop(0, p["tap_columns"]) as v:
            tap = b.dot((u, p["tap_columns"]), (v, 1))
            first = first_channel(b, "%start", tap, taps)
            end = first_channel(b, b.add("%start", "%length"), tap, taps)
            source = b.at("%source", b.dot((u, w["weight_tap_row_step"]), (v, w["weight_tap_column_step"]),
                                           (first, w["weight_channel_step"])))
            place = b.at("%target", b.mul(b.sub(b.add(b.mul(first, taps), tap), "%start"), width))
            b.call("pack_panel", f"ptr {source}", f"i64 {w['weight_row_step']}", f"i64 {w['weight_channel_step']}",
                   "i64 %count", f"i64 {b.sub(end, first)}", f"ptr {place}", f"i64 {b.mul(taps, width)}")

    def channel_by_channel() -> None:
        end = b.add("%start", "%length")
        with b.loop(b.div("%start", taps), b.ceil_div(end, taps)) as channel:
            begin = b.max(b.mul(channel, taps), "%start")
            stop = b.min(b.mul(b.add(channel, 1), taps), end)
            source = b.at("%source", b.dot((channel, w["weight_channel_step"]), (b.sub(begin, b.mul(channel, taps)), 1)))
            # Channels lie far apart, out of reach of hardware prefetchers.
            ahead = b.at(source, b.mul(w["weight_channel_step"], PREFETCH_CHANNELS))
            with b.loop(0, "%count") as row:
                b.prefetch(b.at(ahead, b.mul(row, w["weight_row_step"])))
            b.call("pack_panel", f"ptr {source}", f"i64 {w['weight_row_step']}", "i64 1", "i64 %count",
                   f"i64 {b.sub(stop, begin)}", f"ptr {b.at('%target', b.mul(b.sub(begin, '%start'), width))}",
                   f"i64 {width}")

    joined = b.both(b.compare("eq", w["weight_tap_row_step"], p["tap_columns"]),
                    b.compare("eq", w["weight_tap_column_step"], 1))
    matrix = b.both(joined, b.compare("eq", w["weight_channel_step"], taps))
    several = b.both(joined, b.compare("sge", taps, blocking.lanes // 4))
    b.cases((matrix, as_matrix), (several, channel_by_channel), default=tap_by_tap)
    return b.text()


def _sizes(b: Builder, p: dict[str, str], w: dict[str, str]) -> tuple[Value, Value, Value]:
    """(depth, depth blocks, row panels) of one group."""
    depth = b.mul(w["channels"], b.mul(p["tap_rows"], p["tap_columns"]))
    return depth, depth_blocks(b, depth, b.blocking.depth), b.ceil_div(w["rows"], b.blocking.tile_rows)


def _packed_weight(b: Builder, base: str, panels: Value, start: Value, length: Value, panel: Value) -> str:
    before = b.mul(b.mul(start, panels), b.blocking.row_stride)
    return b.at(base, b.add(before, b.mul(b.mul(panel, length), b.blocking.row_stride)))


def _pack_weights(blocking: Blocking) -> str:
    """This thread's share of the weight panels of one block of parameters."""
    b = Builder("pack_weights", ("i64 %thread", "i64 %threads", "ptr %weights", "ptr noalias %block", "ptr %shared"),
                blocking, attributes="noinline")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    for way in BLOCKS:
        if way.packs:
            with b.instead(way.takes(b, p, w)):
                b.call(way.packs, "i64 %thread", "i64 %threads", "ptr %weights", "ptr %block", "ptr %shared")
    depth, blocks, panels = _sizes(b, p, w)
    group_size = b.mul(b.mul(panels, depth), blocking.row_stride)
    units = b.mul(blocks, panels)
    low, high = b.share(b.mul(units, w["groups"]), "%thread", "%threads")
    with b.loop(low, high) as unit:
        group, rest = b.div(unit, units), b.rem(unit, units)
        start, end = depth_block(b, depth, blocks, b.div(rest, panels))
        panel = b.rem(rest, panels)
        first, count = panel_rows(b, w["rows"], panels, panel)
        source = b.at("%weights", b.dot((group, w["weight_group_step"]), (first, w["weight_row_step"]),
                                        (w["weight_offset"], 1)))
        base = b.at("%shared", b.mul(group, group_size))
        target = _packed_weight(b, base, panels, start, b.sub(end, start), panel)
        b.call("weight_panel", f"ptr {source}", "ptr %block", f"i64 {start}", f"i64 {b.sub(end, start)}",
               f"i64 {count}", f"ptr {target}", f"i64 {blocking.row_stride}")
    return b.text()


def _scatter_tile(blocking: Blocking) -> str:
    """A finished tile into the result, one run of a result row at a time."""
    b = Builder("scatter_tile", ("ptr %tile", "i64 %rows", "i64 %columns", "ptr %result", "i64 %column",
                                 "ptr noalias %block", "i1 %accumulate"), blocking, attributes="noinline")
    w = read_conv(b, "%block")
    size = b.mul(w["result_grid_rows"], w["result_grid_columns"])
    done = b.variable(0)
    with b.loop_while(lambda: b.compare("slt", b.read(done), "%columns")):
        column = b.add("%column", b.read(done))
        image, pixel = b.div(column, size), b.rem(column, size)
        i, j = b.div(pixel, w["result_grid_columns"]), b.rem(pixel, w["result_grid_columns"])
        length = b.min(b.sub(w["result_grid_columns"], j), b.sub("%columns", b.read(done)))
        target = b.at("%result", b.dot((image, w["result_batch_step"]), (i, w["result_row_step"]),
                                       (j, w["result_column_step"])))
        b.call("copy_out", f"ptr {b.at('%tile', b.read(done))}", "i64 %rows", f"i64 {length}", f"ptr {target}",
               f"i64 {w['result_channel_step']}", f"i64 {w['result_column_step']}", "i1 %accumulate")
        b.assign(done, b.add(b.read(done), length))
    return b.text()


def _conv_tile(blocking: Blocking) -> str:
    """One tile: stored in place when both of its vectors are contiguous in the result, else scattered; of half the width where that holds it."""
    b = Builder("conv_tile", ("i64 %rows", "i64 %columns", "i64 %depth", "ptr %a", "ptr %b", "ptr %result",
                              "i64 %column", "ptr noalias %block", "i1 %accumulate"), blocking, attributes="noinline")
    w = read_conv(b, "%block")
    width, lanes = blocking.tile_columns, blocking.lanes
    tile = b.array((blocking.tile_rows + 1) * width)
    size, count = w["result_grid_columns"], chains(b, "%depth")

    def multiply(halves: list[str], step: Value, accumulate: str, kernel: str = "outer") -> None:
        with each_depth_block(b, "%depth", count) as (start, length, later):
            a, right = b.at("%a", b.mul(start, blocking.row_stride)), b.at("%b", b.mul(start, width))
            b.call(kernel, "i64 %rows", f"i64 {length}", f"ptr {a}", f"ptr {right}", f"i64 {width}", *(f"ptr {half}" for half in halves),
                   f"i64 {step}", f"i1 {b.either(accumulate, later)}", *panel_behind(b, a, length))

    def in_place() -> None:
        halves = []
        for half in (0, 1):
            column = b.add("%column", half * lanes)
            offset = b.dot((b.div(column, size), w["result_batch_step"]), (b.rem(column, size), 1))
            halves.append(b.at("%result", offset))
        multiply(halves, w["result_channel_step"], "%accumulate")

    def by_copy() -> None:
        halves = [tile, b.at(tile, lanes)]
        few = b.compare("sle", "%columns", lanes), lambda: multiply(halves, width, "false", "outer_narrow")
        b.cases(few, default=lambda: multiply(halves, width, "false"))
        b.call("scatter_tile", f"ptr {tile}", "i64 %rows", "i64 %columns", "ptr %result", "i64 %column", "ptr %block",
               "i1 %accumulate")

    flat = b.both(b.compare("eq", w["result_grid_rows"], 1), b.compare("eq", w["result_column_step"], 1))
    one_image = b.compare("eq", b.div("%column", size), b.div(b.add("%column", width - 1), size))
    whole = b.both(b.either(one_image, b.compare("eq", b.rem(size, lanes), 0)), b.compare("eq", "%columns", width))
    b.cases((b.both(flat, whole), in_place), default=by_copy)
    return b.text()


def _conv_chunk(blocking: Blocking) -> str:
    """Column panels [first, stop) of one group: for each block of depth, pack their patches and multiply."""
    b = Builder("conv_chunk", ("i64 %first", "i64 %stop", "i64 %total", "ptr %image", "ptr %weights", "ptr %result",
                               "ptr %private", "ptr noalias %block"), blocking, attributes="noinline")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    depth, blocks, panels = _sizes(b, p, w)
    width = blocking.tile_columns
    start_column = b.mul("%first", width)
    count = b.sub(b.min(b.mul("%stop", width), "%total"), start_column)
    with each_depth_block(b, depth, blocks) as (start, length, accumulate):
        b.call("pack_patches", "ptr %image", "ptr %block", f"i64 {start_column}", f"i64 {count}", f"i64 {start}",
               f"i64 {b.add(start, length)}", "ptr %private", f"i64 {width}")
        with b.loop(0, panels) as panel:
            first_row, rows = panel_rows(b, w["rows"], panels, panel)
            a = _packed_weight(b, "%weights", panels, start, length, panel)
            result = b.at("%result", b.mul(first_row, w["result_channel_step"]))
            with b.loop("%first", "%stop") as column_panel:
                patches = b.at("%private", b.mul(b.sub(column_panel, "%first"), b.mul(length, width)))
                column = b.mul(column_panel, width)
                columns = b.min(b.sub("%total", column), width)
                b.call("conv_tile", f"i64 {rows}", f"i64 {columns}", f"i64 {length}", f"ptr {a}", f"ptr {patches}",
                       f"ptr {result}", f"i64 {column}", "ptr %block", f"i1 {accumulate}")
    return b.text()


def _convolve(blocking: Blocking) -> str:
    """This thread's share of (group, column panel) pairs of one block of parameters."""
    b = Builder("convolve", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %shared", "ptr %result", "ptr noalias %block"),
                blocking, attributes="noinline")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    for way in BLOCKS[:-1]:
        with b.instead(way.takes(b, p, w)):
            b.call(way.function, "i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %shared", "ptr %result", "ptr %block")
    begin(b, "%private")
    depth, _, row_panels = _sizes(b, p, w)
    group_size = b.mul(b.mul(row_panels, depth), blocking.row_stride)
    total = b.mul(w["images"], b.mul(p["grid_rows"], p["grid_columns"]))
    b.return_when(b.compare("eq", total, 0))
    panels = b.ceil_div(total, blocking.tile_columns)
    chunk = blocking.chunk_bytes // (blocking.depth * blocking.tile_columns * blocking.item_bytes)
    low, high = b.share(b.mul(panels, w["groups"]), "%thread", "%threads")
    position = b.variable(low)
    with b.loop_while(lambda: b.compare("slt", b.read(position), high)):
        group, first = b.div(b.read(position), panels), b.rem(b.read(position), panels)
        count = b.min(b.min(chunk, b.sub(panels, first)), b.sub(high, b.read(position)))
        image = b.at("%image", b.mul(group, w["image_group_step"]))
        weights = b.at("%shared", b.mul(group, group_size))
        result = b.at("%result", b.add(w["result_offset"], b.mul(group, w["result_group_step"])))
        b.call("conv_chunk", f"i64 {first}", f"i64 {b.add(first, count)}", f"i64 {total}", f"ptr {image}",
               f"ptr {weights}", f"ptr {result}", "ptr %private", "ptr %block")
        _finish_columns(b, b.mul(first, blocking.tile_columns), b.min(b.mul(b.add(first, count), blocking.tile_columns), total),
                        b.mul(p["grid_rows"], p["grid_columns"]), b.mul(group, w["rows"]), w["rows"])
        b.assign(position, b.add(b.read(position), count))
    return b.text()


def _finish_columns(b: Builder, start: Value, end: Value, pixels: Value, row: Value, rows: Value) -> None:
    """Columns [start, end), which count the pixels of one image after the other, are complete."""
    done = b.variable(start)
    with b.loop_while(lambda: b.compare("slt", b.read(done), end)):
        here = b.read(done)
        pixel = b.rem(here, pixels)
        length = b.min(b.sub(pixels, pixel), b.sub(end, here))
        finish(b, "%private", row, rows, pixel, length, b.div(here, pixels))
        b.assign(done, b.add(here, length))


def _clear_share(blocking: Blocking) -> str:
    """This thread's share of zeros where no tap meets a part of the result: one pass over memory instead of one for each such part."""
    b = Builder("clear_share", ("i64 %thread", "i64 %threads", "ptr %result", "i64 %size"), blocking, attributes="noinline")
    lanes = blocking.lanes
    low, high = b.share(b.ceil_div("%size", lanes), "%thread", "%threads")
    whole = b.min(high, b.div("%size", lanes))
    with b.loop(low, whole) as vector:
        b.store_vector("zeroinitializer", b.at("%result", b.mul(vector, lanes)))
    with b.when(b.compare("slt", b.max(whole, low), high)):
        place = b.mul(b.sub(high, 1), lanes)
        b.store_masked("zeroinitializer", b.at("%result", place), b.lanes_between(0, b.sub("%size", place)))
    return b.text()


def _entry(blocking: Blocking) -> str:
    """Any number of parameter blocks on the same three tensors, after one common packing of weights, if these do not lie packed."""
    b = Builder(f"calque_conv2d_{blocking.dtype}",
                ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking, linkage="")
    image, weights, result, space = (b.pointer_word("%args", index) for index in range(BUFFERS))
    count, base = b.word("%args", BUFFERS), b.byte_at("%args", 8 * (BUFFERS + 2))
    note(b, "%scratch", WHOLE, 0)
    hand_over(b, CONVOLUTIONS, count, (image, weights, result, space))
    given = weights_of(b, weights, space)
    shared = b.select(given.packed, given.place, given.space, "ptr")
    with b.when(b.compare("eq", count, 1)):
        w = read_conv(b, base)
        joined = b.both(b.compare("eq", w["result_grid_rows"], 1), b.compare("eq", w["result_column_step"], 1))
        note(b, "%scratch", WHOLE, b.select(joined, 1, 0))
    packed = b.variable(0)

    def each_block(work: Callable[[str, str], None]) -> None:
        b.assign(packed, 0)
        with b.loop(0, count) as index:
            block = b.byte_at(base, b.mul(index, 8 * BLOCK_WORDS))
            place = b.at(shared, b.read(packed))
            work(block, place)
            p, w = read_patch(b, block), read_conv(b, block)
            depth, _, panels = _sizes(b, p, w)
            size = b.max(b.mul(b.mul(b.mul(panels, depth), blocking.row_stride), w["groups"]), packed_size(b, p, w))
            b.assign(packed, b.add(b.read(packed), size))

    def pack(block: str, place: str) -> None:
        b.call("pack_weights", "i64 %thread", "i64 %threads", f"ptr {given.place}", f"ptr {block}", f"ptr {place}")

    with b.instead(given.alone):
        each_block(pack)
    b.call("clear_share", "i64 %thread", "i64 %threads", f"ptr {result}", f"i64 {b.word('%args', BUFFERS + 1)}")
    with b.when(b.negation(given.packed)):
        each_block(pack)
        b.barrier("%barrier", "%threads")
    each_block(lambda block, place: b.call("convolve", "i64 %thread", "i64 %threads", "ptr %scratch", f"ptr {image}", f"ptr {place}",
                                           f"ptr {result}", f"ptr {block}"))
    return b.text()
