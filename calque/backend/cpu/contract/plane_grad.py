"""Weight gradient of a 1x1 convolution: ``dw[o, c] = sum over images and pixels of g[o, pixel] * x[c, pixel]`` with one operand in place.

Planes are contiguous in both operands, but only one of them must be turned into pixels x channels, where channels are vectors: the one with
fewer channels, or the other if those would leave vectors empty ("wide"). Elements of the other ("tall") are broadcast from its planes where they
lie, those that come next being fetched meanwhile. Pixels that count of an x with stride 2 are turned at once; with other strides, or where x is
tall, they are brought together first. Sums over a part of an image, or over some small ones, stay in registers and are added to
``partial[split][group][panel][tall row][2 vectors]``; splits, a function of the sizes alone, are added in order at the end.
"""

from __future__ import annotations

from dataclasses import fields

from calque.backend.cpu.contract.builder import Builder, ParameterBlock, Value
from calque.backend.cpu.contract.depth import depth_block, panel_rows
from calque.backend.cpu.contract.pack import PatchWords, clear_second_vector, read_patch
from calque.backend.cpu.contract.plane_tile import LINE_BYTES, plane_tile_functions
from calque.backend.cpu.contract.target import Blocking
from calque.backend.cpu.contract.tiles import tile_array
from calque.base.dataclass import dataclass

FEWEST = 16
FEWEST_PIXELS = 32
TABLES_AT, TABLE_BYTES = 3 << 19, 64 << 10
"""Where, in front of them, the offsets lie of what tiles fetch: of tall rows, then of wide planes."""
COLUMN_UNIT = 32
"""Widest panel of any target."""
UNIT = 16
"""Pixels of a whole vector of any target."""
PIXELS = 256
"""Wanted pixels of a part of an image, or of small images together: a panel of the wide operand then takes at most 32 KiB."""
TALL_BLOCK, WIDE_BLOCK, EVEN_BLOCK = 256, 256, 128
"""Channels of a task; fewer wide ones where x is strided, as most of its lines must wait in the second-level cache."""
WAITING = 96 << 10
"""Elements of small images that may wait there."""
TASKS = 16
WIDE_AT = 2 << 20
"""Where a thread's private memory holds the wide panels, behind the dense pixels of a strided x."""
LONGEST_ROW = 128
DENSE_STEP = 2 * PIXELS + UNIT
"""Elements from one row of dense pixels to the next: more than any part, and rows do not compete for the same cache sets."""


