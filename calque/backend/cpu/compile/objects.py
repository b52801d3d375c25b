"""Object code into executable memory without LLVM: a process that finds everything in the kernel cache loads no compiler at all, which saves
about 60 MiB and a tenth of a second.

Generated code is so plain that this is little work: ELF for this machine, no writable data, and only absolute 64-bit addresses to fill in (the
large code model). Anything else is refused, and LLVM's own loader takes it.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import field
from functools import lru_cache

from calque.base.dataclass import dataclass

_MACHINES = {62: 1}  # ELF machine -> its relocation "absolute address, 64 bits"; only x86-64, which needs no flush of instruction caches
_ALLOCATED, _WRITABLE = 2, 1  # section flags
_NOBITS, _RELA, _REL, _SYMTAB = 8, 4, 9, 2  # kinds of sections
_HEADER, _SECTION, _SYMBOL, _ENTRY = struct.Struct("<16xHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQq")


def can_load() -> bool:
    """Whether objects for this machine are of the kind that this loader takes."""
    return sys.platform == "linux" and platform.machine().lower() in ("x86_64", "amd64")


class UnsupportedObject(Exception):
    """An object that this loader does not take."""


@dataclass(slots=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    address: int = 0


@dataclass(slots=True)
class Object:
    """A parsed object: its sections, its symbols as (name, section, value), and its relocations as (section, offset, symbol, addend)."""

    data: bytes
    sections: list[_Section]
    symbols: list[tuple[str, int, int]]
    relocations: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def loaded(self) -> list[_Section]:
        """Sections that need memory."""
        return [s for s in self.sections if s.flags & _ALLOCATED and s.size]

    def needs(self) -> set[str]:
        """Names that other objects or libraries define."""
        return {self.symbols[k][0] for _, _, k, _ in self.relocations if self.symbols[k][1] == 0}


def parse(data: bytes) -> Object:
    """Read an object; raises `UnsupportedObject` for what is not plain code and constants of this kind of machine."""
    try:
        return _parse(data)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise UnsupportedObject(f"not a complete object: {error}") from error


def _parse(data: bytes) -> Object:
    if data[:6] != b"\x7fELF\x02\x01":
        raise UnsupportedObject("not a 64-bit little-endian ELF object")
    _, machine, _, _, _, table, _, _, _, _, size, count, _ = _HEADER.unpack_from(data)
    if machine not in _MACHINES or size != _SECTION.size:
        raise UnsupportedObject(f"machine {machine}")
    sections = []
    for k in range(count):
        _, kind, flags, _, offset, length, link, info, alignment, _ = _SECTION.unpack_from(data, table + k * size)
        if flags & _ALLOCATED and length and (flags & _WRITABLE or kind == _NOBITS):
            raise UnsupportedObject("writable data")
        if flags & _ALLOCATED and (offset + length > len(data) or alignment > mmap.PAGESIZE):
            raise ValueError("a section outside the object")
        sections.append(_Section(kind, flags, offset, length, link, info, max(alignment, 1)))
    found = Object(data, sections, _symbols(data, sections))
    for s in sections:
        if s.kind in (_REL, _RELA) and sections[s.info].flags & _ALLOCATED:
            _relocations(found, s, _MACHINES[machine])
    return found


def _symbols(data: bytes, sections: list[_Section]) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for s in sections:
        if s.kind == _SYMTAB:
            names = sections[s.link].offset
            for at in range(s.offset, s.offset + s.size, _SYMBOL.size):
                name, _, _, section, value, _ = _SYMBOL.unpack_from(data, at)
                start = names + name
                found.append((data[start : data.index(b"\0", start)].decode(), section, value))
    return found


def _relocations(found: Object, s: _Section, absolute: int) -> None:
    """Add the relocations of one section."""
    if s.kind == _REL:
        raise UnsupportedObject("relocations without addends")
    for at in range(s.offset, s.offset + s.size, _ENTRY.size):
        where, what, addend = _ENTRY.unpack_from(found.data, at)
        if what & 0xFFFFFFFF != absolute:
            raise UnsupportedObject(f"relocation {what & 0xFFFFFFFF}")
        section = found.symbols[what >> 32][1]
        if where + 8 > found.sections[s.info].size or section >= len(found.sections):
            raise ValueError("relocation outside its section")
        found.relocations.append((s.info, where, what >> 32, addend))


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    found = [ctypes.CDLL(None)]
    for name in ("libm.so.6", "libpthread.so.0"):
        try:
            found.append(ctypes.CDLL(name))
        except OSError:
            continue
    return tuple(found)


def library_function(name: str) -> int:
    """Address of a C library function, 0 if there is none."""
    for library in _libraries():
        try:
            return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
        except AttributeError:
            continue
    return 0


class Pages:
    """Memory that holds machine code, which is given back some time after the last reference to this is gone."""

    __slots__ = ("size", "__weakref__")

    def __init__(self, base: int, size: int) -> None:
        self.size = size
        _MAPPED[base] = place = _Place(self, _UNUSED.append)
        place.base, place.size = base, size


class _Place(weakref.ref[Pages]):
    """Where pages stand; ends up on `_UNUSED` when nobody has them any more. C code alone does that: what a signal handler raised in a `__del__`
    would be lost. While the interpreter goes down nothing is given back, because a thread may still run its code then."""

    __slots__ = ("base", "size")
    base: int
    size: int


_MAPPED: dict[int, _Place] = {}
_UNUSED: deque[_Place] = deque()


def settle() -> None:
    """Give back what nobody has any more."""
    while _UNUSED:
        place = _UNUSED.popleft()
        del _MAPPED[place.base]
        _system().munmap(place.base, max(place.size, 1))


class CodeMemory:
    """Executable memory: written first, then made executable and never written again."""

    def load(self, objects: list[Object], known: Mapping[str, int], absent: Set[str] = frozenset()) -> dict[str, int]:
        """Addresses of all functions that the objects define, which stay there until the process ends. `known`: functions of objects loaded before.
        `absent`: functions that will not be called; if they are defined nowhere, a call of them ends the process.

        Raises `UnsupportedObject`, before anything is loaded, if a name is defined nowhere.
        """
        return self._load(objects, known, absent)[0]

    def load_apart(self, objects: list[Object], known: Mapping[str, int]) -> tuple[dict[str, int], Pages]:
        """The same for functions that are there as long as somebody has the pages."""
        defined, base, size = self._load(objects, known, frozenset())
        return defined, Pages(base, size)

    def _load(self, objects: list[Object], known: Mapping[str, int], absent: Set[str]) -> tuple[dict[str, int], int, int]:
        """Addresses of the functions, and where the pages begin and how long they are."""
        size = 0
        places = []
        for o in objects:
            for s in o.loaded:
                size = -(-size // s.alignment) * s.alignment
                places.append((o, s, size))
                size += s.size
        own = {name for o in objects for name, k, _ in o.symbols if 0 < k < len(o.sections)}
        outside = {name: _resolve(name, known, absent) for o in objects for name in o.needs() - own}
        base = _reserve(size)
        content = bytearray(size)
        for o, s, at in places:
            s.address = base + at
            content[at : at + s.size] = o.data[s.offset : s.offset + s.size]
        defined = {name: o.sections[k].address + value for o in objects for name, k, value in o.symbols if name and 0 < k < len(o.sections)}
        for o in objects:
            for section, where, symbol, addend in o.relocations:
                name, k, value = o.symbols[symbol]
                if k == 0:
                    target = defined[name] if name in own else outside[name]
                else:
                    target = o.sections[k].address + value
                struct.pack_into("<Q", content, o.sections[section].address - base + where, (target + addend) % (1 << 64))
        ctypes.memmove(base, bytes(content), size)
        _seal(base, size)
        return defined, base, size


def _resolve(name: str, known: Mapping[str, int], absent: Set[str]) -> int:
    address = known.get(name) or library_function("abort" if name in absent else name)
    if not address:
        raise UnsupportedObject(f"nobody defines {name}")
    return address


@lru_cache(maxsize=1)
def _system() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    word, number = ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes, library.mmap.restype = [ctypes.c_void_p, word, number, number, number, ctypes.c_long], ctypes.c_void_p
    library.mprotect.argtypes, library.mprotect.restype = [ctypes.c_void_p, word, number], number
    library.munmap.argtypes, library.munmap.restype = [ctypes.c_void_p, word], number
    return library


def _reserve(size: int) -> int:
    """Address of fresh writable pages."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _system().mmap(None, max(size, 1), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise UnsupportedObject(f"no memory for code (error {ctypes.get_errno()})")
    return int(address)


def code_at(size: int, make: Callable[[int], bytes]) -> int:
    """Where `size` bytes of machine code stand from now on, which are made for that address."""
    base = _reserve(size)
    ctypes.memmove(base, make(base), size)
    _seal(base, size)
    return base


def _seal(base: int, size: int) -> None:
    """Make pages executable, and no longer writable."""
    if _system().mprotect(base, max(size, 1), mmap.PROT_READ | mmap.PROT_EXEC):
        raise UnsupportedObject(f"the system allows no executable memory (error {ctypes.get_errno()})")
