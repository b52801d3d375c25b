"""Linked programs on disk: a new process that meets a long program again loads its argument words and native code without planning it.

An entry lies in the object cache, with its ownership and checksum rules, under a hash of the program and of all that a plan depends on: the code of
every layer up to this one and of the pass list, NumPy, the compiler and the target. It holds numbers and names only. What does not fit together is
as good as absent, and so is an entry whose native code is no longer on disk: the caller plans again.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from calque.backend.base import Array
from calque.backend.cpu.code import library
from calque.backend.cpu.code.library import NativeModule, Needed
from calque.backend.cpu.code.llvm import Source
from calque.backend.cpu.compile import objects
from calque.backend.cpu.compile.cache import digest_of
from calque.backend.cpu.compile.target import current, known
from calque.backend.cpu.program import tune
from calque.backend.cpu.program.executable import CpuExecutable
from calque.backend.cpu.program.linked import Linked, NativeCall, Pack, ends_of, runs_alone
from calque.backend.cpu.team.memory import POOL
from calque.base.dtypes import dtype_by_name
from calque.kernel.schedule import Buffer, Schedule

_FORM = "calque plan 5"
_LAYERS = ("base", "ir", "ops", "graph", "kernel", "backend", "run")
_KINDS = ("input", "output", "arena")


class Counters:
    """Programs of this process whose plan was on the disk, or was put there."""

    def __init__(self) -> None:
        self.recalled = 0
        self.kept = 0


COUNTERS = Counters()


def _planner() -> str:
    """NumPy and a hash of the code that makes plans, but for this backend's, which is in every key; empty if it does not lie in files."""
    found = digest_of(Path(__file__).parents[3], _LAYERS, "backend/cpu")
    return np.__version__ + found if found else ""


_PLANNER = _planner()  # read before the passes are imported; whoever keeps what they have found out asks whether they were edited in between


@lru_cache(maxsize=1)
def _imported() -> str:
    """The same once more, when all passes are imported."""
    return _planner()


def _key(program: bytes) -> str:
    """The name of a program's entry; empty if there can be none here."""
    if not _PLANNER or not objects.can_load() or tune.used():
        return ""
    return library.content_key("plan", hashlib.sha256(program).hexdigest() + _PLANNER, current())


def keep(program: bytes, executable: CpuExecutable) -> None:
    """Put what was linked for a program (described without loss) on the disk, unless it needs Python or values of its own to run."""
    linked, key = executable.linked, _key(program)
    if not key or linked.constants or any(s.host is not None for s in linked.stretches) or _imported() != _PLANNER:
        return
    library.keep(key, json.dumps(_packed(executable), separators=(",", ":")).encode())
    COUNTERS.kept += 1


def read(name: bytes) -> bytes | None:
    """What `write` put on the disk under this name, if the code that makes plans is the same."""
    key = _key(name) if known() else ""
    return library.disk_cache().get(key) if key else None


def write(name: bytes, data: bytes) -> None:
    """Put something else that planning has found out on the disk."""
    key = _key(name)
    if key and _imported() == _PLANNER:
        library.keep(key, data)


def recall(program: bytes) -> CpuExecutable | None:
    """What an equal program was linked to, ready to run; None if that is not on the disk as a whole."""
    if not known():  # the cache is empty: nothing is worth waiting for LLVM
        return None
    key = _key(program)
    data = library.disk_cache().get(key) if key else None
    if data is None:
        return None
    try:
        found = json.loads(data)
        schedule = _schedule(found)
        linked = _linked(found, schedule)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        return None  # the checksum is right: somebody wrote it so
    if linked is None:
        return None
    COUNTERS.recalled += 1
    return CpuExecutable(schedule, linked)


def _packed(executable: CpuExecutable) -> dict[str, Any]:
    """Everything that a run reads, in numbers and names."""
    schedule, linked = executable.schedule, executable.linked
    needed = linked.needed
    kernels = {module.place for module in needed.loops}
    number = {module.place: k for k, module in enumerate(needed.modules)}
    return {
        "form": _FORM,
        "buffers": [(b.kind, b.index, b.dtype.name, b.numel, b.donor) for b in schedule.buffers],
        "outputs": schedule.outputs,
        "arena": schedule.arena_bytes,
        "scalars": [d.name for d in schedule.scalars],
        "checks": (schedule.check_steps, schedule.checks),
        "modules": [(m.key, m.symbols, m.variant, m.place in kernels) for m in needed.modules],
        "absent": sorted(needed.absent),
        "later": needed.later,
        "launched": [number[module.place] for module in linked.launched],
        "records": linked.records[:, 1:].tolist(),
        "words": linked.words.tolist(),
        "patches": [linked.positions.tolist(), linked.sources.tolist(), linked.offsets.tolist()],
        "floats": (linked.float_positions.tolist(), linked.float_leaves),
        "ints": (linked.int_positions.tolist(), linked.int_leaves),
        "dynamic": linked.dynamic,
        "stretches": [(s.first, s.count, s.work) for s in linked.stretches],
        "check_stretches": linked.check_stretches,
        "bytes": linked.arena_bytes,
        "ready": linked.ready,
        "packs": [(p.launch, p.weights, p.space, p.nbytes) for p in linked.packs],
    }


