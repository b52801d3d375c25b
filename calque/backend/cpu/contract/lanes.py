"""Depthwise convolution of small planes: neighbouring channels are the lanes of a vector.

Where rows are shorter than a vector, padding rows and masking their ends costs more than the products. Here the planes of as many channels
as a vector has lanes are transposed: ``packed[row][column][lane]`` with zeros around the image. Every tap of every output pixel is then one
aligned vector, weights are vectors too, and no lane is wasted. Results are transposed back, whole planes at a time. In the weight gradient
x and g are transposed, and the sums of all taps stay in registers while the pixels go by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from calque.backend.cpu.contract.builder import Builder, Value, passed_on
from calque.backend.cpu.contract.conv_words import read_conv
from calque.backend.cpu.contract.finish import finish
from calque.backend.cpu.contract.pack import read_patch, transpose
from calque.backend.cpu.contract.target import Blocking
from calque.base.dataclass import dataclass

PACKED_BYTES = 24 << 10
"""Largest padded image of a block of channels: with its result it stays in the first-level cache."""
MOST_TAPS = 49
MOST_PIXELS = 1 << 12
PIXELS_AT_ONCE = 8
"""Output pixels of a tile: enough independent sums."""
MOST_SUMS = 9
"""Taps of the weight gradient whose sums stay in registers."""
TAPS_AT, INPUT_AT, PIXELS_AT = 0, 1 << 10, 1 << 15
"""In a thread's private memory: distances of the taps, of the pixels of the image, and of the patches of output pixels."""
WEIGHTS_AT, PACKED_AT, RESULT_AT, SUMS_AT = 1 << 16, 1 << 17, 1 << 18, 1 << 20
TILE_PARAMETERS = ("i64 %taps", "ptr noalias readonly %packed", "i64 %step", "ptr noalias readonly %table",
                   "ptr noalias readonly %weights", "ptr noalias %target")
DOT_PARAMETERS = ("i64 %pixels", "ptr noalias readonly %gradient", "ptr noalias readonly %packed", "ptr noalias readonly %places",
                  "ptr noalias readonly %table", "ptr noalias %sums")
RUN_PARAMETERS = ("ptr %source", "i64 %lane_step", "i64 %count", "i64 %length", "ptr %places", "ptr %target")
Words = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PaddedImage:
    """A padded image in pixels: the position of its first row and column in the image, its size, and the taps."""

    top: Value
    left: Value
    rows: Value
    columns: Value
    taps: Value


def layout_of(b: Builder, p: Words) -> PaddedImage:
    """The part of the zero-padded image that the patches of all output pixels cover."""
    spread = [b.mul(b.sub(p[f"tap_{axis}s"], 1), p[f"{axis}_dilation"]) for axis in ("row", "column")]
    top, left = (b.add(p[f"{axis}_offset"], b.min(s, 0)) for axis, s in zip(("row", "column"), spread, strict=True))
    rows, columns = (b.add(b.add(b.mul(b.sub(p[f"grid_{axis}s"], 1), p[f"{axis}_stride"]), b.max(s, b.sub(0, s))), 1)
                     for axis, s in zip(("row", "column"), spread, strict=True))
    return PaddedImage(top, left, rows, columns, b.mul(p["tap_rows"], p["tap_columns"]))


def takes_lanes(b: Builder, p: Words, groups: Value) -> str:
    """Whether planes are small and channels many, for one row and one channel per group."""
    layout, lanes, item = layout_of(b, p), b.blocking.lanes, b.blocking.item_bytes
    size, grid = b.mul(b.mul(layout.rows, layout.columns), lanes * item), b.mul(p["grid_rows"], p["grid_columns"])
    return b.both(b.compare("sle", p["grid_columns"], max(lanes, 8)), b.compare("eq", p["column_step"], 1),
                    b.compare("sge", groups, lanes), b.compare("sle", size, PACKED_BYTES),
                    b.compare("sle", layout.taps, MOST_TAPS), b.compare("sle", b.mul(p["height"], p["width"]), MOST_PIXELS),
                    b.compare("sge", b.min(p["height"], p["width"]), 1), b.compare("sge", grid, 1),
                    b.compare("sle", b.mul(grid, lanes * item), PACKED_BYTES))


