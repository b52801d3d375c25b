"""Input gradient of a convolution with stride 2: all four residue classes of a block of pixels together.

Each class (even or odd rows, even or odd columns of x) is a convolution of g with some of the taps, as in :mod:`direct`: pixels of g are
broadcast from one padded copy, which all classes share here, and channels of x are vectors. Tiles of even and odd columns are turned and
interleaved on their way into dx, so that whole runs of a row are written instead of every second element.
"""

from __future__ import annotations

from dataclasses import fields

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.depth import packed_depth, panel_rows
from calque.backend.cpu.contract.pack import transpose
from calque.backend.cpu.contract.target import SCRATCH_BYTES, Blocking
from calque.backend.cpu.contract.tiles import bias_parameter, lines_at_once, tile_size
from calque.base.dataclass import dataclass

IMAGE_BYTES = 256 << 10
"""Wanted size of the padded copy of a block of rows of g."""
TABLE_BYTES = 256 << 10
MOST_TAPS = 49
LEAST_DEPTH = 64
LEAST_ROWS = 26
LEAST_COLUMNS = 4
COLUMN_UNIT = 32
"""Widest panel of any target."""
ROOM = (SCRATCH_BYTES - TABLE_BYTES) // 8 - 1024
UNITS_PER_THREAD = 4
PREFETCH_CHANNELS = 3
RESIDUE = ("first", "step", "taps", "place", "dilation")
"""Of the taps of a residue: first tap, tap step, their number, position in the padded copy of the first one and its change with each tap."""


