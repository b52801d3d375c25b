"""Packing the operands of a matrix product: many panels at once, reading memory in the order in which it lies."""

from __future__ import annotations

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import Blocking

DEPTH_AT_ONCE = 8
"""Rows of a transposed A that are copied for all panels of a group before the next rows: their lines and those asked for stay near."""
ROWS_AHEAD = 4
"""Rows of B that are prefetched: every row lies in another page, where hardware prefetchers start anew."""


def pack_wide(blocking: Blocking) -> str:
    """Columns of B: ``target[panel * panel_step + k * width + lane] = source[column * lane_step + k * depth_step]``.

    ``column = panel * width + lane < count`` with ``width = tile_columns``. Lanes beyond the last column receive
    arbitrary values.
    """
    b = Builder("pack_wide", ("ptr %source", "i64 %lane_step", "i64 %depth_step", "i64 %count", "i64 %depth",
                              "ptr %target", "i64 %panel_step"), blocking, attributes="noinline")
    width = blocking.tile_columns

    def by_panel() -> None:
        with b.loop(0, "%count", width) as column:
            target = b.at("%target", b.mul(b.div(column, width), "%panel_step"))
            b.call("pack_panel", f"ptr {b.at('%source', b.mul(column, '%lane_step'))}", "i64 %lane_step",
                   "i64 %depth_step", f"i64 {b.min(b.sub('%count', column), width)}", "i64 %depth", f"ptr {target}",
                   f"i64 {width}")

    b.cases((b.compare("eq", "%lane_step", 1), lambda: _wide_rows(b)), default=by_panel)
    return b.text()


def _wide_rows(b: Builder) -> None:
    """A row of the source holds a line of every panel: reading it as a whole suits pages and prefetchers."""
    width, lanes = b.blocking.tile_columns, b.blocking.lanes
    whole = b.div("%count", width)
    rest = b.sub("%count", b.mul(whole, width))
    masks = [b.lanes_between(0, b.sub(rest, part * lanes)) for part in range(width // lanes)]
    with b.loop(0, "%depth") as k:
        line, target = b.at("%source", b.mul(k, "%depth_step")), b.at("%target", b.mul(k, width))
        with b.loop(0, whole) as panel:
            source, place = b.at(line, b.mul(panel, width)), b.at(target, b.mul(panel, "%panel_step"))
            ahead = b.at(source, b.mul("%depth_step", ROWS_AHEAD))
            for part in range(0, width, lanes):
                b.prefetch(b.at(ahead, part))
            for part in range(0, width, lanes):
                b.store_vector(b.load_vector(b.at(source, part)), b.at(place, part))
        with b.when(b.compare("sgt", rest, 0)):
            source, place = b.at(line, b.mul(whole, width)), b.at(target, b.mul(whole, "%panel_step"))
            for part, mask in enumerate(masks):
                b.store_vector(b.load_masked(b.at(source, part * lanes), mask), b.at(place, part * lanes))


def first_row(b: Builder, panel: Value) -> Value:
    """First row of a panel of A: panels differ by at most one row, so no tile is mostly empty."""
    return b.add(b.mul(panel, "%base"), b.min(panel, "%extra"))


def pack_tall(blocking: Blocking) -> str:
    """Rows of A as panels low..high: ``target[(panel - low) * size + k * row_stride + row]``, ``size = depth * row_stride``."""
    b = Builder("pack_tall", ("ptr %a", "i64 %a_row", "i64 %a_depth", "i64 %low", "i64 %high", "i64 %base", "i64 %extra",
                              "i64 %depth", "ptr %target"), blocking, attributes="noinline")
    stride, lanes = blocking.row_stride, blocking.lanes
    size = b.mul("%depth", stride)

    def by_panel() -> None:
        with b.loop("%low", "%high") as panel:
            row = first_row(b, panel)
            count = b.sub(first_row(b, b.add(panel, 1)), row)
            b.call("pack_panel", f"ptr {b.at('%a', b.mul(row, '%a_row'))}", "i64 %a_row", "i64 %a_depth",
                   f"i64 {count}", "i64 %depth", f"ptr {b.at('%target', b.mul(b.sub(panel, '%low'), size))}",
                   f"i64 {stride}")

    def by_depth() -> None:
        with b.loop(0, "%depth", DEPTH_AT_ONCE) as start:
            stop = b.min(b.add(start, DEPTH_AT_ONCE), "%depth")
            with b.loop("%low", "%high") as panel:
                row = first_row(b, panel)
                count = b.sub(first_row(b, b.add(panel, 1)), row)
                source, place = b.at("%a", row), b.at("%target", b.mul(b.sub(panel, "%low"), size))
                masks = [b.lanes_between(0, b.sub(count, part)) for part in range(0, stride, lanes)]
                with b.loop(start, stop) as k:
                    line, target = b.at(source, b.mul(k, "%a_depth")), b.at(place, b.mul(k, stride))
                    b.prefetch(b.at(line, b.mul("%a_depth", DEPTH_AT_ONCE)))
                    for part, mask in enumerate(masks):
                        b.store_vector(b.load_masked(b.at(line, part * lanes), mask), b.at(target, part * lanes))

    b.cases((b.compare("eq", "%a_row", 1), by_depth), default=by_panel)
    return b.text()


def panel_packers(blocking: Blocking) -> str:
    """Every function of this file."""
    return pack_wide(blocking) + pack_tall(blocking)
