"""Convolution with few output channels per group (depthwise above all): pixels fill vectors, weights are broadcast.

A thread copies a block of input rows once, padded with zeros and sorted by the residues of row and column modulo the
strides. In that copy the pixel of a tap lies at a fixed distance from its output pixel, rows included, so that output
pixels are counted straight through the rows and short rows cost no masks; what is computed between the rows is dropped.
The gradient of a stride is the same on a copy with zeros inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.conv_words import read_conv
from calque.backend.cpu.contract.depth import chains, each_depth_block
from calque.backend.cpu.contract.depthwise import depthwise_functions, is_depthwise
from calque.backend.cpu.contract.finish import begin, finish
from calque.backend.cpu.contract.lanes import is_lanes, lanes_functions
from calque.backend.cpu.contract.pack import even_masks, load_even, read_patch, valid_lanes
from calque.backend.cpu.contract.target import CONVOLUTION_BYTES, Blocking
from calque.backend.cpu.contract.tiles import store_sums, table_loop
from calque.base.dataclass import dataclass

MOST_ROWS = 25
"""Output channels per group; with more, :mod:`direct` fills its vectors with them."""
MOST_DEPTH = 1 << 14
SUMS_AT = 4 * MOST_DEPTH
"""Behind the table of distances."""
SLACK = 16
"""Vectors behind the planes that tiles read."""
SUM_BYTES = 1 << 20
PLANES_AT = SUMS_AT + SUM_BYTES
NEAR_BYTES = 24 << 10
FAR_BYTES = 256 << 10
MOST_UNITS = 16
ROWS_AT_ONCE = (4, 2, 1)
TILE_PARAMETERS = ("i64 %depth", "ptr noalias readonly %source", "ptr noalias readonly %table",
                   "ptr noalias readonly %weights", "ptr %sums", "i64 %sum_step", "i1 %accumulate")
Words = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FlatRows:
    """How a block of input rows lies in private memory (in elements)."""

    taps: Value
    first_row: Value
    first_column: Value
    columns: Value
    rows: Value
    block_rows: Value
    channel: Value


def vectors_at_once(blocking: Blocking, rows: int) -> int:
    """Vectors of pixels of a tile: sums, one vector of pixels and one of weights stay in registers."""
    return {1: 8, 2: 6, 4: 4}[rows] if blocking.target.registers >= 32 else {1: 8, 2: 4, 4: 2}[rows]


def wanted_bytes(b: Builder, channels: Value) -> Value:
    """Packed bytes per block: the first-level cache for one channel, else a part of the second."""
    return b.select(b.compare("eq", channels, 1), NEAR_BYTES, FAR_BYTES)


def block_layout(b: Builder, p: Words, channels: Value, wanted: Value) -> FlatRows:
    """The layout for blocks of as many output rows as fit the wanted bytes, one at least."""
    spread = [b.mul(b.sub(p[f"tap_{axis}s"], 1), p[f"{axis}_dilation"]) for axis in ("row", "column")]
    first_row, first_column = (b.add(p[f"{axis}_offset"], b.min(s, 0)) for axis, s in zip(("row", "column"), spread, strict=True))
    rows_around, columns_around = (b.div(b.max(s, b.sub(0, s)), p[f"{axis}_stride"])
                                   for axis, s in zip(("row", "column"), spread, strict=True))
    columns = b.add(p["grid_columns"], columns_around)
    residues = b.mul(p["row_stride"], p["column_stride"])
    budget = b.div(b.div(wanted, b.blocking.item_bytes), b.max(b.mul(b.mul(channels, columns), residues), 1))
    most = b.clamp(b.sub(budget, rows_around), 1, b.max(p["grid_rows"], 1))
    blocks = b.ceil_div(b.max(p["grid_rows"], 1), most)
    block_rows = b.max(b.ceil_div(p["grid_rows"], blocks), 1)
    rows = b.add(block_rows, rows_around)
    channel = b.mul(b.mul(residues, rows), columns)
    return FlatRows(b.mul(p["tap_rows"], p["tap_columns"]), first_row, first_column, columns, rows, block_rows, channel)


def is_flat(b: Builder, p: Words, w: Words) -> str:
    """Whether a block of parameters takes this path."""
    layout, item = block_layout(b, p, w["channels"], wanted_bytes(b, w["channels"])), b.blocking.item_bytes
    slack = SLACK * b.blocking.lanes
    depth = b.mul(w["channels"], layout.taps)
    sums = b.mul(b.add(b.mul(layout.block_rows, layout.columns), slack), 4 * item)
    planes = b.mul(b.add(b.mul(w["channels"], layout.channel), slack), item)
    conditions = [
        b.compare("eq", w["patches"], 0),
        b.compare("sle", w["rows"], MOST_ROWS),
        b.either(b.compare("sgt", layout.taps, 1), b.compare("eq", w["channels"], 1)),
        b.compare("eq", w["result_column_step"], 1),
        b.compare("sle", b.mul(layout.columns, 2), b.mul(p["grid_columns"], 5)),
        b.compare("sle", depth, MOST_DEPTH),
        b.compare("sgt", depth, 0),
        b.compare("sle", sums, SUM_BYTES),
        b.compare("sle", planes, CONVOLUTION_BYTES - PLANES_AT),
    ]
    return b.both(*conditions)


def flat_functions(blocking: Blocking) -> str:
    """Everything specific to this path."""
    tiles = [_tile(rows, vectors, blocking) for rows in ROWS_AT_ONCE for vectors in range(1, vectors_at_once(blocking, rows) + 1)]
    return "".join([*tiles, _choose(blocking), _table(blocking), _pack_weights(blocking), _pack_plane(blocking),
                    _pack_apart(blocking), lanes_functions(blocking), depthwise_functions(blocking), _convolve(blocking)])


def _tile(rows: int, vectors: int, blocking: Blocking) -> str:
    """``sums[row][vector] (=|+=) sum_k weights[k][row] * source[table[k] + vector]``."""
    b = Builder(f"flat_tile_{rows}x{vectors}", TILE_PARAMETERS, blocking, attributes="noinline")
    lanes = blocking.lanes
    names = [[f"%s{row}.{column}" for column in range(vectors)] for row in range(rows)]
    with table_loop(b, names, "%pw", "%weights", rows):
        source = b.at("%source", "%offset")
        weights = [b.splat(b.load(b.at("%pw", row)), blocking.element) for row in range(rows)]
        for column in range(vectors):
            pixels = b.load_vector(b.at(source, column * lanes))
            for row in range(rows):
                b.emit(f"{names[row][column]}.next = {b.product(weights[row], pixels, names[row][column])}")
    store_sums(b, names, "%sums", "%sum_step")
    return b.text()


def _choose(blocking: Blocking) -> str:
    """``flat_tile(rows, vectors, ...)``: a jump table for every chain of additions."""
    b = Builder("flat_tile", ("i64 %rows", "i64 %vectors", *TILE_PARAMETERS[:-1]), blocking, attributes="noinline")
    shapes = [(rows, vectors) for rows in ROWS_AT_ONCE for vectors in range(1, vectors_at_once(blocking, rows) + 1)]
    choices = [(rows * 16 + vectors, f"tile{rows}x{vectors}", f"flat_tile_{rows}x{vectors}") for rows, vectors in shapes]
    with each_depth_block(b, "%depth", chains(b, "%depth")) as (start, length, later):
        table, weights = b.byte_at("%table", b.mul(start, 4)), b.at("%weights", b.mul(start, "%rows"))
        b.jump_table(b.add(b.mul("%rows", 16), "%vectors"), choices, (
            f"i64 {length}", "ptr %source", f"ptr {table}", f"ptr {weights}", "ptr %sums", "i64 %sum_step", f"i1 {later}"))
    return b.text()


def _table(blocking: Blocking) -> str:
    """Where (channel, tap row, tap column) lies in a packed block, seen from output pixel (0, 0)."""
    b = Builder("flat_table", ("ptr noalias %block", "i64 %channels", "i64 %wanted", "ptr %table"), blocking, attributes="noinline")
    p = read_patch(b, "%block")
    layout = block_layout(b, p, "%channels", "%wanted")
    entry = b.variable(0)
    bases = [b.max(b.mul(b.sub(1, p[f"tap_{axis}s"]), p[f"{axis}_dilation"]), 0) for axis in ("row", "column")]
    plane = b.mul(layout.rows, layout.columns)
    with b.loop(0, "%channels") as channel, b.loop(0, p["tap_rows"]) as u, b.loop(0, p["tap_columns"]) as v:
        y, x = b.add(bases[0], b.mul(u, p["row_dilation"])), b.add(bases[1], b.mul(v, p["column_dilation"]))
        residue = b.add(b.mul(b.rem(y, p["row_stride"]), p["column_stride"]), b.rem(x, p["column_stride"]))
        place = b.dot((channel, layout.channel), (residue, plane), (b.div(y, p["row_stride"]), layout.columns),
                      (b.div(x, p["column_stride"]), 1))
        here = b.read(entry)
        b.store_offset(place, "%table", here)
        b.assign(entry, b.add(here, 1))
    return b.text()


def _pack_weights(blocking: Blocking) -> str:
    """This thread's share of ``shared[group][rows in parts of 4, 2, 1][channel, tap][row of the part]``."""
    b = Builder("flat_pack_weights", ("i64 %thread", "i64 %threads", "ptr %weights", "ptr noalias %block", "ptr %shared"),
                blocking, attributes="noinline")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    place = b.variable(0)
    depth = b.mul(w["channels"], b.mul(p["tap_rows"], p["tap_columns"]))
    low, high = b.share(w["groups"], "%thread", "%threads")
    with b.loop(low, high) as group:
        weights = b.at("%weights", b.dot((group, w["weight_group_step"]), (w["weight_offset"], 1)))
        target = b.at("%shared", b.mul(group, b.mul(w["rows"], depth)))
        b.assign(place, 0)
        done = b.variable(0)
        b.assign(done, 0)
        with b.loop_while(lambda: b.compare("slt", b.read(done), w["rows"])):
            first = b.read(done)
            count = _part(b, b.sub(w["rows"], first))
            with b.loop(0, w["channels"]) as channel, b.loop(0, p["tap_rows"]) as u, b.loop(0, p["tap_columns"]) as v:
                source = b.at(weights, b.dot((first, w["weight_row_step"]), (channel, w["weight_channel_step"]),
                                             (u, w["weight_tap_row_step"]), (v, w["weight_tap_column_step"])))
                with b.loop(0, count) as row:
                    here = b.read(place)
                    b.store(b.load(b.at(source, b.mul(row, w["weight_row_step"]))), b.at(target, here))
                    b.assign(place, b.add(here, 1))
            b.assign(done, b.add(first, count))
    return b.text()


