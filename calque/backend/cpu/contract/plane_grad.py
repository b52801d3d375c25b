"""Weight gradient of a 1x1 convolution: ``dw[o, c] = sum over images and pixels of g[o, pixel] * x[c, pixel]`` with one operand in place.

Planes are contiguous in both operands, but only one of them must be turned into pixels x channels, where channels are vectors: the one with
fewer channels, or the other if those would leave vectors empty ("wide"). Elements of the other ("tall") are broadcast from its planes where they
lie, those that come next being fetched meanwhile. If the convolution has a stride, the pixels of x that count are brought together first. Sums
over a part of an image stay in registers and are added to ``partial[split][group][panel][tall row][2 vectors]``; splits, a function of the sizes
alone, are added in order at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from calque.backend.cpu.contract.builder import Builder, Value, passed_on
from calque.backend.cpu.contract.gemm import depth_block, panel_rows
from calque.backend.cpu.contract.pack import PatchWords, read_patch
from calque.backend.cpu.contract.target import Blocking
from calque.backend.cpu.contract.tiles import store_sums, tile_array

MARK = -4
"""Stands where other weight gradients have their number of groups."""
FEWEST = 16
FEWEST_PIXELS = 32
COLUMN_UNIT = 32
"""Widest panel of any target."""
UNIT = 16
"""Pixels of a whole vector of any target."""
PIXELS = 256
"""Wanted pixels of a part of an image: a panel of the wide operand then takes at most 32 KiB."""
TALL_BLOCK, WIDE_BLOCK = 256, 256
TASKS = 16
STEPS = ("batch", "channel", "group")
WIDE_AT = 2 << 20
"""Where a thread's private memory holds the wide panels, behind the dense pixels of a strided x."""
TILE_PARAMETERS = ("i64 %depth", "ptr noalias readonly %a", "i64 %a_step", "ptr noalias readonly %b", "ptr %c", "i64 %c_step", "i1 %accumulate")
LONGEST_ROW = 128
DENSE_STEP = 2 * PIXELS + UNIT
"""Elements from one row of dense pixels to the next: more than any part, and rows do not compete for the same cache sets."""
POINTER_ROWS = 5
"""Rows that one pointer reaches by adding multiples of the step that an address can hold."""


