"""LLVM itself: IR text to object code, in this process or as a program of its own.

As a program (`python -I -S compiler.py FOLDER`, FOLDER holds llvmlite) it answers requests from standard input on standard output, one after the
other, and ends with its input or when nobody has asked for a while. What it compiles becomes the same, byte for byte, as in the process that
asks: it runs the same functions. It imports nothing of Calque and no NumPy, so that it starts in a twentieth of a second.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import struct
import sys
from functools import lru_cache
from typing import Any

SHORT, LOOPS, TIGHT = -1, -2, -3
"""Pass lists of our own. `SHORT`: for explicit vector code. `LOOPS`: for hand-written loops around it, functions inlined where they must be; code
generation then moves what is constant out of them. `TIGHT`: the same for loops of a few instructions, whose addresses and order matter (`reduces`,
`machine_for`). 1..3 are LLVM's own pipelines."""
COMPILE, HOST, WHOLE = 0, 1, 2
"""Kinds of requests: text to object code; triple, processor and features of this machine; arguments of `one_object`, as JSON, to object code."""
DONE, INVALID, FAILED = 0, 1, 2
"""Kinds of replies: the result; what LLVM says against the text; why this process cannot compile."""
REQUEST = struct.Struct("<IiII")
"""Before a request: its kind, the pass list, bytes of the target (three lines), bytes of the text."""
REPLY = struct.Struct("<III")
"""Before a reply: its kind, bytes of the result, the most memory that this process has held in KiB."""
ABANDONED = 60.0
"""Seconds without a request after which the program ends, whoever still holds the other end of its input."""

Target = tuple[str, str, str]
"""Triple, processor, features."""


class InvalidText(Exception):
    """LLVM cannot read a module."""


@lru_cache(maxsize=1)
def binding() -> Any:
    """llvmlite, ready to compile for this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


class LlvmCalls:
    """LLVM's long calls without the global lock that llvmlite's Python layer takes around every call.

    The functions are thread-safe as long as threads share neither contexts nor target machines; Python's own lock is released while they run.
    Their prototypes are the same in all supported versions of llvmlite (0.45 to 0.47).
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)  # already loaded: the same code with prototypes of our own
        pointer, message = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)
        self.parse = library.LLVMPY_ParseAssembly
        self.parse.argtypes, self.parse.restype = [pointer, ctypes.c_char_p, message], pointer
        self.run_passes = library.LLVMPY_RunNewModulePassManager
        self.run_passes.argtypes, self.run_passes.restype = [pointer, pointer, pointer], None
        self.emit = library.LLVMPY_TargetMachineEmitToMemory
        self.emit.argtypes, self.emit.restype = [pointer, pointer, ctypes.c_int, message], pointer
        self.buffer_start = library.LLVMPY_GetBufferStart
        self.buffer_start.argtypes, self.buffer_start.restype = [pointer], pointer
        self.buffer_size = library.LLVMPY_GetBufferSize
        self.buffer_size.argtypes, self.buffer_size.restype = [pointer], ctypes.c_size_t
        self.dispose_buffer = library.LLVMPY_DisposeMemoryBuffer
        self.dispose_buffer.argtypes, self.dispose_buffer.restype = [pointer], None
        self.dispose_module = library.LLVMPY_DisposeModule
        self.dispose_module.argtypes, self.dispose_module.restype = [pointer], None
        self.dispose_text = library.LLVMPY_DisposeString
        self.dispose_text.argtypes, self.dispose_text.restype = [ctypes.c_char_p], None

    def checked(self, function: Any, *arguments: Any) -> int:
        """The pointer a function returns; raises RuntimeError with its message if it returns none."""
        message = ctypes.c_char_p()
        result = function(*arguments, ctypes.byref(message))
        text = message.value
        if text:
            self.dispose_text(message)
        if not result or text:
            raise RuntimeError((text or b"").decode(errors="replace"))
        return int(result)


@lru_cache(maxsize=1)
def native() -> LlvmCalls:
    """The library that llvmlite has loaded."""
    return LlvmCalls(binding().ffi.lib._name)


def machine_for(target: Target, level: int) -> Any:
    """A target machine for a pass list; code generation does less for `LOOPS`. It must not be shared between threads."""
    triple, processor, features = target
    effort = 1 if level == LOOPS else 2
    # The loader places code and constants wherever the system has room, in a long-lived process more than 2 GiB apart: the small code
    # model's 32-bit distances would then overflow, which LLVM answers by aborting. The large model addresses constants by 64 bits.
    return binding().Target.from_triple(triple).create_target_machine(cpu=processor, features=features, opt=effort, reloc="static", codemodel="large")


def reduces(level: int) -> bool:
    """Whether a pass list comes with loop strength reduction: it takes a quarter to a third of the time and gains something in tight loops only."""
    return level not in (SHORT, LOOPS)


def reduce_strength(on: bool) -> None:
    """Switch loop strength reduction, for the whole process."""
    binding().set_option("calque", "-disable-lsr=false" if on else "-disable-lsr")


def pass_list(level: int) -> Any:
    """One of our own pass lists, `SHORT` or `LOOPS`."""
    passes = binding().create_new_module_pass_manager()
    if level != SHORT:
        passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    if level != SHORT:
        passes.add_loop_rotate_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
    return passes