def _part(b: Builder, left: Value) -> Value:
    """How many of the rows that are left are computed together: 4, 2 or 1."""
    return b.select(b.compare("sge", left, 4), 4, b.select(b.compare("sge", left, 2), 2, 1))


def _store_rows(b: Builder, target: str, step: Value, low: Value, high: Value, mask: str, value: str = "zeroinitializer") -> None:
    with b.loop(low, high) as row:
        b.store_masked(value, b.at(target, b.mul(row, step)), mask)


PLANE_PARAMETERS = ("ptr %image", "i64 %row_step", "i64 %column_step", "i64 %height", "i64 %width", "i64 %row_stride",
                    "i64 %column_stride", "i64 %top", "i64 %left", "i64 %rows", "i64 %columns", "i64 %planes", "i64 %plane_step",
                    "i64 %target_step", "ptr %target")


def _pack_plane(blocking: Blocking) -> str:
    """``target[row residue][column residue][row][column]`` of one channel from (top, left) on, zero outside of it."""
    b = Builder("flat_pack_plane", PLANE_PARAMETERS, blocking, attributes="noinline")
    unit = b.both(b.compare("eq", "%row_stride", 1), b.compare("eq", "%column_stride", 1))
    b.cases((unit, lambda: b.call("flat_pack_dense", *PLANE_PARAMETERS)),
            default=lambda: b.call("flat_pack_strided", *PLANE_PARAMETERS))
    variants = (("dense", 1, 1), ("strided", "%row_stride", "%column_stride"))
    return "".join([*(_pack_by(blocking, *variant) for variant in variants), b.text()])


