"""What a generated kernel must know of the processor: vector width, registers, instruction sets.

`config.settings.cpu_target` ("sse2", "avx2", "avx512") restricts the host to a smaller machine, for tests and for portable
objects.
"""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from calque.backend.cpu.compile.cache import ObjectCache
from calque.backend.cpu.compile.processes import POOL
from calque.base import config
from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError

SCRATCH_BYTES = 5 << 20
"""Private, 64-byte aligned scratch memory of every worker thread."""

_RESTRICTED = {  # name: (LLVM processor, vector bytes, registers)
    "sse2": ("x86-64", 16, 16),
    "avx2": ("x86-64-v3", 32, 16),
    "avx512": ("x86-64-v4", 64, 32),
}


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """A processor as code generation sees it. `features` is LLVM's feature string; the rest follows from it."""

    name: str
    triple: str
    processor: str
    features: str
    vector_bytes: int
    registers: int
    fma: bool
    masked: bool  # loads and stores of every element size under a mask register
    half: bool  # hardware conversion float16 <-> float32

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return max(1, self.vector_bytes // max(1, itemsize))

    @property
    def enabled(self) -> frozenset[str]:
        """Names of the enabled features, e.g. "avx2"."""
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))

    @property
    def bfloat_pairs(self) -> bool:
        """Whether one instruction multiplies pairs of bfloat16 and adds them to float32."""
        return self.vector_bytes == 64 and "avx512bf16" in self.enabled

    @property
    def int8_depth(self) -> int:
        """How many successive k of int8 are multiplied at once and added to one int32."""
        if not self.triple.startswith(("x86_64", "i686")):
            return 1
        return 4 if self.vector_bytes == 64 and "avx512vnni" in self.enabled else 2

    @property
    def key(self) -> str:
        """Text that differs whenever generated code may differ."""
        return f"{self.name}|{self.triple}|{self.processor}|{self.features}|{self.vector_bytes}"


def _from_features(triple: str, processor: str, features: str) -> TargetInfo:
    on = frozenset(f[1:] for f in features.split(",") if f.startswith("+"))
    if triple.startswith(("aarch64", "arm64")):
        return TargetInfo("neon", triple, processor, features, 16, 32, fma=True, masked=False, half=True)
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= on
    middle = {"avx2", "fma", "f16c"} <= on
    name, width, registers = ("avx512", 64, 32) if wide else ("avx2", 32, 16) if middle else ("sse2", 16, 16)
    return TargetInfo(name, triple, processor, features, width, registers, fma=middle, masked=wide, half=middle)


_OF_ONE_CORE = ("cpu MHz", "bogomips", "processor", "core id", "apicid", "initial apicid", "physical id")


def _kept_host() -> tuple[ObjectCache, str, list[str]]:
    """What LLVM said of this machine, kept beside the kernels under everything that the system says of the processor, so that a process that
    compiles nothing need not load LLVM: the cache, the key (empty if the system says nothing), and three lines, or less if nothing is kept."""
    disk = ObjectCache(config.settings.cache_dir / "cpu", config.settings.cache_bytes)
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return disk, "", []
    stable = [line for line in lines if not line.startswith(_OF_ONE_CORE)]
    text = "\0".join(("host", platform.machine(), platform.release(), *stable))
    key = hashlib.sha256(text.encode()).hexdigest()
    return disk, key, (disk.get(key) or b"").decode(errors="replace").split("\n")


@lru_cache(maxsize=1)
def _host() -> tuple[str, str, str]:
    disk, key, kept = _kept_host()
    if len(kept) == 3:
        return kept[0], kept[1], kept[2]
    found = POOL.host()
    if key:
        disk.put(key, "\n".join(found).encode())
    return found


def known() -> bool:
    """Whether this process, or one before it, knows what LLVM says of this machine. If not, asking waits for LLVM to load."""
    return _host.cache_info().currsize > 0 or len(_kept_host()[2]) == 3


def expect(modules: int) -> None:
    """A program that needs about so many kernels is on its way. With an empty cache they will be missing: compilers start while it is planned."""
    if not known():
        POOL.prepare(modules)


@lru_cache(maxsize=8)
def _target(restricted: str) -> TargetInfo:
    triple, processor, features = _host()
    if not restricted:
        return _from_features(triple, processor, features)
    if restricted not in _RESTRICTED:
        known = ", ".join(_RESTRICTED)
        raise ArgumentError(f"[cpu_target] expected '' or one of {known}, got {restricted!r}; unset CALQUE_CPU_TARGET")
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise ArgumentError(f"[cpu_target] expected '' on {platform.machine()}, got {restricted!r}; unset CALQUE_CPU_TARGET")
    processor, width, registers = _RESTRICTED[restricted]
    better = restricted != "sse2"
    return TargetInfo(restricted, triple, processor, "", width, registers, fma=better, masked=restricted == "avx512", half=better)


PORTABLE = {
    "x86-64": ("x86-64", "", 16, 16, False, False, False),
    "x86-64-v3": ("x86-64-v3", "", 32, 16, True, False, True),
    "x86-64-v4": ("x86-64-v4", "", 64, 32, True, True, True),
    "armv8-a": ("generic", "+neon", 16, 32, True, False, True),
    "apple-m1": ("apple-m1", "", 16, 32, True, False, True),
    "rv64gc": ("generic-rv64", "+m,+a,+f,+d,+c", 16, 32, True, False, False),
    "rv64gcv": ("generic-rv64", "+m,+a,+f,+d,+c,+v", 16, 32, True, False, False),
    "simd128": ("generic", "+simd128,+bulk-memory,+sign-ext,+nontrapping-fptoint", 16, 16, False, False, False),
}
"""Processors for which libraries are built that run elsewhere: LLVM's name and features, vector bytes, registers, fma, masked, half (see
`TargetInfo`)."""


def portable(triple: str, name: str) -> TargetInfo:
    """A processor of the table, in a system that LLVM calls `triple`."""
    processor, features, width, registers, fma, masked, half = PORTABLE[name]
    return TargetInfo(name, triple, processor, features, width, registers, fma=fma, masked=masked, half=half)


_elsewhere = threading.local()


@contextmanager
def compiling_for(target: TargetInfo) -> Iterator[None]:
    """What this thread lowers and writes meanwhile is for another processor. It must not be run, nor asked for by other threads."""
    before = getattr(_elsewhere, "target", None)
    _elsewhere.target = target
    try:
        yield
    finally:
        _elsewhere.target = before


def current() -> TargetInfo:
    """The processor to compile for: as the settings say now, or as this thread has chosen (`compiling_for`)."""
    found: TargetInfo | None = getattr(_elsewhere, "target", None)
    return _target(config.settings.cpu_target) if found is None else found