def is_lanes(b: Builder, p: Words, w: Words) -> str:
    """Whether a convolution with few output channels takes this path."""
    pixels = b.mul(p["grid_rows"], p["grid_columns"])
    equal = [(w["rows"], 1), (w["channels"], 1), (w["row_upsampling"], 1), (w["column_upsampling"], 1), (w["result_column_step"], 1),
             (w["result_group_step"], pixels), (w["result_batch_step"], b.mul(w["groups"], pixels)), (w["result_offset"], 0)]
    return b.both(b.both(*[b.compare("eq", *pair) for pair in equal]), takes_lanes(b, p, w["groups"]))


def lanes_functions(blocking: Blocking) -> str:
    """Everything specific to this path."""
    tiles = [_tile(count, blocking) for count in range(1, PIXELS_AT_ONCE + 1)]
    dots = [_dots(count, blocking) for count in range(1, MOST_SUMS + 1)]
    choosers = [_choose("lanes_tile", PIXELS_AT_ONCE, TILE_PARAMETERS, blocking),
                _choose("lanes_dots", MOST_SUMS, DOT_PARAMETERS, blocking)]
    runs = [_pack_run(blocking, placed) for placed in (False, True)]
    rest = (make(blocking) for make in (_start, _pack, _write, _convolve, _gradient, _sums_out))
    return "".join([*tiles, *dots, *choosers, *runs, *rest])


def _choose(family: str, largest: int, parameters: tuple[str, ...], blocking: Blocking) -> str:
    """``family(count, ...)``: a jump table."""
    b = Builder(family, ("i64 %count", *parameters), blocking, attributes="noinline")
    b.jump_table("%count", [(n, f"count{n}", f"{family}_{n}") for n in range(1, largest + 1)], passed_on(parameters))
    return b.text()


def _tile(count: int, blocking: Blocking) -> str:
    """``target[pixel] = sum over taps of weights[tap] * packed[table[tap] + pixel * step]``, vectors of channels."""
    b = Builder(f"lanes_tile_{count}", TILE_PARAMETERS, blocking, attributes="noinline")
    names = [f"%s{pixel}" for pixel in range(count)]
    steps = [b.mul(pixel, "%step") for pixel in range(count)]
    with b.carrying("%taps", 1, [(b.vector, name, "zeroinitializer") for name in names]):
        source, weight = b.at("%packed", b.load_offset("%table", "%k")), b.load_vector(b.at("%weights", b.mul("%k", blocking.lanes)))
        for name, step in zip(names, steps, strict=True):
            b.emit(f"{name}.next = {b.product(weight, b.load_vector(b.at(source, step)), name)}")
    for pixel, name in enumerate(names):
        b.store_vector(name, b.at("%target", pixel * blocking.lanes))
    return b.text()


def _dots(count: int, blocking: Blocking) -> str:
    """``sums[tap] += sum over pixels of gradient[pixel] * packed[places[pixel] + table[tap]]``, vectors of channels."""
    b = Builder(f"lanes_dots_{count}", DOT_PARAMETERS, blocking, attributes="noinline")
    names = [f"%s{tap}" for tap in range(count)]
    taps = [b.load_offset("%table", tap) for tap in range(count)]
    starts = [b.load_vector(b.at("%sums", tap * blocking.lanes)) for tap in range(count)]
    with b.carrying("%pixels", 1, [(b.vector, *sums) for sums in zip(names, starts, strict=True)]):
        gradient = b.load_vector(b.at("%gradient", b.mul("%k", blocking.lanes)))
        source = b.at("%packed", b.load_offset("%places", "%k"))
        for name, tap in zip(names, taps, strict=True):
            b.emit(f"{name}.next = {b.product(gradient, b.load_vector(b.at(source, tap)), name)}")
    for index, name in enumerate(names):
        b.store_vector(name, b.at("%sums", index * blocking.lanes))
    return b.text()