def _pack_by(blocking: Blocking, name: str, row_stride: Value, column_stride: Value) -> str:
    """With constant strides no division is left."""
    b = Builder(f"flat_pack_{name}", PLANE_PARAMETERS, blocking, attributes="noinline")
    lanes = blocking.lanes
    step, line = b.mul("%column_step", column_stride), b.mul("%row_step", row_stride)
    with b.loop(0, row_stride) as above, b.loop(0, column_stride) as before:
        y0 = b.add("%top", above)
        first, last = valid_lanes(b, y0, row_stride, "%height", "%rows")
        plane = b.at("%target", b.mul(b.add(b.mul(above, column_stride), before), b.mul("%rows", "%columns")))
        with b.loop(0, "%columns", lanes) as column:
            length = b.min(b.sub("%columns", column), lanes)
            x0 = b.add(b.add("%left", before), b.mul(column, column_stride))
            low, high = valid_lanes(b, x0, column_stride, "%width", length)
            target, stored = b.at(plane, column), b.lanes_between(0, length)
            source = b.at("%image", b.dot((y0, "%row_step"), (x0, "%column_step")))
            with b.when(b.compare("sgt", first, 0)), b.loop(0, "%planes") as which:
                _store_rows(b, b.at(target, b.mul(which, "%target_step")), "%columns", 0, first, stored)
            _copy_rows(b, source, line, step, (low, high), target, (first, last), stored)
            with b.when(b.compare("slt", last, "%rows")), b.loop(0, "%planes") as which:
                _store_rows(b, b.at(target, b.mul(which, "%target_step")), "%columns", last, "%rows", stored)
    return b.text()


