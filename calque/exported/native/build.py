"""From an export to files: `Exported.compile`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any

from calque.backend.cpu.program.standalone import TEAM_OUTSIDE, TargetInfo, current, object_file, portable
from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError, ExportError, MissingExtraError
from calque.base.extras import need, there
from calque.base.text import shown
from calque.exported.native.around import TAGS, classes, cmake, wheel
from calque.exported.native.header import DECLARED, WORDS, header
from calque.exported.native.plan import FUNCTIONS, Plan, make_plan
from calque.exported.native.tables import library_texts, most_threads, weights_file
from calque.exported.native.web import web_files


@dataclass(frozen=True, slots=True)
class Target:
    """A system: LLVM's name, processors that a library may be for (first those that it is for by default, joined by +), what zig calls it (empty
    where it has no libc), endings."""

    triple: str
    processors: tuple[str, ...]
    zig: str
    shared: str = "lib{}.so"
    static: str = "lib{}.a"
    object: str = "{}.o"


_X86 = ("x86-64-v3+x86-64-v4", "x86-64", "x86-64-v3", "x86-64-v4", "native")
TARGETS = {
    "x86_64-linux-gnu": Target("x86_64-unknown-linux-gnu", _X86, "x86_64-linux-gnu"),
    "aarch64-linux-gnu": Target("aarch64-unknown-linux-gnu", ("armv8-a",), "aarch64-linux-gnu"),
    "aarch64-linux-android": Target("aarch64-unknown-linux-android21", ("armv8-a",), ""),
    "riscv64-linux-gnu": Target("riscv64-unknown-linux-gnu", ("rv64gc", "rv64gcv"), "riscv64-linux-gnu"),
    "arm64-apple-macosx": Target("arm64-apple-macosx11.0.0", ("apple-m1",), "aarch64-macos", "lib{}.dylib"),
    "x86_64-windows": Target("x86_64-pc-windows-msvc", _X86[:-1], "x86_64-windows-gnu", "{}.dll", "{}.lib", "{}.obj"),
    "wasm32": Target("wasm32-unknown-unknown", ("simd128",), "wasm32-freestanding", "{}.wasm"),
    "web": Target("wasm32-unknown-unknown", ("simd128",), "wasm32-freestanding", "{}.wasm"),
}
MOST_INSIDE = 256 << 20  # bytes of weights in a library


def _check_name(name: Any, with_wheel: bool) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        like = re.sub(r"^[^A-Za-z]+|[^A-Za-z0-9_]", lambda found: "_" * (found.start() > 0), str(name)[:40]) or "model"
        raise ArgumentError(f"[compile] expected name as an identifier of C, such as {like}, got {shown(name)}")
    in_c, in_python = name in f"{WORDS} {DECLARED}".split(), with_wheel and (name in (*sys.stdlib_module_names, "numpy") or iskeyword(name))
    if in_c or in_python:
        whose = "C or C++ has" if in_c else "Python or NumPy has"
        raise ArgumentError(f"[compile] expected a name that nobody else has, such as {name}_model, got {name!r}, which {whose}")


def compile_exported(
    entries: Mapping[str, Any], values: Mapping[str, Any], folder: str | os.PathLike[str], target: str, name: str, sizes: Mapping[str, Any] | None,
    cpu: str, weights: str, linker: str | bool, with_wheel: bool,
) -> list[Path]:  # fmt: skip
    """See `Exported.compile`."""
    _check_name(name, with_wheel)
    if weights not in ("inside", "file"):
        raise ArgumentError(f"[compile] expected weights as 'inside' or 'file', got {shown(weights)}")
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ArgumentError(f"[compile] expected sizes={{'batch': 1}}, got {shown(sizes)}")
    free = sorted({d.name for entry in entries.values() for d in entry.dims})
    unknown = sorted(set(sizes or {}) - set(free), key=str)
    if unknown:
        there = f"the free sizes are {', '.join(free)}" if free else "every size is fixed"
        raise ArgumentError(f"[compile] expected sizes of free dimensions, got {', '.join(map(shown, unknown))}, which no entry has; {there}")
    system = _target(target)
    plan = make_plan(name, entries, values, sizes or {}, _processors(system, cpu))
    if not plan.signatures:
        raise ExportError("[compile] expected an export with entries, got one without")
    inside = weights == "inside"
    if inside and len(plan.blob.data) > MOST_INSIDE:
        raise ArgumentError(
            f"[compile] expected at most {MOST_INSIDE} bytes of weights inside of a library, got {len(plan.blob.data)}; use weights='file'"
        )
    exported = frozenset(f"{name}_{function}" for function in FUNCTIONS)
    outside = TEAM_OUTSIDE if most_threads(plan.targets[0]) > 1 else frozenset[str]()
    code = object_file(library_texts(plan, inside), plan.targets[0], exported, outside)
    files = {system.object.format(name): code, f"{name}.h": header(plan, inside).encode(), f"{name}.hpp": classes(plan).encode()}
    files[f"{name}-config.cmake"] = cmake(name, system.static.format(name), system.shared.format(name)).encode()
    files[system.static.format(name)] = archive(system.object.format(name), code, sorted(exported), system)
    if not inside:
        files[f"{name}.weights"] = weights_file(plan)
    with tempfile.TemporaryDirectory() as temporary:
        shared = _linked(system, target, Path(temporary), name, code, linker)
        if shared is not None:
            files[system.shared.format(name)] = shared
    if with_wheel:
        files |= _wheel(plan, system, target or host_target(), files)
    if target == "web":
        if shared is None:
            raise ArgumentError("[compile] expected a linker for target='web', got linker=False; leave it out: wasm-ld, or ziglang's, is found")
        files = {key: data for key, data in files.items() if key.endswith((".wasm", ".weights"))}
        files |= web_files(plan, shared, files.get(f"{name}.weights", b""))
    return _written(Path(folder), files)


def _wheel(plan: Plan, system: Target, target: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A wheel of what has been made."""
    shared = system.shared.format(plan.name)
    if target not in TAGS:
        raise ArgumentError(f"[compile] expected a target that Python runs on for a wheel, one of {', '.join(TAGS)}, got {target!r}")
    if shared not in files:
        raise ArgumentError("[compile] expected a linker for a wheel, which holds a shared library; install a C compiler or ziglang")
    held = {file: data for file, data in files.items() if file in (shared, f"{plan.name}.weights")}
    return dict([wheel(plan, target, shared, held)])


