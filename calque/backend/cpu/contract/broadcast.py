"""1x1 convolutions on planes that do not fill whole vectors: pixels are broadcast from where they lie, output channels are vectors.

Nothing of the image is packed or padded, and no lane is empty: 49 pixels are tiles of 12 or 13, where vectors of pixels would be four of 16.
A tile is turned once on its way into the planes of the result.
"""

from __future__ import annotations

from calque.backend.cpu.contract.builder import Builder
from calque.backend.cpu.contract.conv_words import read_conv
from calque.backend.cpu.contract.depth import chains, each_depth_block, panel_rows
from calque.backend.cpu.contract.finish import begin, finish
from calque.backend.cpu.contract.micro import pixel_kernels
from calque.backend.cpu.contract.near import Words, is_near, is_one_tap
from calque.backend.cpu.contract.pack import read_patch
from calque.backend.cpu.contract.target import Blocking
from calque.backend.cpu.contract.tiles import tile_array

CHUNK_BYTES = 256 << 10
"""Pixels that meet all weights before the next ones: they share the second-level cache with a panel of weights."""
LEAST_CHANNELS = 32
"""Shorter sums are not worth turning the tile."""
LEAST_PIXELS = 4
"""Fewer pixels of several images are worth putting together."""
WEIGHT_BYTES = 512 << 10
"""More weights than that are read once for the pixels of several images together."""


def is_broadcast(b: Builder, p: Words, w: Words) -> str:
    """Whether a block of parameters takes this path: one tap, planes that are not read in vectors, output channels that fill these, a sum worth
    turning its tile."""
    width = b.blocking.tile_columns
    waste = b.sub(b.mul(b.ceil_div(w["rows"], width), width), w["rows"])
    stay = b.compare("sle", b.mul(w["channels"], w["rows"]), WEIGHT_BYTES // b.blocking.item_bytes)
    pixels = b.either(b.both(stay, b.compare("sge", p["grid_columns"], LEAST_PIXELS)), b.compare("eq", w["images"], 1))
    broken = b.compare("eq", b.select(is_near(b, p, w), 0, 1), 1)
    return b.both(is_one_tap(b, p, w), broken, b.compare("sge", w["channels"], LEAST_CHANNELS), b.compare("sle", b.mul(waste, 4), w["rows"]),
                  pixels)


def broadcast_functions(blocking: Blocking) -> str:
    """Everything specific to this path."""
    return pixel_kernels(blocking) + _tiles(blocking) + _convolve(blocking)


def _tiles(blocking: Blocking) -> str:
    """``count`` tiles of pixels from the tile ``first`` on, of one image and one panel of output channels. Each fetches its part of the panel
    behind, of which every row is shared by ``share`` tiles."""
    b = Builder("broadcast_tiles", ("i64 %first", "i64 %count", "i64 %tiles", "ptr %image", "ptr %weights", "ptr %result", "i64 %channels",
                                    "i64 %share", "ptr noalias %block"), blocking, attributes="noinline")
    p, w, width, lanes = read_patch(b, "%block"), read_conv(b, "%block"), blocking.tile_columns, blocking.lanes
    tile, depth = tile_array(b), w["channels"]
    parts, ahead = chains(b, depth), b.ceil_div(width, "%share")
    behind = b.at("%weights", b.mul(depth, width))
    with b.loop("%first", b.add("%first", "%count")) as index:
        pixel, pixels = panel_rows(b, p["grid_columns"], "%tiles", index)
        source, following = b.at("%image", pixel), b.at(behind, b.mul(b.rem(index, "%share"), b.mul(depth, ahead)))
        with each_depth_block(b, depth, parts) as (start, length, later):
            b.call("pixels", f"i64 {pixels}", f"i64 {length}", f"ptr {b.at(source, b.mul(start, p['channel_step']))}", f"i64 {p['channel_step']}",
                   f"ptr {b.at('%weights', b.mul(start, width))}", f"i64 {width}", f"ptr {tile}", f"ptr {b.at(tile, lanes)}", f"i64 {width}",
                   f"i1 {later}", f"ptr {b.at(following, b.mul(start, ahead))}", f"i64 {ahead}")
        b.call("tile_out", f"ptr {tile}", "i64 1", f"i64 {pixels}", "i64 %channels", f"ptr {b.at('%result', pixel)}",
               f"i64 {w['result_channel_step']}", f"i64 {pixels}", "i64 1")
    return b.text()


def _convolve(blocking: Blocking) -> str:
    """This thread's share of (group, image, some pixels, panel of output channels, tile of pixels), in this order."""
    b = Builder("broadcast_convolve", ("i64 %thread", "i64 %threads", "ptr %private", "ptr %image", "ptr %weights", "ptr %result",
                                       "ptr noalias %block"), blocking, attributes="noinline")
    p, w, width = read_patch(b, "%block"), read_conv(b, "%block"), blocking.tile_columns
    begin(b, "%private")
    panels, tiles = b.ceil_div(w["rows"], width), b.ceil_div(p["grid_columns"], blocking.tile_rows)
    panel_size = b.mul(w["channels"], width)
    chunk = b.clamp(b.div(CHUNK_BYTES // blocking.item_bytes // blocking.tile_rows, b.max(w["channels"], 1)), 1, tiles)
    whole, of_chunk = b.mul(panels, tiles), b.mul(panels, chunk)
    low, high = b.share(b.mul(b.mul(w["groups"], w["images"]), whole), "%thread", "%threads")
    position = b.variable(low)
    with b.loop_while(lambda: b.compare("slt", b.read(position), high)):
        here = b.read(position)
        outer, inner = b.div(here, whole), b.rem(here, whole)
        group, image = b.div(outer, w["images"]), b.rem(outer, w["images"])
        before = b.mul(b.div(inner, of_chunk), chunk)
        size, rest = b.min(chunk, b.sub(tiles, before)), b.rem(inner, of_chunk)
        panel, skipped = b.div(rest, size), b.rem(rest, size)
        first, count = b.add(before, skipped), b.min(b.sub(size, skipped), b.sub(high, here))
        channel = b.mul(panel, width)
        channels = b.min(b.sub(w["rows"], channel), width)
        source = b.at("%image", b.dot((image, p["batch_step"]), (group, w["image_group_step"])))
        weights = b.at("%weights", b.mul(b.add(b.mul(group, panels), panel), panel_size))
        target = b.at("%result", b.dot((image, w["result_batch_step"]), (group, w["result_group_step"]), (w["result_offset"], 1),
                                       (channel, w["result_channel_step"])))
        b.call("broadcast_tiles", f"i64 {first}", f"i64 {count}", f"i64 {tiles}", f"ptr {source}", f"ptr {weights}", f"ptr {target}",
               f"i64 {channels}", f"i64 {size}", "ptr %block")
        start, end = (panel_rows(b, p["grid_columns"], tiles, tile)[0] for tile in (first, b.add(first, count)))
        finish(b, "%private", b.add(b.mul(group, w["rows"]), channel), channels, start, b.sub(end, start), image)
        b.assign(position, b.add(here, count))
    return b.text()
