"""Matrix products of operands that are narrower than their sums: what bfloat16 and int8 have in common.

The blocked product of ``gemm.py`` runs on panels of packed elements of 32 bits, which hold one value of k or several. ``pack_lanes`` packs some
lanes; each type has its own.
"""

from __future__ import annotations

from collections.abc import Callable

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.depth import packed_depth, panel_elements
from calque.backend.cpu.contract.panels import first_row
from calque.backend.cpu.contract.rectangle import gemm_parameters
from calque.backend.cpu.contract.target import Blocking

DEPTH_AT_ONCE = 32
"""Values of k that are packed for all panels before the next ones, when lanes are contiguous: their lines stay near."""
SHIFT = 128
"""What is added to B, see `Blocking.shifted`."""


def _flipped(blocking: Blocking, pattern: int) -> tuple[str, ...]:
    """The last argument of ``pack_lanes`` of integers: which bits of a packed element change their value."""
    return (f"i32 {pattern if blocking.shifted else 0}",) if blocking.dtype == "i8" else ()


def _each_stretch(b: Builder, lane_step: str, depth_step: str, source: str,
                  pack: Callable[[str, Value, Value], None]) -> None:
    """``pack(source, packed element, length)`` for stretches of k; the whole of k when lanes are not contiguous."""
    stretch = b.select(b.compare("eq", lane_step, 1), DEPTH_AT_ONCE, b.max("%depth", 1))
    with b.loop(0, "%depth", stretch) as start:
        pack(b.operand_at(source, b.mul(start, depth_step)), packed_depth(b, start),
             b.min(stretch, b.sub("%depth", start)))


def pack_wide(blocking: Blocking) -> str:
    """Columns of B into panels ``tile_columns`` wide and ``panel_step`` packed elements apart."""
    b = Builder("pack_wide", ("ptr %source", "i64 %lane_step", "i64 %depth_step", "i64 %count", "i64 %depth",
                              "ptr %target", "i64 %panel_step"), blocking, attributes="noinline")
    width, lanes = blocking.tile_columns, blocking.lanes

    def pack(source: str, element: Value, length: Value) -> None:
        with b.loop(0, "%count", lanes) as column:
            place = b.dot((b.div(column, width), "%panel_step"), (b.rem(column, width), 1), (element, width))
            b.call("pack_lanes", f"ptr {b.operand_at(source, b.mul(column, '%lane_step'))}", "i64 %lane_step",
                   "i64 %depth_step", f"i64 {b.min(b.sub('%count', column), lanes)}", f"i64 {length}",
                   f"ptr {b.at('%target', place)}", f"i64 {width}", *_flipped(blocking, SHIFT * 0x01010101))

    _each_stretch(b, "%lane_step", "%depth_step", "%source", pack)
    return b.text()


def pack_tall(blocking: Blocking) -> str:
    """Rows of A as panels low..high, one after the other."""
    b = Builder("pack_tall", ("ptr %a", "i64 %a_row", "i64 %a_depth", "i64 %low", "i64 %high", "i64 %base", "i64 %extra",
                              "i64 %depth", "ptr %target"), blocking, attributes="noinline")
    stride, lanes = blocking.row_stride, blocking.lanes
    size = panel_elements(b, packed_depth(b, "%depth"))

    def pack(source: str, element: Value, length: Value) -> None:
        with b.loop("%low", "%high") as panel:
            row = first_row(b, panel)
            count = b.sub(first_row(b, b.add(panel, 1)), row)
            target = b.at("%target", b.dot((b.sub(panel, "%low"), size), (element, stride)))
            with b.loop(0, count, lanes) as lane:
                b.call("pack_lanes", f"ptr {b.operand_at(source, b.mul(b.add(row, lane), '%a_row'))}", "i64 %a_row",
                       "i64 %a_depth", f"i64 {b.min(b.sub(count, lane), lanes)}", f"i64 {length}",
                       f"ptr {b.at(target, lane)}", f"i64 {stride}", *_flipped(blocking, 0))

    _each_stretch(b, "%a_row", "%a_depth", "%a", pack)
    if blocking.shifted:
        with b.loop("%low", "%high") as panel:
            _pack_starts(b, b.at("%target", b.mul(b.sub(panel, "%low"), size)))
    return b.text()


def _pack_starts(b: Builder, panel: str) -> None:
    """Behind a panel, what the sums of its rows begin with: -128 times the sum of a row, as every element of B has 128 too many."""
    stride, count = b.blocking.row_stride, packed_depth(b, "%depth")
    many = b.splat(SHIFT * 0x01010101, "i32")
    for lane in range(0, stride, b.blocking.lanes):
        column = b.at(panel, lane)
        place = b.at(column, b.mul(count, stride))
        b.store_vector("zeroinitializer", place)
        with b.loop(0, count) as element:
            value = b.load_vector(b.at(column, b.mul(element, stride)))
            b.store_vector(b.fma(value, many, b.load_vector(place)), place)
        b.store_vector(b.let(f"sub {b.vector} zeroinitializer, {b.load_vector(place)}"), place)


def gemm(blocking: Blocking) -> str:
    """A single column is computed as a single row: its elements lie side by side."""
    parameters = gemm_parameters(blocking)
    b = Builder("gemm", parameters, blocking, attributes="noinline")
    b.return_when(b.either(b.compare("eq", "%rows", 0), b.compare("eq", "%columns", 0)))
    kinds = {parameter.split()[-1]: parameter.split()[0] for parameter in parameters}
    mirror = {"%a": "%b", "%a_row": "%b_column", "%a_depth": "%b_depth", "%c_row": "%c_column", "%rows": "%columns",
              "%added_row": "%added_column"}
    mirror |= {value: key for key, value in mirror.items()}
    swap = b.compare("eq", "%columns", 1)
    values = {name: b.select(swap, mirror[name], name, kind) if name in mirror else name for name, kind in kinds.items()}
    b.call("gemm_grid", *[f"{kind} {values[name]}" for name, kind in kinds.items()])
    return b.text()
