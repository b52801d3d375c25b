"""Moving operands into panels and tiles out of them, with any strides.

``pack_lanes`` fills one vector-wide column of a panel from a strided matrix, ``pack_patches`` gathers convolution
patches straight from the image, ``copy_out`` writes a finished tile to a strided destination.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial

from calque.backend.cpu.contract.builder import Builder, ParameterBlock, Value
from calque.backend.cpu.contract.target import Blocking
from calque.base.dataclass import dataclass

SQUARES_AHEAD = 8
"""How far ahead rows are asked for, never behind their end (which may be another head's): into the second-level cache, because rows a power of
two apart share few sets of the first."""


def pack_lanes(blocking: Blocking) -> str:
    """``target[k * target_step + lane] = source[lane * lane_step + k * depth_step]`` for lane < count <= lanes.

    Lanes from ``count`` on receive arbitrary values.
    """
    b = Builder("pack_lanes", ("ptr %source", "i64 %lane_step", "i64 %depth_step", "i64 %count", "i64 %depth",
                               "ptr %target", "i64 %target_step"), blocking, attributes="noinline")
    lanes = blocking.lanes
    whole_rows = b.both(b.compare("eq", "%lane_step", 1), b.compare("eq", "%count", lanes))
    contiguous = b.compare("eq", "%depth_step", 1)
    transpose = b.both(contiguous, b.compare("sge", "%depth", lanes))
    b.cases(
        (whole_rows, lambda: _copy_rows(b, None)),
        (b.compare("eq", "%lane_step", 1), lambda: _copy_rows(b, b.lanes_between(0, "%count"))),
        (transpose, lambda: _transpose_blocks(b)),
        (b.both(contiguous, b.compare("sge", "%depth", lanes // 4)), lambda: _transpose_part(b)),
        (b.both(b.compare("eq", "%depth_step", 2), b.compare("sge", "%depth", lanes)), lambda: _transpose_blocks(b, 2)),
        default=lambda: _gather_rows(b),
    )
    return b.text()


def _copy_rows(b: Builder, mask: str | None) -> None:
    with b.loop(0, "%depth") as k:
        source = b.at("%source", b.mul(k, "%depth_step"))
        value = b.load_vector(source) if mask is None else b.load_masked(source, mask)
        b.store_vector(value, b.at("%target", b.mul(k, "%target_step")))


def _gather_rows(b: Builder) -> None:
    offsets = b.lane_offsets("%lane_step", b.sub("%count", 1))
    everywhere = b.lanes_between(0, b.blocking.lanes)
    with b.loop(0, "%depth") as k:
        source = b.at("%source", b.mul(k, "%depth_step"))
        b.store_vector(b.gather(source, offsets, everywhere), b.at("%target", b.mul(k, "%target_step")))


def _transpose_blocks(b: Builder, step: int = 1) -> None:
    """Square blocks through registers; the last block overlaps the one before instead of needing a tail.

    With step 2 every second element of twice as many is taken, the last one behind them never touched.
    """
    lanes = b.blocking.lanes
    last = b.sub("%count", 1)
    rows = [b.at("%source", b.mul(b.min(lane, last), "%lane_step")) for lane in range(lanes)]
    final = b.sub("%depth", lanes)
    with b.loop(0, "%depth", lanes) as start:
        k = b.min(start, final)
        ahead = b.min(b.add(k, SQUARES_AHEAD * lanes), final)
        for row in rows:
            b.prefetch(b.at(row, b.mul(ahead, step)), 2)
        places = [b.at(row, b.mul(k, step)) for row in rows]
        if step == 1:
            block = [b.load_vector(place) for place in places]
        else:
            inside = b.lanes_between(0, lanes - 1)
            halves = [(b.load_vector(place), b.load_masked(b.at(place, lanes), inside)) for place in places]
            block = [b.shuffle(*pair, [2 * lane for lane in range(lanes)]) for pair in halves]
        target = b.at("%target", b.mul(k, "%target_step"))
        for index, value in enumerate(transpose(b, block)):
            b.store_vector(value, b.at(target, b.mul(index, "%target_step")))


def _transpose_part(b: Builder) -> None:
    """One square of which only the first ``depth`` columns exist, such as the taps of one channel."""
    lanes = b.blocking.lanes
    last, mask = b.sub("%count", 1), b.lanes_between(0, "%depth")
    rows = [b.load_masked(b.at("%source", b.mul(b.min(lane, last), "%lane_step")), mask) for lane in range(lanes)]
    for step, value in enumerate(transpose(b, rows)):
        with b.when(b.compare("sgt", "%depth", step)):
            b.store_vector(value, b.at("%target", b.mul(step, "%target_step")))


def transpose(b: Builder, rows: list[str]) -> list[str]:
    """Transpose a square of vectors: units within groups of 16 bytes first, then whole groups.

    Both are shuffles that need no index register on x86 (unpack within groups, then even and odd groups).
    """
    lanes = len(rows)
    width = min(lanes, 16 // b.blocking.item_bytes)
    columns: list[list[str]] = [[] for _ in range(width)]
    for first in range(0, lanes, width):
        for column, value in enumerate(_unpack(b, rows[first : first + width], 1)):
            columns[column].append(b.fence(value))
    result = [""] * lanes
    for column, values in enumerate(columns):
        for group, value in enumerate(_gather_groups(b, values, width)):
            result[group * width + column] = value
    return result


def _unpack(b: Builder, rows: list[str], unit: int) -> list[str]:
    """Transpose every group of as many lanes as there are rows; rows hold units of ``unit`` finished lanes."""
    if len(rows) == 1:
        return rows
    lanes, width = b.blocking.lanes, len(rows) * unit
    halves: list[list[str]] = [[], []]
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        for half in (0, 1):
            order = [group + half * width // 2 + place // 2 * unit + lane + (lanes if place % 2 else 0)
                     for group in range(0, lanes, width) for place in range(width // unit) for lane in range(unit)]
            halves[half].append(b.shuffle(first, second, order))
    return [value for half in halves for value in _unpack(b, half, 2 * unit)]


def _gather_groups(b: Builder, values: list[str], width: int) -> list[str]:
    """Group g of every value, side by side, for all g."""
    if len(values) == 1:
        return values
    lanes = b.blocking.lanes
    picked: list[list[str]] = []
    for parity in (0, 1):
        order = [group * width + lane for group in range(parity, 2 * lanes // width, 2) for lane in range(width)]
        pairs = zip(values[::2], values[1::2], strict=True)
        picked.append(_gather_groups(b, [b.shuffle(first, second, order) for first, second in pairs], width))
    return [value for pair in zip(*picked, strict=True) for value in pair]


def copy_out(blocking: Blocking) -> str:
    """``target[r * row_step + c * column_step] (=|+=) tile[r * 2 * lanes + c]`` for r < rows, c < columns."""
    b = Builder("copy_out", ("ptr noalias %tile", "i64 %rows", "i64 %columns", "ptr %target", "i64 %row_step",
                             "i64 %column_step", "i1 %accumulate"), blocking, attributes="noinline")
    b.cases((b.compare("eq", "%column_step", 1), lambda: _copy_out_vectors(b)),
            (b.compare("eq", "%column_step", 2), lambda: _copy_out_even(b)),
            default=lambda: _copy_out_elements(b))
    return b.text()


def _copy_out_vectors(b: Builder) -> None:
    lanes = b.blocking.lanes
    with b.loop(0, "%columns", lanes) as column:
        mask = b.lanes_between(0, b.min(b.sub("%columns", column), lanes))
        with b.loop(0, "%rows") as row:
            source = b.at("%tile", b.add(b.mul(row, 2 * lanes), column))
            address = b.at("%target", b.add(b.mul(row, "%row_step"), column))

            def add(address: str = address, source: str = source, mask: str = mask) -> None:
                b.store_masked(b.plus(b.load_masked(address, mask), b.load_used(source, mask)), address, mask)

            def put(address: str = address, source: str = source, mask: str = mask) -> None:
                b.store_masked(b.load_vector(source), address, mask)

            b.cases(("%accumulate", add), default=put)


def _copy_out_even(b: Builder) -> None:
    """Every second element, as the residue classes of a stride need: half-filled vectors under a mask."""
    lanes = b.blocking.lanes
    even = "<" + ", ".join(f"i1 {'false' if lane % 2 else 'true'}" for lane in range(lanes)) + ">"
    with b.loop(0, "%columns", lanes // 2) as column:
        left = b.lanes_between(0, b.min(b.sub("%columns", column), lanes))
        used = b.lanes_between(0, b.min(b.mul(b.sub("%columns", column), 2), lanes))
        mask = b.let(f"and {b.mask} {used}, {even}", "m")
        with b.loop(0, "%rows") as row:
            # Half a vector is used; the tile is followed by enough memory to read a whole one.
            value = b.load_used(b.at("%tile", b.add(b.mul(row, 2 * lanes), column)), left)
            value = b.shuffle(value, value, [lane // 2 for lane in range(lanes)])
            address = b.at("%target", b.add(b.mul(row, "%row_step"), b.mul(column, 2)))
            old = b.load_masked(address, b.let(f"select i1 %accumulate, {b.mask} {mask}, {b.mask} zeroinitializer", "m"))
            summed = b.plus(old, value)
            b.store_masked(b.select("%accumulate", summed, value, b.vector), address, mask)


def _copy_out_elements(b: Builder) -> None:
    with b.loop(0, "%columns") as column, b.loop(0, "%rows") as row:
        value = b.load(b.at("%tile", b.add(b.mul(row, 2 * b.blocking.lanes), column)))
        address = b.at("%target", b.dot((row, "%row_step"), (column, "%column_step")))
        total = b.plus(b.load(address), value, b.element)
        b.store(b.select("%accumulate", total, value, b.element), address)


@dataclass(frozen=True, slots=True)
class PatchWords(ParameterBlock):
    """The parameter block that describes the patches of an image batch, word by word.

    Column ``(n, i, j)`` of a ``rows x columns`` grid and tap ``(u, v)`` meet the pixel
    ``(i * row_stride + row_offset + u * row_dilation, ...)`` of channel c; outside the image it is zero.
    """

    batch_step: int
    channel_step: int
    row_step: int
    column_step: int
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


PATCH_WORDS = tuple(field.name for field in fields(PatchWords))


def read_patch(b: Builder, block: str) -> dict[str, str]:
    """Load every word of a patch block."""
    return {name: b.word(block, index) for index, name in enumerate(PATCH_WORDS)}


def pack_patches(blocking: Blocking) -> str:
    """Patches of columns [column, column + count) and depths [depth0, depth1) into panels of ``width`` columns.

    Depth index = channel * taps + tap. ``target[panel][depth - depth0][position]``; positions that no column fills are zero up to the end of
    a vector, and keep what was there behind it.
    """
    b = Builder("pack_patches", ("ptr %image", "ptr noalias %block", "i64 %column", "i64 %count", "i64 %depth0",
                                 "i64 %depth1", "ptr %target", "i64 %width"), blocking, attributes="noinline")
    b.return_when(b.compare("sle", "%count", 0))
    p = read_patch(b, "%block")
    taps = b.mul(p["tap_rows"], p["tap_columns"])
    panel_step = b.mul(b.sub("%depth1", "%depth0"), "%width")
    image_size = b.mul(p["grid_rows"], p["grid_columns"])
    lanes = blocking.lanes
    done, position, panel = b.variable(0), b.variable(0), b.variable(0)
    n = b.variable(b.div("%column", image_size))
    inside = b.rem("%column", image_size)
    i, j = b.variable(b.div(inside, p["grid_columns"])), b.variable(b.rem(inside, p["grid_columns"]))
    with b.loop_while(lambda: b.compare("slt", b.read(done), "%count")):
        room = b.sub("%width", b.read(position))
        length = b.min(b.min(b.sub(p["grid_columns"], b.read(j)), b.min(room, lanes)), b.sub("%count", b.read(done)))
        corner = b.at("%image", b.mul(b.read(n), p["batch_step"]))
        place = b.at("%target", b.dot((b.read(panel), panel_step), (b.read(position), 1)))
        b.call("pack_segment", f"ptr {corner}", "ptr %block", f"i64 {b.read(i)}", f"i64 {b.read(j)}",
               f"i64 {length}", f"i64 {room}", "i64 %depth0", "i64 %depth1", f"i64 {taps}", f"ptr {place}",
               "i64 %width")
        b.assign(done, b.add(b.read(done), length))
        _advance(b, (position, "%width"), (panel, None), length)
        _advance(b, (j, p["grid_columns"]), (i, p["grid_rows"]), length, n)
    b.call("zero_tails", f"ptr {b.at('%target', b.mul(b.read(panel), panel_step))}", f"i64 {b.sub('%depth1', '%depth0')}", "i64 %width",
           f"i64 {b.read(position)}")
    return b.text()


def _advance(b: Builder, low: tuple[str, Value], high: tuple[str, Value | None], length: Value,
             top: str | None = None) -> None:
    """Mixed-radix counter: low += length; on reaching its limit it restarts and the next digit advances."""
    moved = b.add(b.read(low[0]), length)
    full = b.compare("sge", moved, low[1])
    b.assign(low[0], b.select(full, 0, moved))
    with b.when(full):
        following = b.add(b.read(high[0]), 1)
        b.assign(high[0], following)
        if high[1] is not None and top is not None:
            with b.when(b.compare("sge", following, high[1])):
                b.assign(high[0], 0)
                b.assign(top, b.add(b.read(top), 1))


def pack_segment(blocking: Blocking) -> str:
    """All depths of one run of at most ``lanes`` columns of one image row (columns j.. of grid row i)."""
    b = Builder("pack_segment", ("ptr %corner", "ptr noalias %block", "i64 %i", "i64 %j", "i64 %length", "i64 %room",
                                 "i64 %depth0", "i64 %depth1", "i64 %taps", "ptr %target", "i64 %width"),
                blocking, attributes="noinline")
    p = read_patch(b, "%block")
    lanes = blocking.lanes
    step = b.mul(p["column_stride"], p["column_step"])
    # Taps that occur in depth0..depth1: all of them unless the block is shorter than one channel.
    with b.loop(0, p["tap_rows"]) as u, b.loop(0, p["tap_columns"]) as v:
        tap = b.dot((u, p["tap_columns"]), (v, 1))
        first = first_channel(b, "%depth0", tap, "%taps")
        end = first_channel(b, "%depth1", tap, "%taps")
        row = b.dot((u, p["row_dilation"]), ("%i", p["row_stride"]), (p["row_offset"], 1))
        x0 = b.dot((v, p["column_dilation"]), ("%j", p["column_stride"]), (p["column_offset"], 1))
        low, high = valid_lanes(b, x0, p["column_stride"], p["width"], "%length")
        inside = b.both(b.compare("sge", row, 0), b.compare("slt", row, p["height"]))
        high = b.select(inside, high, low)
        source = b.at("%corner", b.dot((row, p["row_step"]), (x0, p["column_step"]), (first, p["channel_step"])))
        place = b.at("%target", b.mul(b.sub(b.add(b.mul(first, "%taps"), tap), "%depth0"), "%width"))
        b.call("copy_channels", f"ptr {source}", f"i64 {p['channel_step']}", f"i64 {step}", f"i64 {low}",
               f"i64 {high}", f"ptr {place}", f"i64 {b.mul('%taps', '%width')}", f"i64 {b.sub(end, first)}",
               f"i64 {b.select(b.compare('sge', '%room', lanes), lanes, '%length')}")
    return b.text()


def first_channel(b: Builder, depth: Value, tap: Value, taps: Value) -> Value:
    """Smallest channel c >= 0 with c * taps + tap >= depth."""
    return b.ceil_div(b.max(b.sub(depth, tap), 0), taps)


def valid_lanes(b: Builder, x0: Value, stride: Value, width: Value, length: Value) -> tuple[Value, Value]:
    """The lanes l < length with 0 <= x0 + l * stride < width, as a range."""
    low = b.min(b.ceil_div(b.max(b.sub(0, x0), 0), stride), length)
    high = b.min(b.ceil_div(b.max(b.sub(width, x0), 0), stride), length)
    return low, b.max(high, low)


def copy_channels(blocking: Blocking) -> str:
    """``target[c * target_step + lane] = source[c * channel_step + lane * step]`` for low <= lane < high, else 0.

    Stores lanes < ``stored``; the inner loop of all patch packing.
    """
    b = Builder("copy_channels", ("ptr %source", "i64 %channel_step", "i64 %step", "i64 %low", "i64 %high",
                                  "ptr %target", "i64 %target_step", "i64 %channels", "i64 %stored"),
                blocking, attributes="noinline")
    lanes = blocking.lanes
    store_all = b.compare("eq", "%stored", lanes)
    unit = b.compare("eq", "%step", 1)
    whole = b.both(b.both(unit, store_all), b.both(b.compare("eq", "%low", 0), b.compare("eq", "%high", lanes)))
    nothing = b.both(b.compare("eq", "%low", "%high"), store_all)
    b.cases(
        (whole, lambda: _each_channel(b, b.load_vector, None)),
        (nothing, lambda: _each_channel(b, None, None)),
        (unit, lambda: _unit_channels(b)),
        (b.compare("eq", "%step", 2), lambda: _even_channels(b)),
        default=lambda: _strided_channels(b),
    )
    return b.text()


def _each_channel(b: Builder, load: Callable[[str], str] | None, stored: str | None) -> None:
    with b.loop(0, "%channels") as c:
        source = b.at("%source", b.mul(c, "%channel_step"))
        value = load(source) if load else "zeroinitializer"
        address = b.at("%target", b.mul(c, "%target_step"))
        if stored is None:
            b.store_vector(value, address)
        else:
            b.store_masked(value, address, stored)


def _unit_channels(b: Builder) -> None:
    mask, stored = b.lanes_between("%low", "%high"), b.lanes_between(0, "%stored")
    _each_channel(b, lambda source: b.load_masked(source, mask), stored)


def _even_channels(b: Builder) -> None:
    stored = b.lanes_between(0, "%stored")
    masks = even_masks(b, "%low", "%high")
    _each_channel(b, lambda source: load_even(b, source, masks), stored)


def _strided_channels(b: Builder) -> None:
    mask, stored = b.lanes_between("%low", "%high"), b.lanes_between(0, "%stored")
    offsets = b.lane_offsets("%step", b.blocking.lanes)
    _each_channel(b, lambda source: b.gather(source, offsets, mask), stored)


SHORT_ROW_VECTORS = 4
ROW_PARAMETERS = ("ptr %image", "ptr noalias %block", "i64 %column", "i64 %count", "i64 %depth0", "i64 %depth1",
                  "ptr %target", "i64 %width")


def pack_rows(blocking: Blocking) -> str:
    """Patches as rows: ``target[depth - depth0][position]`` for columns [column, column + count).

    The same elements as one panel of :func:`pack_patches`, written row by row, which suits rows as long as a page.
    Whole vectors are stored: what spills over a row is overwritten by the next one.
    """
    b = Builder("pack_rows", ROW_PARAMETERS, blocking, attributes="noinline")
    b.return_when(b.compare("sle", "%count", 0))
    p = read_patch(b, "%block")
    step = b.mul(p["column_stride"], p["column_step"])
    unit = b.compare("eq", step, 1)
    aligned = b.both(b.compare("eq", b.rem("%column", p["grid_columns"]), 0),
                     b.compare("eq", b.rem("%count", p["grid_columns"]), 0))
    variants: dict[str, tuple[str, Callable[[Builder, _Row], None]]] = {}
    for stride in (1, 2):
        whole_rows = b.both(aligned, b.compare("eq", step, stride))
        for count in range(1, SHORT_ROW_VECTORS // stride + 1):
            short = b.both(whole_rows, b.compare("sle", p["grid_columns"], count * blocking.lanes))
            variants[f"short{count}_step{stride}"] = (short, partial(_copy_short_rows, vectors=count, step=stride))
    variants["unit"] = (unit, _copy_unit_runs)
    b.cases(*((condition, partial(b.call, f"pack_rows_{name}", *ROW_PARAMETERS))
              for name, (condition, _) in variants.items()),
            default=lambda: b.call("pack_rows_strided", *ROW_PARAMETERS))
    variants["strided"] = ("", _copy_strided_runs)
    return "".join([*(_pack_rows(blocking, name, copy) for name, (_, copy) in variants.items()), b.text()])


@dataclass(frozen=True, slots=True)
class _Row:
    """One depth of the patches while its pixels are copied."""

    patch: dict[str, str]
    start: tuple[Value, Value, Value]
    row0: Value
    low: Value
    high: Value
    source: str
    target: str


def _pack_rows(blocking: Blocking, name: str, copy: Callable[[Builder, _Row], None]) -> str:
    b = Builder(f"pack_rows_{name}", ROW_PARAMETERS, blocking, attributes="noinline")
    p = read_patch(b, "%block")
    taps = b.mul(p["tap_rows"], p["tap_columns"])
    size = b.mul(p["grid_rows"], p["grid_columns"])
    inside = b.rem("%column", size)
    start = (b.div("%column", size), b.div(inside, p["grid_columns"]), b.rem(inside, p["grid_columns"]))
    with b.loop("%depth0", "%depth1") as depth:
        channel, tap = b.div(depth, taps), b.rem(depth, taps)
        u, v = b.div(tap, p["tap_columns"]), b.rem(tap, p["tap_columns"])
        x0 = b.add(b.mul(v, p["column_dilation"]), p["column_offset"])
        low, high = valid_lanes(b, x0, p["column_stride"], p["width"], p["grid_columns"])
        row0 = b.add(b.mul(u, p["row_dilation"]), p["row_offset"])
        source = b.at("%image", b.dot((channel, p["channel_step"]), (x0, p["column_step"])))
        target = b.at("%target", b.mul(b.sub(depth, "%depth0"), "%width"))
        copy(b, _Row(p, start, row0, low, high, source, target))
    return b.text()


def _copy_short_rows(b: Builder, row: _Row, vectors: int, step: int) -> None:
    """Whole image rows of at most ``vectors`` vectors: the masks are the same for all of them."""
    p, (n, first_i, _), lanes = row.patch, row.start, b.blocking.lanes
    parts = [(b.sub(row.low, lanes * part), b.sub(row.high, lanes * part)) for part in range(vectors)]
    masks = [[b.lanes_between(low, high)] if step == 1 else even_masks(b, low, high) for low, high in parts]
    line = b.variable(b.add(b.mul(first_i, p["row_stride"]), row.row0))
    line_end = b.add(b.mul(p["grid_rows"], p["row_stride"]), row.row0)
    image = b.variable(b.mul(n, p["batch_step"]))
    with b.loop(0, "%count", p["grid_columns"]) as done:
        here = b.read(line)
        target = b.at(row.target, done)

        def copy() -> None:
            source = b.at(row.source, b.add(b.read(image), b.mul(here, p["row_step"])))
            for part, mask in enumerate(masks):
                address = b.at(source, step * lanes * part)
                value = b.load_masked(address, mask[0]) if step == 1 else load_even(b, address, mask)
                b.store_vector(value, b.at(target, lanes * part))

        def clear() -> None:
            for part in range(vectors):
                b.store_vector("zeroinitializer", b.at(target, lanes * part))

        b.cases((b.let(f"icmp ult i64 {here}, {p['height']}", "c"), copy), default=clear)
        following = b.add(here, p["row_stride"])
        wrapped = b.compare("sge", following, line_end)
        b.assign(line, b.select(wrapped, row.row0, following))
        b.assign(image, b.add(b.read(image), b.select(wrapped, p["batch_step"], 0)))


def _each_run(b: Builder, row: _Row, copy: Callable[[str, str, Value, Value, Value], None]) -> None:
    """Runs of columns within one image row: copy(source, target, low, high, length) in columns of the run."""
    p = row.patch
    done, n, i, j = b.variable(0), *(b.variable(value) for value in row.start)
    step = b.mul(p["column_stride"], p["column_step"])
    with b.loop_while(lambda: b.compare("slt", b.read(done), "%count")):
        start = b.read(j)
        length = b.min(b.sub(p["grid_columns"], start), b.sub("%count", b.read(done)))
        line = b.add(b.mul(b.read(i), p["row_stride"]), row.row0)
        inside = b.let(f"icmp ult i64 {line}, {p['height']}", "c")
        low, high = b.clamp(b.sub(row.low, start), 0, length), b.clamp(b.sub(row.high, start), 0, length)
        source = b.at(row.source, b.dot((b.read(n), p["batch_step"]), (line, p["row_step"]), (start, step)))
        copy(source, b.at(row.target, b.read(done)), low, b.select(inside, high, low), length)
        b.assign(done, b.add(b.read(done), length))
        _advance(b, (j, p["grid_columns"]), (i, p["grid_rows"]), length, n)


def _copy_unit_runs(b: Builder, row: _Row) -> None:
    lanes = b.blocking.lanes

    def copy(source: str, target: str, low: Value, high: Value, length: Value) -> None:
        with b.loop(0, length, lanes) as q:
            begin, end = b.sub(low, q), b.sub(high, q)
            whole = b.both(b.compare("sle", begin, 0), b.compare("sge", end, lanes))
            b.cases((whole, lambda: b.store_vector(b.load_vector(b.at(source, q)), b.at(target, q))),
                    default=lambda: b.store_vector(b.load_masked(b.at(source, q), b.lanes_between(begin, end)),
                                                   b.at(target, q)))

    _each_run(b, row, copy)


def _copy_strided_runs(b: Builder, row: _Row) -> None:
    lanes = b.blocking.lanes
    step = b.mul(row.patch["column_stride"], row.patch["column_step"])
    offsets = b.lane_offsets(step, lanes)

    def copy(source: str, target: str, low: Value, high: Value, length: Value) -> None:
        with b.loop(0, length, lanes) as q:
            address, begin, end = b.at(source, b.mul(q, step)), b.sub(low, q), b.sub(high, q)
            b.cases((b.compare("eq", step, 2),
                     lambda: b.store_vector(load_even(b, address, even_masks(b, begin, end)), b.at(target, q))),
                    default=lambda: b.store_vector(b.gather(address, offsets, b.lanes_between(begin, end)),
                                                   b.at(target, q)))

    _each_run(b, row, copy)


def even_masks(b: Builder, low: Value, high: Value) -> list[str]:
    """Masks of the two vectors that hold every second element for lanes low <= l < high."""
    first, end = b.mul(low, 2), b.sub(b.mul(high, 2), 1)
    return [b.lanes_between(b.sub(first, shift), b.sub(end, shift)) for shift in (0, b.blocking.lanes)]


def load_even(b: Builder, source: str, masks: list[str]) -> str:
    """Every second element: two vectors side by side, of which the even lanes are kept."""
    lanes = b.blocking.lanes
    left, right = b.load_masked(source, masks[0]), b.load_masked(b.at(source, lanes), masks[1])
    return b.shuffle(left, right, [2 * lane for lane in range(lanes)])


def zero_tails(blocking: Blocking) -> str:
    """Zero the columns [used, next multiple of lanes) of every row, so that whole vectors can be multiplied: what was there before may be
    subnormal numbers, with which some processors multiply a hundred times as long."""
    b = Builder("zero_tails", ("ptr %target", "i64 %rows", "i64 %width", "i64 %used"), blocking, attributes="noinline")
    lanes = blocking.lanes
    extra = b.rem("%used", lanes)
    b.return_when(b.compare("eq", extra, 0))
    mask = b.lanes_between(extra, lanes)
    start = b.at("%target", b.sub("%used", extra))
    with b.loop(0, "%rows") as row:
        b.store_masked("zeroinitializer", b.at(start, b.mul(row, "%width")), mask)
    return b.text()


def pack_panel(blocking: Blocking) -> str:
    """``target[k * width + lane] = source[lane * lane_step + k * depth_step]`` for lane < count <= width."""
    b = Builder("pack_panel", ("ptr %source", "i64 %lane_step", "i64 %depth_step", "i64 %count", "i64 %depth",
                               "ptr %target", "i64 %width"), blocking, attributes="noinline")
    lanes = blocking.lanes
    with b.loop(0, "%count", lanes) as lane:
        b.call("pack_lanes", f"ptr {b.at('%source', b.mul(lane, '%lane_step'))}", "i64 %lane_step", "i64 %depth_step",
               f"i64 {b.min(b.sub('%count', lane), lanes)}", "i64 %depth", f"ptr {b.at('%target', lane)}", "i64 %width")
    return b.text()


def clear_second_vector(b: Builder, target: str, depth: Value, count: Value) -> None:
    """Zeros in the second vector of every k of a panel of columns whose ``count`` columns fill the first at most, for who multiplies both."""
    with b.when(b.compare("sle", count, b.blocking.lanes)), b.loop(0, depth) as k:
        b.store_vector("zeroinitializer", b.at(target, b.add(b.mul(k, b.blocking.tile_columns), b.blocking.lanes)))


def packers(blocking: Blocking) -> str:
    """Every function of this file."""
    return "".join(make(blocking) for make in (pack_lanes, pack_panel, copy_out, copy_channels, pack_segment,
                                               pack_patches, pack_rows, zero_tails))
