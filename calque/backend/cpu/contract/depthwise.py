"""Depthwise convolutions with 3x3 or 5x5 taps: every plane is read where it lies, and written once.

Vectors run along output rows. For a few of these at a time each input row that they need is loaded once for each tap column and multiplied into
all of them, so that all sums stay in registers; with stride 2 the even and the odd pixels of two vectors are what two neighbouring taps need. Masks
are zeros around the image, which depend on the column alone; a row outside of it is a row of zeros. Every sum runs over the taps in order, as
on the way by copies (`flat.py`), with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.conv_words import read_conv
from calque.backend.cpu.contract.finish import finish
from calque.backend.cpu.contract.pack import read_patch
from calque.backend.cpu.contract.target import Blocking

TAPS, STRIDES = (3, 5), (1, 2)
FEWEST_PLANES = 16
"""Planes that threads share out; of fewer they share rows."""
ROWS_AT_ONCE = 4
TOGETHER_BYTES, MOST_TOGETHER = 16 << 10, 16
"""Small planes are taken together, as far as they stay in the first-level cache: what their columns have in common is found once."""
Words = Mapping[str, str]
PLANES = ("i64 %planes", "ptr %image", "ptr noalias readonly %weights", "ptr noalias %result", "ptr noalias %block")


def is_depthwise(b: Builder, p: Words, w: Words) -> str:
    """Whether a block of parameters that `flat.py` takes is computed here."""
    ones = (w["rows"], w["channels"], w["row_upsampling"], w["column_upsampling"], p["row_dilation"], p["column_dilation"], p["column_step"],
            w["result_column_step"])
    square = b.both(b.compare("eq", p["tap_rows"], p["tap_columns"]), b.compare("eq", p["row_stride"], p["column_stride"]))
    taps = b.either(*[b.compare("eq", p["tap_rows"], taps) for taps in TAPS])
    strides = b.either(*[b.compare("eq", p["row_stride"], stride) for stride in STRIDES])
    many = b.compare("sge", b.mul(w["groups"], w["images"]), FEWEST_PLANES)
    return b.both(square, taps, strides, many, *[b.compare("eq", value, 1) for value in ones])


def depthwise_functions(blocking: Blocking) -> str:
    """Everything specific to this path."""
    planes = [_planes(taps, stride, rows, blocking) for taps in TAPS for stride in STRIDES for rows in (ROWS_AT_ONCE, 1)]
    return "".join([*planes, _convolve(blocking)])


def _planes(taps: int, stride: int, rows: int, blocking: Blocking) -> str:
    """Some planes of one image, so many output rows at a time; the last ones overlap those before."""
    b = Builder(f"depthwise_{taps}x{stride}x{rows}", PLANES, blocking, attributes="noinline")
    p, w, lanes = read_patch(b, "%block"), read_conv(b, "%block"), blocking.lanes
    zeros, end = b.array(3 * lanes), b.sub(p["grid_rows"], rows)
    for place in range(0, 3 * lanes, lanes):
        b.store_vector("zeroinitializer", b.at(zeros, place))
    width, row_step = p["grid_columns"], _row_step(b, p, w)
    with b.loop(0, width, lanes) as column:
        x = b.add(b.mul(column, stride), p["column_offset"])
        masks = {place: b.lanes_between(b.clamp(b.sub(0, b.add(x, place)), 0, lanes), b.clamp(b.sub(p["width"], b.add(x, place)), 0, lanes))
                 for place in _places(taps, stride, lanes)}
        kept = b.lanes_between(0, b.min(b.sub(width, column), lanes))
        with b.loop(0, "%planes") as plane:
            weights = [[b.splat(b.load(b.at("%weights", b.add(b.mul(plane, taps * taps), u * taps + v))), blocking.element) for v in range(taps)]
                       for u in range(taps)]
            image = b.at("%image", b.add(b.mul(plane, w["image_group_step"]), x))
            result = b.at("%result", b.add(b.mul(plane, w["result_group_step"]), column))
            with b.loop(0, p["grid_rows"], rows) as start:
                i = b.min(start, end)
                first = b.add(b.mul(i, stride), p["row_offset"])
                sums = ["zeroinitializer"] * rows
                for t in range((rows - 1) * stride + taps):
                    y = b.add(first, t)
                    inside = b.let(f"icmp ult i64 {y}, {p['height']}", "c")
                    source = b.select(inside, b.at(image, b.mul(y, p["row_step"])), zeros, "ptr")
                    for v, pixels in enumerate(_pixels(b, source, taps, stride, masks)):
                        for r in range(rows):
                            if 0 <= (u := t - r * stride) < taps:
                                sums[r] = b.let(b.product(weights[u][v], pixels, sums[r]))
                for r, total in enumerate(sums):
                    b.store_masked(total, b.at(result, b.mul(b.add(i, r), row_step)), kept)
    return b.text()


def _row_step(b: Builder, p: Words, w: Words) -> Value:
    """From a row of the result to the next, also where they are described as one."""
    return b.select(b.compare("ne", w["result_grid_columns"], p["grid_columns"]), p["grid_columns"], w["result_row_step"])


def _places(taps: int, stride: int, lanes: int) -> list[int]:
    """Where vectors of a row are loaded, seen from its first pixel."""
    if stride == 1:
        return list(range(taps))
    return sorted({first + half for first in range(0, taps, 2) for half in (0, lanes)})


def _pixels(b: Builder, source: str, taps: int, stride: int, masks: Mapping[int, str]) -> list[str]:
    """What each tap of a row meets."""
    loaded = {place: b.load_masked(b.at(source, place), mask) for place, mask in masks.items()}
    if stride == 1:
        return [loaded[v] for v in range(taps)]
    lanes, found = b.blocking.lanes, []
    for v in range(taps):
        order = [2 * lane + v % 2 for lane in range(lanes)]
        found.append(b.shuffle(loaded[v - v % 2], loaded[v - v % 2 + lanes], order))
    return found


def _convolve(blocking: Blocking) -> str:
    """This thread's share of the planes."""
    b = Builder("depthwise_convolve", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %weights", "ptr %result",
                                       "ptr noalias %block"), blocking, attributes="noinline")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    pixels = b.mul(p["grid_rows"], p["grid_columns"])
    few = b.compare("slt", p["grid_rows"], ROWS_AT_ONCE)
    key = b.add(b.mul(b.add(b.mul(p["tap_rows"], 4), p["row_stride"]), 8), b.select(few, 1, ROWS_AT_ONCE))
    each = b.max(b.mul(b.mul(p["height"], p["width"]), blocking.item_bytes), 1)
    most = b.clamp(b.div(TOGETHER_BYTES, each), 1, MOST_TOGETHER)
    low, high = b.share(b.mul(w["groups"], w["images"]), "%thread", "%threads")
    position = b.variable(low)
    with b.loop_while(lambda: b.compare("slt", b.read(position), high)):
        unit = b.read(position)
        group, image = b.rem(unit, w["groups"]), b.div(unit, w["groups"])
        count = b.min(b.min(most, b.sub(high, unit)), b.sub(w["groups"], group))
        source = b.at("%image", b.dot((image, p["batch_step"]), (group, w["image_group_step"])))
        result = b.at("%result", b.dot((image, w["result_batch_step"]), (group, w["result_group_step"]), (w["result_offset"], 1)))
        weights = b.at("%weights", b.mul(group, b.mul(p["tap_rows"], p["tap_columns"])))
        choices = [((taps * 4 + stride) * 8 + rows, f"planes{taps}x{stride}x{rows}", f"depthwise_{taps}x{stride}x{rows}")
                   for taps in TAPS for stride in STRIDES for rows in (ROWS_AT_ONCE, 1)]
        b.jump_table(key, choices, (f"i64 {count}", f"ptr {source}", f"ptr {weights}", f"ptr {result}", "ptr %block"))
        finish(b, "%private", group, count, 0, pixels, image)
        b.assign(position, b.add(unit, count))
    return b.text()
