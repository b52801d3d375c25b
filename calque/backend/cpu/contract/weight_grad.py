"""Weight gradient of a convolution: ``dw[o, (c, tap)] = sum over pixels g[o, pixel] * patch[(c, tap), pixel]``.

The sum runs over contiguous pixels in both operands, so the dot micro-kernel needs no transposition: gradient rows
and patch rows are packed side by side, zero-padded to whole vectors. When the result is small the pixels are cut into
``splits`` parts (a function of the sizes alone) whose partial results are added in a fixed order at the end.
"""

from __future__ import annotations

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.claims import WEIGHT_GRADIENTS, hand_over
from calque.backend.cpu.contract.depth import depth_block
from calque.backend.cpu.contract.pack import PATCH_WORDS
from calque.backend.cpu.contract.target import Blocking

BUFFERS = 4
EXTRA_WORDS = ("groups", "rows", "lanes", "units", "unit", "splits", "image_group_step", "gradient_group_step")
"""The pixels are counted in units of an image row, so that blocks start with a row.

Followed by the patch block of the image and the patch block of the gradient.
"""
ROW_BLOCK = 256
LANE_BLOCK = 128


def weight_grad_functions(blocking: Blocking) -> str:
    """The entry ``calque_conv2d_weight_grad_*`` and everything specific to it."""
    return "".join(make(blocking) for make in (_dot_block, _task, _sum_splits, _entry))


def _dot_block(blocking: Blocking) -> str:
    """``C[rows, columns] (=|+=) A[rows, depth] * B[columns, depth]^T`` from packed rows of ``width`` elements."""
    b = Builder("dot_block", ("i64 %rows", "i64 %columns", "i64 %depth", "ptr %a", "ptr %b", "i64 %width", "ptr %c",
                              "i64 %c_step", "i1 %accumulate"), blocking, attributes="noinline")
    side = blocking.dot_rows
    with b.loop(0, "%rows", side) as row, b.loop(0, "%columns", side) as column:
        c = b.at("%c", b.dot((row, "%c_step"), (column, 1)))
        b.call("dot", f"i64 {b.min(b.sub('%rows', row), side)}", "i64 %depth",
               f"ptr {b.at('%a', b.mul(row, '%width'))}", "i64 %width", f"ptr {b.at('%b', b.mul(column, '%width'))}",
               "i64 %width", f"ptr {c}", "i64 %c_step", f"i64 {b.min(b.sub('%columns', column), side)}",
               "i1 %accumulate")
    return b.text()


def _task(blocking: Blocking) -> str:
    """Units of pixels [begin, end) of one block of rows and lanes of one group."""
    b = Builder("weight_grad_task", ("ptr %private", "ptr %image", "ptr noalias %image_block", "ptr %gradient",
                                     "ptr noalias %gradient_block", "i64 %row", "i64 %rows", "i64 %lane",
                                     "i64 %lanes", "i64 %begin", "i64 %end", "i64 %unit", "ptr %c", "i64 %c_step"), blocking,
                attributes="noinline")
    width = blocking.dot_depth
    patches = b.at("%private", ROW_BLOCK * width)
    total = b.sub("%end", "%begin")
    blocks = b.max(b.ceil_div(total, b.div(width, "%unit")), 1)
    with b.loop(0, blocks) as block:
        start, stop = depth_block(b, total, blocks, block)
        count, column = b.mul(b.sub(stop, start), "%unit"), b.mul(b.add("%begin", start), "%unit")
        for source, words, first, size, target in (
                ("%gradient", "%gradient_block", "%row", "%rows", "%private"),
                ("%image", "%image_block", "%lane", "%lanes", patches)):
            b.call("pack_rows", f"ptr {source}", f"ptr {words}", f"i64 {column}", f"i64 {count}", f"i64 {first}",
                   f"i64 {b.add(first, size)}", f"ptr {target}", f"i64 {width}")
            b.call("zero_tails", f"ptr {target}", f"i64 {size}", f"i64 {width}", f"i64 {count}")
        b.call("dot_block", "i64 %rows", "i64 %lanes", f"i64 {count}", "ptr %private", f"ptr {patches}",
               f"i64 {width}", "ptr %c", "i64 %c_step", f"i1 {b.compare('sgt', block, 0)}")
    return b.text()