@dataclass(frozen=True, slots=True)
class PlaneGradWords:
    """What stands between the mark and the patch description of x (steps in elements).

    ``unit``: parts of an image begin at a multiple of so many pixels. ``turned``: x is the tall operand, so that sums are those of dw
    transposed. ``dense``: planes of x are read as they are.
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
    tall_batch: int
    tall_channel: int
    tall_group: int
    wide_batch: int
    wide_channel: int
    wide_group: int

    def words(self) -> tuple[int, ...]:
        """The block in memory order."""
        return tuple(getattr(self, field.name) for field in fields(self))

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
    pieces = groups * -(-tall // TALL_BLOCK) * -(-wide // WIDE_BLOCK)
    splits = max(1, min(-(-TASKS // pieces), images, images * pixels // PIXELS))
    unit = UNIT if dense else patch.grid_columns
    return PlaneGradWords(groups, tall, wide, images, pixels, unit, splits, int(turned), int(dense), *high, *broad)


def _fills(channels: int) -> bool:
    """Whether most lanes of their panels are filled."""
    return 4 * (-channels % COLUMN_UNIT) <= channels


def plane_grad_functions(blocking: Blocking) -> str:
    """``plane_grad`` and everything specific to it."""
    tiles = [_tile(rows, blocking) for rows in _heights(blocking)]
    return "".join([*tiles, *(make(blocking) for make in (_choose, _fetch, _tiles, _task, _finish, _run))])


def _heights(blocking: Blocking) -> range:
    """Rows of tiles: a block of tall channels is cut into equal parts, so short ones do not occur."""
    size = blocking.tile_rows
    return range(min(rows // -(-rows // size) for rows in range(FEWEST, TALL_BLOCK + 1)), size + 1)


def _tile(rows: int, blocking: Blocking) -> str:
    """``c[row][2 vectors] (=|+=) sum_k a[row, k] * b[k][2 vectors]``, rows of a ``a_step`` elements apart."""
    b = Builder(f"plane_tile_{rows}", TILE_PARAMETERS, blocking, attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    names = [[f"%s{row}.{half}" for half in (0, 1)] for row in range(rows)]
    pointers = {first: b.at("%a", b.mul(first, "%a_step")) for first in range(0, rows, POINTER_ROWS)}
    steps = [b.mul(row, "%a_step") for row in range(min(rows, POINTER_ROWS))]
    b.emit("br label %head")
    b.label("head")
    b.emit("%k = phi i64 [0, %setup], [%k.next, %body]")
    b.emit("%pb = phi ptr [%b, %setup], [%pb.next, %body]")
    for first, pointer in pointers.items():
        b.emit(f"%pa{first} = phi ptr [{pointer}, %setup], [%pa{first}.next, %body]")
    for line in names:
        for name in line:
            b.emit(f"{name} = phi {b.vector} [zeroinitializer, %setup], [{name}.next, %body]")
    b.emit("%more = icmp slt i64 %k, %depth")
    b.emit("br i1 %more, label %body, label %finish")
    b.label("body")
    right = [b.load_vector(b.at("%pb", half * lanes)) for half in (0, 1)]
    for row, line in enumerate(names):
        place = b.at(f"%pa{row - row % POINTER_ROWS}", steps[row % POINTER_ROWS])
        left = b.splat(b.load(place), blocking.element)
        for value, name in zip(right, line, strict=True):
            b.emit(f"{name}.next = {b.product(left, value, name)}")
    for first in pointers:
        b.emit(f"%pa{first}.next = getelementptr {b.element}, ptr %pa{first}, i64 1")
    b.emit(f"%pb.next = getelementptr {b.element}, ptr %pb, i64 {width}")
    b.emit("%k.next = add nsw i64 %k, 1")
    b.emit("br label %head")
    b.label("finish")
    store_sums(b, names)
    return b.text()


def _choose(blocking: Blocking) -> str:
    """``plane_tile(rows, ...)``: a jump table."""
    b = Builder("plane_tile", ("i64 %rows", *TILE_PARAMETERS), blocking, attributes="noinline")
    choices = [(rows, f"rows{rows}", f"plane_tile_{rows}") for rows in _heights(blocking)]
    b.jump_table("%rows", choices, passed_on(TILE_PARAMETERS))
    return b.text()


def _fetch(blocking: Blocking) -> str:
    """Ask for ``rows`` runs of ``length`` elements of the planes low..high."""
    b = Builder("plane_fetch", ("ptr %source", "i64 %step", "i64 %low", "i64 %high", "i64 %row_step", "i64 %rows", "i64 %length"), blocking,
                attributes="noinline")
    with b.loop("%low", "%high") as plane, b.loop(0, "%rows") as row, b.loop(0, "%length", blocking.lanes) as place:
        b.prefetch(b.at("%source", b.add(b.dot((plane, "%step"), (row, "%row_step")), place)), 2)
    return b.text()


def _tiles(blocking: Blocking) -> str:
    """All tall rows with all panels for one part of an image.

    Before each tile a share is fetched of the tall rows that come next and of the wide planes of the next part.
    """
    b = Builder("plane_tiles", ("i64 %rows", "i64 %panels", "i64 %depth", "ptr %tall", "i64 %tall_step", "ptr %packed", "ptr %partial",
                                "i64 %panel_step", "i1 %accumulate", "ptr %next", "i64 %next_step", "i64 %next_planes", "i64 %next_row",
                                "i64 %next_rows", "i64 %next_length"), blocking, attributes="noinline")
    width, size = blocking.tile_columns, blocking.tile_rows
    groups = b.ceil_div("%rows", size)
    turns = b.mul(groups, "%panels")
    with b.loop(0, groups) as group, b.loop(0, "%panels") as panel:
        first, count = panel_rows(b, "%rows", groups, group)
        line = b.at("%tall", b.mul(first, "%tall_step"))
        low, high = b.share(count, panel, "%panels")
        b.call("plane_fetch", f"ptr {line}", "i64 %tall_step", f"i64 {b.add(count, low)}", f"i64 {b.add(count, high)}", "i64 0", "i64 1",
               "i64 %depth")
        low, high = b.share("%next_planes", b.add(b.mul(group, "%panels"), panel), turns)
        b.call("plane_fetch", "ptr %next", "i64 %next_step", f"i64 {low}", f"i64 {high}", "i64 %next_row", "i64 %next_rows", "i64 %next_length")
        b.call("plane_tile", f"i64 {count}", "i64 %depth", f"ptr {line}", "i64 %tall_step",
               f"ptr {b.at('%packed', b.mul(panel, b.mul('%depth', width)))}",
               f"ptr {b.at('%partial', b.add(b.mul(panel, '%panel_step'), b.mul(first, width)))}", f"i64 {width}", "i1 %accumulate")
    return b.text()


def _read(b: Builder) -> tuple[dict[str, str], str]:
    return {name: b.word("%block", index) for index, name in enumerate(WORDS)}, b.byte_at("%block", 8 * len(WORDS))


def _task(blocking: Blocking) -> str:
    """Images [begin, end) of ``rows`` tall channels and ``columns`` wide ones of one group."""
    b = Builder("plane_grad_task", ("ptr %private", "ptr %tall", "i64 %rows", "ptr %wide", "i64 %columns", "i64 %begin", "i64 %end",
                                    "ptr %partial", "ptr noalias %block"), blocking, attributes="noinline")
    (w, patch), width = _read(b), blocking.tile_columns
    p = read_patch(b, patch)
    units = b.ceil_div(w["pixels"], w["unit"])
    parts = b.clamp(b.div(b.add(w["pixels"], PIXELS // 2), PIXELS), 1, units)
    packed, panels = b.byte_at("%private", WIDE_AT), b.ceil_div("%columns", width)
    strided, turned = b.compare("eq", w["dense"], 0), b.compare("ne", w["turned"], 0)
    tall_private, wide_private = b.both(strided, turned), b.both(strided, b.compare("eq", w["turned"], 0))
    first_turn = b.mul("%begin", parts)

    def place(turn: Value) -> tuple[Value, Value, Value]:
        """Image, first pixel and number of pixels of a part."""
        n, (first, end) = b.div(turn, parts), depth_block(b, units, parts, b.rem(turn, parts))
        start = b.mul(first, w["unit"])
        return n, start, b.sub(b.min(b.mul(end, w["unit"]), w["pixels"]), start)

    with b.loop(first_turn, b.mul("%end", parts)) as turn:
        n, start, count = place(turn)
        tall = b.at("%tall", b.add(b.mul(n, w["tall_batch"]), start))
        wide = b.at("%wide", b.add(b.mul(n, w["wide_batch"]), start))
        with b.when(strided):
            b.call("pack_rows", f"ptr {b.select(turned, '%tall', '%wide', 'ptr')}", f"ptr {patch}", f"i64 {b.add(b.mul(n, w['pixels']), start)}",
                   f"i64 {count}", "i64 0", f"i64 {b.select(turned, '%rows', '%columns')}", "ptr %private", f"i64 {DENSE_STEP}")
        wide, wide_step = b.select(wide_private, "%private", wide, "ptr"), b.select(wide_private, DENSE_STEP, w["wide_channel"])
        with b.loop(0, panels) as panel:
            column = b.mul(panel, width)
            b.call("pack_panel", f"ptr {b.at(wide, b.mul(column, wide_step))}", f"i64 {wide_step}", "i64 1",
                   f"i64 {b.min(b.sub('%columns', column), width)}", f"i64 {count}", f"ptr {b.at(packed, b.mul(column, count))}", f"i64 {width}")
        n, start, length = place(b.add(turn, 1))
        row = b.mul(b.div(start, p["grid_columns"]), b.mul(p["row_stride"], p["row_step"]))
        following = b.at("%wide", b.add(b.mul(n, w["wide_batch"]), b.select(wide_private, row, start)))
        b.call("plane_tiles", "i64 %rows", f"i64 {panels}", f"i64 {count}", f"ptr {b.select(tall_private, '%private', tall, 'ptr')}",
               f"i64 {b.select(tall_private, DENSE_STEP, w['tall_channel'])}", f"ptr {packed}", "ptr %partial", f"i64 {b.mul(w['tall'], width)}",
               f"i1 {b.compare('sgt', turn, first_turn)}", f"ptr {following}", f"i64 {w['wide_channel']}", "i64 %columns",
               f"i64 {b.mul(p['row_stride'], p['row_step'])}", f"i64 {b.select(wide_private, b.div(length, p['grid_columns']), 1)}",
               f"i64 {b.select(wide_private, b.mul(p['grid_columns'], b.mul(p['column_stride'], p['column_step'])), length)}")
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
                b.store_vector(b.let(f"fadd {b.vector} {b.load_vector(target)}, {part}"), target)
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
    tall_blocks, wide_blocks = b.ceil_div(w["tall"], TALL_BLOCK), b.ceil_div(w["wide"], WIDE_BLOCK)
    panels = b.ceil_div(w["wide"], width)
    low, high = b.share(b.mul(b.mul(b.mul(tall_blocks, wide_blocks), w["groups"]), w["splits"]), "%thread", "%threads")
    with b.loop(low, high) as task:
        row, row_end = depth_block(b, w["tall"], tall_blocks, b.rem(task, tall_blocks))
        rest = b.div(task, tall_blocks)
        column, rest = b.mul(b.rem(rest, wide_blocks), WIDE_BLOCK), b.div(rest, wide_blocks)
        group, split = b.rem(rest, w["groups"]), b.div(rest, w["groups"])
        begin, end = depth_block(b, w["images"], w["splits"], split)
        tall_part = b.at(tall, b.dot((group, w["tall_group"]), (row, w["tall_channel"])))
        wide_part = b.at(wide, b.dot((group, w["wide_group"]), (column, w["wide_channel"])))
        place = b.mul(b.dot((b.add(b.mul(rest, panels), b.div(column, width)), w["tall"]), (row, 1)), width)
        b.call("plane_grad_task", "ptr %private", f"ptr {tall_part}", f"i64 {b.sub(row_end, row)}", f"ptr {wide_part}",
               f"i64 {b.min(b.sub(w['wide'], column), WIDE_BLOCK)}", f"i64 {begin}", f"i64 {end}", f"ptr {b.at('%partial', place)}", "ptr %block")
    b.barrier("%barrier", "%threads")
    b.call("plane_finish", "i64 %thread", "i64 %threads", "ptr %partial", "ptr %result", "ptr %block")
    return b.text()
