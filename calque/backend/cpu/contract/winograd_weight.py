"""Weight gradient of a 3x3 or 5x5 convolution (3x3 also with stride 2) by Winograd's method: ``dw = G^T [ sum over tiles (A g A^T) * (B^T d B) ] G``.

The sum over tiles is 16 matrix products (49 for the four parts of a 5x5 kernel) whose depth is the tile, so here the lanes of a
vector are channels: a band of image rows is transposed once and patches of it are transformed into packed panels. Work is cut
into blocks of (output channels, input channels) and, when those are few, into parts of the tiles whose gradients are added in a
fixed order at the end; the sizes alone decide, so the thread count never changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.depth import depth_block, panel_rows
from calque.backend.cpu.contract.micro import multiply, panel_behind
from calque.backend.cpu.contract.pack import transpose
from calque.backend.cpu.contract.target import Blocking
from calque.backend.cpu.contract.winograd import ABSENT, TILE, Form, both_ways, patch_values, read_words
from calque.base.dataclass import dataclass

TILES = 64
"""Tiles per block of depth; at least one row of tiles, or a part of it. Room for one more between two positions keeps them out
of the same cache sets."""
CHANNELS = 64
"""About how many output and how many input channels a block has."""
PARTS = 8
TILES_PER_PART = 256


def winograd_weight_functions(blocking: Blocking, form: Form) -> str:
    """``winograd_weight_grad`` of kernels of a size and everything specific to it."""
    shared = "".join((_lanes(blocking, form, False), _side(blocking, form, False))) if form.prefix == form.shared else ""
    return shared + "".join((_lanes(blocking, form, True), _side(blocking, form, True), _products(blocking, form), _taps(blocking, form),
                             _task(blocking, form), _weight_grad(blocking, form)))


def band_pixels(form: Form) -> int:
    """No shape of at most TILES tiles depends on more pixels."""
    return form.patch * (form.step * (TILES - 1) + form.patch)


def panels_together(width: int) -> int:
    """Panels of ``width`` channels per block."""
    return max(1, -(-CHANNELS // width))


def parts(channels: int, rows: int, tiles: int) -> int:
    """Into how many parts the tiles are cut, so that about eight pieces of work exist."""
    blocks = max(1, -(-channels // CHANNELS) * -(-rows // CHANNELS))
    return max(1, min(-(-PARTS // blocks), tiles // TILES_PER_PART))


@dataclass(frozen=True, slots=True)
class _Band:
    """Rows of tiles of one image that lie in a block of depth: where their pixels begin and end in the source."""

    row: Value
    rows: Value
    column: Value
    columns: Value
    top: Value
    left: Value
    width: Value


def _lanes(blocking: Blocking, form: Form, image: bool) -> str:
    """Transform the tiles (row.., column..) of one vector of channels of one image (or of the gradient), tile after tile.

    ``target[(slots before the position + slot) * step + tile * tile_step + lane]``. Pixels outside of the source are read from zeros.
    """
    name, extent, between = (f"{form.prefix}_image_lanes", form.patch, form.step) if image else (f"{form.shared}_gradient_lanes", TILE, TILE)
    b = Builder(name, ("ptr %band", "i64 %top", "i64 %left", "i64 %bottom", "i64 %right", "i64 %y", "i64 %x", "i64 %rows",
                       "i64 %columns", "ptr %target", "i64 %step", "i64 %tile_step"), blocking, attributes="noinline")
    lanes = blocking.lanes
    zeros = b.array(lanes)
    b.store_vector("zeroinitializer", zeros)
    width = b.sub("%right", "%left")
    with b.loop(0, "%rows") as i:
        lines = []
        for r in range(extent):
            y = b.add(b.add("%y", b.mul(i, between)), r)
            inside = b.both(b.compare("sge", y, "%top"), b.compare("slt", y, "%bottom"))
            lines.append((inside, b.mul(b.sub(b.mul(b.sub(y, "%top"), width), "%left"), lanes)))
        with b.loop(0, "%columns") as j:
            square: list[list[str]] = [[] for _ in range(extent)]
            for s in range(extent):
                x = b.add(b.add("%x", b.mul(j, between)), s)
                inside_column = b.both(b.compare("sge", x, "%left"), b.compare("slt", x, "%right"))
                for line, (inside, start) in zip(square, lines, strict=True):
                    address = b.at("%band", b.add(start, b.mul(x, lanes)))
                    line.append(b.load_vector(b.select(b.both(inside, inside_column), address, zeros, "ptr")))
            place = b.at("%target", b.mul(b.add(b.mul(i, "%columns"), j), "%tile_step"))
            if image:
                values = [(form.before(p) + slot, value) for p, slot, value in patch_values(b, form, square)]
            else:
                values = list(enumerate(value for line in both_ways(b, form.lines.gradient, square) for value in line))
            for slot, value in values:
                b.store_vector(value, b.at(place, b.mul("%step", slot)))
    return b.text()


@contextmanager
def _each_band(b: Builder, w: dict[str, str], between: int, image: bool) -> Iterator[tuple[Value, _Band, Value]]:
    """(image, band, tiles before it) for the pieces %first .. %first + %count of all rows of tiles.

    A piece is a row of tiles or an equal part of one; whole rows of one image make one band.
    """
    pieces = b.ceil_div(w["tile_columns"], TILES)
    longest = b.ceil_div(w["tile_columns"], pieces)
    done, before = b.variable(0), b.variable(0)
    with b.loop_while(lambda: b.compare("slt", b.read(done), "%count")):
        piece = b.add("%first", b.read(done))
        line, part = b.div(piece, pieces), b.rem(piece, pieces)
        n, row = b.div(line, w["tile_rows"]), b.rem(line, w["tile_rows"])
        several = b.min(b.sub(w["tile_rows"], row), b.sub("%count", b.read(done)))
        rows = b.select(b.compare("eq", pieces, 1), several, 1)
        column = b.mul(part, longest)
        columns = b.max(b.min(b.sub(w["tile_columns"], column), longest), 0)
        top, left = b.mul(row, between), b.mul(column, between)
        if image:
            top, left = b.add(top, w["row_offset"]), b.add(left, w["column_offset"])
        yield n, _Band(row, rows, column, columns, top, left, 0), b.read(before)
        b.assign(before, b.add(b.read(before), b.mul(rows, columns)))
        b.assign(done, b.add(b.read(done), rows))


def _side(blocking: Blocking, form: Form, image: bool) -> str:
    """Transformed tiles of some channels of the image (or of the gradient) into packed panels:
    ``target[panel][position and slot][tile][width]``."""
    prefix, extent, slots = (f"{form.prefix}_image", form.patch, form.all_slots) if image else (f"{form.shared}_gradient", TILE, form.positions)
    between = form.step if image else TILE
    b = Builder(f"{prefix}_side", ("ptr %source", "ptr noalias %block", "i64 %first", "i64 %count", "i64 %low", "i64 %high",
                       "ptr %target", "i64 %step", "ptr noalias %band"), blocking, attributes="noinline")
    w, lanes = read_words(b, "%block"), blocking.lanes
    width = blocking.tile_columns if image else blocking.row_stride
    key = "" if image else "other_"
    steps = {name: w[f"{key}{name}_step"] for name in ("batch", "channel", "row", "column")}
    height, length = (w["height"], w["width"]) if image else (w["out_height"], w["out_width"])
    dense = b.compare("eq", steps["row"], b.mul(length, steps["column"]))
    total = w["channels"] if image else w["rows"]
    panels = b.ceil_div(total, blocking.tile_columns if image else blocking.tile_rows)
    with _each_band(b, w, between, image) as (n, band, before):
        top, left = b.max(band.top, 0), b.max(band.left, 0)
        reach = b.add(b.mul(b.sub(band.rows, 1), between), extent)
        bottom = b.max(b.min(height, b.add(band.top, reach)), top)
        reach = b.add(b.mul(b.sub(band.columns, 1), between), extent)
        right = b.max(b.min(length, b.add(band.left, reach)), left)
        pixels = b.sub(right, left)
        corner = b.at("%source", b.dot((n, steps["batch"]), (top, steps["row"]), (left, steps["column"])))
        at_once = b.both(dense, b.compare("eq", pixels, length))
        lines = b.select(at_once, b.min(b.sub(bottom, top), 1), b.sub(bottom, top))
        run = b.select(at_once, b.mul(b.sub(bottom, top), pixels), pixels)
        with b.loop("%low", "%high") as panel:
            if image:
                first = b.mul(panel, width)
                count = b.min(b.sub(total, first), width)
            else:
                first, count = panel_rows(b, total, panels, panel)
            for part in range(width // lanes):
                here = b.clamp(b.sub(count, part * lanes), 0, lanes)
                with b.when(b.compare("sgt", here, 0)):
                    with b.loop(0, lines) as line:
                        source = b.at(corner, b.dot((b.add(first, part * lanes), steps["channel"]), (line, steps["row"])))
                        b.call("pack_lanes", f"ptr {source}", f"i64 {steps['channel']}", f"i64 {steps['column']}",
                               f"i64 {here}", f"i64 {run}", f"ptr {b.at('%band', b.mul(line, b.mul(pixels, lanes)))}",
                               f"i64 {lanes}")
                    place = b.add(b.mul(b.mul(b.sub(panel, "%low"), slots), "%step"),
                                  b.add(b.mul(before, width), part * lanes))
                    b.call(f"{prefix}_lanes", "ptr %band", f"i64 {top}",
                           f"i64 {left}", f"i64 {bottom}", f"i64 {right}", f"i64 {band.top}", f"i64 {band.left}",
                           f"i64 {band.rows}", f"i64 {band.columns}", f"ptr {b.at('%target', place)}", "i64 %step",
                           f"i64 {width}")
    return b.text()


def _products(blocking: Blocking, form: Form) -> str:
    """``sums[position and slot][row][column] (=|+=)`` over ``tiles`` tiles of packed gradient and image panels."""
    b = Builder(f"{form.prefix}_products", ("i64 %tiles", "ptr %gradients", "ptr %images", "ptr %sums", "i64 %rows",
                                      "i64 %row_panels", "i64 %low", "i64 %high", "i64 %columns", "i1 %accumulate"),
                blocking, attributes="noinline")
    width = blocking.tile_columns
    first_row, _ = panel_rows(b, "%rows", "%row_panels", "%low")
    last_row, _ = panel_rows(b, "%rows", "%row_panels", "%high")
    column_panels = b.ceil_div("%columns", width)
    line = b.mul(column_panels, width)
    size = b.mul(b.sub(last_row, first_row), line)
    step = b.add("%tiles", 1)
    with b.loop(0, form.positions) as p, b.loop("%low", "%high") as panel:
        before, several = form.slots_at(b, p)
        row, count = panel_rows(b, "%rows", "%row_panels", panel)
        index = b.add(b.mul(b.sub(panel, "%low"), form.positions), p)
        left = b.at("%gradients", b.mul(b.mul(index, step), blocking.row_stride))
        with b.loop(before, b.add(before, several)) as slot:
            c = b.at("%sums", b.add(b.mul(slot, size), b.mul(b.sub(row, first_row), line)))
            with b.loop(0, column_panels) as column:
                right = b.at("%images", b.mul(b.mul(b.add(b.mul(column, form.all_slots), slot), step), width))
                target = b.at(c, b.mul(column, width))
                multiply(b, b.sub("%columns", b.mul(column, width)), f"i64 {count}", "i64 %tiles", f"ptr {left}", f"ptr {right}", f"i64 {width}",
                         f"ptr {target}", f"ptr {b.at(target, blocking.lanes)}", f"i64 {line}", "i1 %accumulate",
                         *panel_behind(b, left, "%tiles"))
    return b.text()


def _taps(blocking: Blocking, form: Form) -> str:
    """G^T S G of a block of sums: the taps of ``rows x columns`` pairs of channels, written tap by tap."""
    b = Builder(f"{form.prefix}_taps", ("ptr %sums", "i64 %rows", "i64 %columns", "i64 %line", "ptr %result", "i64 %row_step"),
                blocking, attributes="noinline")
    lanes, count, side = blocking.lanes, form.taps**2, form.values
    step = b.mul("%rows", "%line")
    with b.loop(0, "%rows") as row, b.loop(0, "%columns", lanes) as column:
        source = b.at("%sums", b.add(b.mul(row, "%line"), column))
        taps = [ABSENT] * count
        for number, part in enumerate(form.parts):
            sums = [b.load_vector(b.at(source, b.mul(step, form.before(p) + form.slot(number, p)))) if form.uses(part, p) else ABSENT
                    for p in range(form.positions)]
            for u, line in enumerate(both_ways(b, form.lines.taps, [sums[side * i : side * (i + 1)] for i in range(side)])):
                for v, value in enumerate(line):
                    taps[(part.row + form.stride * u) * form.taps + part.column + form.stride * v] = value
        target = b.at("%result", b.add(b.mul(row, "%row_step"), b.mul(column, count)))
        left = b.sub("%columns", column)
        for first in range(0, count, lanes):
            group = taps[first : first + lanes]
            turned = transpose(b, [*group, *["zeroinitializer"] * (lanes - len(group))])
            mask = b.lanes_between(0, len(group))
            for lane, value in enumerate(turned):
                with b.when(b.compare("sgt", left, lane)):
                    b.store_masked(value, b.at(target, lane * count + first), mask)
    return b.text()


def _task(blocking: Blocking, form: Form) -> str:
    """One block of channels over pieces [begin, end) of the rows of tiles."""
    b = Builder(f"{form.prefix}_weight_task", ("ptr %image", "ptr %gradient", "ptr noalias %block", "i64 %row_low", "i64 %row_high",
                                         "i64 %column_low", "i64 %column_high", "i64 %begin", "i64 %end", "ptr %result",
                                         "ptr noalias %private"), blocking, attributes="noinline")
    w, width = read_words(b, "%block"), blocking.tile_columns
    row_panels = b.ceil_div(w["rows"], blocking.tile_rows)
    gradients = b.at("%private", band_pixels(form) * blocking.lanes)
    images = b.at(gradients, panels_together(blocking.tile_rows) * form.positions * (TILES + 1) * blocking.row_stride)
    sums = b.at(images, panels_together(width) * form.all_slots * (TILES + 1) * width)
    pieces = b.ceil_div(w["tile_columns"], TILES)
    longest = b.ceil_div(w["tile_columns"], pieces)
    total = b.sub("%end", "%begin")
    blocks = b.max(b.ceil_div(total, b.div(TILES, longest)), 1)
    column_panels, column = b.sub("%column_high", "%column_low"), b.mul("%column_low", width)
    columns = b.min(b.sub(w["channels"], column), b.mul(column_panels, width))
    with b.loop(0, blocks) as block:
        start, stop = depth_block(b, total, blocks, block)
        first, last = b.add("%begin", start), b.add("%begin", stop)
        # Tiles of pieces [0, q): whole rows, and of the last row the pieces that are there.
        ends = [b.add(b.mul(b.div(q, pieces), w["tile_columns"]), b.mul(b.rem(q, pieces), longest)) for q in (first, last)]
        tiles = b.sub(ends[1], ends[0])
        for side, source, low, high, target, panel in (
                (f"{form.prefix}_image", "%image", "%column_low", "%column_high", images, width),
                (f"{form.shared}_gradient", "%gradient", "%row_low", "%row_high", gradients, blocking.row_stride)):
            b.call(f"{side}_side", f"ptr {source}", "ptr %block", f"i64 {first}", f"i64 {b.sub(last, first)}",
                   f"i64 {low}", f"i64 {high}", f"ptr {target}", f"i64 {b.mul(b.add(tiles, 1), panel)}", "ptr %private")
        b.call(f"{form.prefix}_products", f"i64 {tiles}", f"ptr {gradients}", f"ptr {images}", f"ptr {sums}", f"i64 {w['rows']}",
               f"i64 {row_panels}", "i64 %row_low", "i64 %row_high", f"i64 {columns}",
               f"i1 {b.compare('sgt', block, 0)}")
    first_row, _ = panel_rows(b, w["rows"], row_panels, "%row_low")
    last_row, _ = panel_rows(b, w["rows"], row_panels, "%row_high")
    target = b.at("%result", b.mul(b.add(b.mul(first_row, w["channels"]), column), form.taps**2))
    b.call(f"{form.prefix}_taps", f"ptr {sums}", f"i64 {b.sub(last_row, first_row)}", f"i64 {columns}",
           f"i64 {b.mul(column_panels, width)}", f"ptr {target}", f"i64 {b.mul(w['channels'], form.taps**2)}")
    return b.text()


def _weight_grad(blocking: Blocking, form: Form) -> str:
    """The whole weight gradient: operands as in the entry of the direct kernel."""
    b = Builder(f"{form.prefix}_weight_grad", ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %image",
                                         "ptr %gradient", "ptr %result", "ptr %shared", "ptr noalias %block"), blocking,
                attributes="noinline")
    w = read_words(b, "%block")
    row_panels, column_panels = b.ceil_div(w["rows"], blocking.tile_rows), b.ceil_div(w["channels"], blocking.tile_columns)
    row_blocks = b.ceil_div(row_panels, panels_together(blocking.tile_rows))
    column_blocks = b.ceil_div(column_panels, panels_together(blocking.tile_columns))
    per_part = b.mul(row_blocks, column_blocks)
    pieces = b.mul(b.mul(w["images"], w["tile_rows"]), b.ceil_div(w["tile_columns"], TILES))
    size = b.mul(b.mul(w["rows"], w["channels"]), form.taps**2)
    destination = b.select(b.compare("eq", w["splits"], 1), "%result", "%shared", "ptr")
    low, high = b.share(b.mul(per_part, w["splits"]), "%thread", "%threads")
    with b.loop(low, high) as task:
        part, rest = b.div(task, per_part), b.rem(task, per_part)
        row_low, row_high = depth_block(b, row_panels, row_blocks, b.rem(rest, row_blocks))
        column_low, column_high = depth_block(b, column_panels, column_blocks, b.div(rest, row_blocks))
        begin, end = depth_block(b, pieces, w["splits"], part)
        b.call(f"{form.prefix}_weight_task", "ptr %image", "ptr %gradient", "ptr %block", f"i64 {row_low}", f"i64 {row_high}",
               f"i64 {column_low}", f"i64 {column_high}", f"i64 {begin}", f"i64 {end}",
               f"ptr {b.at(destination, b.mul(part, size))}", "ptr %scratch")
    with b.when(b.compare("sgt", w["splits"], 1)):
        b.barrier("%barrier", "%threads")
        b.call("sum_splits", "i64 %thread", "i64 %threads", f"i64 {w['splits']}", f"i64 {size}", "ptr %shared", "ptr %result")
    return b.text()