def _start(blocking: Blocking) -> str:
    """The three tables, and a cleared image: what lies around the pixels stays zero."""
    b = Builder("lanes_start", ("ptr noalias %block", "ptr %private"), blocking, attributes="noinline")
    p, lanes = read_patch(b, "%block"), blocking.lanes
    layout = layout_of(b, p)
    packed = b.byte_at("%private", PACKED_AT)
    with b.loop(0, b.mul(b.mul(layout.rows, layout.columns), lanes), lanes) as place:
        b.store_vector("zeroinitializer", b.at(packed, place))

    def fill(at: int, rows: Value, columns: Value, place: tuple[tuple[Value, Value], tuple[Value, Value]]) -> None:
        """``table[row, column]``: pixel (row * step + start, ...) of the padded image, -1 outside of it."""
        entry, table = b.variable(0), b.byte_at("%private", at)
        with b.loop(0, rows) as row, b.loop(0, columns) as column:
            y, x = (b.add(b.mul(index, step), start) for index, (step, start) in zip((row, column), place, strict=True))
            inside = b.both(b.let(f"icmp ult i64 {y}, {layout.rows}", "c"), b.let(f"icmp ult i64 {x}, {layout.columns}", "c"))
            distance = b.select(inside, b.mul(b.add(b.mul(y, layout.columns), x), lanes), -1)
            here = b.read(entry)
            b.store_offset(distance, table, here)
            b.assign(entry, b.add(here, 1))

    bases = [b.max(b.mul(b.sub(1, p[f"tap_{axis}s"]), p[f"{axis}_dilation"]), 0) for axis in ("row", "column")]
    fill(TAPS_AT, p["tap_rows"], p["tap_columns"], ((p["row_dilation"], bases[0]), (p["column_dilation"], bases[1])))
    fill(INPUT_AT, p["height"], p["width"], ((1, b.sub(0, layout.top)), (1, b.sub(0, layout.left))))
    fill(PIXELS_AT, p["grid_rows"], p["grid_columns"], ((p["row_stride"], 0), (p["column_stride"], 0)))
    return b.text()


def _pack_run(blocking: Blocking, placed: bool) -> str:
    """``target[place of k][lane] = source[lane * lane_step + k]`` for k < length; lanes from ``count`` on repeat the last.

    Pixel k goes to ``places[k]``, or nowhere if that is below zero; without places it is pixel k of the target.
    """
    b = Builder("lanes_pack_placed" if placed else "lanes_pack_dense", RUN_PARAMETERS, blocking, attributes="noinline")
    lanes, last = blocking.lanes, b.sub("%count", 1)
    rows = [b.at("%source", b.mul(b.min(lane, last), "%lane_step")) for lane in range(lanes)]
    final = b.max(b.sub("%length", lanes), 0)

    def store(value: str, k: Value) -> None:
        if not placed:
            b.store_vector(value, b.at("%target", b.mul(k, lanes)))
            return
        place = b.load_offset("%places", k)
        with b.when(b.compare("sge", place, 0)):
            b.store_vector(value, b.at("%target", place))

    def whole(k: Value) -> None:
        for step, value in enumerate(transpose(b, [b.load_vector(b.at(row, k)) for row in rows])):
            store(value, b.add(k, step))

    def short() -> None:
        mask = b.lanes_between(0, "%length")
        for step, value in enumerate(transpose(b, [b.load_masked(row, mask) for row in rows])):
            with b.when(b.compare("sgt", "%length", step)):
                store(value, step)

    with b.loop(0, "%length", lanes) as start:  # the last square overlaps the one before
        b.cases((b.compare("sge", "%length", lanes), partial(whole, b.min(start, final))), default=short)
    return b.text()