def _copy_rows(b: Builder, source: str, line: Value, step: Value, valid: tuple[Value, Value], target: str,
               rows: tuple[Value, Value], stored: str) -> None:
    """One vector of columns of the rows that exist, in all planes."""
    def each(load: Callable[[str], str]) -> None:
        with b.loop(0, "%planes") as which:
            above, below = b.at(source, b.mul(which, "%plane_step")), b.at(target, b.mul(which, "%target_step"))
            with b.loop(*rows) as row:
                b.store_masked(load(b.at(above, b.mul(row, line))), b.at(below, b.mul(row, "%columns")), stored)

    def unit() -> None:
        mask = b.lanes_between(*valid)
        each(lambda address: b.load_masked(address, mask))

    def even() -> None:
        masks = even_masks(b, *valid)
        each(lambda address: load_even(b, address, masks))

    def strided() -> None:
        mask, offsets = b.lanes_between(*valid), b.lane_offsets(step, b.blocking.lanes)
        each(lambda address: b.gather(address, offsets, mask))

    b.cases((b.compare("eq", step, 1), unit), (b.compare("eq", step, 2), even), default=strided)


def _pack_apart(blocking: Blocking) -> str:
    """One channel with its rows and columns ``row_stride`` and ``column_stride`` apart and zeros between them."""
    b = Builder("flat_pack_apart", PLANE_PARAMETERS, blocking, attributes="noinline")
    lanes = blocking.lanes
    first = b.ceil_div(b.max("%top", 0), "%row_stride")
    end = b.min("%height", b.ceil_div(b.max(b.add("%top", "%rows"), 0), "%row_stride"))
    with b.loop(0, "%planes") as which:
        image, plane = b.at("%image", b.mul(which, "%plane_step")), b.at("%target", b.mul(which, "%target_step"))
        with b.loop(0, b.mul("%rows", "%columns"), lanes) as place:
            b.store_vector("zeroinitializer", b.at(plane, place))
        with b.loop(first, end) as row:
            line = b.at(plane, b.sub(b.mul(b.sub(b.mul(row, "%row_stride"), "%top"), "%columns"), "%left"))
            source = b.at(image, b.mul(row, "%row_step"))
            doubled = b.both(b.compare("eq", "%column_stride", 2), b.compare("eq", "%column_step", 1))
            b.cases((doubled, partial(_every_second, b, source, line)), default=partial(_each_apart, b, source, line))
    return b.text()


def _each_apart(b: Builder, source: str, line: str) -> None:
    with b.loop(0, "%width") as column:
        value = b.load(b.at(source, b.mul(column, "%column_step")))
        b.store(value, b.at(line, b.mul(column, "%column_stride")))


