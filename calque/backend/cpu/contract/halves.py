"""bfloat16 in memory and in registers: 32-bit lanes that hold one value as float32, or two values, the second in the upper half."""

from __future__ import annotations

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import Blocking

CONVERT = "llvm.x86.avx512bf16.cvtneps2bf16.512"


def words(blocking: Blocking, kind: str = "i16") -> str:
    """A vector of as many integers as there are lanes."""
    return f"<{blocking.lanes} x {kind}>"


def half_declarations(blocking: Blocking) -> str:
    """Masked loads and stores of bfloat16, one and two for every lane."""
    lines = []
    for lanes in (blocking.lanes, 2 * blocking.lanes):
        vector, mask = f"<{lanes} x i16>", f"<{lanes} x i1>"
        lines += [f"declare {vector} @llvm.masked.load.v{lanes}i16.p0(ptr, i32, {mask}, {vector})",
                  f"declare void @llvm.masked.store.v{lanes}i16.p0({vector}, ptr, i32, {mask})"]
    if blocking.pairs:
        lines.append(f"declare <{blocking.lanes} x bfloat> @{CONVERT}(<{blocking.lanes} x float>)")
    return "\n".join([*lines, ""])


def load_words(b: Builder, pointer: str, mask: str) -> str:
    """Consecutive bfloat16 as 32-bit integers, zero where the mask is not set."""
    kind, lanes = words(b.blocking), b.blocking.lanes
    value = b.let(f"call {kind} @llvm.masked.load.v{lanes}i16.p0(ptr {pointer}, i32 2, {b.mask} {mask}, {kind} zeroinitializer)")
    return b.let(f"zext {kind} {value} to {words(b.blocking, 'i32')}")


def halves_between(b: Builder, low: Value, high: Value) -> str:
    """The mask of halves ``low <= half < high`` of a vector; the bounds lie in -2^31..2^31."""
    count = 2 * b.blocking.lanes
    iota = "<" + ", ".join(f"i32 {half}" for half in range(count)) + ">"
    found = []
    for predicate, bound in (("sge", low), ("slt", high)):
        one = b.let(f"insertelement <{count} x i32> poison, i32 {b.let(f'trunc i64 {bound} to i32')}, i32 0")
        every = b.let(f"shufflevector <{count} x i32> {one}, <{count} x i32> poison, <{count} x i32> zeroinitializer")
        found.append(b.let(f"icmp {predicate} <{count} x i32> {iota}, {every}", "m"))
    return b.let(f"and <{count} x i1> {found[0]}, {found[1]}", "m")


def load_halves(b: Builder, pointer: str, mask: str) -> str:
    """Twice as many consecutive bfloat16 as lanes, as 32-bit integers; zero where the mask is not set."""
    count = 2 * b.blocking.lanes
    value = b.let(f"call <{count} x i16> @llvm.masked.load.v{count}i16.p0(ptr {pointer}, i32 2, <{count} x i1> {mask}, "
                  f"<{count} x i16> zeroinitializer)")
    return b.let(f"bitcast <{count} x i16> {value} to {words(b.blocking, 'i32')}")


def store_halves(b: Builder, integers: str, pointer: str, mask: str) -> None:
    """Both halves of 32-bit integers as consecutive bfloat16."""
    count = 2 * b.blocking.lanes
    value = b.let(f"bitcast {words(b.blocking, 'i32')} {integers} to <{count} x i16>")
    b.emit(f"call void @llvm.masked.store.v{count}i16.p0(<{count} x i16> {value}, ptr {pointer}, i32 2, <{count} x i1> {mask})")


def lower(b: Builder, integers: str) -> str:
    """The lower halves alone."""
    return b.let(f"and {words(b.blocking, 'i32')} {integers}, {b.splat(0xFFFF, 'i32')}")


def upper(b: Builder, integers: str) -> str:
    """Integers moved to the upper halves: as float32 they are the bfloat16 values."""
    return b.let(f"shl {words(b.blocking, 'i32')} {integers}, {b.splat(16, 'i32')}")


def paired(b: Builder, first: str, second: str) -> str:
    """Two values below 2^16 in one lane."""
    return b.let(f"or {words(b.blocking, 'i32')} {first}, {upper(b, second)}")


def as_vector(b: Builder, integers: str) -> str:
    """The same bits as a vector of packed elements."""
    return b.let(f"bitcast {words(b.blocking, 'i32')} {integers} to {b.vector}")


def rounded(b: Builder, value: str) -> str:
    """The nearest bfloat16 of float32 lanes (ties to even) in the lower halves; NaN stays NaN."""
    kind = words(b.blocking, "i32")
    if b.blocking.pairs:
        return b.let(f"zext {words(b.blocking)} {_converted(b, value)} to {kind}")
    one, half, sixteen, quiet = (b.splat(number, "i32") for number in (1, 0x7FFF, 16, 0x40))
    bits = b.let(f"bitcast {b.vector} {value} to {kind}")
    above = b.let(f"lshr {kind} {bits}, {sixteen}")
    tie = b.let(f"and {kind} {above}, {one}")
    nearest = b.let(f"add {kind} {b.let(f'add {kind} {bits}, {half}')}, {tie}")
    nearest = b.let(f"lshr {kind} {nearest}, {sixteen}")
    nan = b.let(f"fcmp uno {b.vector} {value}, {value}", "m")
    kept = b.let(f"or {kind} {above}, {quiet}")
    return b.let(f"select {b.mask} {nan}, {kind} {kept}, {kind} {nearest}")


def _converted(b: Builder, value: str) -> str:
    """The processor's own rounding, which takes denormal numbers for zero as its products do."""
    narrow = f"<{b.blocking.lanes} x bfloat>"
    return b.let(f"bitcast {narrow} {b.let(f'call {narrow} @{CONVERT}({b.vector} {value})')} to {words(b.blocking)}")


def store_rounded(b: Builder, value: str, pointer: str, mask: str) -> None:
    """Float32 lanes as consecutive bfloat16, rounded to the nearest (ties to even)."""
    lanes, kind = b.blocking.lanes, words(b.blocking)
    narrow = _converted(b, value) if b.blocking.pairs else b.let(f"trunc {words(b.blocking, 'i32')} {rounded(b, value)} to {kind}")
    b.emit(f"call void @llvm.masked.store.v{lanes}i16.p0({kind} {narrow}, ptr {pointer}, i32 2, {b.mask} {mask})")


def load_half(b: Builder, pointer: str) -> str:
    """One bfloat16 as an i32."""
    return b.let(f"zext i16 {b.let(f'load i16, ptr {pointer}, align 2')} to i32")


def store_pair(b: Builder, first: str, second: str, pointer: str) -> None:
    """Two values below 2^16 as one packed element."""
    value = b.let(f"or i32 {first}, {b.let(f'shl i32 {second}, 16')}")
    b.store(b.let(f"bitcast i32 {value} to {b.element}"), pointer)