@dataclass(frozen=True, slots=True)
class JointWords:
    """The parameter block behind the mark (steps in elements), followed by :data:`RESIDUE` of even rows, odd rows, even and odd columns."""

    groups: int
    rows: int
    channels: int
    images: int
    height: int
    width: int
    batch_step: int
    channel_step: int
    row_step: int
    column_step: int
    weight_row_step: int
    weight_channel_step: int
    weight_tap_row_step: int
    weight_tap_column_step: int
    tap_rows: int
    tap_columns: int
    result_rows: int
    result_columns: int
    top: int
    left: int
    halo_rows: int
    halo_columns: int
    residues: tuple[int, ...]

    def words(self) -> tuple[int, ...]:
        """The block in memory order."""
        return (*(getattr(self, name) for name in WORDS), *self.residues)

    def packed_elements(self, blocking: Blocking) -> int:
        """Size of the packed weights."""
        panels = -(-self.rows // blocking.tile_columns)
        channels = -(-self.channels // 2) if blocking.pairs else self.channels
        return self.groups * panels * blocking.tile_columns * channels * self.tap_rows * self.tap_columns


WORDS = tuple(field.name for field in fields(JointWords) if field.name != "residues")


def pays(rows: int, channels: int, kernel: tuple[int, int], columns: int, halo: int) -> bool:
    """Whether sums are long, vectors mostly full, and a row of the padded copy small."""
    taps = kernel[0] * kernel[1]
    waste = -rows % COLUMN_UNIT
    room = channels * (columns + halo + COLUMN_UNIT) * (1 + halo) <= ROOM and channels * taps <= TABLE_BYTES // 4
    long = min(kernel) > 1 and channels >= LEAST_DEPTH and columns >= LEAST_COLUMNS
    return long and room and rows >= LEAST_ROWS and 4 * waste <= rows and taps <= MOST_TAPS


def joint_functions(blocking: Blocking) -> str:
    """Everything specific to this path."""
    out = () if blocking.narrow else (_out,)
    return "".join(make(blocking) for make in (_pack_weights, _table, *out, _fetch, _tiles, _convolve, _run))


@dataclass(frozen=True, slots=True)
class _Block:
    """The words of a block, the residues by axis, and the layout of the padded copy (in elements)."""

    w: dict[str, Value]
    residues: list[list[dict[str, str]]]
    taps: Value
    columns: Value
    block_rows: Value
    blocks: Value
    rows: Value
    channel: Value
    panels: Value


def _read(b: Builder) -> _Block:
    w: dict[str, Value] = {name: b.word("%block", index) for index, name in enumerate(WORDS)}
    w |= {"channels": packed_depth(b, w["channels"]), "inputs": w["channels"]}  # packed ones, and all of them
    words = iter(range(len(WORDS), len(WORDS) + 4 * len(RESIDUE)))
    residues = [[{name: b.word("%block", next(words)) for name in RESIDUE} for _ in range(2)] for _ in range(2)]
    columns = b.add(b.ceil_div(w["result_columns"], 2), w["halo_columns"])
    grid_rows = b.ceil_div(w["result_rows"], 2)
    budget = b.div(IMAGE_BYTES // b.blocking.item_bytes, b.mul(w["channels"], columns))
    most = b.clamp(b.sub(budget, w["halo_rows"]), 1, grid_rows)
    blocks = b.ceil_div(grid_rows, most)
    block_rows = b.ceil_div(grid_rows, blocks)
    rows = b.add(block_rows, w["halo_rows"])
    # An odd number of vectors: channels must not compete for the same sets of the first-level cache.
    channel = b.mul(b.bits_or(b.ceil_div(b.mul(rows, columns), b.blocking.lanes), 1), b.blocking.lanes)
    taps = b.mul(w["tap_rows"], w["tap_columns"])
    return _Block(w, residues, taps, columns, block_rows, b.ceil_div(grid_rows, block_rows), rows, channel,
                  b.ceil_div(w["rows"], b.blocking.tile_columns))


def _pack_weights(blocking: Blocking) -> str:
    """This thread's share of ``packed[group][panel][class][tap][channel][2 vectors of rows]``; a channel's taps are turned together."""
    b = Builder("joint_pack_weights", ("i64 %thread", "i64 %threads", "ptr %weights", "ptr noalias %block", "ptr %shared"), blocking,
                attributes="noinline")
    o, width, lanes, per = _read(b), blocking.tile_columns, blocking.lanes, 2 if blocking.pairs else 1
    w = o.w
    turned = b.array(MOST_TAPS * width)
    joined = b.both(b.compare("eq", w["weight_tap_column_step"], 1), b.compare("eq", w["weight_tap_row_step"], w["tap_columns"]))

    def panel(source: str, step: Value, count: Value, depth: Value, target: str, whole: str) -> None:
        extra = (f"i64 {b.select(whole, depth, 0)}",) if blocking.pairs else ()
        second = (f"i64 {w['weight_channel_step']}",) if blocking.pairs else ()
        b.call("pair_panel" if blocking.pairs else "pack_panel", f"ptr {source}", *second, f"i64 {w['weight_row_step']}", f"i64 {step}",
               f"i64 {count}", *extra, f"i64 {depth}", f"ptr {target}", f"i64 {width}")

    low, high = b.share(b.mul(b.mul(o.panels, w["channels"]), w["groups"]), "%thread", "%threads")
    with b.loop(low, high) as unit:
        channel, rest = b.rem(unit, w["channels"]), b.div(unit, w["channels"])
        group, first = b.div(rest, o.panels), b.mul(b.rem(rest, o.panels), width)
        count = b.min(b.sub(w["rows"], first), width)
        place = b.add(b.mul(group, w["inputs"]), b.mul(channel, per))
        source = b.operand_at("%weights", b.dot((place, w["weight_channel_step"]), (first, w["weight_row_step"])))
        whole = b.compare("slt", b.add(b.mul(channel, per), 1), w["inputs"])

        def together(source: str = source, count: Value = count, whole: str = whole) -> None:
            ahead = b.operand_at(source, b.mul(w["weight_channel_step"], PREFETCH_CHANNELS * per))
            with b.loop(0, b.mul(count, w["weight_row_step"]), lanes) as place:
                b.prefetch(b.operand_at(ahead, place))
            panel(source, 1, count, o.taps, turned, whole)

        def one_by_one(source: str = source, count: Value = count, whole: str = whole) -> None:
            with b.loop(0, w["tap_rows"]) as u:
                line = b.operand_at(source, b.mul(u, w["weight_tap_row_step"]))
                panel(line, w["weight_tap_column_step"], count, w["tap_columns"], b.at(turned, b.mul(u, b.mul(w["tap_columns"], width))), whole)

        b.cases((joined, together), default=one_by_one)
        step = b.mul(w["channels"], width)
        target = b.variable(b.add(b.mul(b.mul(rest, o.taps), step), b.mul(channel, width)))
        for above in o.residues[0]:
            for before in o.residues[1]:
                with b.loop(0, above["taps"]) as u, b.loop(0, before["taps"]) as v:
                    tap = b.add(b.mul(b.add(above["first"], b.mul(u, above["step"])), w["tap_columns"]),
                                b.add(before["first"], b.mul(v, before["step"])))
                    here = b.read(target)
                    for half in (0, lanes):
                        b.store_vector(b.load_vector(b.at(turned, b.add(b.mul(tap, width), half))), b.at("%shared", b.add(here, half)))
                    b.assign(target, b.add(here, step))
    return b.text()


def _table(blocking: Blocking) -> str:
    """Where (class, tap, channel) lies in the padded copy, seen from grid pixel (0, 0)."""
    b = Builder("joint_table", ("ptr noalias %block", "ptr %table"), blocking, attributes="noinline")
    o = _read(b)
    entry = b.variable(0)
    for above in o.residues[0]:
        for before in o.residues[1]:
            with b.loop(0, above["taps"]) as u, b.loop(0, before["taps"]) as v, b.loop(0, o.w["channels"]) as channel:
                y, x = (b.add(axis["place"], b.mul(tap, axis["dilation"])) for axis, tap in ((above, u), (before, v)))
                place, here = b.dot((channel, o.channel), (y, o.columns), (x, 1)), b.read(entry)
                b.store_offset(place, "%table", here)
                b.assign(entry, b.add(here, 1))
    return b.text()


def _out(blocking: Blocking) -> str:
    """Pixels of one row of two tiles (pixels x channels), turned and interleaved: ``length`` elements of each channel's row."""
    b = Builder("joint_out", ("ptr noalias %even", "ptr noalias %odd", "i64 %length", "i64 %channels", "ptr %target", "i64 %channel_step"),
                blocking, attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    with b.loop(0, b.ceil_div("%length", 2), lanes) as pixel:
        left = b.sub("%length", b.mul(pixel, 2))
        masks = [b.lanes_between(0, b.clamp(b.sub(left, first), 0, lanes)) for first in (0, lanes)]
        with b.loop(0, width, lanes) as half:
            blocks = [transpose(b, [b.load_vector(b.at(tile, b.add(b.mul(b.add(pixel, row), width), half))) for row in range(lanes)])
                      for tile in ("%even", "%odd")]
            for lane, (even, odd) in enumerate(zip(*blocks, strict=True)):
                channel = b.add(half, lane)
                with b.when(b.compare("sgt", "%channels", channel)):
                    target = b.at("%target", b.add(b.mul("%channel_step", channel), b.mul(pixel, 2)))
                    for part, mask in enumerate(masks):
                        order = [part * lanes // 2 + place // 2 + (lanes if place % 2 else 0) for place in range(lanes)]
                        b.store_masked(b.shuffle(even, odd, order), b.at(target, part * lanes), mask)
    return b.text()


def _fetch(blocking: Blocking) -> str:
    """Ask for the lines that ``rows`` runs of ``length`` elements of each channel will be written to: they are far apart."""
    b = Builder("joint_fetch", ("ptr %target", "i64 %channels", "i64 %channel_step", "i64 %rows", "i64 %row_step", "i64 %length"), blocking,
                attributes="noinline")
    with b.loop(0, "%channels") as channel, b.loop(0, "%rows") as row:
        line = b.operand_at("%target", b.dot((channel, "%channel_step"), (row, "%row_step")))
        with b.loop(0, "%length", blocking.lanes * (2 if blocking.pairs else 1)) as place:
            b.prefetch_for_writing(b.operand_at(line, place))
    return b.text()


def _tiles(blocking: Blocking) -> str:
    """Panels [first, stop) of channels for ``count`` grid rows from row i on, from one padded copy."""
    b = Builder("joint_tiles", ("i64 %first", "i64 %stop", "i64 %i", "i64 %count", "ptr %packed", "ptr %table", "ptr %weights", "ptr %result",
                                "ptr noalias %block", *bias_parameter(blocking)), blocking, attributes="noinline")
    o, width = _read(b), blocking.tile_columns
    w = o.w
    # Squares that are turned reach as many pixels as lanes behind the last one.
    tiles = [b.array((tile_size(blocking) + blocking.lanes + 1) * width) for _ in range(2)]
    grid_columns, plane = b.ceil_div(w["result_columns"], 2), b.mul(w["result_rows"], w["result_columns"])
    runs, lines = b.ceil_div(grid_columns, tile_size(blocking)), lines_at_once(b, grid_columns)
    groups = b.ceil_div("%count", lines)
    with b.loop("%first", "%stop") as panel, b.loop(0, groups) as group, b.loop(0, runs) as run:
        channel = b.mul(panel, width)
        channels = b.min(b.sub(w["rows"], channel), width)
        line, height = panel_rows(b, "%count", groups, group)
        column, length = panel_rows(b, grid_columns, runs, run)
        source = b.at("%packed", b.dot((line, o.columns), (column, 1)))
        top = b.mul(b.add("%i", line), 2)
        corner = b.operand_at("%result", b.dot((channel, plane), (top, w["result_columns"]), (column, 2)))
        b.call("joint_fetch", f"ptr {corner}", f"i64 {channels}", f"i64 {plane}", f"i64 {b.mul(height, 2)}", f"i64 {w['result_columns']}",
               f"i64 {b.mul(length, 2)}")
        add = b.let("icmp ne ptr %bias, null", "c") if blocking.narrow else "false"
        done: Value = 0
        for parity, above in enumerate(o.residues[0]):
            for tile, before in zip(tiles, o.residues[1], strict=True):
                depth = b.mul(w["channels"], b.mul(above["taps"], before["taps"]))
                weights = b.at("%weights", b.mul(b.add(b.mul(panel, b.mul(o.taps, w["channels"])), done), width))
                if blocking.narrow:  # sums begin at the bias
                    with b.when(add):
                        b.call("spread_bias", f"ptr {b.operand_at('%bias', channel)}", f"i64 {channels}", f"i64 {b.mul(height, length)}",
                               f"ptr {tile}")
                b.call("table_tile", f"i64 {height}", f"i64 {length}", f"i64 {depth}", f"ptr {source}", f"i64 {o.columns}",
                       f"ptr {b.byte_at('%table', b.mul(done, 4))}", f"ptr {weights}", f"ptr {tile}", f"i64 {width}", f"i1 {add}")
                done = b.add(done, depth)
            with b.loop(0, height) as inner:
                below, place = b.add(b.mul(inner, 2), parity), b.mul(b.mul(inner, length), width)
                with b.when(b.compare("slt", b.add(top, below), w["result_rows"])):
                    b.call("joint_out", *(f"ptr {b.at(tile, place)}" for tile in tiles),
                           f"i64 {b.min(b.mul(length, 2), b.sub(w['result_columns'], b.mul(column, 2)))}", f"i64 {channels}",
                           f"ptr {b.operand_at(corner, b.mul(below, w['result_columns']))}", f"i64 {plane}")
    return b.text()


def _convolve(blocking: Blocking) -> str:
    """This thread's share of (group, image, block of rows, part of the panels)."""
    b = Builder("joint_convolve", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %weights", "ptr %result",
                                   "ptr noalias %block", *bias_parameter(blocking)), blocking, attributes="noinline")
    there = b.let("icmp ne ptr %bias, null", "c") if blocking.narrow else ""
    o = _read(b)
    w, packed = o.w, b.byte_at("%private", TABLE_BYTES)
    b.call("joint_table", "ptr %block", "ptr %private")
    group_size = b.mul(b.mul(b.mul(o.panels, o.taps), w["channels"]), blocking.tile_columns)
    plane, grid_rows = b.mul(w["result_rows"], w["result_columns"]), b.ceil_div(w["result_rows"], 2)
    units = b.mul(b.mul(w["groups"], w["images"]), o.blocks)
    parts = b.clamp(b.ceil_div(b.mul("%threads", UNITS_PER_THREAD), b.max(units, 1)), 1, o.panels)
    low, high = b.share(b.mul(units, parts), "%thread", "%threads")
    with b.loop(low, high) as unit:
        part, rest = b.rem(unit, parts), b.div(unit, parts)
        i, rest = b.mul(b.rem(rest, o.blocks), o.block_rows), b.div(rest, o.blocks)
        image, group = b.rem(rest, w["images"]), b.div(rest, w["images"])
        first, count = panel_rows(b, o.panels, parts, part)
        source = b.operand_at("%image", b.dot((image, w["batch_step"]), (b.mul(group, w["inputs"]), w["channel_step"])))
        b.call("flat_pack_plane", f"ptr {source}", f"i64 {w['row_step']}", f"i64 {w['column_step']}", f"i64 {w['height']}", f"i64 {w['width']}",
               "i64 1", "i64 1", f"i64 {b.add(i, w['top'])}", f"i64 {w['left']}", f"i64 {o.rows}", f"i64 {o.columns}", f"i64 {w['inputs']}",
               f"i64 {w['channel_step']}", f"i64 {o.channel}", f"ptr {packed}")
        target = b.operand_at("%result", b.mul(b.add(b.mul(image, w["groups"]), group), b.mul(w["rows"], plane)))
        b.call("joint_tiles", f"i64 {first}", f"i64 {b.add(first, count)}", f"i64 {i}", f"i64 {b.min(o.block_rows, b.sub(grid_rows, i))}",
               f"ptr {packed}", "ptr %private", f"ptr {b.at('%weights', b.mul(group, group_size))}", f"ptr {target}", "ptr %block",
               *([f"ptr {b.select(there, b.operand_at('%bias', b.mul(group, w['rows'])), 'null', 'ptr')}"] if blocking.narrow else []))
    return b.text()


def _run(blocking: Blocking) -> str:
    """Weights packed by all threads, then the convolution."""
    b = Builder("joint_grad", ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %private", "ptr %image", "ptr %weights", "ptr %result",
                               "ptr %shared", "ptr noalias %block", *bias_parameter(blocking)), blocking, attributes="noinline")
    b.call("joint_pack_weights", "i64 %thread", "i64 %threads", "ptr %weights", "ptr %block", "ptr %shared")
    b.barrier("%barrier", "%threads")
    b.call("joint_convolve", "i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %shared", "ptr %result", "ptr %block",
           *bias_parameter(blocking))
    return b.text()
