"""The only module that talks to LLVM: IR text to object code, object code to addresses. llvmlite is imported at the first
compile."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from functools import lru_cache
from typing import Any

from calque.backend.cpu.target import TargetInfo, current
from calque.base.errors import CompileError

LIBRARY_FUNCTIONS = (
    "sin",
    "cos",
    "pow",
    "fmod",
    "fmodf",
    "fma",
    "fmaf",
    "floor",
    "floorf",
    "ceil",
    "ceilf",
    "trunc",
    "truncf",
    "rint",
    "rintf",
)
"""What generated code may call in the C library's mathematical part."""

_lock = threading.RLock()


@lru_cache(maxsize=1)
def _binding() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    library = ctypes.CDLL("libm.so.6")
    for name in LIBRARY_FUNCTIONS:
        llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    return llvm


def version() -> str:
    """Versions of LLVM and of its Python binding: part of every cache key."""
    import llvmlite

    return f"llvm {'.'.join(map(str, _binding().llvm_version_info))} llvmlite {llvmlite.__version__}"


@lru_cache(maxsize=8)
def _machine(target: TargetInfo) -> Any:
    llvm = _binding()
    # The loader places code and constants wherever the system has room, in a long-lived process more than 2 GiB apart: the small code
    # model's 32-bit distances would then overflow, which LLVM answers by aborting. The large model addresses constants by 64 bits.
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.processor, features=target.features, opt=2, reloc="static", codemodel="large"
    )


def compile_text(text: str, target: TargetInfo, level: int = -1) -> bytes:
    """Object code of a module. `level` -1 runs the short pass list for explicit vector code, 0..3 LLVM's own pipelines."""
    llvm = _binding()
    with _lock:
        context = llvm.create_context()
        try:
            module = llvm.parse_assembly(text, context)
        except RuntimeError as error:
            raise CompileError(f"[cpu] expected valid IR, got {error}; this is a bug in the emitter") from error
        machine = _machine(target)
        tuning = llvm.create_pipeline_tuning_options(speed_level=max(level, 1))
        tuning.loop_vectorization = tuning.slp_vectorization = False
        builder = llvm.create_pass_builder(machine, tuning)
        if level < 0:
            passes = llvm.create_new_module_pass_manager()
            passes.add_sroa_pass()
            passes.add_simplify_cfg_pass()
            passes.add_instruction_combine_pass()
        else:
            passes = builder.getModulePassManager()
        passes.run(module, builder)
        # Loop strength reduction takes a third of the time and gains nothing on these addresses.
        llvm.set_option("calque", "-disable-lsr" if level < 0 else "-disable-lsr=false")
        try:
            return bytes(machine.emit_object(module))
        finally:
            llvm.set_option("calque", "-disable-lsr=false")


def export(name: str, address: int) -> None:
    """Let generated code call a function by name."""
    _binding().add_symbol(name, address)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Loader:
    """Holds machine code in executable memory until the process ends."""

    def __init__(self) -> None:
        self._engine: Any = None

    def load(self, objects: list[tuple[bytes, list[str]]]) -> list[int]:
        """Addresses of the named functions of some objects, in order."""
        llvm = _binding()
        with _lock:
            if self._engine is None:
                empty = llvm.parse_assembly(f'target triple = "{current().triple}"', llvm.create_context())
                machine = llvm.Target.from_triple(current().triple).create_target_machine(
                    cpu=current().processor, features=current().features, opt=2, reloc="pic", jit=True
                )
                self._engine = llvm.create_mcjit_compiler(empty, machine)
                atexit.register(self._engine.detach)  # a thread may still run its code while the interpreter goes down
            for data, _ in objects:
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
            self._engine.finalize_object()
            return [int(self._engine.get_function_address(name)) for _, names in objects for name in names]


LOADER = Loader()