@dataclass(frozen=True, slots=True)
class PlaneGradWords(ParameterBlock):
    """What stands between the mark and the patch description of x (steps in elements).

    ``unit``: parts of an image begin at a multiple of so many pixels. ``turned``: x is the tall operand, so that sums are those of dw
    transposed. ``dense``: planes of x are read as they are; ``even``: every second pixel of some of its rows is turned at once.
    ``block``: images whose sums stay in registers, if all pixels of an image are one part. ``wide_block``: wide channels of a task.
    """

    groups: int
    tall: int
    wide: int
    images: int
    pixels: int
    unit: int
    splits: int
    turned: int
    dense: int
    even: int
    block: int
    wide_block: int
    tall_batch: int
    tall_channel: int
    tall_group: int
    wide_batch: int
    wide_channel: int
    wide_group: int

    def partial_elements(self, blocking: Blocking) -> int:
        """Size of the partial sums."""
        columns = -(-self.wide // blocking.tile_columns) * blocking.tile_columns
        return self.splits * self.groups * columns * self.tall


WORDS = tuple(field.name for field in fields(PlaneGradWords))


def planes_of(rows: int, channels: int, groups: int, images: int, patch: PatchWords, gradient: tuple[int, ...]) -> PlaneGradWords | None:
    """The parameters for a patch of one tap and the steps of g (batch, channel, row, column), or None where this path does not pay."""
    pixels, (fewer, more) = patch.grid_rows * patch.grid_columns, sorted((rows, channels))
    swapped = not _fills(fewer)  # more is turned then, but vectors are full
    tall, wide = (fewer, more) if swapped else (more, fewer)
    alone = patch.tap_rows == patch.tap_columns == 1 and patch.row_offset == patch.column_offset == 0
    whole = gradient[3] == 1 and (gradient[2] == patch.grid_columns or patch.grid_rows == 1)
    if not (alone and whole) or fewer < FEWEST or not _fills(wide) or pixels < FEWEST_PIXELS or not images * groups:
        return None
    dense = (patch.row_stride == patch.column_stride == 1
             and (patch.row_step == patch.width == patch.grid_columns or patch.grid_rows == 1))
    if patch.column_step != 1 or not (dense or patch.grid_columns <= LONGEST_ROW):
        return None
    turned = (channels > rows) != swapped
    image = (patch.batch_step, patch.channel_step, channels * patch.channel_step)
    other = (*gradient[:2], rows * gradient[1])
    high, broad = (image, other) if turned else (other, image)
    even = not (dense or turned) and patch.column_stride == 2
    wide_block = EVEN_BLOCK if even else WIDE_BLOCK
    block = 1
    if (dense or even) and 2 * pixels <= PIXELS:
        waiting = min(wide, wide_block) * (pixels if dense else patch.grid_rows * patch.row_stride * patch.row_step)
        block = max(1, min((PIXELS + PIXELS // 2) // pixels, images, WAITING // waiting))
    pieces = groups * -(-tall // TALL_BLOCK) * -(-wide // wide_block)
    splits = max(1, min(-(-TASKS // pieces), images, images * pixels // PIXELS))
    unit = UNIT if dense else patch.grid_columns
    return PlaneGradWords(groups, tall, wide, images, pixels, unit, splits, int(turned), int(dense), int(even), block, wide_block, *high, *broad)


def _fills(channels: int) -> bool:
    """Whether most lanes of their panels are filled."""
    return 4 * (-channels % COLUMN_UNIT) <= channels


def plane_grad_functions(blocking: Blocking) -> str:
    """``plane_grad`` and everything specific to it."""
    return plane_tile_functions(blocking, _heights(blocking)) + "".join(make(blocking) for make in (
        _fetch, _tiles, _pack_wide, _task, _finish, _run))


def _heights(blocking: Blocking) -> range:
    """Rows of tiles: a block of tall channels is cut into equal parts, so short ones do not occur."""
    size = blocking.tile_rows
    return range(min(rows // -(-rows // size) for rows in range(FEWEST, TALL_BLOCK + 1)), size + 1)


def _fetch(blocking: Blocking) -> str:
    """Ask for ``rows`` runs of ``length`` elements of the planes low..high."""
    b = Builder("plane_fetch", ("ptr %source", "i64 %step", "i64 %low", "i64 %high", "i64 %row_step", "i64 %rows", "i64 %length"), blocking,
                attributes="noinline")
    with b.loop("%low", "%high") as plane, b.loop(0, "%rows") as row, b.loop(0, "%length", _line(blocking)) as place:
        b.prefetch(b.at("%source", b.add(b.dot((plane, "%step"), (row, "%row_step")), place)), 2)
    return b.text()


def _line(blocking: Blocking) -> int:
    """Elements of a line of the caches."""
    return LINE_BYTES // blocking.item_bytes


def _tiles(blocking: Blocking) -> str:
    """All tall rows with all panels for one part of an image or for some small images (``segments`` of ``length`` pixels).

    The first tile of some rows fetches the rows that come next, the others a share of the wide planes of the next part (``share`` planes each).
    Where these tiles are too few for that (a share of 0), planes are fetched before each tile.
    """
    b = Builder("plane_tiles", ("i64 %rows", "i64 %panels", "i64 %length", "i64 %segments", "ptr %tall", "i64 %tall_step", "i64 %tall_jump",
                                "ptr %next_tall", "ptr %packed", "ptr %partial", "i64 %panel_step", "i1 %accumulate", "ptr %ahead", "ptr %next",
                                "i64 %next_step", "i64 %next_planes", "i64 %next_row", "i64 %next_rows", "i64 %next_length", "i64 %share"),
                blocking, attributes="noinline")
    width, groups = blocking.tile_columns, b.ceil_div("%rows", blocking.tile_rows)
    depth, crowded = b.mul("%length", "%segments"), b.compare("eq", "%share", 0)
    others, turns = b.sub("%panels", 1), b.mul(groups, "%panels")
    with b.loop(0, groups) as group, b.loop(0, "%panels") as panel:
        first, count = panel_rows(b, "%rows", groups, group)
        rows = b.at("%tall", b.mul(first, "%tall_step"))
        with b.when(crowded):
            low, high = b.share("%next_planes", b.add(b.mul(group, "%panels"), panel), turns)
            b.call("plane_fetch", "ptr %next", "i64 %next_step", f"i64 {low}", f"i64 {high}", "i64 %next_row", "i64 %next_rows",
                   "i64 %next_length")
        last, same = b.compare("eq", b.add(group, 1), groups), b.either(b.compare("eq", panel, 0), crowded)
        following = b.select(last, "%next_tall", b.at(rows, b.mul(count, "%tall_step")), "ptr")
        place = b.mul(b.add(b.mul(group, others), b.sub(panel, 1)), "%share")
        planes = b.at("%next", b.mul(b.min(place, b.sub("%next_planes", "%share")), "%next_step"))
        b.call("plane_tile", f"i64 {count}", "i64 %length", "i64 %segments", f"ptr {rows}", "i64 %tall_step", "i64 %tall_jump",
               f"ptr {b.at('%packed', b.mul(panel, b.mul(depth, width)))}",
               f"ptr {b.at('%partial', b.add(b.mul(panel, '%panel_step'), b.mul(first, width)))}", f"i64 {width}", "i1 %accumulate",
               f"ptr {b.select(same, '%ahead', b.byte_at('%ahead', TABLE_BYTES), 'ptr')}", f"ptr {b.select(same, following, planes, 'ptr')}")
    return b.text()


def _read(b: Builder) -> tuple[dict[str, str], str]:
    return {name: b.word("%block", index) for index, name in enumerate(WORDS)}, b.byte_at("%block", 8 * len(WORDS))


def _pack_wide(blocking: Blocking) -> str:
    """``count`` pixels of some images as panels, ``packed[panel][image, pixel][2 vectors]``, from planes of x or g where they lie.

    Turned rows of x may write a few pixels too many, so panels are packed one after the other.
    """
    b = Builder("plane_pack", ("ptr %wide", "i64 %wide_step", "i64 %columns", "i64 %images", "i64 %start", "i64 %count", "ptr %packed",
                               "ptr noalias %block"), blocking, attributes="noinline")
    (w, patch), width, lanes = _read(b), blocking.tile_columns, blocking.lanes
    p, even = read_patch(b, patch), b.compare("ne", w["even"], 0)
    row_step = b.mul(p["row_stride"], p["row_step"])
    inside = b.select(even, b.mul(b.div("%start", p["grid_columns"]), row_step), "%start")
    with b.loop(0, "%columns", width) as column, b.loop(0, "%images") as image:
        source = b.at("%wide", b.dot((image, w["wide_batch"]), (column, "%wide_step"), (inside, 1)))
        target = b.at("%packed", b.mul("%count", b.add(b.mul(column, "%images"), b.mul(image, width))))
        channels = b.min(b.sub("%columns", column), width)

        def turn(source: str = source, target: str = target, channels: Value = channels) -> None:
            with b.loop(0, channels, lanes) as lane:
                b.call("turn_even", f"ptr {b.at(source, b.mul(lane, '%wide_step'))}", "i64 %wide_step", f"i64 {row_step}",
                       f"i64 {b.div('%count', p['grid_columns'])}", f"i64 {p['grid_columns']}", f"i64 {b.min(b.sub(channels, lane), lanes)}",
                       f"ptr {b.at(target, lane)}")

        def pack(source: str = source, target: str = target, channels: Value = channels) -> None:
            b.call("pack_panel", f"ptr {source}", "i64 %wide_step", "i64 1", f"i64 {channels}", "i64 %count", f"ptr {target}", f"i64 {width}")

        b.cases((even, turn), default=pack)
        clear_second_vector(b, target, "%count", channels)
    return b.text()


def _tables(b: Builder, depth: Value, tall: tuple[Value, Value, Value, Value], wide: tuple[Value, Value, Value, Value]) -> Value:
    """Write the offsets of what tiles fetch in ``depth`` steps; the wide planes of which each tile takes care, 0 if tiles are too few.

    Elements from one tall row to the next, images, elements from image to image and of an image; elements from one wide plane to the next, runs
    of a plane, elements from run to run and of a run.
    """
    size, item, line = b.blocking.tile_rows, b.blocking.item_bytes, _line(b.blocking)
    (tall_step, segments, batch, length), (plane_step, runs, run_step, extent) = tall, wide
    tables = b.byte_at("%private", TABLES_AT)
    b.call("plane_ahead", f"ptr {tables}", f"i64 {depth}", f"i64 {size}", f"i64 {b.mul(tall_step, item)}", f"i64 {b.ceil_div(length, line)}",
           f"i64 {LINE_BYTES}", f"i64 {segments}", f"i64 {b.mul(batch, item)}")
    tiles = b.mul(b.ceil_div("%rows", size), b.sub(b.ceil_div("%columns", b.blocking.tile_columns), 1))
    share = b.ceil_div("%columns", b.max(tiles, 1))
    lines = b.ceil_div(extent, line)
    b.call("plane_ahead", f"ptr {b.byte_at(tables, TABLE_BYTES)}", f"i64 {depth}", f"i64 {lines}", f"i64 {LINE_BYTES}", f"i64 {runs}",
           f"i64 {b.mul(run_step, item)}", f"i64 {share}", f"i64 {b.mul(plane_step, item)}")
    enough = b.both(b.compare("sgt", tiles, 0), b.compare("sle", b.mul(share, b.mul(lines, runs)), b.add(depth, b.div(depth, 8))))
    return b.select(enough, share, 0)


def _task(blocking: Blocking) -> str:
    """Images [begin, end) of ``rows`` tall channels and ``columns`` wide ones of one group."""
    b = Builder("plane_grad_task", ("ptr %private", "ptr %tall", "i64 %rows", "ptr %wide", "i64 %columns", "i64 %begin", "i64 %end",
                                    "ptr %partial", "ptr noalias %block"), blocking, attributes="noinline")
    (w, patch), width = _read(b), blocking.tile_columns
    p = read_patch(b, patch)
    units, images = b.ceil_div(w["pixels"], w["unit"]), b.sub("%end", "%begin")
    parts = b.clamp(b.div(b.add(w["pixels"], PIXELS // 2), PIXELS), 1, units)
    blocks = b.ceil_div(images, w["block"])
    packed, panels = b.byte_at("%private", WIDE_AT), b.ceil_div("%columns", width)
    turned, gathered = b.compare("ne", w["turned"], 0), b.compare("eq", b.add(w["dense"], w["even"]), 0)
    tall_private, wide_private = b.both(gathered, turned), b.both(gathered, b.compare("eq", w["turned"], 0))
    tall_step, tall_batch = b.select(tall_private, DENSE_STEP, w["tall_channel"]), b.select(tall_private, 0, w["tall_batch"])
    by_rows, one = b.both(b.compare("eq", w["dense"], 0), b.compare("eq", w["turned"], 0)), b.compare("eq", w["block"], 1)
    row_step, run = b.mul(p["row_stride"], p["row_step"]), b.mul(p["grid_columns"], b.mul(p["column_stride"], p["column_step"]))
    several, longest = b.ceil_div(images, blocks), b.min(b.mul(b.ceil_div(units, parts), w["unit"]), w["pixels"])
    # Small images are fetched whole: what counts of them lies in most of their lines.
    next_row = b.select(one, row_step, w["wide_batch"])
    next_rows = b.select(one, b.select(by_rows, b.div(longest, p["grid_columns"]), 1), several)
    whole = b.add(b.mul(b.sub(p["grid_rows"], 1), row_step), run)
    # A row that begins within a line ends within one more.
    within = b.select(b.compare("eq", b.rem(row_step, _line(blocking)), 0), 0, _line(blocking) - 1)
    next_length = b.select(by_rows, b.select(one, b.add(run, within), whole), longest)
    share = _tables(b, b.mul(several, longest), (tall_step, several, tall_batch, longest), (w["wide_channel"], next_rows, next_row, next_length))

    def place(turn: Value) -> tuple[Value, Value, Value, Value]:
        """First image, number of images, first pixel and number of pixels of a part."""
        first, end = depth_block(b, images, blocks, b.div(turn, parts))
        low, high = depth_block(b, units, parts, b.rem(turn, parts))
        start = b.mul(low, w["unit"])
        return b.add("%begin", first), b.sub(end, first), start, b.sub(b.min(b.mul(high, w["unit"]), w["pixels"]), start)

    with b.loop(0, b.mul(blocks, parts)) as turn:
        n, images_here, start, count = place(turn)
        tall = b.at("%tall", b.add(b.mul(n, w["tall_batch"]), start))
        with b.when(gathered):
            b.call("pack_rows", f"ptr {b.select(turned, '%tall', '%wide', 'ptr')}", f"ptr {patch}", f"i64 {b.add(b.mul(n, w['pixels']), start)}",
                   f"i64 {count}", "i64 0", f"i64 {b.select(turned, '%rows', '%columns')}", "ptr %private", f"i64 {DENSE_STEP}")
        wide = b.select(wide_private, "%private", b.at("%wide", b.mul(n, w["wide_batch"])), "ptr")
        b.call("plane_pack", f"ptr {wide}", f"i64 {b.select(wide_private, DENSE_STEP, w['wide_channel'])}", "i64 %columns", f"i64 {images_here}",
               f"i64 {b.select(wide_private, 0, start)}", f"i64 {count}", f"ptr {packed}", "ptr %block")
        n, _, start, _ = place(b.add(turn, 1))
        inside = b.select(by_rows, b.mul(b.div(start, p["grid_columns"]), row_step), start)
        b.call("plane_tiles", "i64 %rows", f"i64 {panels}", f"i64 {count}", f"i64 {images_here}",
               f"ptr {b.select(tall_private, '%private', tall, 'ptr')}", f"i64 {tall_step}",
               f"i64 {b.sub(tall_batch, count)}", f"ptr {b.at('%tall', b.add(b.mul(n, w['tall_batch']), start))}",
               f"ptr {packed}", "ptr %partial", f"i64 {b.mul(w['tall'], width)}", f"i1 {b.compare('sgt', turn, 0)}",
               f"ptr {b.byte_at('%private', TABLES_AT)}", f"ptr {b.at('%wide', b.add(b.mul(n, w['wide_batch']), inside))}",
               f"i64 {w['wide_channel']}", "i64 %columns", f"i64 {next_row}", f"i64 {next_rows}", f"i64 {next_length}", f"i64 {share}")
    return b.text()


def _finish(blocking: Blocking) -> str:
    """This thread's share of dw: the splits added in order, some tall rows of a panel at a time, and turned if need be."""
    b = Builder("plane_finish", ("i64 %thread", "i64 %threads", "ptr %partial", "ptr %result", "ptr noalias %block"), blocking,
                attributes="noinline")
    (w, _), width, lanes = _read(b), blocking.tile_columns, blocking.lanes
    panels, parts = b.ceil_div(w["wide"], width), b.ceil_div(w["tall"], lanes)
    split_size = b.mul(b.mul(b.mul(panels, w["tall"]), width), w["groups"])
    turned, tile = b.compare("ne", w["turned"], 0), tile_array(b)
    low, high = b.share(b.mul(b.mul(panels, w["groups"]), parts), "%thread", "%threads")
    with b.loop(low, high) as unit:
        rest, first = b.div(unit, parts), b.mul(b.rem(unit, parts), lanes)
        group, column = b.div(rest, panels), b.mul(b.rem(rest, panels), width)
        count, columns = b.min(b.sub(w["tall"], first), lanes), b.min(b.sub(w["wide"], column), width)
        source = b.at("%partial", b.mul(b.add(b.mul(rest, w["tall"]), first), width))
        with b.loop(0, b.mul(count, width), lanes) as place:
            target = b.at(tile, place)
            b.store_vector(b.load_vector(b.at(source, place)), target)
            with b.loop(1, w["splits"]) as split:
                part = b.load_vector(b.at(source, b.add(b.mul(split, split_size), place)))
                b.store_vector(b.op("fadd", b.load_vector(target), part), target)
        matrix = b.at("%result", b.mul(group, b.mul(w["tall"], w["wide"])))

        def turn(count: Value = count, columns: Value = columns, corner: str = b.at(matrix, b.dot((column, w["tall"]), (first, 1)))) -> None:
            b.call("tile_out", f"ptr {tile}", "i64 1", f"i64 {count}", f"i64 {columns}", f"ptr {corner}", f"i64 {w['tall']}", "i64 0", "i64 1")

        def keep(count: Value = count, columns: Value = columns, corner: str = b.at(matrix, b.dot((first, w["wide"]), (column, 1)))) -> None:
            b.call("copy_out", f"ptr {tile}", f"i64 {count}", f"i64 {columns}", f"ptr {corner}", f"i64 {w['wide']}", "i64 1", "i1 false")

        b.cases((turned, turn), default=keep)
    return b.text()


def _run(blocking: Blocking) -> str:
    """This thread's share of (split, group, block of tall channels, block of wide ones), then of the result."""
    b = Builder("plane_grad", ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %private", "ptr %image", "ptr %gradient",
                               "ptr %result", "ptr %partial", "ptr noalias %block"), blocking, attributes="noinline")
    (w, _), width = _read(b), blocking.tile_columns
    turned = b.compare("ne", w["turned"], 0)
    tall, wide = (b.select(turned, *pair, "ptr") for pair in (("%image", "%gradient"), ("%gradient", "%image")))
    tall_blocks, wide_blocks = b.ceil_div(w["tall"], TALL_BLOCK), b.ceil_div(w["wide"], w["wide_block"])
    panels = b.ceil_div(w["wide"], width)
    low, high = b.share(b.mul(b.mul(b.mul(tall_blocks, wide_blocks), w["groups"]), w["splits"]), "%thread", "%threads")
    with b.loop(low, high) as task:
        row, row_end = depth_block(b, w["tall"], tall_blocks, b.rem(task, tall_blocks))
        rest = b.div(task, tall_blocks)
        column, rest = b.mul(b.rem(rest, wide_blocks), w["wide_block"]), b.div(rest, wide_blocks)
        group, split = b.rem(rest, w["groups"]), b.div(rest, w["groups"])
        begin, end = depth_block(b, w["images"], w["splits"], split)
        tall_part = b.at(tall, b.dot((group, w["tall_group"]), (row, w["tall_channel"])))
        wide_part = b.at(wide, b.dot((group, w["wide_group"]), (column, w["wide_channel"])))
        place = b.mul(b.dot((b.add(b.mul(rest, panels), b.div(column, width)), w["tall"]), (row, 1)), width)
        b.call("plane_grad_task", "ptr %private", f"ptr {tall_part}", f"i64 {b.sub(row_end, row)}", f"ptr {wide_part}",
               f"i64 {b.min(b.sub(w['wide'], column), w['wide_block'])}", f"i64 {begin}", f"i64 {end}", f"ptr {b.at('%partial', place)}",
               "ptr %block")
    b.barrier("%barrier", "%threads")
    b.call("plane_finish", "i64 %thread", "i64 %threads", "ptr %partial", "ptr %result", "ptr %block")
    return b.text()
