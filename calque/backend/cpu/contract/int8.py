"""Matrix products of int8 with sums of int32, which are exact until they leave the range of int32, where they wrap.

A packed element of 32 bits holds as many successive k as the processor multiplies at once (`VectorUnit.int8_depth`): four bytes, two integers
of 16 bits, or one of 32. Of four, those of A are signed and those of B unsigned, so B is packed with 128 added; the sums begin at -128 times the
sums of the rows of A, which stand behind each of its panels.
"""

from __future__ import annotations

from calque.backend.cpu.contract.builder import Builder, Value, declarations
from calque.backend.cpu.contract.gemm import gemm_grid, matmul_entry
from calque.backend.cpu.contract.micro import outer_kernels
from calque.backend.cpu.contract.narrow import gemm, pack_tall, pack_wide
from calque.backend.cpu.contract.pack import copy_out, transpose
from calque.backend.cpu.contract.rectangle import chained_tile, gemm_part, row_group
from calque.backend.cpu.contract.target import Blocking


def int8_module(blocking: Blocking) -> str:
    """IR text of the contractions of int8."""
    parts = (declarations, byte_declarations, outer_kernels, copy_out, _pack_lanes, pack_wide, pack_tall, chained_tile, row_group, gemm_part,
             gemm_grid, gemm, matmul_entry)
    return "\n".join(part(blocking) for part in parts)


def byte_declarations(blocking: Blocking) -> str:
    """What loads of bytes use."""
    lanes = blocking.lanes
    return f"declare <{lanes} x i8> @llvm.masked.load.v{lanes}i8.p0(ptr, i32, <{lanes} x i1>, <{lanes} x i8>)\n"


def _pack_lanes(blocking: Blocking) -> str:
    """Pack ``count <= lanes`` lanes: ``target[e * target_step + lane]`` is packed element e of ``source[lane * lane_step ..]``, with the bits of
    ``flip`` changed. Values of k that are missing in the last element are zero, or what ``flip`` makes of it."""
    b = Builder("pack_lanes", ("ptr %source", "i64 %lane_step", "i64 %depth_step", "i64 %count", "i64 %depth", "ptr %target", "i64 %target_step",
                               "i32 %flip"), blocking, attributes="noinline")
    per, lanes = blocking.per_element, blocking.lanes
    flips = b.splat("%flip", "i32")
    blocks = b.div(b.div("%depth", per), lanes)

    def along_depth() -> None:
        with b.loop(0, blocks) as block:
            _transposed_block(b, b.mul(block, lanes), flips)
        _pack_elements(b, b.mul(blocks, lanes))

    b.cases((b.compare("eq", "%lane_step", 1), lambda: _pack_rows(b, flips)), (b.compare("eq", "%depth_step", 1), along_depth),
            default=lambda: _pack_elements(b, 0))
    return b.text()


def _transposed_block(b: Builder, element: Value, flips: str) -> None:
    """As many packed elements as lanes, k contiguous in memory: a square through registers."""
    lanes, per, last, rows = b.blocking.lanes, b.blocking.per_element, b.sub("%count", 1), []
    count = lanes * per
    for lane in range(lanes):
        address = b.operand_at("%source", b.dot((b.min(lane, last), "%lane_step"), (element, per)))
        value = b.let(f"load <{count} x i8>, ptr {address}, align 1")
        kind = f"<{count} x i{32 // per}>"
        wide = value if per == 4 else b.let(f"sext <{count} x i8> {value} to {kind}")
        rows.append(wide if per == 1 else b.let(f"bitcast {kind} {wide} to {b.vector}"))
    for step, value in enumerate(transpose(b, rows)):
        b.store_vector(b.let(f"xor {b.vector} {value}, {flips}"), b.at("%target", b.mul(b.add(element, step), "%target_step")))


def _pack_rows(b: Builder, flips: str) -> None:
    """Lanes side by side: as many rows of the source as an element has values."""
    per = b.blocking.per_element
    mask = b.lanes_between(0, "%count")
    whole = b.div("%depth", per)
    with b.loop(0, whole) as element:
        _store_rows(b, element, per, mask, flips)
    for missing in range(1, per):
        with b.when(b.compare("eq", b.rem("%depth", per), per - missing)):
            _store_rows(b, whole, per - missing, mask, flips)


def _store_rows(b: Builder, element: Value, rows: int, mask: str, flips: str) -> None:
    """A packed element of every lane, of so many rows."""
    lanes, per = b.blocking.lanes, b.blocking.per_element
    kind, total = f"<{lanes} x i8>", ""
    for row in range(rows):
        address = b.operand_at("%source", b.mul(b.add(b.mul(element, per), row), "%depth_step"))
        value = b.let(f"call {kind} @llvm.masked.load.v{lanes}i8.p0(ptr {address}, i32 1, {b.mask} {mask}, {kind} zeroinitializer)")
        value = b.let(f"sext {kind} {value} to {b.vector}")
        if row < per - 1:
            value = b.let(f"and {b.vector} {value}, {b.splat((1 << 32 // per) - 1, 'i32')}")
        if row:
            value = b.let(f"shl {b.vector} {value}, {b.splat(row * 32 // per, 'i32')}")
        total = b.let(f"or {b.vector} {total}, {value}") if total else value
    b.store_vector(b.let(f"xor {b.vector} {total}, {flips}"), b.at("%target", b.mul(element, "%target_step")))


def _pack_elements(b: Builder, first: Value) -> None:
    """One packed element at a time, from packed element ``first`` on."""
    per = b.blocking.per_element
    with b.loop(first, b.ceil_div("%depth", per)) as element, b.loop(0, "%count") as lane:
        total = "0"
        for j in range(per):
            k = b.add(b.mul(element, per), j)
            exists = b.compare("slt", k, "%depth")
            address = b.operand_at("%source", b.dot((lane, "%lane_step"), (b.select(exists, k, 0), "%depth_step")))
            value = b.let(f"sext i8 {b.let(f'load i8, ptr {address}, align 1')} to i32")
            value = b.select(exists, value, 0, "i32")
            if j < per - 1:
                value = b.let(f"and i32 {value}, {(1 << 32 // per) - 1}")
            total = b.let(f"or i32 {total}, {b.let(f'shl i32 {value}, {j * 32 // per}')}")
        b.store(b.let(f"xor i32 {total}, %flip"), b.at("%target", b.add(b.mul(element, "%target_step"), lane)))