def _pack(blocking: Blocking) -> str:
    """All rows of the planes of ``count`` channels; rows that follow each other are one run. Places may be null."""
    b = Builder("lanes_pack", ("ptr %source", "i64 %lane_step", "i64 %row_step", "i64 %rows", "i64 %columns", "i64 %count", "ptr %places",
                               "ptr %target"), blocking, attributes="noinline")
    joined = b.compare("eq", "%row_step", "%columns")
    runs, length = b.select(joined, 1, "%rows"), b.select(joined, b.mul("%rows", "%columns"), "%columns")
    dense = b.let("icmp eq ptr %places, null", "c")
    with b.loop(0, runs) as run:
        first = b.mul(run, length)
        operands = (f"ptr {b.at('%source', b.mul(run, '%row_step'))}", "i64 %lane_step", "i64 %count", f"i64 {length}")
        target = b.at("%target", b.mul(first, blocking.lanes))
        placed = (f"ptr {b.byte_at('%places', b.mul(first, 4))}", "ptr %target")
        b.cases((dense, partial(b.call, "lanes_pack_dense", *operands, "ptr null", f"ptr {target}")),
                default=partial(b.call, "lanes_pack_placed", *operands, *placed))
    return b.text()


def _write(blocking: Blocking) -> str:
    """``target[lane * pixels + k] = source[k][lane]`` for lane < count."""
    b = Builder("lanes_write", ("ptr noalias %source", "i64 %pixels", "i64 %count", "ptr noalias %target"), blocking, attributes="noinline")
    lanes = blocking.lanes
    final = b.max(b.sub("%pixels", lanes), 0)
    mask = b.lanes_between(0, b.min("%pixels", lanes))
    with b.loop(0, "%pixels", lanes) as start:
        k = b.min(start, final)
        block = transpose(b, [b.load_vector(b.at("%source", b.mul(b.add(k, step), lanes))) for step in range(lanes)])

        def each(whole: bool, k: Value = k, block: list[str] = block) -> None:
            for lane, value in enumerate(block):
                target = b.at("%target", b.add(b.mul(lane, "%pixels"), k))
                if whole:
                    b.store_vector(value, target)
                else:
                    with b.when(b.compare("sgt", "%count", lane)):
                        b.store_masked(value, target, mask)

        b.cases((b.both(b.compare("sge", "%count", lanes), b.compare("sge", "%pixels", lanes)), lambda: each(True)),
                default=lambda: each(False))
    return b.text()


def _convolve(blocking: Blocking) -> str:
    """This thread's share of (block of channels, image)."""
    b = Builder("lanes_convolve", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %weights", "ptr %result",
                                   "ptr noalias %block"), blocking, attributes="noinline")
    p, w, lanes = read_patch(b, "%block"), read_conv(b, "%block"), blocking.lanes
    layout, pixels, width = layout_of(b, p), b.mul(p["grid_rows"], p["grid_columns"]), p["grid_columns"]
    b.call("lanes_start", "ptr %block", "ptr %private")
    packed, result, weights = (b.byte_at("%private", at) for at in (PACKED_AT, RESULT_AT, WEIGHTS_AT))
    low, high = b.share(b.mul(b.ceil_div(w["groups"], lanes), w["images"]), "%thread", "%threads")
    runs = b.ceil_div(width, PIXELS_AT_ONCE)
    step, line = b.mul(p["column_stride"], lanes), b.mul(b.mul(p["row_stride"], layout.columns), lanes)
    with b.loop(low, high) as unit:
        group, image = b.mul(b.div(unit, w["images"]), lanes), b.rem(unit, w["images"])
        count = b.min(b.sub(w["groups"], group), lanes)
        with b.when(b.either(b.compare("eq", image, 0), b.compare("eq", unit, low))):
            b.call("lanes_pack", f"ptr {b.at('%weights', b.mul(group, layout.taps))}", f"i64 {layout.taps}", f"i64 {layout.taps}", "i64 1",
                   f"i64 {layout.taps}", f"i64 {count}", "ptr null", f"ptr {weights}")
        source = b.at("%image", b.dot((image, p["batch_step"]), (group, w["image_group_step"])))
        b.call("lanes_pack", f"ptr {source}", f"i64 {w['image_group_step']}", f"i64 {p['row_step']}", f"i64 {p['height']}",
               f"i64 {p['width']}", f"i64 {count}", f"ptr {b.byte_at('%private', INPUT_AT)}", f"ptr {packed}")
        with b.loop(0, p["grid_rows"]) as row, b.loop(0, runs) as run:
            first = b.div(b.mul(width, run), runs)
            length = b.sub(b.div(b.mul(width, b.add(run, 1)), runs), first)
            b.call("lanes_tile", f"i64 {length}", f"i64 {layout.taps}", f"ptr {b.at(packed, b.dot((row, line), (first, step)))}",
                   f"i64 {step}", f"ptr {b.byte_at('%private', TAPS_AT)}", f"ptr {weights}",
                   f"ptr {b.at(result, b.mul(b.add(b.mul(row, width), first), lanes))}")
        target = b.at("%result", b.mul(b.add(b.mul(image, w["groups"]), group), pixels))
        b.call("lanes_write", f"ptr {result}", f"i64 {pixels}", f"i64 {count}", f"ptr {target}")
        finish(b, "%private", group, count, 0, pixels, image)
    return b.text()


