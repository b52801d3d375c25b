"""What this machine can do at most, measured: fused multiply-adds from registers, and copying memory.

Both are native kernels on the same worker threads as everything else, so that a kernel's share of its limit means something on a machine
that is shared, throttled or restricted to some cores. Nothing is remembered: a limit belongs to the moment it was measured.
"""

from __future__ import annotations

import time
from functools import lru_cache, partial

import numpy as np

from calque.backend.cpu.code import library, llvm
from calque.backend.cpu.compile.target import TargetInfo, current
from calque.backend.cpu.contract.builder import PAIR_PRODUCT
from calque.backend.cpu.program.link import target_key
from calque.backend.cpu.team.memory import POOL
from calque.backend.cpu.team.runtime import RUNTIME

_TYPES = {"float32": ("float", 4, "f32"), "float64": ("double", 8, "f64")}
_ONES = {"float32": 0x3F80_0000_3F80_0000, "float64": 0x3FF0_0000_0000_0000, "bfloat16": 0x3F80_3F80_3F80_3F80}
_ITERATIONS = 400_000
_HEAD = "define void @limit(i64 %t, i64 %n, ptr %b, ptr %s, ptr %a) nounwind {"
_UNROLL = 4  # vectors per turn of the copy


def _fma_text(name: str, target: TargetInfo) -> str:
    """A loop of independent multiply-adds, as many as hide their latency and fit the registers. Words: iterations, the bits of what is multiplied
    (memory that nobody wrote to may hold subnormal numbers, with which some processors take a hundred times as long)."""
    pairs = name == "bfloat16"
    scalar, size, suffix = _TYPES["float32" if pairs else name]
    lanes = target.lanes(size)
    kind = f"<{lanes} x {scalar}>"
    halves = f"<{2 * lanes} x bfloat>"
    count = target.registers * 3 // 4
    lines = [f"declare {kind} @{PAIR_PRODUCT}({kind}, {halves}, {halves})"] if pairs else []
    lines += [f"declare {kind} @llvm.fmuladd.v{lanes}{suffix}({kind}, {kind}, {kind})", _HEAD]
    words = f"<{target.lanes(8)} x i64>"
    lines += ["entry:", "  %turns = load i64, ptr %a, align 8", "  %pw = getelementptr i64, ptr %a, i64 1", "  %w = load i64, ptr %pw, align 8"]
    lines += [f"  %one = insertelement {words} poison, i64 %w, i32 0"]
    lines += [f"  %all = shufflevector {words} %one, {words} poison, <{target.lanes(8)} x i32> zeroinitializer"]
    lines += [f"  %x = bitcast {words} %all to {kind}", *([f"  %y = bitcast {words} %all to {halves}"] if pairs else [])]
    lines += ["  br label %loop", "loop:"]
    lines.append("  %i = phi i64 [0, %entry], [%i1, %loop]")
    lines += [f"  %c{k} = phi {kind} [%x, %entry], [%d{k}, %loop]" for k in range(count)]
    for k in range(count):
        product = f"@llvm.fmuladd.v{lanes}{suffix}({kind} %x, {kind} %x, {kind} %c{k})"
        if pairs:
            product = f"@{PAIR_PRODUCT}({kind} %c{k}, {halves} %y, {halves} %y)"
        lines.append(f"  %d{k} = call {kind} {product}")
    lines += ["  %i1 = add i64 %i, 1", "  %more = icmp slt i64 %i1, %turns", "  br i1 %more, label %loop, label %out", "out:"]
    lines += [f"  %s{k} = fadd {kind} %{'d0' if k == 1 else f's{k - 1}'}, %d{k}" for k in range(1, count)]
    lines += [f"  store {kind} %s{count - 1}, ptr %s, align 64", "  ret void", "}"]
    return "\n".join(lines)


