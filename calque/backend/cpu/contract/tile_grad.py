"""Weight gradient without patches: ``dw[o, row] = sum over pixels of x[pixel, row] * g[pixel, o]``, o in vectors.

A block of pixels is packed once for many taps: g as pixels x channels, x padded with zeros either as pixels x channels
(a tile is one tap and neighbouring channels) or, where channels are few, as planes (a tile is one channel and the taps
of some kernel rows). Sums over a block stay in registers and are added to ``partial[split][group][panel][row][2 vectors]``
with row = (channel, tap); at the end the splits, a function of the sizes alone, are added in order and turned into dw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial

from calque.backend.cpu.contract.builder import Builder, ParameterBlock, Value
from calque.backend.cpu.contract.depth import depth_block, panel_rows
from calque.backend.cpu.contract.pack import clear_second_vector, valid_lanes
from calque.backend.cpu.contract.pairs import ALONE
from calque.backend.cpu.contract.target import CONVOLUTION_BYTES, Blocking
from calque.backend.cpu.contract.tiles import lines_at_once, tile_array, tile_size
from calque.base.dataclass import dataclass

TABLE_BYTES = 64 << 10
COLUMN_UNIT = 32
"""Widest panel of any target: blocks of output channels are multiples of it."""
CHANNEL_UNIT = 16
FEW_CHANNELS = 8
PIXELS = 256
"""Wanted pixels per block: their panel of g takes at most 32 KiB of the first-level cache."""
LEAST_PIXELS = 256
BLOCK_ELEMENTS = 96 << 10
ROOM = (CONVOLUTION_BYTES - TABLE_BYTES) // 8 - 1024
TASKS = 16
Words = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TileGradWords(ParameterBlock):
    """The parameter block behind the mark (steps in elements; ``planes``: whether x is packed as planes).

    Of bfloat16 an image is two, half of a step apart; the second half of the last one is missing where ``single``.
    """

    groups: int
    rows: int
    channels: int
    images: int
    image_batch: int
    image_channel: int
    image_row: int
    image_column: int
    gradient_batch: int
    gradient_channel: int
    gradient_row: int
    gradient_column: int
    height: int
    width: int
    grid_rows: int
    grid_columns: int
    row_stride: int
    column_stride: int
    row_offset: int
    column_offset: int
    row_dilation: int
    column_dilation: int
    tap_rows: int
    tap_columns: int
    planes: int
    block_images: int
    block_rows: int
    packed_rows: int
    packed_columns: int
    row_block: int
    channel_block: int
    splits: int
    single: int = 0

    def partial_elements(self, blocking: Blocking) -> int:
        """Size of the partial sums."""
        columns = -(-self.rows // blocking.tile_columns) * blocking.tile_columns
        return self.splits * self.groups * columns * self.channels * self.tap_rows * self.tap_columns


WORDS = tuple(field.name for field in fields(TileGradWords))


def planned(sizes: dict[str, int], pixels: int = PIXELS, least: int = LEAST_PIXELS, single: int = 0) -> TileGradWords | None:
    """Blocks of about so many pixels for these sizes (every field in front of ``planes``), or None where this path does not pay
    (with fewer than ``least`` pixels of all images)."""
    rows, channels, taps = sizes["rows"], sizes["channels"], sizes["tap_rows"] * sizes["tap_columns"]
    grid = sizes["grid_rows"] * sizes["grid_columns"]
    waste = -rows % COLUMN_UNIT
    planes = channels < FEW_CHANNELS
    if 4 * waste > rows or grid * sizes["images"] < least or (planes and sizes["column_dilation"] != 1):
        return None
    if planes and sizes["tap_columns"] < 3:
        return None
    # One tap gives every packed element fewer products, so its blocks are larger.
    row_block, channel_block = (256, 128) if taps == 1 else (128, 64)
    row_block, channel_block = min(row_block, rows + waste), min(channel_block, channels)
    span_columns = (sizes["grid_columns"] - 1) * sizes["column_stride"] + (sizes["tap_columns"] - 1) * sizes["column_dilation"] + 1
    depth = channel_block if planes else -(-channel_block // CHANNEL_UNIT) * CHANNEL_UNIT

    def elements(images: int, lines: int) -> tuple[int, int]:
        span_rows = (lines - 1) * sizes["row_stride"] + (sizes["tap_rows"] - 1) * sizes["row_dilation"] + 1
        return images * span_rows * span_columns * depth + images * lines * sizes["grid_columns"] * row_block, span_rows

    images, lines = max(1, min(sizes["images"], pixels // grid)), sizes["grid_rows"]
    while images > 1 and elements(images, lines)[0] > BLOCK_ELEMENTS:
        images -= 1
    while lines > 1 and (elements(images, lines)[0] > BLOCK_ELEMENTS or lines * sizes["grid_columns"] > 2 * pixels):
        lines -= 1
    lines = -(-sizes["grid_rows"] // -(-sizes["grid_rows"] // lines))
    needed, span_rows = elements(images, lines)
    if needed > ROOM or 4 * images * lines * sizes["grid_columns"] > TABLE_BYTES:
        return None
    blocks = -(-sizes["images"] // images) * -(-sizes["grid_rows"] // lines)
    pieces = sizes["groups"] * -(-rows // row_block) * -(-channels // channel_block)
    splits = max(1, min(-(-TASKS // pieces), blocks))
    return TileGradWords(**sizes, planes=int(planes), block_images=images, block_rows=lines, packed_rows=span_rows,
                         packed_columns=span_columns, row_block=row_block, channel_block=channel_block, splits=splits, single=single)


def tile_grad_functions(blocking: Blocking) -> str:
    """``tile_grad`` and everything specific to it."""
    return "".join(make(blocking) for make in (_pack_pixels, _clear, _pack_image, _pack_planes, _pack_gradient, _table,
                                               *(() if blocking.narrow else (_fetch,)), _channel_tiles, _plane_tiles, _task, _finish, _run))


def _second(blocking: Blocking) -> tuple[str, ...]:
    """One more parameter of everything that packs bfloat16: how far behind an image the second one lies, or `ALONE`."""
    return ("i64 %second",) if blocking.pairs else ()


def _panel(b: Builder, source: str, steps: tuple[Value, Value], count: Value, depth: Value, target: str, width: Value) -> None:
    """``target[k * width + lane]`` for ``count`` lanes and ``depth`` values of k, ``steps`` apart in the source."""
    lane, along = steps
    if b.blocking.pairs:
        whole = b.select(b.compare("ne", "%second", ALONE), depth, 0)
        b.call("pair_panel", f"ptr {source}", "i64 %second", f"i64 {lane}", f"i64 {along}", f"i64 {count}", f"i64 {whole}", f"i64 {depth}",
               f"ptr {target}", f"i64 {width}")
    else:
        b.call("pack_panel", f"ptr {source}", f"i64 {lane}", f"i64 {along}", f"i64 {count}", f"i64 {depth}", f"ptr {target}", f"i64 {width}")


def _read(b: Builder) -> dict[str, str]:
    return {name: b.word("%block", index) for index, name in enumerate(WORDS)}


def _channel_step(b: Builder, w: Words) -> Value:
    """Elements of one packed pixel."""
    return b.mul(b.ceil_div(w["channel_block"], CHANNEL_UNIT), CHANNEL_UNIT)


def _plane(b: Builder, w: Words) -> Value:
    return b.mul(w["packed_rows"], w["packed_columns"])


def _pack_pixels(blocking: Blocking) -> str:
    """``target[(row, column) * width + lane]`` of a strided image; rows that follow each other are one long row."""
    b = Builder("pack_pixels", ("ptr %source", "i64 %lane_step", "i64 %row_step", "i64 %column_step", "i64 %rows",
                                "i64 %columns", "i64 %count", "ptr %target", "i64 %width", *_second(blocking)), blocking,
                attributes="noinline")

    def pack(source: str, depth: Value, target: str) -> None:
        _panel(b, source, ("%lane_step", "%column_step"), "%count", depth, target, "%width")

    def each_row() -> None:
        with b.loop(0, "%rows") as row:
            pack(b.operand_at("%source", b.mul(row, "%row_step")), "%columns", b.at("%target", b.mul(b.mul(row, "%columns"), "%width")))

    joined = b.compare("eq", "%row_step", b.mul("%columns", "%column_step"))
    b.cases((joined, lambda: pack("%source", b.mul("%rows", "%columns"), "%target")), default=each_row)
    return b.text()


def _clear(blocking: Blocking) -> str:
    """Zeros, whole vectors: ``count`` is a multiple of the vector width."""
    b = Builder("clear_elements", ("ptr %target", "i64 %count"), blocking, attributes="noinline")
    with b.loop(0, "%count", blocking.lanes) as index:
        b.store_vector("zeroinitializer", b.at("%target", index))
    return b.text()


PACK_PARAMETERS = ("ptr %image", "ptr noalias %block", "i64 %i", "i64 %count", "ptr %target")


def _pack_image(blocking: Blocking) -> str:
    """The rows of one image that output rows i.. meet, as pixels x ``count`` channels, zero outside of the image."""
    b = Builder("grad_pack_image", (*PACK_PARAMETERS, *_second(blocking)), blocking, attributes="noinline")
    w = _read(b)
    step, columns = _channel_step(b, w), w["packed_columns"]
    line = b.mul(columns, step)
    top = b.add(b.mul("%i", w["row_stride"]), w["row_offset"])
    low = b.clamp(b.sub(0, w["column_offset"]), 0, columns)
    high = b.max(b.min(b.sub(w["width"], w["column_offset"]), columns), low)
    inside = b.both(b.compare("sge", top, 0), b.compare("sle", b.add(top, w["packed_rows"]), w["height"]))
    whole = b.both(inside, b.both(b.compare("eq", w["column_offset"], 0), b.compare("eq", columns, w["width"])))

    def at_once() -> None:
        b.call("pack_pixels", f"ptr {b.operand_at('%image', b.mul(top, w['image_row']))}", f"i64 {w['image_channel']}",
               f"i64 {w['image_row']}", f"i64 {w['image_column']}", f"i64 {w['packed_rows']}", f"i64 {columns}",
               "i64 %count", "ptr %target", f"i64 {step}", *_second(blocking))

    def one_row(y: Value, target: str) -> None:
        b.call("clear_elements", f"ptr {target}", f"i64 {b.mul(low, step)}")
        source = b.operand_at("%image", b.dot((y, w["image_row"]), (b.add(low, w["column_offset"]), w["image_column"])))
        _panel(b, source, (w["image_channel"], w["image_column"]), "%count", b.sub(high, low), b.at(target, b.mul(low, step)), step)
        b.call("clear_elements", f"ptr {b.at(target, b.mul(high, step))}", f"i64 {b.mul(b.sub(columns, high), step)}")

    def by_rows() -> None:
        with b.loop(0, w["packed_rows"]) as row:
            y, target = b.add(top, row), b.at("%target", b.mul(row, line))
            exists = b.both(b.let(f"icmp ult i64 {y}, {w['height']}", "c"), b.compare("sgt", high, low))
            b.cases((exists, partial(one_row, y, target)), default=_later(b, "clear_elements", (f"ptr {target}", f"i64 {line}")))

    b.cases((whole, at_once), default=by_rows)
    return b.text()


def _pack_planes(blocking: Blocking) -> str:
    """The same rows as planes of one channel each."""
    b = Builder("grad_pack_planes", (*PACK_PARAMETERS, *_second(blocking)), blocking, attributes="noinline")
    w, lanes = _read(b), blocking.lanes
    top, columns = b.add(b.mul("%i", w["row_stride"]), w["row_offset"]), w["packed_columns"]
    with b.loop(0, columns, lanes) as column:
        length, x0 = b.min(b.sub(columns, column), lanes), b.add(column, w["column_offset"])
        low, high = valid_lanes(b, x0, 1, w["width"], length)
        with b.loop(0, w["packed_rows"]) as row:
            y = b.add(top, row)
            end = b.select(b.let(f"icmp ult i64 {y}, {w['height']}", "c"), high, low)
            source = b.operand_at("%image", b.dot((y, w["image_row"]), (x0, w["image_column"])))
            target = b.at("%target", b.add(b.mul(row, columns), column))
            b.call("pair_rows" if blocking.pairs else "copy_channels", f"ptr {source}", *_second(blocking), f"i64 {w['image_channel']}",
                   f"i64 {w['image_column']}", f"i64 {low}", f"i64 {end}", f"ptr {target}", f"i64 {_plane(b, w)}", "i64 %count", f"i64 {length}")
    return b.text()


def _pack_gradient(blocking: Blocking) -> str:
    """``rows`` output rows of one image of g as panels: ``target[panel][pixel][2 vectors of channels]``."""
    b = Builder("grad_pack_gradient", ("ptr %gradient", "ptr noalias %block", "i64 %rows", "i64 %count", "ptr %target",
                                       "i64 %panel_step", *_second(blocking)), blocking, attributes="noinline")
    w, width = _read(b), blocking.tile_columns
    with b.loop(0, "%count", width) as first:
        target, count = b.at("%target", b.mul(b.div(first, width), "%panel_step")), b.min(b.sub("%count", first), width)
        b.call("pack_pixels", f"ptr {b.operand_at('%gradient', b.mul(first, w['gradient_channel']))}", f"i64 {w['gradient_channel']}",
               f"i64 {w['gradient_row']}", f"i64 {w['gradient_column']}", "i64 %rows", f"i64 {w['grid_columns']}", f"i64 {count}",
               f"ptr {target}", f"i64 {width}", *_second(blocking))
        if not blocking.narrow:
            clear_second_vector(b, target, b.mul("%rows", w["grid_columns"]), count)
    return b.text()


def _table(blocking: Blocking) -> str:
    """Where the patch of every output pixel of a block begins."""
    b = Builder("grad_table", ("ptr noalias %block", "ptr %table"), blocking, attributes="noinline")
    w = _read(b)
    planes = b.compare("eq", w["planes"], 1)
    pixel = b.select(planes, 1, _channel_step(b, w))
    image = b.mul(_plane(b, w), b.select(planes, w["channel_block"], pixel))
    line = b.mul(b.mul(w["packed_columns"], pixel), w["row_stride"])
    step = b.mul(pixel, w["column_stride"])
    entry = b.variable(0)
    with b.loop(0, w["block_images"]) as n, b.loop(0, w["block_rows"]) as i, b.loop(0, w["grid_columns"]) as j:
        here, place = b.read(entry), b.dot((n, image), (i, line), (j, step))
        b.store_offset(place, "%table", here)
        b.assign(entry, b.add(here, 1))
    return b.text()


TILE_PARAMETERS = ("i64 %pixels", "i64 %channels", "ptr %packed", "ptr %table", "ptr %panel", "ptr %partial",
                   "ptr noalias %block", "i1 %accumulate")
FETCH_PARAMETERS = ("ptr %next_image", "ptr %next_gradient", "i64 %rows", "i64 %turn", "i64 %turns")


def _fetch(blocking: Blocking) -> str:
    """Ask for a share of what the next block packs; channels are planes, which hardware prefetchers do not follow from one to the next."""
    b = Builder("grad_fetch", (*FETCH_PARAMETERS, "i64 %channels", "ptr noalias %block"), blocking, attributes="noinline")
    w = _read(b)
    whole = b.both(b.compare("eq", w["image_column"], 1), b.compare("eq", w["gradient_column"], 1))
    with b.when(whole):
        for kind, count, lines in (("image", "%channels", w["packed_rows"]), ("gradient", "%rows", w["block_rows"])):
            low, high = b.share(count, "%turn", "%turns")
            b.call("plane_fetch", f"ptr %next_{kind}", f"i64 {w[f'{kind}_channel']}", f"i64 {low}", f"i64 {high}", f"i64 {w[f'{kind}_batch']}",
                   f"i64 {w['block_images']}", f"i64 {b.mul(lines, w[f'{kind}_row'])}")
    return b.text()


def _channel_tiles(blocking: Blocking) -> str:
    """All taps of a block of channels for one panel of g."""
    b = Builder("grad_channel_tiles", (*TILE_PARAMETERS, *FETCH_PARAMETERS), blocking, attributes="noinline")
    w, width = _read(b), blocking.tile_columns
    step, taps = _channel_step(b, w), b.mul(w["tap_rows"], w["tap_columns"])
    panels = b.ceil_div("%channels", tile_size(blocking))
    with b.loop(0, w["tap_rows"]) as u, b.loop(0, w["tap_columns"]) as v, b.loop(0, panels) as panel:
        first, count = panel_rows(b, "%channels", panels, panel)
        pixel = b.add(b.mul(b.mul(u, w["row_dilation"]), w["packed_columns"]), b.mul(v, w["column_dilation"]))
        row = b.dot((first, taps), (u, w["tap_columns"]), (v, 1))
        if not blocking.narrow:
            tile = b.add(b.mul(b.add(b.mul(b.add(b.mul("%turn", w["tap_rows"]), u), w["tap_columns"]), v), panels), panel)
            b.call("grad_fetch", "ptr %next_image", "ptr %next_gradient", "i64 %rows", f"i64 {tile}", f"i64 {b.mul('%turns', b.mul(taps, panels))}",
                   "i64 %channels", "ptr %block")
        b.call("table_tile", "i64 1", f"i64 {count}", "i64 %pixels", f"ptr {b.at('%packed', b.dot((pixel, step), (first, 1)))}",
               "i64 0", "ptr %table", "ptr %panel", f"ptr {b.at('%partial', b.mul(row, width))}", f"i64 {b.mul(taps, width)}",
               "i1 %accumulate")
    return b.text()


def _plane_tiles(blocking: Blocking) -> str:
    """All channels for one panel of g, some kernel rows (or a part of one) at a time."""
    b = Builder("grad_plane_tiles", TILE_PARAMETERS, blocking, attributes="noinline")
    w, width = _read(b), blocking.tile_columns
    taps, lines = b.mul(w["tap_rows"], w["tap_columns"]), lines_at_once(b, w["tap_columns"])
    groups, runs = b.ceil_div(w["tap_rows"], lines), b.ceil_div(w["tap_columns"], tile_size(blocking))
    line_step = b.mul(w["row_dilation"], w["packed_columns"])
    with b.loop(0, "%channels") as channel, b.loop(0, groups) as group, b.loop(0, runs) as run:
        u, height = panel_rows(b, w["tap_rows"], groups, group)
        v, length = panel_rows(b, w["tap_columns"], runs, run)
        source = b.at("%packed", b.dot((channel, _plane(b, w)), (u, line_step), (v, 1)))
        row = b.dot((channel, taps), (u, w["tap_columns"]), (v, 1))
        b.call("table_tile", f"i64 {height}", f"i64 {length}", "i64 %pixels", f"ptr {source}", f"i64 {line_step}",
               "ptr %table", "ptr %panel", f"ptr {b.at('%partial', b.mul(row, width))}", f"i64 {width}", "i1 %accumulate")
    return b.text()


def _task(blocking: Blocking) -> str:
    """Blocks of pixels [begin, end) of one block of channels and one of output channels."""
    b = Builder("grad_task", ("ptr %private", "ptr %image", "i64 %channels", "ptr %gradient", "i64 %rows", "i64 %begin",
                              "i64 %end", "ptr %partial", "ptr noalias %block"), blocking, attributes="noinline")
    w, width = _read(b), blocking.tile_columns
    planes = b.compare("eq", w["planes"], 1)
    depth = b.select(planes, w["channel_block"], _channel_step(b, w))
    image_size, line = b.mul(_plane(b, w), depth), w["grid_columns"]
    packed = b.byte_at("%private", TABLE_BYTES)
    # Planes are stored under masks, but what is read behind them stays inside of the scratch.
    panels = b.at(packed, b.mul(b.add(b.div(b.mul(w["block_images"], image_size), CHANNEL_UNIT), 1), CHANNEL_UNIT))
    panel_size = b.mul(b.mul(b.mul(w["block_images"], w["block_rows"]), line), width)
    partial_step = b.mul(b.mul(w["channels"], b.mul(w["tap_rows"], w["tap_columns"])), width)
    row_blocks = b.ceil_div(w["grid_rows"], w["block_rows"])
    with b.loop("%begin", "%end") as index:
        n, i = b.mul(b.div(index, row_blocks), w["block_images"]), b.mul(b.rem(index, row_blocks), w["block_rows"])
        images = b.min(b.sub(w["images"], n), w["block_images"])
        lines = b.min(b.sub(w["grid_rows"], i), w["block_rows"])
        pixels = b.mul(lines, line)
        with b.loop(0, images) as image:
            source = b.operand_at("%image", b.mul(b.add(n, image), w["image_batch"]))
            arguments = (f"ptr {source}", "ptr %block", f"i64 {i}", "i64 %channels",
                         f"ptr {b.at(packed, b.mul(image, image_size))}", *_behind(b, w, b.add(n, image), "image_batch"))
            b.cases((planes, _later(b, "grad_pack_planes", arguments)), default=_later(b, "grad_pack_image", arguments))
            gradient = b.operand_at("%gradient", b.dot((b.add(n, image), w["gradient_batch"]), (i, w["gradient_row"])))
            b.call("grad_pack_gradient", f"ptr {gradient}", "ptr %block", f"i64 {lines}", "i64 %rows",
                   f"ptr {b.at(panels, b.mul(b.mul(image, pixels), width))}", f"i64 {panel_size}",
                   *_behind(b, w, b.add(n, image), "gradient_batch"))
        following = b.add(index, 1)
        n, i = b.mul(b.div(following, row_blocks), w["block_images"]), b.mul(b.rem(following, row_blocks), w["block_rows"])
        top = b.add(b.mul(i, w["row_stride"]), w["row_offset"])
        next_image = b.operand_at("%image", b.dot((n, w["image_batch"]), (top, w["image_row"])))
        next_gradient = b.operand_at("%gradient", b.dot((n, w["gradient_batch"]), (i, w["gradient_row"])))
        gradient_panels = b.ceil_div("%rows", width)
        early = b.div(gradient_panels, 2)
        with b.loop(0, gradient_panels) as panel:
            late = b.compare("sge", panel, early)
            fetched = (f"ptr {next_image}", f"ptr {next_gradient}", "i64 %rows", f"i64 {b.select(late, b.sub(panel, early), 0)}",
                       f"i64 {b.select(late, b.sub(gradient_panels, early), 1 << 40)}")
            operands = (f"i64 {b.mul(images, pixels)}", "i64 %channels", f"ptr {packed}", "ptr %private",
                        f"ptr {b.at(panels, b.mul(panel, panel_size))}", f"ptr {b.at('%partial', b.mul(panel, partial_step))}",
                        "ptr %block", f"i1 {b.compare('sgt', index, '%begin')}")
            b.cases((planes, _later(b, "grad_plane_tiles", operands)), default=_later(b, "grad_channel_tiles", (*operands, *fetched)))
    return b.text()


def _behind(b: Builder, w: Words, image: Value, step: str) -> tuple[str, ...]:
    """How far behind an image its second half lies."""
    if not b.blocking.pairs:
        return ()
    missing = b.both(b.compare("eq", w["single"], 1), b.compare("eq", b.add(image, 1), w["images"]))
    return (f"i64 {b.select(missing, ALONE, b.div(w[step], 2))}",)


def _later(b: Builder, function: str, arguments: tuple[str, ...]) -> Callable[[], None]:
    return lambda: b.call(function, *arguments)


def _finish(blocking: Blocking) -> str:
    """This thread's share of dw: the splits added in order, a square of a panel at a time, and turned."""
    b = Builder("grad_finish", ("i64 %thread", "i64 %threads", "ptr %partial", "ptr %result", "ptr noalias %block"), blocking,
                attributes="noinline")
    w, width, lanes = _read(b), blocking.tile_columns, blocking.lanes
    depth = b.mul(w["channels"], b.mul(w["tap_rows"], w["tap_columns"]))
    panels, parts = b.ceil_div(w["rows"], width), b.ceil_div(depth, lanes)
    split_size = b.mul(b.mul(b.mul(panels, depth), width), w["groups"])
    tile = tile_array(b)
    low, high = b.share(b.mul(b.mul(panels, w["groups"]), parts), "%thread", "%threads")
    with b.loop(low, high) as unit:
        rest, first = b.div(unit, parts), b.mul(b.rem(unit, parts), lanes)
        group, panel = b.div(rest, panels), b.rem(rest, panels)
        count = b.min(b.sub(depth, first), lanes)
        source = b.at("%partial", b.mul(b.add(b.mul(rest, depth), first), width))
        with b.loop(0, b.mul(count, width), lanes) as place:
            target = b.at(tile, place)
            b.store_vector(b.load_vector(b.at(source, place)), target)
            with b.loop(1, w["splits"]) as split:
                part = b.load_vector(b.at(source, b.add(b.mul(split, split_size), place)))
                b.store_vector(b.op("fadd", b.load_vector(target), part), target)
        row = b.mul(panel, width)
        corner = b.dot((b.add(b.mul(group, w["rows"]), row), depth), (first, 1))
        b.call("tile_out", f"ptr {tile}", "i64 1", f"i64 {count}", f"i64 {b.min(b.sub(w['rows'], row), width)}",
               f"ptr {b.operand_at('%result', corner)}", f"i64 {depth}", "i64 0", "i64 1")
    return b.text()


