"""Moving bfloat16 operands of convolutions into packed pairs, and float32 tiles out of them.

A packed element is a lane of 32 bits with two values that one instruction multiplies with two others and adds up. Of images and weights they
are two successive channels, of the operands of a weight gradient the same pixel of two successive images: so that taps, strides and
padding move whole elements, as in float32, and everything that is not in this file is the same code for both types.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.conv_words import read_conv
from calque.backend.cpu.contract.halves import (
    as_vector,
    halves_between,
    load_half,
    load_halves,
    load_words,
    lower,
    paired,
    rounded,
    store_halves,
    store_pair,
    store_rounded,
    upper,
    words,
)
from calque.backend.cpu.contract.pack import first_channel, read_patch, transpose, valid_lanes
from calque.backend.cpu.contract.target import Blocking

ALONE = -(1 << 60)
"""Stands where the distance of a second value would, if there is none."""
PREFETCHED_SQUARES = 4
"""How far ahead of a square its rows are asked for: they lie in pages of their own."""
LANE_PARAMETERS = ("ptr %source", "i64 %second", "i64 %lane_step", "i64 %depth_step", "i64 %count", "i64 %whole", "i64 %depth")
ROW_PARAMETERS = ("ptr %source", "i64 %second", "i64 %channel_step", "i64 %step", "i64 %low", "i64 %high", "ptr %target", "i64 %target_step",
                  "i64 %channels", "i64 %stored")


def pair_functions(blocking: Blocking) -> str:
    """Every function of this file."""
    return "".join(make(blocking) for make in (_pair_lanes, _pair_panel, _pair_rows, _copy_channels, _pack_plane, _weight_panel, _tile_out,
                                               _joint_out, _clear_share, _spread_bias))


# ------------------------------------------------------------------------------------------------------------------ in


def _pair_lanes(blocking: Blocking) -> str:
    """``target[k * target_step + lane]`` = the pair of ``source[lane * lane_step + k * depth_step]`` and what lies ``second`` behind it.

    For lane < count <= lanes and k < depth; from k = whole on there is no second value (zero). Lanes from ``count`` on receive arbitrary values.
    """
    b = Builder("pair_lanes", (*LANE_PARAMETERS, "ptr %target", "i64 %target_step"), blocking, attributes="noinline")
    adjacent = b.both(b.compare("eq", "%second", 1), b.compare("eq", "%depth_step", 2))
    b.cases((b.compare("eq", "%lane_step", 1), lambda: _side_by_side(b)),
            (adjacent, lambda: _squares(b, partial(_adjacent, b))),
            (b.compare("eq", "%depth_step", 1), lambda: _squares(b, partial(_apart, b))),
            (b.compare("eq", "%depth_step", 2), lambda: _squares(b, partial(_even, b))),
            default=lambda: _one_by_one(b))
    return b.text()


def _side_by_side(b: Builder) -> None:
    """Lanes follow each other: one row of each half for every k."""
    mask = b.lanes_between(0, "%count")
    with b.loop(0, "%depth") as k:
        source = b.operand_at("%source", b.mul(k, "%depth_step"))
        exists = b.let(f"select i1 {b.compare('slt', k, '%whole')}, {b.mask} {mask}, {b.mask} zeroinitializer", "m")
        value = paired(b, load_words(b, source, mask), load_words(b, b.operand_at(source, "%second"), exists))
        b.store_vector(as_vector(b, value), b.at("%target", b.mul(k, "%target_step")))


def _squares(b: Builder, load: Callable[[str, Value], str]) -> None:
    """Squares through registers; the last one of the depth is cut. ``load(row, k)``: elements of one lane from k on."""
    lanes, last = b.blocking.lanes, b.sub("%count", 1)
    rows = [b.operand_at("%source", b.mul(b.min(lane, last), "%lane_step")) for lane in range(lanes)]
    with b.loop(0, "%depth", lanes) as k:
        place = b.mul(k, "%depth_step")
        for row in rows:
            b.prefetch(b.operand_at(row, b.add(place, b.mul("%depth_step", PREFETCHED_SQUARES * lanes))))
        values = transpose(b, [as_vector(b, load(b.operand_at(row, place), k)) for row in rows])
        target, left = b.at("%target", b.mul(k, "%target_step")), b.sub("%depth", k)

        def whole(target: str = target, values: list[str] = values) -> None:
            for index, value in enumerate(values):
                b.store_vector(value, b.at(target, b.mul(index, "%target_step")))

        def part(target: str = target, values: list[str] = values, left: Value = left) -> None:
            for index, value in enumerate(values):
                with b.when(b.compare("sgt", left, index)):
                    b.store_vector(value, b.at(target, b.mul(index, "%target_step")))

        b.cases((b.compare("sge", left, lanes), whole), default=part)


def _masks(b: Builder, k: Value) -> tuple[Value, Value]:
    """How many of the elements from k on exist, and how many have a second value."""
    return b.min(b.sub("%depth", k), b.blocking.lanes), b.clamp(b.sub("%whole", k), 0, b.blocking.lanes)


def _adjacent(b: Builder, row: str, k: Value) -> str:
    """The second value stands right behind the first."""
    return load_halves(b, row, halves_between(b, 0, b.add(*_masks(b, k))))


def _apart(b: Builder, row: str, k: Value) -> str:
    """Both values in rows of their own."""
    exist, whole = _masks(b, k)
    return paired(b, load_words(b, row, b.lanes_between(0, exist)), load_words(b, b.operand_at(row, "%second"), b.lanes_between(0, whole)))


def _even(b: Builder, row: str, k: Value) -> str:
    """Every second value of two rows; what lies behind the last one is not touched."""
    halves = [(row, _masks(b, k)[0]), (b.operand_at(row, "%second"), _masks(b, k)[1])]
    return paired(b, *(lower(b, load_halves(b, place, halves_between(b, 0, b.sub(b.mul(count, 2), 1)))) for place, count in halves))


def _one_by_one(b: Builder) -> None:
    with b.loop(0, "%depth") as k, b.loop(0, "%count") as lane:
        address = b.operand_at("%source", b.dot((lane, "%lane_step"), (k, "%depth_step")))
        _store_element(b, address, b.compare("slt", k, "%whole"), b.at("%target", b.add(b.mul(k, "%target_step"), lane)))


def _store_element(b: Builder, address: str, exists: str, target: str) -> None:
    second = load_half(b, b.operand_at(address, b.select(exists, "%second", 0)))
    store_pair(b, load_half(b, address), b.select(exists, second, 0, "i32"), target)


def _pair_panel(blocking: Blocking) -> str:
    """The same for ``count <= width`` lanes of a panel."""
    b = Builder("pair_panel", (*LANE_PARAMETERS, "ptr %target", "i64 %width"), blocking, attributes="noinline")
    with b.loop(0, "%count", blocking.lanes) as lane:
        b.call("pair_lanes", f"ptr {b.operand_at('%source', b.mul(lane, '%lane_step'))}", "i64 %second", "i64 %lane_step", "i64 %depth_step",
               f"i64 {b.min(b.sub('%count', lane), blocking.lanes)}", "i64 %whole", "i64 %depth", f"ptr {b.at('%target', lane)}", "i64 %width")
    return b.text()


def _pair_rows(blocking: Blocking) -> str:
    """``target[c * target_step + lane]`` = the pair of ``source[c * channel_step + lane * step]`` and what lies ``second`` behind it (`ALONE`: zero).

    For low <= lane < high, else zero; lanes < ``stored`` are written. As ``copy_channels`` of other types.
    """
    b = Builder("pair_rows", ROW_PARAMETERS, blocking, attributes="noinline")
    stored = b.lanes_between(0, "%stored")
    whole = b.compare("ne", "%second", ALONE)

    def each(load: Callable[[str], str]) -> None:
        with b.loop(0, "%channels") as c:
            source = b.operand_at("%source", b.mul(c, "%channel_step"))
            b.store_masked(as_vector(b, load(source)), b.at("%target", b.mul(c, "%target_step")), stored)

    def unit() -> None:
        mask = b.lanes_between("%low", "%high")
        second = b.let(f"select i1 {whole}, {b.mask} {mask}, {b.mask} zeroinitializer", "m")
        each(lambda source: paired(b, load_words(b, source, mask), load_words(b, b.operand_at(source, "%second"), second)))

    def even() -> None:
        kind = f"<{2 * blocking.lanes} x i1>"
        mask = halves_between(b, b.mul("%low", 2), b.sub(b.mul("%high", 2), 1))
        second = b.let(f"select i1 {whole}, {kind} {mask}, {kind} zeroinitializer", "m")
        each(lambda source: paired(b, lower(b, load_halves(b, source, mask)),
                                   lower(b, load_halves(b, b.operand_at(source, "%second"), second))))

    def strided() -> None:
        each(lambda _: "zeroinitializer")
        with b.loop(0, "%channels") as c, b.loop("%low", "%high") as lane:
            address = b.operand_at("%source", b.dot((c, "%channel_step"), (lane, "%step")))
            _store_element(b, address, whole, b.at("%target", b.add(b.mul(c, "%target_step"), lane)))

    b.cases((b.compare("eq", "%step", 1), unit), (b.compare("eq", "%step", 2), even), default=strided)
    return b.text()


def _copy_channels(blocking: Blocking) -> str:
    """Pairs of successive channels, one more with a single value if ``channels`` is odd."""
    parameters = (ROW_PARAMETERS[0], *ROW_PARAMETERS[2:])
    b = Builder("copy_channels", parameters, blocking, attributes="noinline")
    pairs = b.div("%channels", 2)
    rest = ("i64 %step", "i64 %low", "i64 %high")
    b.call("pair_rows", "ptr %source", "i64 %channel_step", f"i64 {b.mul('%channel_step', 2)}", *rest, "ptr %target", "i64 %target_step",
           f"i64 {pairs}", "i64 %stored")
    with b.when(b.compare("slt", b.mul(pairs, 2), "%channels")):
        b.call("pair_rows", f"ptr {b.operand_at('%source', b.mul(b.mul(pairs, 2), '%channel_step'))}", f"i64 {ALONE}", "i64 0", *rest,
               f"ptr {b.at('%target', b.mul(pairs, '%target_step'))}", "i64 0", "i64 1", "i64 %stored")
    return b.text()


def _pack_plane(blocking: Blocking) -> str:
    """``target[channel][row][column]`` from (top, left) on, zero outside of the image; strides are 1."""
    b = Builder("flat_pack_plane", ("ptr %image", "i64 %row_step", "i64 %column_step", "i64 %height", "i64 %width", "i64 %row_stride",
                                    "i64 %column_stride", "i64 %top", "i64 %left", "i64 %rows", "i64 %columns", "i64 %planes",
                                    "i64 %plane_step", "i64 %target_step", "ptr %target"), blocking, attributes="noinline")
    lanes = blocking.lanes
    with b.loop(0, "%columns", lanes) as column, b.loop(0, "%rows") as row:
        length, x, y = b.min(b.sub("%columns", column), lanes), b.add("%left", column), b.add("%top", row)
        low, high = valid_lanes(b, x, 1, "%width", length)
        high = b.select(b.let(f"icmp ult i64 {y}, %height", "c"), high, low)
        b.call("copy_channels", f"ptr {b.operand_at('%image', b.dot((y, '%row_step'), (x, '%column_step')))}", "i64 %plane_step",
               "i64 %column_step", f"i64 {low}", f"i64 {high}", f"ptr {b.at('%target', b.add(b.mul(row, '%columns'), column))}",
               "i64 %target_step", "i64 %planes", f"i64 {length}")
    return b.text()


def _weight_panel(blocking: Blocking) -> str:
    """Depths [start, start + length) = (pair of channels, tap) of ``count`` rows of weights, whatever their strides."""
    b = Builder("weight_panel", ("ptr %source", "ptr noalias %block", "i64 %start", "i64 %length", "i64 %count", "ptr %target",
                                 "i64 %width"), blocking, attributes="noinline")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    step, inputs = w["weight_channel_step"], w["channels"]
    taps, end = b.mul(p["tap_rows"], p["tap_columns"]), b.add("%start", "%length")
    lane = f"i64 {w['weight_row_step']}"

    def panel(source: str, depth_step: Value, whole: Value, depth: Value, target: str, width: Value) -> None:
        b.call("pair_panel", f"ptr {source}", f"i64 {step}", lane, f"i64 {depth_step}", "i64 %count", f"i64 {whole}", f"i64 {depth}",
               f"ptr {target}", f"i64 {width}")

    def along_channels() -> None:
        panel(b.operand_at("%source", b.mul(b.mul("%start", 2), step)), b.mul(step, 2), b.sub(b.div(inputs, 2), "%start"), "%length", "%target",
              "%width")

    def tap_by_tap() -> None:
        with b.loop(0, p["tap_rows"]) as u, b.loop(0, p["tap_columns"]) as v:
            tap = b.dot((u, p["tap_columns"]), (v, 1))
            first, stop = first_channel(b, "%start", tap, taps), first_channel(b, end, tap, taps)
            source = b.operand_at("%source", b.dot((u, w["weight_tap_row_step"]), (v, w["weight_tap_column_step"]), (b.mul(first, 2), step)))
            place = b.at("%target", b.mul(b.sub(b.add(b.mul(first, taps), tap), "%start"), "%width"))
            panel(source, b.mul(step, 2), b.sub(b.div(inputs, 2), first), b.sub(stop, first), place, b.mul(taps, "%width"))

    def channel_by_channel() -> None:
        with b.loop(b.div("%start", taps), b.ceil_div(end, taps)) as pair:
            begin = b.max(b.mul(pair, taps), "%start")
            stop = b.min(b.mul(b.add(pair, 1), taps), end)
            depth = b.sub(stop, begin)
            source = b.operand_at("%source", b.dot((b.mul(pair, 2), step), (b.sub(begin, b.mul(pair, taps)), 1)))
            whole = b.select(b.compare("slt", b.add(b.mul(pair, 2), 1), inputs), depth, 0)
            panel(source, 1, whole, depth, b.at("%target", b.mul(b.sub(begin, "%start"), "%width")), "%width")

    joined = b.both(b.compare("eq", w["weight_tap_row_step"], p["tap_columns"]), b.compare("eq", w["weight_tap_column_step"], 1))
    several = b.both(joined, b.compare("sge", taps, blocking.lanes // 4))
    b.cases((b.compare("eq", taps, 1), along_channels), (several, channel_by_channel), default=tap_by_tap)
    return b.text()


# ----------------------------------------------------------------------------------------------------------------- out


def _tile_out(blocking: Blocking) -> str:
    """A tile of pixels x channels, rounded, into planes: all its pixels as one run where they follow each other, else line by line."""
    b = Builder("tile_out", ("ptr noalias %tile", "i64 %lines", "i64 %width", "i64 %channels", "ptr %target", "i64 %channel_step",
                             "i64 %row_step", "i64 %column_step"), blocking, attributes="noinline")
    lanes, columns = blocking.lanes, blocking.tile_columns
    unit, turned = b.compare("eq", "%column_step", 1), b.array(columns * lanes)
    joined = b.both(unit, b.either(b.compare("eq", "%lines", 1), b.compare("eq", "%row_step", "%width")))
    runs, length = b.select(joined, 1, "%lines"), b.select(joined, b.mul("%lines", "%width"), "%width")
    with b.loop(0, runs) as run, b.loop(0, length, lanes) as pixel:
        count, source = b.min(b.sub(length, pixel), lanes), b.at("%tile", b.mul(b.add(b.mul(run, "%width"), pixel), columns))
        mask, line = b.lanes_between(0, count), b.operand_at("%target", b.dot((run, "%row_step"), (pixel, "%column_step")))

        def each(store: Callable[[str, int], None], source: str = source) -> None:
            for half in range(0, columns, lanes):
                block = transpose(b, [b.load_vector(b.at(source, row * columns + half)) for row in range(lanes)])
                for lane, value in enumerate(block):
                    store(value, half + lane)

        def straight(value: str, channel: int, line: str = line, mask: str = mask) -> None:
            with b.when(b.compare("sgt", "%channels", channel)):
                store_rounded(b, value, b.operand_at(line, b.mul(channel, "%channel_step")), mask)

        def by_copy(line: str = line, count: Value = count) -> None:
            each(lambda value, channel: b.store_vector(as_vector(b, rounded(b, value)), b.at(turned, channel * lanes)))
            with b.loop(0, "%channels") as channel:
                _scatter(b, b.at(turned, b.mul(channel, lanes)), b.operand_at(line, b.mul(channel, "%channel_step")), count)

        b.cases((unit, partial(each, straight)), default=by_copy)
    return b.text()


def _spread_bias(blocking: Blocking) -> str:
    """A tile of pixels x channels whose rows all are the bias of these channels."""
    b = Builder("spread_bias", ("ptr %bias", "i64 %channels", "i64 %pixels", "ptr noalias %tile"), blocking, attributes="noinline")
    lanes, columns = blocking.lanes, blocking.tile_columns
    rows = []
    for first in range(0, columns, lanes):
        mask = b.lanes_between(0, b.clamp(b.sub("%channels", first), 0, lanes))
        rows.append(as_vector(b, upper(b, load_words(b, b.operand_at("%bias", first), mask))))
    with b.loop(0, "%pixels") as pixel:
        for k, row in enumerate(rows):
            b.store_vector(row, b.at("%tile", b.add(b.mul(pixel, columns), k * lanes)))
    return b.text()


def _scatter(b: Builder, source: str, target: str, count: Value) -> None:
    """The lower halves of ``count`` packed elements, ``%column_step`` apart."""

    def one_by_one() -> None:
        with b.loop(0, count) as pixel:
            half = b.let(f"load i16, ptr {b.at(source, pixel)}, align 4")
            b.emit(f"store i16 {half}, ptr {b.operand_at(target, b.mul(pixel, '%column_step'))}, align 2")

    def even() -> None:
        _store_even(b, b.let(f"load {words(b.blocking, 'i32')}, ptr {source}, align 4"), target, count)

    b.cases((b.compare("eq", "%column_step", 2), even), default=one_by_one)


def _store_even(b: Builder, integers: str, target: str, count: Value) -> None:
    """Every second element: halves under a mask."""
    size = 2 * b.blocking.lanes
    even = "<" + ", ".join(f"i1 {'false' if half % 2 else 'true'}" for half in range(size)) + ">"
    mask = b.let(f"and <{size} x i1> {halves_between(b, 0, b.mul(count, 2))}, {even}", "m")
    store_halves(b, integers, target, mask)


def _joint_out(blocking: Blocking) -> str:
    """Pixels of one row of two tiles (pixels x channels), turned, rounded and interleaved: ``length`` elements of each channel's row."""
    b = Builder("joint_out", ("ptr noalias %even", "ptr noalias %odd", "i64 %length", "i64 %channels", "ptr %target", "i64 %channel_step"),
                blocking, attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    with b.loop(0, b.ceil_div("%length", 2), lanes) as pixel:
        mask = halves_between(b, 0, b.min(b.sub("%length", b.mul(pixel, 2)), 2 * lanes))
        with b.loop(0, width, lanes) as half:
            blocks = [transpose(b, [b.load_vector(b.at(tile, b.add(b.mul(b.add(pixel, row), width), half))) for row in range(lanes)])
                      for tile in ("%even", "%odd")]
            for lane, (even, odd) in enumerate(zip(*blocks, strict=True)):
                channel = b.add(half, lane)
                with b.when(b.compare("sgt", "%channels", channel)):
                    target = b.operand_at("%target", b.add(b.mul("%channel_step", channel), b.mul(pixel, 2)))
                    store_halves(b, paired(b, rounded(b, even), rounded(b, odd)), target, mask)
    return b.text()


def _clear_share(blocking: Blocking) -> str:
    """This thread's share of ``size`` zeros."""
    b = Builder("clear_share", ("i64 %thread", "i64 %threads", "ptr %result", "i64 %size"), blocking, attributes="noinline")
    size = 2 * blocking.lanes
    low, high = b.share(b.ceil_div("%size", size), "%thread", "%threads")
    with b.loop(low, high) as vector:
        first = b.mul(vector, size)
        store_halves(b, "zeroinitializer", b.operand_at("%result", first), halves_between(b, 0, b.min(b.sub("%size", first), size)))
    return b.text()
