"""Addresses of native functions: from this process, from the disk cache, or newly compiled."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import field
from functools import lru_cache, partial
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary, ref

from calque.backend.cpu import contract, loops
from calque.backend.cpu.code import llvm
from calque.backend.cpu.code.gates import GATES
from calque.backend.cpu.code.partition import Partition, partition
from calque.backend.cpu.compile import objects
from calque.backend.cpu.compile.cache import ObjectCache, digest_of
from calque.backend.cpu.compile.compiler import LOOPS, TIGHT
from calque.backend.cpu.compile.objects import Pages
from calque.backend.cpu.compile.target import TargetInfo, current
from calque.backend.cpu.text import runtime_text
from calque.base import config
from calque.base.cache import Cache, memoised
from calque.base.dataclass import dataclass
from calque.kernel.loops import LoopKernel

T = TypeVar("T")

_lock = threading.RLock()
_loaded: dict[str, LoadedCode] = {}  # what is in this process for good, by key and variant: the runtime, and contractions, of which there are so many
_kernels = Cache("machine code of loops", 2000, 1 / 32)  # the same for loops, which are as many as programs want
_taken: dict[tuple[str, str], frozenset[str]] = {}  # ways of a contraction (by symbol and target) that this process has loaded
_runtime: dict[str, int] = {}
_TIGHT = (
    "outer|beside|apart|dot|stream|(plane|table)_tile|small|flat|lanes|gemm|near|direct|joint|attention|few|int4|lstm|gru|rnn|row|pack_(rows|tall|wide)"
)


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """Addresses of the functions of a module; they hold as long as somebody has the pages (None: for good)."""

    functions: dict[str, int]
    pages: Pages | None = None


@dataclass(frozen=True, slots=True)
class Contraction:
    """Kind, dtype, the ways it takes (see `contract/claims.py`; None: any), and which functions it will probably call (see
    `contract/expectations.py`; None: any)."""

    kind: str
    dtype: str
    ways: frozenset[str] | None = None
    expected: frozenset[str] | None = None


class Counters:
    """How native code came about in this process."""

    def __init__(self) -> None:
        self.kernels = 0  # structures of loop kernels that were needed
        self.compiled = 0  # modules; a contraction consists of several
        self.from_disk = 0


COUNTERS = Counters()


def _sources() -> str:
    """Hash of this backend, which has the code generator, so that objects of another version never match."""
    return digest_of(Path(__file__).parents[1], [""])


_SOURCES = _sources()  # read before the generator is imported; whoever keeps what it made asks whether it was edited in between
_PACKAGE = __name__.removesuffix(".code.library")
_seen: dict[int, bool] = {}  # number of this backend's modules in this process -> whether the sources were still the same when there were so many


def unedited() -> bool:
    """Whether all of this backend that has been imported, and so all that may have written what is to be kept, is what `_SOURCES` says."""
    imported = sum([name.startswith(_PACKAGE) for name in list(sys.modules)])
    if imported not in _seen:
        _seen[imported] = all(_seen.values()) and _sources() == _SOURCES
    return _seen[imported]


def keep(key: str, data: bytes) -> None:
    """Put what was made here on the disk, under a name of `content_key`."""
    if unedited():
        disk_cache().put(key, data)


def content_key(kind: str, text: str, target: TargetInfo) -> str:
    """Hash of everything that generated code depends on."""
    parts = (kind, text, target.key, llvm.version(), _SOURCES)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=4)
def _cache(directory: Path, limit: int) -> ObjectCache:
    return ObjectCache(directory / "cpu", limit)


def disk_cache() -> ObjectCache:
    """The object cache the settings name."""
    return _cache(config.settings.cache_dir, config.settings.cache_bytes)


@dataclass(frozen=True, slots=True)
class NativeModule:
    """One unit of native code: the key of its object, the functions it defines, how to compile it, how long that takes (in any unit).

    One object may be loaded more than once, with other functions behind it: as another variant. `loop`: no other module calls its functions.
    """

    key: str
    symbols: tuple[str, ...]
    source: llvm.Source
    weight: int = 0
    variant: str = ""
    loop: bool = False

    @property
    def place(self) -> str:
        """What tells it from everything else in this process."""
        return self.key + self.variant


class _Objects:
    """Object code of modules: from the disk, or else compiled together on all cores; `meanwhile` the caller may do something else."""

    def __init__(self, modules: Sequence[NativeModule], target: TargetInfo) -> None:
        self.modules = modules
        self.target = target
        disk = disk_cache()
        self.found = [disk.get(module.key) for module in modules]
        self.missing = [k for k, data in enumerate(self.found) if data is None]
        self.missing.sort(key=lambda k: -modules[k].weight)  # the longest first, so that the cores finish together
        self.error: BaseException | None = None
        COUNTERS.from_disk += len(modules) - len(self.missing)
        COUNTERS.compiled += len(self.missing)

    def _finished(self, number: int, data: bytes) -> None:
        self.found[self.missing[number]] = data
        keep(self.modules[self.missing[number]].key, data)

    def _compile(self) -> None:
        llvm.compile_all([self.modules[k].source for k in self.missing], self.target, self._finished)

    def _work(self) -> None:
        try:
            self._compile()
        except BaseException as error:  # whoever waits for the objects raises it
            self.error = error

    def meanwhile(self, action: Callable[[], T]) -> T:
        """What the action returns; modules that are missing are compiled while it runs."""
        helper = threading.Thread(target=self._work, name="calque-compile", daemon=True)
        try:
            if self.missing:
                helper.start()
        except RuntimeError:  # no new threads while the interpreter goes down
            self._work()
        try:
            return action()
        finally:
            if helper.ident is not None:
                helper.join()

    def all(self) -> list[bytes]:
        """In order."""
        if self.error is not None:
            raise self.error
        if None in self.found:
            self._compile()
        return [data for data in self.found if data is not None]


def _present(modules: Sequence[NativeModule]) -> dict[str, LoadedCode]:
    """Those that are in this process, by their places; they stay while somebody has this."""
    found = {m.place: _kernels.get(m.place) if m.loop else _loaded.get(m.place) for m in modules}
    return {place: code for place, code in found.items() if code is not None}


def _absentees(modules: Sequence[NativeModule], present: Mapping[str, LoadedCode]) -> list[NativeModule]:
    """The others, each once."""
    return list({m.place: m for m in modules if m.place not in present}.values())


def _load(
    modules: Sequence[NativeModule], code: Sequence[bytes], absent: Set[str] = frozenset(), later: Sequence[NativeModule] = ()
) -> dict[str, LoadedCode]:
    """Bring object code into this process. Functions of modules that come `later` are called through gates."""
    GATES.make({m.symbols[0]: partial(_bring, m) for m in _absentees(later, _loaded)})
    made: dict[str, LoadedCode] = {}
    objects = {m.place: (data, list(m.symbols)) for data, m in zip(code, modules, strict=True)}
    lasting, loops = [m for m in modules if not m.loop], [m for m in modules if m.loop]
    if lasting:
        found = iter(llvm.LOADER.load([objects[m.place] for m in lasting], absent, GATES.places))
        for m in lasting:
            _loaded[m.place] = made[m.place] = LoadedCode({symbol: next(found) for symbol in m.symbols})
            GATES.open(made[m.place].functions)
    if loops:
        addresses, pages = llvm.LOADER.load_apart([objects[m.place] for m in loops], GATES.places)
        found = iter(addresses)
        for m in loops:
            made[m.place] = LoadedCode({symbol: next(found) for symbol in m.symbols}, pages)
            _kernels.keep(m.place, made[m.place], -(-(0 if pages is None else pages.size + PAGESIZE) // len(loops)))
    return made


def _bring(module: NativeModule) -> None:
    """Load a module that came later, because its function was called."""
    with _lock:
        missing = _absentees([module], _loaded)
        if missing:
            _load(missing, _Objects(missing, current()).all())


@memoised("modules of loops", 6_000, 1 / 256)
def _loop(kernel: LoopKernel, target: TargetInfo) -> NativeModule:
    description = f"{kernel}\nscalars {' '.join(d.name for d in kernel.scalars)}"
    key = content_key("loop", description, target)
    symbol = "k" + key[:40]
    return NativeModule(key, (symbol,), llvm.Source(lambda: loops.emit_kernel(kernel, target, symbol)), len(description), loop=True)


@lru_cache(maxsize=4)
def _contractions(dtype: str, target: TargetInfo) -> Partition:
    choices = {f for routine in contract.ROUTINES.values() for way in routine.ways for f in way.callers}
    return partition(contract.module_ir(dtype, target), lambda name: name in choices or contract.CHOSEN.fullmatch(name))


def _absent(kind: str, taken: Set[str], library: Partition) -> frozenset[str]:
    """Functions that only other ways call. A function that has another caller than is known in `claims.py` counts as called."""
    ways = contract.ROUTINES[kind].ways
    used = {f for way in ways if way.name in taken for f in way.callers}
    unused = {f: caller for way in ways if way.name not in taken for f, caller in way.callers.items() if f not in used}
    return frozenset(f for f, caller in unused.items() if [re.sub("_b?f[0-9]+$", "", c) for c in library.callers(f)] == [caller])


@dataclass(frozen=True, slots=True)
class Units:
    """The units behind a contraction in the ways it takes, the one to call last, and the functions left out."""

    modules: tuple[NativeModule, ...]
    absent: frozenset[str]


def _listing(kind: str, dtype: str, target: TargetInfo, taken: frozenset[str]) -> str:
    """Per unit its name, the length of its text and whether it stands above a choice of ways; then the functions left out, each in a line."""
    library = _contractions(dtype, target)
    absent = _absent(kind, taken, library)
    choices = {f for way in contract.ROUTINES[kind].ways for f in way.callers}
    lines = []
    for name in library.reach([contract.symbol(kind, dtype)], absent):
        above = not choices.isdisjoint(library.reach(library.calls[name]))
        lines.append(f"{name} {library.sizes[name]} {int(above)}")
    return "\n".join([*lines, *sorted(absent)])


@lru_cache(maxsize=256)
def _contraction(kind: str, dtype: str, target: TargetInfo, taken: frozenset[str]) -> Units:
    """The units behind a contraction. Which they are is kept on disk: a warm process writes no text."""
    root = contract.symbol(kind, dtype)
    ways = " ".join(sorted(taken))
    index = content_key("contraction", f"{root} {ways}", target)
    listed = disk_cache().get(index)
    if listed is None:
        listed = _listing(kind, dtype, target, taken).encode()
        keep(index, listed)
    suffix = _suffix(dtype, target)
    lines = [line.split(" ") for line in listed.decode().split("\n")]
    units = [unit(line[0], dtype, target, int(line[1]), f" {root} {ways}" if line[2] == "1" else "") for line in lines if len(line) == 3]
    units.sort(key=lambda found: found.symbols == (root + suffix,))
    return Units(tuple(units), frozenset(line[0] + suffix for line in lines if len(line) == 1))


@lru_cache(maxsize=16)
def _suffix(dtype: str, target: TargetInfo) -> str:
    """What the names of all units of a dtype end in."""
    return "_" + content_key("contractions", dtype, target)[:20]


def _is_tight(name: str, dtype: str) -> bool:
    """Whether the inner loops of a function have a few instructions, so that the time they take depends on how these are chosen and ordered. Those
    of bfloat16 and int8 count as such: what they lose otherwise was not measured."""
    return dtype in ("bfloat16", "int8") or re.match(_TIGHT, name) is not None


def unit(name: str, dtype: str, target: TargetInfo, length: int = 0, variant: str = "") -> NativeModule:
    """A unit of the contractions as a module."""
    suffix = _suffix(dtype, target)

    def write() -> str:
        return _contractions(dtype, target).unit(name, suffix)

    source = llvm.Source(write, TIGHT if _is_tight(name, dtype) else LOOPS)
    return NativeModule(content_key("unit", f"{dtype} {name}", target), (name + suffix,), source, length, variant)


def _wanted(contractions: Sequence[Contraction], target: TargetInfo) -> list[Units]:
    """The units of every contraction, in order: those of the ways it takes and of all ways that were taken before."""
    for c in contractions:
        place = contract.symbol(c.kind, c.dtype), target.key
        everything = contract.all_ways(c.kind)
        _taken[place] = _taken.get(place, frozenset()) | (everything if c.ways is None or not objects.can_load() else c.ways)
    return [_contraction(c.kind, c.dtype, target, _taken[contract.symbol(c.kind, c.dtype), target.key]) for c in contractions]


def _later(contractions: Sequence[Contraction], wanted: Sequence[Units], target: TargetInfo) -> dict[str, tuple[str, str]]:
    """Units that no contraction will probably call: place -> name and dtype."""
    if not objects.can_load():
        return {}
    expected: dict[str, set[str] | None] = {}  # by dtype
    for c in contractions:
        known = expected.setdefault(c.dtype, set())
        expected[c.dtype] = None if known is None or c.expected is None else known | c.expected
    found: dict[str, tuple[str, str]] = {}
    for units, dtype in {(id(units), c.dtype): (units, c.dtype) for c, units in zip(contractions, wanted, strict=True)}.values():
        names = expected[dtype]
        for module in units.modules if names is not None else ():
            name = module.symbols[0].removesuffix(_suffix(dtype, target))
            if contract.CHOSEN.fullmatch(name) and name not in names and not module.variant:  # type: ignore[operator]
                found[module.place] = name, dtype
    return found


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Needed:
    """Native code that is in this process while somebody has this: the modules behind some kernels and contractions, one per kernel and one per
    contraction, in order; all modules, and the functions that contractions will not call. `later`: name and dtype of functions that are compiled
    when they are called; `code`: by the places of modules."""

    loops: tuple[NativeModule, ...]
    called: tuple[NativeModule, ...]
    modules: tuple[NativeModule, ...]
    absent: frozenset[str]
    later: tuple[tuple[str, str], ...] = ()
    code: Mapping[str, LoadedCode] = field(default_factory=dict, compare=False, repr=False)

    def address(self, module: NativeModule) -> int:
        """Where the first function of one of the modules stands."""
        return self.code[module.place].functions[module.symbols[0]]


_together: WeakValueDictionary[tuple[Any, ...], Needed] = WeakValueDictionary()
"""What `needed` found for programs that somebody still has: those of other sizes call the same functions."""


_SAME = 64
_same: dict[tuple[int, int], tuple[Any, Any, Any, ref[Needed]]] = {}
"""The same for the very objects of the last programs (arguments that follow from sizes share them): kernels, contractions, for what, found."""


def needed(kernels: Sequence[LoopKernel], contractions: Sequence[Contraction]) -> Needed:
    """Bring loop kernels and contractions into this process. What is missing is compiled together."""
    of = current(), objects.can_load()
    place = id(kernels), id(contractions)
    last = _same.get(place)
    if last is not None and last[0] is kernels and last[1] is contractions and last[2] == of and (there := last[3]()) is not None:
        return there
    called = tuple(kernels), tuple(contractions), *of
    found = _together.get(called)
    if found is None:
        found = _together[called] = _brought(kernels, contractions)
    if called[0] is kernels and called[1] is contractions:  # nobody changes a tuple
        if len(_same) >= _SAME:
            _same.clear()
        _same[place] = kernels, contractions, of, ref(found)
    return found


def _brought(kernels: Sequence[LoopKernel], contractions: Sequence[Contraction]) -> Needed:
    target = current()
    with _lock:
        described: dict[LoopKernel, NativeModule] = {}
        for kernel in kernels:
            if kernel not in described:
                described[kernel] = _loop(kernel, target)
        _count_kernels(list(described.values()))
        basis = [*([_runtime_module(target)] if contractions else []), *described.values()]  # contractions call the barrier
        present = _present(basis)
        first = _absentees(basis, present)
        code = _Objects(first, target)
        wanted = code.meanwhile(lambda: _wanted(contractions, target))  # which may write the text of the whole library
        every = [module for found in {id(found): found for found in wanted}.values() for module in found.modules]
        later = _later(contractions, wanted, target)
        units = [module for module in every if module.place not in later]
        present |= _present(units)
        missing = _absentees(units, present)
        absent = frozenset(name for found in wanted for name in found.absent)
        compiled = code.all()
        if first or missing:
            gated = [module for module in every if module.place in later]
            present |= _load([*first, *missing], [*compiled, *_Objects(missing, target).all()], absent, gated)
        loops, called = tuple([described[kernel] for kernel in kernels]), tuple([found.modules[-1] for found in wanted])
        return Needed(loops, called, (*dict.fromkeys(units), *described.values()), absent, tuple(later.values()), present)


def sources(
    kernels: Sequence[LoopKernel], contractions: Sequence[Contraction], target: TargetInfo
) -> tuple[tuple[NativeModule, ...], tuple[NativeModule, ...], tuple[NativeModule, ...]]:
    """The code of kernels and contractions that runs elsewhere, not compiled and not loaded: the module whose function a kernel is, for each; the
    same for each contraction; all modules. Functions that no way of any of these contractions calls are not among them."""
    ways: dict[tuple[str, str], frozenset[str]] = {}
    for c in contractions:
        taken = contract.all_ways(c.kind) if c.ways is None else c.ways
        ways[c.kind, c.dtype] = ways.get((c.kind, c.dtype), frozenset()) | taken
    with _lock:
        units = {key: _contraction(*key, target, taken) for key, taken in ways.items()}
        loops = tuple([_loop(kernel, target) for kernel in kernels])
    called = tuple([units[c.kind, c.dtype].modules[-1] for c in contractions])
    every = {m.symbols: m for m in (*loops, *(m for found in units.values() for m in found.modules))}
    return loops, called, tuple(every.values())


def recall(
    modules: Sequence[NativeModule], kernels: Sequence[NativeModule], absent: frozenset[str], later: Sequence[NativeModule]
) -> dict[str, LoadedCode] | None:
    """Bring modules (some of them loop kernels) into this process if all of them are on the disk; `later` is brought when it is called. Their code by
    their places, or None."""
    with _lock:
        runtime_functions()
        present = _present(modules)
        missing = _absentees(modules, present)
        found = [disk_cache().get(module.key) for module in missing]
        code = [data for data in found if data is not None]
        if len(code) < len(missing):
            return None
        _count_kernels(kernels)
        COUNTERS.from_disk += len(missing)
        if missing:
            present |= _load(missing, code, absent, later)
        return present


def _count_kernels(modules: Sequence[NativeModule]) -> None:
    COUNTERS.kernels += len(_absentees(modules, _present(modules)))


def functions(contractions: Sequence[Contraction]) -> list[int]:
    """Addresses of contractions, in order."""
    found = needed([], contractions)
    return list(map(found.address, found.called))


def native_object(key: str, text: str, target: TargetInfo) -> bytes:
    """Object code of a module that is written already, from the disk or the compiler."""
    with _lock:
        return _Objects([NativeModule(key, (), llvm.Source(lambda: text, 1))], target).all()[0]


@lru_cache(maxsize=4)
def _runtime_module(target: TargetInfo) -> NativeModule:
    source = llvm.Source(runtime_text.module_text, TIGHT)
    return NativeModule(content_key("runtime", "", target), tuple(runtime_text.ENTRY_POINTS), source, 1 << 16)


def runtime_functions() -> dict[str, int]:
    """Entry points of the launcher: one for the whole process."""
    with _lock:
        if not _runtime:
            target = current()
            module = _runtime_module(target)
            missing = _absentees([module], _loaded)
            if missing:
                _load(missing, _Objects(missing, target).all())
            _runtime.update(_loaded[module.place].functions)
        return _runtime


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
