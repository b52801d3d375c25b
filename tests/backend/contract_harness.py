"""Compile the contraction library in memory and run it on NumPy arrays with any number of threads.

Memory that nobody has written to holds subnormal numbers here, and on x86 no kernel may compute with one: lanes that hold no value must hold zeros,
not what was there before, as a multiplication of a subnormal number takes some processors a hundred times as long.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from calque.backend.cpu.code.library import content_key, disk_cache
from calque.backend.cpu.compile.compiler import TIGHT, pass_list
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.contract import SCRATCH_BYTES, Contraction, Matmul, PlainUnit, module_ir, symbol, target_for_features
from calque.backend.cpu.contract.packed import PACKED, TO_PACK
from calque.backend.cpu.text.runtime_text import BEHIND_SCRATCH

Array = NDArray[Any]
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
WATCH = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
BARRIER = """
declare i32 @sched_yield()
define void @calque_barrier(ptr %b, i64 %n) {
entry:
  %gen = getelementptr i64, ptr %b, i64 8
  %g = load atomic i64, ptr %gen acquire, align 8
  %old = atomicrmw add ptr %b, i64 1 acq_rel
  %last = sub i64 %n, 1
  %is = icmp eq i64 %old, %last
  br i1 %is, label %release, label %spin
release:
  store atomic i64 0, ptr %b monotonic, align 8
  %g1 = add i64 %g, 1
  store atomic i64 %g1, ptr %gen release, align 8
  ret void
spin:
  %c = phi i64 [0, %entry], [%c1, %again], [0, %yield]
  %now = load atomic i64, ptr %gen acquire, align 8
  %same = icmp eq i64 %now, %g
  br i1 %same, label %again, label %done
again:
  %c1 = add i64 %c, 1
  %long = icmp ugt i64 %c1, 2000
  br i1 %long, label %yield, label %spin
yield:
  call i32 @sched_yield()
  br label %spin
done:
  ret void
}
"""


FLAGS = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define i64 @subnormals(ptr %f, i64 %thread, i64 %threads, ptr %barrier, ptr %scratch, ptr %words) {
entry:
  %place = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %before = load i32, ptr %place, align 4
  %clear = and i32 %before, -64
  store i32 %clear, ptr %place, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  call void %f(i64 %thread, i64 %threads, ptr %barrier, ptr %scratch, ptr %words)
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %after = load i32, ptr %place, align 4
  %shifted = lshr i32 %after, 1
  %bit = and i32 %shifted, 1
  %flag = zext i32 %bit to i64
  store i32 %before, ptr %place, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  ret i64 %flag
}
"""
"""Run a kernel and tell whether it computed with a subnormal number."""
SUBNORMAL = 0x0001_2345_0001_2345
"""One of float64, two of float32."""
WATCHED = platform.machine().lower() in ("x86_64", "amd64")
"""Whether there are such flags. Vectors of 64 bytes are watched, whose masks cost nothing, and float32 and float64 (instructions for bfloat16 take
subnormal numbers for zero); attention is not, which computes with a vector of lanes that it hides here and there, not with whole panels of them."""


def host_target() -> PlainUnit:
    """The target of this machine."""
    features = frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)
    return target_for_features(llvm.get_process_triple().split("-")[0], features)


def aligned(count: int, dtype: Any) -> Array:
    """An uninitialised vector on a 64-byte boundary."""
    item = np.dtype(dtype).itemsize
    raw = np.empty(count * item + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * item].view(dtype)


