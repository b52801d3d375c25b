"""Matrix products of bfloat16: float32 sums, rounded once when all of k has been added.

The blocked product of ``gemm.py`` runs on packed panels of 32-bit elements. Where the processor multiplies pairs
(AVX512-BF16) such an element holds two values with successive k; elsewhere it holds one value as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from calque.backend.cpu.contract.bfloat_conv import bfloat_convolutions
from calque.backend.cpu.contract.builder import Builder, Value, declarations
from calque.backend.cpu.contract.gemm import gemm_grid, matmul_entry
from calque.backend.cpu.contract.halves import as_vector, half_declarations, load_half, load_words, store_rounded, upper, words
from calque.backend.cpu.contract.micro import outer_kernels, panel_behind
from calque.backend.cpu.contract.narrow import gemm, pack_tall, pack_wide
from calque.backend.cpu.contract.pack import copy_out, transpose
from calque.backend.cpu.contract.rectangle import SUMS, gemm_part, row_group
from calque.backend.cpu.contract.target import Blocking

ADDED = SUMS[2:]
"""The parameters that say what is added before sums are rounded."""

def bfloat_module(blocking: Blocking) -> str:
    """IR text of the contractions of bfloat16."""
    parts = (declarations, half_declarations, outer_kernels, copy_out, _pack_lanes, pack_wide, pack_tall, _round_out, _tile,
             row_group, gemm_part, gemm_grid, gemm, matmul_entry, partial(matmul_entry, adds=True), bfloat_convolutions)
    return "\n".join(part(blocking) for part in parts)


def _pack_lanes(blocking: Blocking) -> str:
    """Pack ``count <= lanes`` lanes: ``target[e * target_step + lane]`` is packed element e of ``source[lane * lane_step ..]``."""
    b = Builder("pack_lanes", ("ptr %source", "i64 %lane_step", "i64 %depth_step", "i64 %count", "i64 %depth",
                               "ptr %target", "i64 %target_step"), blocking, attributes="noinline")
    per = 2 if blocking.pairs else 1
    whole = b.div("%depth", per)
    blocks = b.div(whole, blocking.lanes)

    def along_depth() -> None:
        with b.loop(0, blocks) as block:
            _transposed_block(b, b.mul(block, blocking.lanes), per)
        _pack_elements(b, b.mul(blocks, blocking.lanes), per)

    b.cases((b.compare("eq", "%lane_step", 1), lambda: _pack_rows(b, per)),
            (b.compare("eq", "%depth_step", 1), along_depth), default=lambda: _pack_elements(b, 0, per))
    return b.text()


def _pack_rows(b: Builder, per: int) -> None:
    """Lanes side by side: one row of the source for every k."""
    mask, kind = b.lanes_between(0, "%count"), words(b.blocking, "i32")

    def row(k: Value) -> str:
        return load_words(b, b.operand_at("%source", b.mul(k, "%depth_step")), mask)

    with b.loop(0, b.div("%depth", per)) as element:
        k = b.mul(element, per)
        value = upper(b, row(b.add(k, per - 1)))
        if per == 2:
            value = b.let(f"or {kind} {row(k)}, {value}")
        b.store_vector(as_vector(b, value), b.at("%target", b.mul(element, "%target_step")))
    with b.when(b.compare("ne", b.rem("%depth", per), 0)):
        last = b.sub("%depth", 1)
        b.store_vector(as_vector(b, row(last)), b.at("%target", b.mul(b.div(last, per), "%target_step")))


def _transposed_block(b: Builder, element: Value, per: int) -> None:
    """As many packed elements as lanes, k contiguous in memory: a square through registers."""
    lanes, last = b.blocking.lanes, b.sub("%count", 1)
    everywhere, rows = b.lanes_between(0, lanes), []
    for lane in range(lanes):
        place = b.dot((b.min(lane, last), "%lane_step"), (element, per))
        address = b.operand_at("%source", place)
        if per == 2:
            rows.append(b.let(f"load {b.vector}, ptr {address}, align 2"))
        else:
            rows.append(as_vector(b, upper(b, load_words(b, address, everywhere))))
    for step, value in enumerate(transpose(b, rows)):
        b.store_vector(value, b.at("%target", b.mul(b.add(element, step), "%target_step")))


def _pack_elements(b: Builder, first: Value, per: int) -> None:
    """One packed element at a time, from packed element ``first`` on; a missing second value is zero."""
    with b.loop(first, b.ceil_div("%depth", per)) as element, b.loop(0, "%count") as lane:
        k = b.mul(element, per)
        address = b.operand_at("%source", b.dot((lane, "%lane_step"), (k, "%depth_step")))
        low = b.let(f"zext i16 {b.let(f'load i16, ptr {address}, align 2')} to i32")
        if per == 1:
            value = b.let(f"shl i32 {low}, 16")
        else:
            exists = b.compare("slt", b.add(k, 1), "%depth")
            second = b.operand_at(address, b.select(exists, "%depth_step", 0))
            high = b.let(f"zext i16 {b.let(f'load i16, ptr {second}, align 2')} to i32")
            upper = b.let(f"shl i32 {b.select(exists, high, 0, 'i32')}, 16")
            value = b.let(f"or i32 {low}, {upper}")
        b.store(b.let(f"bitcast i32 {value} to float"), b.at("%target", b.add(b.mul(element, "%target_step"), lane)))


def _round_out(blocking: Blocking) -> str:
    """Float32 sums, rows ``sums_row`` apart, and what is added to them, rounded to the nearest bfloat16 (ties to even) into C."""
    b = Builder("round_out", ("ptr %sums", "i64 %sums_row", "i64 %rows", "i64 %columns", "ptr %c", "i64 %c_row", *ADDED), blocking,
                attributes="noinline")
    lanes = blocking.lanes
    line = b.array(lanes)

    def every(with_added: Callable[[str, Value, Value, str, Value], str] | None) -> None:
        with b.loop(0, "%columns", lanes) as column:
            count = b.min(b.sub("%columns", column), lanes)
            mask = b.lanes_between(0, count)
            with b.loop(0, "%rows") as row:
                value = b.load_vector(b.at("%sums", b.dot((row, "%sums_row"), (column, 1))))
                if with_added is not None:
                    value = with_added(value, row, column, mask, count)
                store_rounded(b, value, b.operand_at("%c", b.dot((row, "%c_row"), (column, 1))), mask)

    def added(value: str, row: Value, column: Value, mask: str, count: Value) -> str:
        source = b.operand_at("%added", b.dot((row, "%added_row"), (column, "%added_column")))

        def apart() -> None:
            with b.loop(0, count) as lane:
                one = b.let(f"shl i32 {load_half(b, b.operand_at(source, b.mul(lane, '%added_column')))}, 16")
                b.store(b.let(f"bitcast i32 {one} to float"), b.at(line, lane))

        b.cases((b.compare("eq", "%added_column", 1), lambda: b.store_vector(as_vector(b, upper(b, load_words(b, source, mask))), line)),
                default=apart)
        wide = [b.let(f"load double, ptr {b.byte_at('%factors', at)}, align 8") for at in (0, 8)]
        alpha, beta = (b.splat(b.let(f"fptrunc double {factor} to float"), "float") for factor in wide)
        scaled = b.op("fmul", beta, b.load_vector(line))
        return b.op("fadd", b.op("fmul", alpha, value), scaled)

    nothing = b.let("icmp eq ptr %added, null", "c")
    b.cases((nothing, lambda: every(None)), default=lambda: every(added))
    return b.text()


def _tile(blocking: Blocking) -> str:
    """One tile: straight to C if this block is all of k, else added to the sums, which the last block rounds."""
    b = Builder("strided_tile", ("i64 %rows", "i64 %columns", "i64 %depth", "ptr %a", "ptr %b", "i64 %b_step", "ptr %c",
                                 "i64 %c_row", "i64 %c_column", "i1 %accumulate", *SUMS, "i1 %last"),
                blocking, attributes="noinline")
    width, lanes = blocking.tile_columns, blocking.lanes
    tile = b.array((blocking.tile_rows + 1) * width)
    narrow = b.compare("sle", "%columns", lanes)
    for kernel, condition in (("outer_narrow", narrow), ("outer", b.negation(narrow))):
        with b.when(condition):
            b.call(kernel, "i64 %rows", "i64 %depth", "ptr %a", "ptr %b", "i64 %b_step", f"ptr {tile}",
                   f"ptr {b.at(tile, lanes)}", f"i64 {width}", "i1 false", *panel_behind(b, "%a", "%depth"))
    alone = b.both("%last", b.negation("%accumulate"))

    def straight() -> None:
        b.call("round_out", f"ptr {tile}", f"i64 {width}", "i64 %rows", "i64 %columns", "ptr %c", "i64 %c_row", *ADDED)

    def add_up() -> None:
        b.call("copy_out", f"ptr {tile}", "i64 %rows", "i64 %columns", "ptr %sums", "i64 %sums_row", "i64 1",
               "i1 %accumulate")
        with b.when("%last"):
            b.call("round_out", "ptr %sums", "i64 %sums_row", "i64 %rows", "i64 %columns", "ptr %c", "i64 %c_row", *ADDED)

    b.cases((alone, straight), default=add_up)
    return b.text()