def _every_second(b: Builder, source: str, line: str) -> None:
    """Whole vectors: the zeros that spill over the end of a row fall on zeros or on rows that are still to come."""
    lanes = b.blocking.lanes
    with b.loop(0, "%width", lanes) as column:
        value = b.load_masked(b.at(source, column), b.lanes_between(0, b.min(b.sub("%width", column), lanes)))
        target = b.at(line, b.mul(column, 2))
        for half in (0, 1):
            # An even lane is a pixel, an odd one a zero.
            order = [half * lanes // 2 + lane // 2 if lane % 2 == 0 else lanes for lane in range(lanes)]
            b.store_vector(b.shuffle(value, "zeroinitializer", order), b.at(target, half * lanes))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Neighbouring groups of one image: their masks are common, and loads that straddle stores come long after them."""

    p: Words
    w: Words
    layout: FlatRows
    depth: Value
    row_step: Value
    sums: str
    planes: str
    image: Value
    group: Value
    i: Value
    units: Value

    def sum_step(self, b: Builder) -> Value:
        """Elements between the sums of two output channels."""
        return b.mul(_vectors(b, self.layout), b.blocking.lanes)


def _vectors(b: Builder, layout: FlatRows) -> Value:
    """Vectors of sums of one output channel."""
    return b.ceil_div(b.mul(layout.block_rows, layout.columns), b.blocking.lanes)


def _pack(b: Builder, batch: _Batch) -> None:
    p, w, layout = batch.p, batch.w, batch.layout
    top = b.add(b.mul(batch.i, p["row_stride"]), layout.first_row)
    source = b.at("%image", b.dot((batch.image, p["batch_step"]), (batch.group, w["image_group_step"])))
    apart = b.compare("sgt", b.mul(w["row_upsampling"], w["column_upsampling"]), 1)
    steps = [b.select(apart, w[f"{axis}_upsampling"], p[f"{axis}_stride"]) for axis in ("row", "column")]
    arguments = (f"ptr {source}", f"i64 {p['row_step']}", f"i64 {p['column_step']}", f"i64 {p['height']}", f"i64 {p['width']}",
                 f"i64 {steps[0]}", f"i64 {steps[1]}", f"i64 {top}", f"i64 {layout.first_column}", f"i64 {layout.rows}",
                 f"i64 {layout.columns}", f"i64 {b.mul(batch.units, w['channels'])}", f"i64 {p['channel_step']}",
                 f"i64 {layout.channel}", f"ptr {batch.planes}")
    b.cases((apart, lambda: b.call("flat_pack_apart", *arguments)), default=lambda: b.call("flat_pack_plane", *arguments))
    end = b.at(batch.planes, b.mul(b.mul(batch.units, w["channels"]), layout.channel))
    for vector in range(SLACK):  # what the last tiles read behind the last plane
        b.store_vector("zeroinitializer", b.at(end, vector * b.blocking.lanes))


def _multiply(b: Builder, batch: _Batch, first: Value, count: Value) -> None:
    """The sums of some output channels of every group."""
    lanes, vectors, sum_step = b.blocking.lanes, _vectors(b, batch.layout), batch.sum_step(b)
    most = b.select(b.compare("eq", count, 4), vectors_at_once(b.blocking, 4),
                    b.select(b.compare("eq", count, 2), vectors_at_once(b.blocking, 2), vectors_at_once(b.blocking, 1)))
    plane = b.mul(batch.w["channels"], batch.layout.channel)
    with b.loop(0, batch.units) as slot:
        weights = b.at("%weights", b.mul(b.add(b.mul(b.add(batch.group, slot), batch.w["rows"]), first), batch.depth))
        sums, planes = b.at(batch.sums, b.mul(b.mul(slot, count), sum_step)), b.at(batch.planes, b.mul(slot, plane))
        with b.loop(0, vectors, most) as vector:
            start = b.mul(vector, lanes)
            b.call("flat_tile", f"i64 {count}", f"i64 {b.min(most, b.sub(vectors, vector))}", f"i64 {batch.depth}",
                   f"ptr {b.at(planes, start)}", "ptr %private", f"ptr {weights}", f"ptr {b.at(sums, start)}", f"i64 {sum_step}")


def _write(b: Builder, batch: _Batch, first: Value, count: Value) -> None:
    """The rows of sums without what lies between them into the result."""
    p, w, layout, lanes = batch.p, batch.w, batch.layout, b.blocking.lanes
    lines, width = b.min(layout.block_rows, b.sub(p["grid_rows"], batch.i)), p["grid_columns"]
    result = b.at("%result", b.dot((batch.image, w["result_batch_step"]), (batch.group, w["result_group_step"]),
                                   (w["result_offset"], 1), (batch.i, batch.row_step), (first, w["result_channel_step"])))
    with b.loop(0, width, lanes) as column:
        mask = b.lanes_between(0, b.min(b.sub(width, column), lanes))
        with b.loop(0, batch.units) as slot, b.loop(0, count) as row:
            source = b.at(batch.sums, b.add(b.mul(b.add(b.mul(slot, count), row), batch.sum_step(b)), column))
            target = b.at(result, b.dot((slot, w["result_group_step"]), (row, w["result_channel_step"]), (column, 1)))
            with b.loop(0, lines) as line:
                value = b.load_vector(b.at(source, b.mul(line, layout.columns)))
                b.store_masked(value, b.at(target, b.mul(line, batch.row_step)), mask)


def batch_size(b: Builder, elements: Value) -> Value:
    """Groups whose packed form fits the first-level cache together."""
    return b.clamp(b.div(NEAR_BYTES // b.blocking.item_bytes, b.max(elements, 1)), 1, MOST_UNITS)


def _convolve(blocking: Blocking) -> str:
    """This thread's share of (image, block of rows, group): neighbouring groups are neighbours in memory."""
    b = Builder("flat_convolve", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %weights", "ptr %result",
                                  "ptr noalias %block"), blocking, attributes="noinline")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    begin(b, "%private")
    with b.instead(is_depthwise(b, p, w)):
        b.call("depthwise_convolve", "i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %weights", "ptr %result", "ptr %block")
    with b.instead(is_lanes(b, p, w)):
        b.call("lanes_convolve", "i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %weights", "ptr %result", "ptr %block")
    layout = block_layout(b, p, w["channels"], wanted_bytes(b, w["channels"]))
    b.call("flat_table", "ptr %block", f"i64 {w['channels']}", f"i64 {wanted_bytes(b, w['channels'])}", "ptr %private")
    joined = b.compare("ne", w["result_grid_columns"], p["grid_columns"])
    row_step, depth = b.select(joined, p["grid_columns"], w["result_row_step"]), b.mul(w["channels"], layout.taps)
    sums, planes = b.byte_at("%private", SUMS_AT), b.byte_at("%private", PLANES_AT)
    blocks = b.ceil_div(p["grid_rows"], layout.block_rows)
    low, high = b.share(b.mul(b.mul(w["groups"], w["images"]), blocks), "%thread", "%threads")
    sum_size = b.mul(_vectors(b, layout), blocking.lanes)
    most = batch_size(b, b.add(b.mul(w["channels"], layout.channel), sum_size))
    position, done = b.variable(low), b.variable(0)
    with b.loop_while(lambda: b.compare("slt", b.read(position), high)):
        unit = b.read(position)
        group, rest = b.rem(unit, w["groups"]), b.div(unit, w["groups"])
        image, i = b.div(rest, blocks), b.mul(b.rem(rest, blocks), layout.block_rows)
        units = b.min(b.min(most, b.sub(high, unit)), b.sub(w["groups"], group))
        batch = _Batch(p, w, layout, depth, row_step, sums, planes, image, group, i, units)
        _pack(b, batch)
        b.assign(done, 0)
        with b.loop_while(lambda: b.compare("slt", b.read(done), w["rows"])):
            first = b.read(done)
            count = _part(b, b.sub(w["rows"], first))
            _multiply(b, batch, first, count)
            _write(b, batch, first, count)
            b.assign(done, b.add(first, count))
        lines = b.min(layout.block_rows, b.sub(p["grid_rows"], i))
        finish(b, "%private", b.mul(group, w["rows"]), b.mul(units, w["rows"]), b.mul(i, p["grid_columns"]), b.mul(lines, p["grid_columns"]), image)
        b.assign(position, b.add(unit, units))
    return b.text()