def _gradient(blocking: Blocking) -> str:
    """The weights of the channels from ``group`` on, from images begin..end: ``sums[tap][lane]``."""
    b = Builder("lanes_gradient", ("ptr %private", "ptr %image", "i64 %image_step", "ptr %gradient", "i64 %gradient_batch",
                                   "i64 %gradient_channel", "i64 %gradient_row", "i64 %begin", "i64 %end", "i64 %count",
                                   "ptr noalias %block"), blocking, attributes="noinline")
    p, lanes = read_patch(b, "%block"), blocking.lanes
    layout, pixels = layout_of(b, p), b.mul(p["grid_rows"], p["grid_columns"])
    packed, gradients, sums = (b.byte_at("%private", at) for at in (PACKED_AT, RESULT_AT, SUMS_AT))
    with b.loop(0, b.mul(layout.taps, lanes), lanes) as place:
        b.store_vector("zeroinitializer", b.at(sums, place))
    with b.loop("%begin", "%end") as n:
        b.call("lanes_pack", f"ptr {b.at('%image', b.mul(n, p['batch_step']))}", "i64 %image_step", f"i64 {p['row_step']}",
               f"i64 {p['height']}", f"i64 {p['width']}", "i64 %count", f"ptr {b.byte_at('%private', INPUT_AT)}", f"ptr {packed}")
        b.call("lanes_pack", f"ptr {b.at('%gradient', b.mul(n, '%gradient_batch'))}", "i64 %gradient_channel", "i64 %gradient_row",
               f"i64 {p['grid_rows']}", f"i64 {p['grid_columns']}", "i64 %count", "ptr null", f"ptr {gradients}")
        with b.loop(0, layout.taps, MOST_SUMS) as first:
            b.call("lanes_dots", f"i64 {b.min(b.sub(layout.taps, first), MOST_SUMS)}", f"i64 {pixels}", f"ptr {gradients}", f"ptr {packed}",
                   f"ptr {b.byte_at('%private', PIXELS_AT)}", f"ptr {b.byte_at('%private', b.add(b.mul(first, 4), TAPS_AT))}",
                   f"ptr {b.at(sums, b.mul(first, lanes))}")
    return b.text()


def _sums_out(blocking: Blocking) -> str:
    """``target[lane][tap] = sums[tap][lane]`` for lane < count."""
    b = Builder("lanes_sums_out", ("ptr %private", "i64 %taps", "i64 %count", "ptr %target"), blocking, attributes="noinline")
    sums = b.byte_at("%private", SUMS_AT)
    with b.loop(0, "%count") as lane, b.loop(0, "%taps") as tap:
        b.store(b.load(b.at(sums, b.add(b.mul(tap, blocking.lanes), lane))), b.at("%target", b.add(b.mul(lane, "%taps"), tap)))
    return b.text()