def _copy_text(streamed: bool, target: TargetInfo) -> str:
    """Each thread copies its share of a block. Words: source, destination, turns (of `_UNROLL` vectors)."""
    width = target.vector_bytes
    kind = f"<{width // 4} x i32>"
    hint = ", !nontemporal !0" if streamed else ""
    lines = [_HEAD, "entry:", "  %x = load ptr, ptr %a, align 8"]
    lines += ["  %pz = getelementptr i64, ptr %a, i64 1", "  %z = load ptr, ptr %pz, align 8", "  %pc = getelementptr i64, ptr %a, i64 2"]
    lines += ["  %all = load i64, ptr %pc, align 8", "  %f0 = mul i64 %all, %t", "  %first = udiv i64 %f0, %n", "  %t1 = add i64 %t, 1"]
    lines += ["  %e0 = mul i64 %all, %t1", "  %end = udiv i64 %e0, %n", "  %any = icmp slt i64 %first, %end"]
    lines += ["  br i1 %any, label %loop, label %out", "loop:", "  %i = phi i64 [%first, %entry], [%i1, %loop]"]
    lines.append(f"  %at = mul i64 %i, {_UNROLL * width}")
    for k in range(_UNROLL):
        lines += [f"  %o{k} = add i64 %at, {k * width}", f"  %p{k} = getelementptr i8, ptr %x, i64 %o{k}"]
        lines += [f"  %q{k} = getelementptr i8, ptr %z, i64 %o{k}", f"  %v{k} = load {kind}, ptr %p{k}, align {width}"]
        lines.append(f"  store {kind} %v{k}, ptr %q{k}, align {width}{hint}")
    lines += ["  %i1 = add i64 %i, 1", "  %more = icmp slt i64 %i1, %end", "  br i1 %more, label %loop, label %out", "out:", "  ret void", "}"]
    lines.append("!0 = !{i32 1}")
    return "\n".join(lines)


@lru_cache(maxsize=16)
def _function(kind: str, _: str) -> int:
    target = current()
    write = partial(_copy_text, kind == "stream") if kind in ("copy", "stream") else partial(_fma_text, kind)
    text = write(target=target)
    data = library.native_object(library.content_key("limit", text, target), text, target)
    return llvm.LOADER.load([(data, ["limit"])])[0]


def _fastest(kind: str, words: list[int], repeats: int, seconds: float, alone: bool = False) -> float:
    """Shortest time of one launch: `repeats` launches in one native call, again and again for `seconds`; `alone`: on the calling thread."""
    function = _function(kind, target_key())
    arguments = np.array(words, np.int64)
    records = np.array([[function, 0, 1]] * repeats, np.int64)
    best, stop = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        RUNTIME.run(records.ctypes.data, repeats, arguments.ctypes.data, alone)
        now = time.perf_counter()
        best = min(best, (now - start) / repeats)
        if now > stop:
            return best


def peak_flops(dtype: str = "float32", seconds: float = 0.05) -> float:
    """Floating-point operations per second of all threads from registers: the limit of contractions.

    `dtype` is "float32", "float64" or "bfloat16"; the last means float32 where no instruction multiplies bfloat16.

    >>> peak_flops(seconds=0.001) > 1e9
    True
    """
    target = current()
    if dtype == "bfloat16" and not target.bfloat_pairs:
        dtype = "float32"
    pairs = dtype == "bfloat16"
    size = 4 if pairs else _TYPES[dtype][1]
    per_turn = (4 if pairs else 2) * target.lanes(size) * (target.registers * 3 // 4)
    return RUNTIME.threads() * _ITERATIONS * per_turn / _fastest(dtype, [_ITERATIONS, _ONES[dtype]], 1, seconds)


def copy_bandwidth(nbytes: int = 256 << 20, seconds: float = 0.05, alone: bool = False) -> float:
    """Bytes read and written per second by all threads while half of `nbytes` is copied to the other half: the limit of kernels that
    touch `nbytes` of memory once. Small sizes measure the caches; `alone`: or one thread alone, if that is faster, as small programs run.

    >>> copy_bandwidth(1 << 20, seconds=0.001) > 1e8
    True
    """
    turn = _UNROLL * current().vector_bytes
    turns = max(1, nbytes // 2 // turn)
    source, target = (POOL.empty(turns * turn, np.dtype(np.uint8)) for _ in range(2))
    source[:] = 1
    words = [source.ctypes.data, target.ctypes.data, turns]
    repeats = max(1, min(64, (4 << 20) // (turns * turn)))
    kinds = ("copy", "stream") if nbytes >= 8 << 20 else ("copy",)  # streamed stores go past the caches
    times = [_fastest(kind, words, repeats, seconds / len(kinds)) for kind in kinds]
    if alone:
        times.append(_fastest("copy", words, repeats, seconds / 4, alone=True))
    return 2 * turns * turn / min(times)