def object_code(text: bytes, level: int, machine: Any) -> bytes:
    """Object code of one module, with loop strength reduction as it is switched. Raises `InvalidText`."""
    llvm, library = binding(), native()
    context = llvm.create_context()
    try:
        module = library.checked(library.parse, context, text)
    except RuntimeError as error:
        raise InvalidText(str(error)) from error
    try:
        tuning = llvm.create_pipeline_tuning_options(speed_level=max(level, 1))
        tuning.loop_vectorization = tuning.slp_vectorization = False
        builder = llvm.create_pass_builder(machine, tuning)
        passes = builder.getModulePassManager() if level > 0 else pass_list(level)
        library.run_passes(passes, module, builder)
        buffer = library.checked(library.emit, machine, module, 1)
        try:
            return ctypes.string_at(library.buffer_start(buffer), library.buffer_size(buffer))
        finally:
            library.dispose_buffer(buffer)
    finally:
        library.dispose_module(module)


def one_object(texts: list[tuple[str, int]], target: Target, exported: frozenset[str], outside: frozenset[str], abi: str = "") -> bytes:
    """The object code of several modules (text, pass list) as one file for a linker, position-independent, in which only the functions of these names
    can be seen. What it calls and nobody defines stops the program, unless it is a function `outside`. Whoever calls has switched loop strength
    reduction on."""
    llvm = binding()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for the few lines that ask an x86 processor what it is
    triple, processor, features = target
    small = "default" if triple.startswith("wasm") else "small"
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=processor, features=features, opt=2, reloc="pic", codemodel=small, abiname=abi,
    )
    context = llvm.create_context()
    whole = llvm.parse_assembly(f'target triple = "{triple}"\ntarget datalayout = "{machine.target_data}"\n', context)
    tuning = llvm.create_pipeline_tuning_options(speed_level=1)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    for text, level in texts:
        try:
            module = llvm.parse_assembly(f'target triple = "{triple}"\ntarget datalayout = "{machine.target_data}"\n{text}', context)
        except RuntimeError as error:
            raise InvalidText(str(error)) from error
        pass_list(level).run(module, llvm.create_pass_builder(machine, tuning))
        whole.link_in(module)
    absent = [f for f in whole.functions if f.is_declaration and not f.name.startswith("llvm.") and f.name not in outside]
    stubs = [str(f).strip().split("\n")[-1].replace("declare ", "define ", 1) + " {\n  call void @llvm.trap()\n  unreachable\n}\n" for f in absent]
    stubs = [re.sub(r" #[0-9]+", "", stub) for stub in stubs]
    whole.link_in(llvm.parse_assembly("\n".join(["declare void @llvm.trap()", *stubs]), context))
    for value in (*whole.functions, *whole.global_variables):
        if not value.is_declaration and value.name not in exported:
            value.linkage = "internal"
    last = llvm.create_new_module_pass_manager()
    last.add_global_dead_code_eliminate_pass()
    last.run(whole, llvm.create_pass_builder(machine, tuning))
    return bytes(machine.emit_object(whole))


def host() -> Target:
    """Triple, processor and features of this machine."""
    llvm = binding()
    return llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _read(size: int) -> bytes | None:
    """So many bytes of standard input; None at its end."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _peak() -> int:
    """The most memory that this process has held, in KiB (0 where the system does not say)."""
    try:
        with open("/proc/self/status", "rb") as status:
            return next((int(line.split()[1]) for line in status if line.startswith(b"VmHWM")), 0)
    except OSError:
        return 0


class Service:
    """The program: answers to requests."""

    def __init__(self) -> None:
        self.machines: dict[tuple[Target, int], Any] = {}
        self.reducing: bool | None = None  # how the switch of LLVM stands

    def answer(self, kind: int, level: int, target: bytes, text: bytes) -> tuple[int, bytes]:
        """(kind of reply, its content)."""
        try:
            if kind == HOST:
                return DONE, "\n".join(host()).encode()
            triple, processor, features = target.decode().split("\n")
            if kind == WHOLE:
                asked = json.loads(text)
                exported, outside = frozenset(asked["exported"]), frozenset(asked["outside"])
                return DONE, one_object(asked["texts"], (triple, processor, features), exported, outside, asked["abi"])
            wanted = (triple, processor, features), level
            if wanted not in self.machines:
                self.machines[wanted] = machine_for(*wanted)
            if self.reducing is not reduces(level):
                self.reducing = reduces(level)
                reduce_strength(self.reducing)
            return DONE, object_code(text, level, self.machines[wanted])
        except InvalidText as error:
            return INVALID, str(error).encode()
        except Exception as error:
            return FAILED, f"{type(error).__name__}: {error}".encode()

    def serve(self) -> None:
        """Until the input ends."""
        while select.select([0], [], [], ABANDONED)[0]:
            header = _read(REQUEST.size)
            if header is None:
                return
            kind, level, target_size, text_size = REQUEST.unpack(header)
            target, text = _read(target_size), _read(text_size)
            if target is None or text is None:
                return
            status, content = self.answer(kind, level, target, text)
            rest = REPLY.pack(status, len(content), _peak()) + content
            while rest:
                rest = rest[os.write(1, rest) :]


def main() -> None:
    """The program."""
    sys.path.append(sys.argv[1])
    try:
        native()  # ready before the first request arrives
    except Exception:  # every answer will say why
        native.cache_clear()
    try:
        Service().serve()
    except OSError:  # whoever asked is gone
        return


if __name__ == "__main__":
    main()