def _written(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Each appears complete or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"[compile] expected a folder that can be written, got {str(folder)!r}: {error.strerror}; choose another") from error
    for file, data in files.items():
        part = folder / f".{file}.{os.getpid()}.part"
        try:
            part.write_bytes(data)
            part.replace(folder / file)
        finally:
            part.unlink(missing_ok=True)
    return [folder / file for file in files]


def host_target() -> str:
    """The name of this machine's system, as far as libraries can be built for it."""
    machine = os.uname().machine.lower()
    return {"x86_64": "x86_64-linux-gnu", "amd64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "arm64": "aarch64-linux-gnu"}.get(machine, "")


def _target(name: str) -> Target:
    found = TARGETS.get(name or host_target())
    if found is None:
        raise ArgumentError(f"[compile] expected target as one of {', '.join(TARGETS)}, got {shown(name)}")
    return found


def _processors(system: Target, cpu: str) -> list[TargetInfo]:
    """What a library is compiled for, the least first."""
    known = {one for choice in system.processors for one in choice.split("+")}
    if cpu == "native" and "native" in system.processors and TARGETS.get(host_target()) is system:
        return [current()]
    names = (cpu or system.processors[0]).split("+")
    if not set(names) <= known - {"native"} or len(set(names)) != len(names):
        raise ArgumentError(f"[compile] expected cpu as one or more of {', '.join(sorted(known))}, joined by +, got {shown(cpu)}")
    return [portable(system.triple, one) for one in sorted(names)]


def archive(member: str, code: bytes, symbols: Sequence[str], system: Target) -> bytes:
    """A static library of one object, in the form of `ar` with an index of its functions (macOS: without, as its linker wants none)."""
    def entry(name: str, data: bytes) -> bytes:
        return f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)

    apple = "apple" in system.triple
    head = b"!<arch>\n"
    if apple:
        return head + entry(member, code)
    long = b"" if len(member) < 16 else f"{member}/\n".encode()
    names = "\0".join(symbols).encode() + b"\0"
    size = 4 + 4 * len(symbols) + len(names)
    middle = entry("//", long) if long else b""
    place = len(head) + 60 + size + size % 2 + len(middle)
    index = len(symbols).to_bytes(4, "big") + place.to_bytes(4, "big") * len(symbols) + names
    return head + entry("/", index) + middle + entry("/0" if long else f"{member}/", code)


def _linked(system: Target, name: str, folder: Path, library: str, code: bytes, linker: str | bool) -> bytes | None:
    """A shared library, by a linker that is there; None if there is none and none was asked for."""
    command = _linker(system, name, linker)
    if command is None:
        return None
    source, result = folder / system.object.format(library), folder / system.shared.format(library)
    source.write_bytes(code)
    wasm = "wasm" in system.triple
    if wasm:
        exports = [f"--export={library}_{function}" for function in FUNCTIONS]
        options = ["--no-entry", "--import-undefined", "-z", "stack-size=262144", "--stack-first", "--export=__heap_base"]
        flags = [*options, *exports, "-o", str(result), str(source)]
    else:
        flags = ["-shared", "-o", str(result), str(source), *(["-lm", "-lpthread"] if system.triple.endswith("gnu") else [])]
    if shutil.which(command[0]) is None:
        raise ArgumentError(f"[compile] expected linker as a command that is there, got {command[0]!r}; install it, or pass linker=False")
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    if done.returncode or not result.exists():
        said = (done.stderr or done.stdout).strip()[:2000]
        raise ExportError(f"[compile] expected {command[0]} to link {result.name}, got: {said}; pass linker=False to do without")
    return result.read_bytes()


def _linker(system: Target, name: str, linker: str | bool) -> list[str] | None:
    """The command of a linker for a system: as given; the system's own compiler; ziglang's."""
    if linker is False:
        return None
    if isinstance(linker, str):
        return linker.split()
    wasm = "wasm" in system.triple
    own = TARGETS.get(host_target()) is system
    candidates = [["wasm-ld"]] if wasm else [["cc"]] if own else [[f"{name}-gcc"], [f"{name}-clang"], [f"{name}21-clang"]]
    for candidate in candidates:
        if shutil.which(candidate[0]):
            return candidate
    if name == "web" and not there("ziglang"):
        try:
            need("ziglang", "ziglang", "native", "compile")
        except MissingExtraError as error:
            raise MissingExtraError(f"{error}; a page needs a linker of WebAssembly, and wasm-ld is one as well (Debian: apt install lld)") from None
    if system.zig and there("ziglang"):
        return [sys.executable, "-m", "ziglang", "wasm-ld"] if wasm else [sys.executable, "-m", "ziglang", "cc", "-target", system.zig]
    return None