def _sum_splits(blocking: Blocking) -> str:
    """Add the partial results of all splits, always in the same order."""
    b = Builder("sum_splits", ("i64 %thread", "i64 %threads", "i64 %splits", "i64 %size", "ptr noalias %parts",
                               "ptr noalias %result"), blocking, attributes="noinline")
    lanes = blocking.lanes
    low, high = b.share(b.ceil_div("%size", lanes), "%thread", "%threads")
    with b.loop(low, high) as vector:
        first = b.mul(vector, lanes)
        mask = b.lanes_between(0, b.min(b.sub("%size", first), lanes))
        with b.loop(0, "%splits") as split:
            part = b.load_masked(b.at("%parts", b.add(b.mul(split, "%size"), first)), mask)
            target = b.at("%result", first)
            total = b.op("fadd", b.load_masked(target, mask), part)
            started = b.compare("sgt", split, 0)
            b.store_masked(b.select(started, total, part, b.vector), target, mask)
    return b.text()


def _entry(blocking: Blocking) -> str:
    b = Builder(f"calque_conv2d_weight_grad_{blocking.dtype}",
                ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking, linkage="")
    image, gradient, result, shared = (b.pointer_word("%args", index) for index in range(BUFFERS))
    w = {name: b.word("%args", BUFFERS + index) for index, name in enumerate(EXTRA_WORDS)}
    hand_over(b, WEIGHT_GRADIENTS, w["groups"], (image, gradient, result, shared))
    image_block = b.byte_at("%args", 8 * (BUFFERS + len(EXTRA_WORDS)))
    gradient_block = b.byte_at(image_block, 8 * len(PATCH_WORDS))
    row_blocks, lane_blocks = b.ceil_div(w["rows"], ROW_BLOCK), b.ceil_div(w["lanes"], LANE_BLOCK)
    group_size = b.mul(w["rows"], w["lanes"])
    size = b.mul(group_size, w["groups"])
    whole = b.compare("eq", w["splits"], 1)
    destination = b.select(whole, result, shared, "ptr")
    per_split = b.mul(b.mul(row_blocks, lane_blocks), w["groups"])
    low, high = b.share(b.mul(per_split, w["splits"]), "%thread", "%threads")
    with b.loop(low, high) as task:
        split, rest = b.div(task, per_split), b.rem(task, per_split)
        group, rest = b.div(rest, b.mul(row_blocks, lane_blocks)), b.rem(rest, b.mul(row_blocks, lane_blocks))
        row, row_end = depth_block(b, w["rows"], row_blocks, b.rem(rest, row_blocks))
        lane, lane_end = depth_block(b, w["lanes"], lane_blocks, b.div(rest, row_blocks))
        begin, end = depth_block(b, w["units"], w["splits"], split)
        place: Value = b.dot((split, size), (group, group_size), (row, w["lanes"]), (lane, 1))
        b.call("weight_grad_task", "ptr %scratch",
               f"ptr {b.at(image, b.mul(group, w['image_group_step']))}", f"ptr {image_block}",
               f"ptr {b.at(gradient, b.mul(group, w['gradient_group_step']))}", f"ptr {gradient_block}",
               f"i64 {row}", f"i64 {b.sub(row_end, row)}", f"i64 {lane}", f"i64 {b.sub(lane_end, lane)}",
               f"i64 {begin}", f"i64 {end}", f"i64 {w['unit']}", f"ptr {b.at(destination, place)}", f"i64 {w['lanes']}")
    with b.when(b.compare("sgt", w["splits"], 1)):
        b.barrier("%barrier", "%threads")
        b.call("sum_splits", "i64 %thread", "i64 %threads", f"i64 {w['splits']}", f"i64 {size}", f"ptr {shared}",
               f"ptr {result}")
    return b.text()
