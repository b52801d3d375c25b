"""Weight gradient with few channels and rows per group (depthwise above all): one dot product of planes per tap.

x is packed as in :mod:`flat`, g as planes of the same row length with zeros between the rows, so that every tap is one
dot product of two runs, shifted by the tap's distance. A group belongs to one thread, which adds blocks in their order;
where groups are few, images are cut into ``splits``, a function of the sizes alone. A value of x that is not finite also
meets zeros between the rows of g.
"""

from __future__ import annotations

from dataclasses import fields

from calque.backend.cpu.contract.builder import Builder, ParameterBlock, passed_on
from calque.backend.cpu.contract.depth import depth_block
from calque.backend.cpu.contract.flat import NEAR_BYTES, PLANES_AT, SUMS_AT, batch_size, block_layout
from calque.backend.cpu.contract.lanes import takes_lanes
from calque.backend.cpu.contract.micro import lane_sums
from calque.backend.cpu.contract.pack import PatchWords, read_patch
from calque.backend.cpu.contract.target import Blocking
from calque.base.dataclass import dataclass

MOST_TAPS = 9
MOST_CHANNELS = 8
MOST_SUMS = 512
TASKS = 16
GRADIENTS_AT = SUMS_AT + (128 << 10)


@dataclass(frozen=True, slots=True)
class FlatGradWords(ParameterBlock):
    """What stands between the mark and the patch description of x (steps in elements)."""

    groups: int
    rows: int
    channels: int
    images: int
    splits: int
    chunk: int
    image_group_step: int
    gradient_batch: int
    gradient_channel: int
    gradient_row: int
    gradient_column: int


WORDS = tuple(field.name for field in fields(FlatGradWords))