def _run(blocking: Blocking) -> str:
    """This thread's share of (split, group, block of output channels, block of channels), then of the result."""
    b = Builder("tile_grad", ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %private", "ptr %image", "ptr %gradient",
                              "ptr %result", "ptr %partial", "ptr noalias %block"), blocking, attributes="noinline")
    w, width = _read(b), blocking.tile_columns
    depth = b.mul(w["channels"], b.mul(w["tap_rows"], w["tap_columns"]))
    taps, panels = b.mul(w["tap_rows"], w["tap_columns"]), b.ceil_div(w["rows"], width)
    row_blocks, channel_blocks = b.ceil_div(w["rows"], w["row_block"]), b.ceil_div(w["channels"], w["channel_block"])
    blocks = b.mul(b.ceil_div(w["images"], w["block_images"]), b.ceil_div(w["grid_rows"], w["block_rows"]))
    b.call("grad_table", "ptr %block", "ptr %private")
    low, high = b.share(b.mul(b.mul(b.mul(row_blocks, channel_blocks), w["groups"]), w["splits"]), "%thread", "%threads")
    with b.loop(low, high) as task:
        channel, rest = b.mul(b.rem(task, channel_blocks), w["channel_block"]), b.div(task, channel_blocks)
        row, rest = b.mul(b.rem(rest, row_blocks), w["row_block"]), b.div(rest, row_blocks)
        group, split = b.rem(rest, w["groups"]), b.div(rest, w["groups"])
        begin, end = depth_block(b, blocks, w["splits"], split)
        image = b.operand_at("%image", b.mul(b.add(b.mul(group, w["channels"]), channel), w["image_channel"]))
        gradient = b.operand_at("%gradient", b.mul(b.add(b.mul(group, w["rows"]), row), w["gradient_channel"]))
        panel = b.add(b.mul(rest, panels), b.div(row, width))
        place = b.mul(b.dot((panel, depth), (channel, taps)), width)
        b.call("grad_task", "ptr %private", f"ptr {image}", f"i64 {b.min(b.sub(w['channels'], channel), w['channel_block'])}",
               f"ptr {gradient}", f"i64 {b.min(b.sub(w['rows'], row), w['row_block'])}", f"i64 {begin}", f"i64 {end}",
               f"ptr {b.at('%partial', place)}", "ptr %block")
    b.barrier("%barrier", "%threads")
    b.call("grad_finish", "i64 %thread", "i64 %threads", "ptr %partial", "ptr %result", "ptr %block")
    return b.text()