def untouched(nbytes: int) -> Array:
    """Bytes on a 64-byte boundary that nobody has written to."""
    found = aligned(-(-nbytes // 8), np.int64)
    found[:] = SUBNORMAL
    return found.view(np.uint8)


def _object_code(machine: llvm.TargetMachine, dtype: str, target: PlainUnit) -> bytes:
    text = module_ir(dtype, target).replace("declare void @calque_barrier(ptr, i64)", BARRIER)
    module = llvm.parse_assembly(text + FLAGS * WATCHED)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    pass_list(TIGHT).run(module, builder)  # as the library is compiled, but for addresses
    return machine.emit_object(module)


class Library:
    """The compiled library of one dtype: three seconds of work, so it is kept on disk for other processes and runs."""

    def __init__(self, dtype: str, target: PlainUnit) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.dtype, self.target = dtype, target
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        machine = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=2)
        key = content_key("test library", "\0".join([Path(__file__).read_text(), dtype, repr(target), cpu, features]), current())
        code = disk_cache().get(key)
        if code is None:
            code = _object_code(machine, dtype, target)
            disk_cache().put(key, code)
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()
        self.pools: dict[int, ThreadPoolExecutor] = {}
        self.barrier = np.zeros(64, np.int64)
        self.scratch = [untouched(SCRATCH_BYTES + BEHIND_SCRATCH) for _ in range(4)]
        for scratch in self.scratch:
            scratch[SCRATCH_BYTES:] = 0  # no epilogue

    def prepare(self, kind: str, params: Contraction, x: Array, y: Array, out: Array) -> Any:
        """`prepare_any` for two operands and one result."""
        return self.prepare_any(kind, params, [x, y], [out])

    def prepare_any(
        self, kind: str, params: Contraction, inputs: Sequence[Array], outputs: Sequence[Array | None],
        to_pack: Array | None = None, packed: Mapping[int, Array] | None = None,
    ) -> Any:  # fmt: skip
        """A function of the thread count and of how often to run the kernel (repeats are for timing only). `to_pack`: memory for weights, which is
        all that is to be filled; `packed`: operands that such a call has packed."""
        function = self.engine.get_function_address(symbol(kind, self.dtype))
        clean = WATCHED and self.target.vector_bytes == 64 and self.dtype in ("float32", "float64") and "attention" not in kind
        kernel, watched = KERNEL(function), WATCH(self.engine.get_function_address("subnormals")) if clean else None
        workspace = untouched(params.workspace_bytes(self.dtype, self.target) + 64)
        buffers = [0 if a is None else a.ctypes.data for a in (*inputs, *outputs)]
        for operand, memory in (packed or {}).items():
            buffers[operand] = memory.ctypes.data | PACKED
        space = workspace.ctypes.data if to_pack is None else to_pack.ctypes.data | TO_PACK
        words = np.array([*buffers, space, *params.words()], np.int64)
        barrier = self.barrier.ctypes.data

        def part(thread: int, threads: int, repeats: int) -> bool:
            place = self.scratch[thread].ctypes.data
            if watched is not None and repeats == 1:
                return bool(watched(function, thread, threads, barrier, place, words.ctypes.data))
            for _ in range(repeats):
                kernel(thread, threads, barrier, place, words.ctypes.data)
            return False

        def met(threads: int, repeats: int, untouched: int) -> bool:
            """Run it; whether any thread computed with a subnormal number, where memory that nobody has written to holds this one."""
            workspace.view(np.int64)[:] = untouched
            for scratch in self.scratch[:threads]:
                scratch[:SCRATCH_BYTES].view(np.int64)[:] = untouched
            pool = self.pools.setdefault(threads, ThreadPoolExecutor(max(threads - 1, 1)))
            others = [pool.submit(part, thread, threads, repeats) for thread in range(1, threads)]
            return any([part(0, threads, repeats), *(other.result() for other in others)])

        def run(threads: int, repeats: int = 1, keep: Any = (inputs, outputs, workspace, to_pack, packed)) -> None:
            before = [None if a is None else a.copy() for a in outputs]
            if met(threads, repeats, SUBNORMAL):
                found = [None if a is None else a.copy() for a in outputs]
                for a, old in zip(outputs, before, strict=True):
                    if a is not None:
                        a[...] = old
                assert met(threads, repeats, 0), "the kernel computed with subnormal numbers from memory that nobody had written to"
                for a, new in zip(outputs, found, strict=True):
                    assert a is None or a.tobytes() == new.tobytes()

        return run


@cache
def library(dtype: str, target: PlainUnit | None = None) -> Library:
    """The library for a target (None: this machine), made once per process."""
    return Library(dtype, target or host_target())


def strides_of(array: Array) -> tuple[int, ...]:
    """Element strides."""
    return tuple(step // array.itemsize for step in array.strides)


def matmul_params(a: Array, b: Array) -> Matmul:
    """Parameters for ``a @ b`` with equal batch dimensions."""
    (m, k), n, sa, sb = a.shape[-2:], b.shape[-1], strides_of(a), strides_of(b)
    return Matmul(m, n, k, (sa[-2], sa[-1]), (sb[-2], sb[-1]), a.shape[:-2], sa[:-2], sb[:-2])