def flat_chunk(rows: int, channels: int, groups: int, taps: int) -> int:
    """Groups whose sums stay in the first-level cache together, few enough to make about sixteen pieces of work."""
    return max(1, min(MOST_SUMS // (rows * channels * taps), groups // TASKS))


def flat_splits(rows: int, channels: int, groups: int, images: int, patch: PatchWords) -> int | None:
    """Parts into which the images are cut, or None where this path does not pay."""
    taps = patch.tap_rows * patch.tap_columns
    if max(rows, channels) > MOST_CHANNELS or rows * channels * taps > MOST_SUMS or min(rows * channels * taps, images) < 1:
        return None
    around = [(taps - 1) * dilation // stride for taps, dilation, stride in (
        (patch.tap_rows, patch.row_dilation, patch.row_stride), (patch.tap_columns, patch.column_dilation, patch.column_stride))]
    columns = patch.grid_columns + around[1]
    line = columns * patch.row_stride * patch.column_stride * channels
    if 2 * columns > 5 * patch.grid_columns or columns * rows > 1 << 15 or line * (1 + around[0]) > 1 << 17 or not patch.grid_rows:
        return None
    return max(1, min(-(-TASKS // groups), images))


def flat_grad_functions(blocking: Blocking) -> str:
    """``flat_grad`` and everything specific to it."""
    dots = [_dots(taps, blocking) for taps in range(1, MOST_TAPS + 1)]
    return "".join([*dots, _choose(blocking), _block(blocking), _sum_lanes(blocking), _by_lanes(blocking), _run(blocking)])


DOT_PARAMETERS = ("i64 %vectors", "ptr noalias readonly %gradient", "ptr noalias readonly %source",
                  "ptr noalias readonly %table", "ptr %sums")


def _dots(taps: int, blocking: Blocking) -> str:
    """``sums[tap] += gradient[vector] * source[table[tap] + vector]`` for all vectors."""
    b = Builder(f"flat_dots_{taps}", DOT_PARAMETERS, blocking, attributes="noinline")
    lanes = blocking.lanes
    sources, starts, names = [], [], [f"%s{tap}" for tap in range(taps)]
    for tap in range(taps):
        sources.append(b.at("%source", b.load_offset("%table", tap)))
        starts.append(b.load_vector(b.at("%sums", tap * lanes)))
    with b.carrying(b.mul("%vectors", lanes), lanes, [(b.vector, *sums) for sums in zip(names, starts, strict=True)]):
        gradient = b.load_vector(b.at("%gradient", "%k"))
        for name, source in zip(names, sources, strict=True):
            b.emit(f"{name}.next = {b.product(gradient, b.load_vector(b.at(source, '%k')), name)}")
    for tap, name in enumerate(names):
        b.store_vector(name, b.at("%sums", tap * lanes))
    return b.text()


def _choose(blocking: Blocking) -> str:
    """``flat_dots(taps, ...)``: a jump table."""
    b = Builder("flat_dots", ("i64 %taps", *DOT_PARAMETERS), blocking, attributes="noinline")
    b.jump_table("%taps", [(taps, f"taps{taps}", f"flat_dots_{taps}") for taps in range(1, MOST_TAPS + 1)], passed_on(DOT_PARAMETERS))
    return b.text()


def _read(b: Builder) -> tuple[dict[str, str], str]:
    return {name: b.word("%block", index) for index, name in enumerate(WORDS)}, b.byte_at("%block", 8 * len(WORDS))


def _block(blocking: Blocking) -> str:
    """Output rows i.. of ``units`` groups of one image into the sums of the groups, one vector for each weight."""
    b = Builder("flat_grad_block", ("ptr %private", "ptr %image", "ptr %gradient", "i64 %i", "i64 %units", "ptr %sums",
                                    "ptr noalias %block"), blocking, attributes="noinline")
    (w, patch), lanes = _read(b), blocking.lanes
    p = read_patch(b, patch)
    layout = block_layout(b, p, w["channels"], NEAR_BYTES)
    gradients, planes = b.byte_at("%private", GRADIENTS_AT), b.byte_at("%private", PLANES_AT)
    top = b.add(b.mul("%i", p["row_stride"]), layout.first_row)
    lines = b.min(layout.block_rows, b.sub(p["grid_rows"], "%i"))
    vectors = b.ceil_div(b.mul(lines, layout.columns), lanes)
    plane = b.mul(vectors, lanes)
    channels, rows = b.mul("%units", w["channels"]), b.mul("%units", w["rows"])
    b.call("flat_pack_plane", "ptr %image", f"i64 {p['row_step']}", f"i64 {p['column_step']}", f"i64 {p['height']}",
           f"i64 {p['width']}", f"i64 {p['row_stride']}", f"i64 {p['column_stride']}", f"i64 {top}",
           f"i64 {layout.first_column}", f"i64 {layout.rows}", f"i64 {layout.columns}", f"i64 {channels}",
           f"i64 {p['channel_step']}", f"i64 {layout.channel}", f"ptr {planes}")
    # What the last vectors read behind the planes meets zeros of g and must be finite.
    behind = b.at(planes, b.mul(channels, layout.channel))
    with b.loop(0, b.add(b.sub(layout.columns, p["grid_columns"]), lanes), lanes) as place:
        b.store_vector("zeroinitializer", b.at(behind, place))
    with b.loop(0, rows) as row:
        b.store_vector("zeroinitializer", b.at(gradients, b.sub(b.mul(b.add(row, 1), plane), lanes)))
    b.call("flat_pack_plane", "ptr %gradient", f"i64 {w['gradient_row']}", f"i64 {w['gradient_column']}",
           f"i64 {p['grid_rows']}", f"i64 {p['grid_columns']}", "i64 1", "i64 1", "i64 %i", "i64 0", f"i64 {lines}",
           f"i64 {layout.columns}", f"i64 {rows}", f"i64 {w['gradient_channel']}", f"i64 {plane}", f"ptr {gradients}")
    depth = b.mul(w["channels"], layout.taps)
    with b.loop(0, "%units") as slot, b.loop(0, w["rows"]) as inner, b.loop(0, depth, MOST_TAPS) as first:
        plane_row = b.add(b.mul(slot, w["rows"]), inner)
        source = b.at(planes, b.mul(b.mul(slot, w["channels"]), layout.channel))
        b.call("flat_dots", f"i64 {b.min(b.sub(depth, first), MOST_TAPS)}", f"i64 {vectors}",
               f"ptr {b.at(gradients, b.mul(plane_row, plane))}", f"ptr {source}", f"ptr {b.byte_at('%private', b.mul(first, 4))}",
               f"ptr {b.at('%sums', b.mul(b.add(b.mul(plane_row, depth), first), lanes))}")
    return b.text()


def _sum_lanes(blocking: Blocking) -> str:
    """``target[i] =`` the lanes of ``sums[i]``, added in a fixed order."""
    b = Builder("flat_sum_lanes", ("ptr %sums", "i64 %count", "ptr %target"), blocking, attributes="noinline")
    with b.loop(0, "%count") as index:
        total = lane_sums(b, [b.load_vector(b.at("%sums", b.mul(index, blocking.lanes)))])
        b.store(b.let(f"extractelement {b.vector} {total}, i32 0"), b.at("%target", index))
    return b.text()


def _by_lanes(blocking: Blocking) -> str:
    """This thread's share of (split, block of channels) where channels are lanes (:mod:`lanes`)."""
    b = Builder("flat_grad_lanes", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %gradient", "ptr %destination",
                                    "ptr noalias %block"), blocking, attributes="noinline")
    (w, patch), lanes = _read(b), blocking.lanes
    p = read_patch(b, patch)
    taps, blocks = b.mul(p["tap_rows"], p["tap_columns"]), b.ceil_div(w["groups"], lanes)
    b.call("lanes_start", f"ptr {patch}", "ptr %private")
    low, high = b.share(b.mul(blocks, w["splits"]), "%thread", "%threads")
    with b.loop(low, high) as task:
        split, group = b.div(task, blocks), b.mul(b.rem(task, blocks), lanes)
        begin, end = depth_block(b, w["images"], w["splits"], split)
        count = b.min(b.sub(w["groups"], group), lanes)
        b.call("lanes_gradient", "ptr %private", f"ptr {b.at('%image', b.mul(group, w['image_group_step']))}", f"i64 {w['image_group_step']}",
               f"ptr {b.at('%gradient', b.mul(group, w['gradient_channel']))}", f"i64 {w['gradient_batch']}", f"i64 {w['gradient_channel']}",
               f"i64 {w['gradient_row']}", f"i64 {begin}", f"i64 {end}", f"i64 {count}", f"ptr {patch}")
        target = b.at("%destination", b.mul(b.add(b.mul(split, w["groups"]), group), taps))
        b.call("lanes_sums_out", "ptr %private", f"i64 {taps}", f"i64 {count}", f"ptr {target}")
    return b.text()


def _run(blocking: Blocking) -> str:
    """This thread's share of (split, chunk of groups), then of the sums over splits."""
    b = Builder("flat_grad", ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %private", "ptr %image", "ptr %gradient",
                              "ptr %result", "ptr %shared", "ptr noalias %block"), blocking, attributes="noinline")
    (w, patch), lanes = _read(b), blocking.lanes
    p = read_patch(b, patch)
    layout = block_layout(b, p, w["channels"], NEAR_BYTES)
    b.call("flat_table", f"ptr {patch}", f"i64 {w['channels']}", f"i64 {NEAR_BYTES}", "ptr %private")
    sums = b.byte_at("%private", SUMS_AT)
    count = b.mul(w["rows"], b.mul(w["channels"], layout.taps))
    size = b.mul(count, w["groups"])
    several = b.compare("sgt", w["splits"], 1)
    destination = b.select(several, "%shared", "%result", "ptr")
    single = b.both(b.both(b.compare("eq", w["rows"], 1), b.compare("eq", w["channels"], 1)), b.compare("eq", w["gradient_column"], 1))
    by_lanes = b.both(single, takes_lanes(b, p, w["groups"]))
    with b.when(by_lanes):
        b.call("flat_grad_lanes", "i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %gradient", f"ptr {destination}",
               "ptr %block")
    chunks = b.select(by_lanes, 0, b.ceil_div(w["groups"], w["chunk"]))  # without tasks nothing is left to do but the sums
    size_of = b.add(b.mul(w["channels"], layout.channel), b.mul(w["rows"], b.mul(layout.block_rows, layout.columns)))
    units = batch_size(b, b.add(size_of, b.mul(w["rows"], lanes)))
    low, high = b.share(b.mul(chunks, w["splits"]), "%thread", "%threads")
    with b.loop(low, high) as task:
        split, first = b.div(task, chunks), b.mul(b.rem(task, chunks), w["chunk"])
        begin, end = depth_block(b, w["images"], w["splits"], split)
        last = b.min(b.add(first, w["chunk"]), w["groups"])
        total = b.mul(b.sub(last, first), count)
        with b.loop(0, b.mul(total, lanes), lanes) as place:
            b.store_vector("zeroinitializer", b.at(sums, place))
        # Neighbouring groups are neighbours in memory, so images come outside.
        with b.loop(begin, end) as n, b.loop(0, p["grid_rows"], layout.block_rows) as i, b.loop(first, last, units) as group:
            image = b.at("%image", b.dot((n, p["batch_step"]), (group, w["image_group_step"])))
            gradient = b.at("%gradient", b.dot((n, w["gradient_batch"]), (b.mul(group, w["rows"]), w["gradient_channel"])))
            b.call("flat_grad_block", "ptr %private", f"ptr {image}", f"ptr {gradient}", f"i64 {i}",
                   f"i64 {b.min(units, b.sub(last, group))}", f"ptr {b.at(sums, b.mul(b.sub(group, first), b.mul(count, lanes)))}", "ptr %block")
        target = b.at(destination, b.dot((split, size), (first, count)))
        b.call("flat_sum_lanes", f"ptr {sums}", f"i64 {total}", f"ptr {target}")
    with b.when(several):
        b.barrier("%barrier", "%threads")
        b.call("sum_splits", "i64 %thread", "i64 %threads", f"i64 {w['splits']}", f"i64 {size}", "ptr %shared", "ptr %result")
    return b.text()