def _schedule(found: dict[str, Any]) -> Schedule:
    """The schedule without its steps, which nothing reads that is linked."""
    if found["form"] != _FORM:
        raise ValueError("another form")
    buffers = tuple([Buffer(kind, index, dtype_by_name(dtype), numel, donor) for kind, index, dtype, numel, donor in found["buffers"]])
    outputs, (check_steps, checks) = tuple(found["outputs"]), found["checks"]
    _require(all(b.kind in _KINDS for b in buffers), all(0 <= k < len(buffers) for k in (*outputs, *checks)))
    return Schedule(buffers, (), outputs, found["arena"], tuple(map(dtype_by_name, found["scalars"])), check_steps, tuple(checks))


def _linked(found: dict[str, Any], schedule: Schedule) -> Linked | None:
    """What was linked, with the functions of this process; None if they are not all on the disk."""
    modules = tuple([NativeModule(key, tuple(symbols), _nowhere(key), 0, variant, bool(loop)) for key, symbols, variant, loop in found["modules"]])
    loops = tuple([module for module, row in zip(modules, found["modules"], strict=True) if row[3]])
    launched = tuple([modules[k] for k in found["launched"]])
    positions, sources, offsets = (_numbers(row) for row in found["patches"])
    (float_positions, float_leaves), (int_positions, int_leaves) = found["floats"], found["ints"]
    words = POOL.empty(len(found["words"]), np.dtype(np.int64))
    words[:] = found["words"]
    records = np.zeros((len(launched), 3), np.int64)
    records[:, 1:] = np.array(found["records"], np.int64).reshape(-1, 2)
    dynamic = tuple([(position, leaf, factor) for position, leaf, factor in found["dynamic"]])
    stretches = tuple([NativeCall(first, count, work) for first, count, work in found["stretches"]])
    ready = tuple([(done, work) for done, work in found["ready"]])
    packs = tuple([Pack(launch, weights, space, nbytes) for launch, weights, space, nbytes in found["packs"]])
    ends = ends_of(schedule)
    memory = ends.inputs + len(ends.fresh) + 1
    places = (positions, _numbers(float_positions), _numbers(int_positions), _numbers([p for p, _, _ in dynamic]))
    leaves = (_numbers(float_leaves), _numbers(int_leaves), _numbers([leaf for _, leaf, _ in dynamic]))
    _require(
        *(_within(place, len(words)) for place in places), *(_within(leaf, len(schedule.scalars)) for leaf in leaves),
        _within(sources, memory), len(positions) == len(sources) == len(offsets), len(float_positions) == len(float_leaves),
        len(int_positions) == len(int_leaves), all(s.first >= 0 and s.first + s.count <= len(launched) for s in stretches),
        len(ready) == len(schedule.outputs), all(0 <= done <= len(launched) for done, _ in ready),
        all(module.symbols for module in launched), _within(records[:, 1], 8 * len(words) + 1),
        all(0 <= p.launch < len(launched) and 0 <= p.weights < len(positions) and 0 <= p.space < len(words) and p.nbytes > 0 for p in packs),
        all(sources[p.weights] < ends.inputs for p in packs),
    )  # fmt: skip
    absent, later = frozenset(found["absent"]), tuple([(name, dtype) for name, dtype in found["later"]])
    alone = [module for s in stretches if runs_alone(s) for module in launched[s.first : s.first + s.count]]
    _require(not later or set(alone) <= set(loops))
    code = library.recall(modules, loops, absent, [library.unit(name, dtype, current()) for name, dtype in later])
    if code is None:
        return None
    needed = Needed(loops, (), modules, absent, later, code)
    records[:, 0] = [needed.address(module) for module in launched]
    return Linked(
        words, records, positions, sources, offsets, places[1], tuple(float_leaves), places[2], tuple(int_leaves), dynamic,
        {}, stretches, found["check_stretches"], found["bytes"], launched, needed, ready, ends, packs,
    )  # fmt: skip


def _numbers(values: Any) -> Array:
    return np.array(values, np.int64).reshape(-1)


def _within(values: Array, limit: int) -> bool:
    return not values.size or (int(values.min()) >= 0 and int(values.max()) < limit)


def _require(*facts: bool) -> None:
    if not all(facts):
        raise ValueError("numbers that do not fit together")


def _nowhere(key: str) -> Source:
    """Of a module whose object is on the disk."""

    def write() -> str:
        raise LookupError(f"object {key} was there and has no text")

    return Source(write)
