"""Running a compiled schedule: argument words prepared once, addresses and scalars patched per run, one native call per
stretch of launches."""

from __future__ import annotations

import math
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from sys import getrefcount
from typing import Any, ClassVar

import numpy as np

from calque.backend.base import Array, CheckFailed, Executable, Scalar, beside
from calque.backend.cpu.contract.packed import PACKED, TO_PACK
from calque.backend.cpu.program.host import run_contract, run_host
from calque.backend.cpu.program.linked import BRIEF_WORK, Linked, NativeCall, runs_alone
from calque.backend.cpu.program.rerun import Rerun
from calque.backend.cpu.team import callable as native_calls
from calque.backend.cpu.team.memory import poison, rounded
from calque.backend.cpu.team.place import HERE
from calque.backend.cpu.team.progress import LaunchProgress, limits_of
from calque.backend.cpu.team.runtime import control_alone, native
from calque.backend.cpu.team.team import TEAM
from calque.backend.cpu.text.runtime_text import REQUEST
from calque.base import config
from calque.base.errors import ArgumentError
from calque.kernel.schedule import Buffer, Host, Schedule

CHECKED_BYTES = 1 << 20
"""A run that allocates more than this first asks for all of it together."""
_PROGRESS = REQUEST.index("progress")
KEPT_BYTES = 1 << 16
"""An output up to this size is used again by the next run if nobody else refers to it by then..."""
KEPT_WHOLE = 4 << 20
"""... and so are all outputs and the arena of a program that is one native call if they are no more than this together: such programs run in loops...
"""
KEPT_TOTAL = 16 << 20
"""... as long as all executables together keep no more than this."""
TOGETHER = 1 << 10
"""New memory of outputs that are this small together is one block: asking for it takes as long as Python needs for a tensor."""


def _chooser(positions: list[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that picks these items of a list."""
    if len(positions) > 1:
        return itemgetter(*positions)
    if positions:
        only = positions[0]
        return lambda items: [items[only]]
    return lambda items: []


def _tiny(sizes: list[int]) -> frozenset[int]:
    """Outputs whose memory is one block: so few bytes that it does not matter if somebody keeps one of them for long."""
    places = [k for k, size in enumerate(sizes) if 4 * size <= TOGETHER][: TOGETHER // 64]
    while sum([rounded(sizes[k]) for k in places]) > TOGETHER:
        places.pop()
    return frozenset(places if len(places) > 1 else ())


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


class Words:
    """The argument words of one run at a time."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.array = linked.words.copy()
        self.address = _address(self.array)
        self._floats = self.array.view(np.float64)
        self._count = len(linked.positions)
        self.offsets = linked.offsets.copy() if linked.dynamic else linked.offsets
        self._tables = tuple(_address(t) for t in (linked.positions, linked.sources, self.offsets))
        self._native = native_calls.data_pointer_is_at_16()
        self._ints = list(zip(linked.int_positions.tolist(), linked.int_leaves, strict=True))
        self._shifts = self._shifted()
        self._leaves = np.array(linked.float_leaves, np.int64)
        self.arena: Any = None  # kept if it is small
        self.request: Any = None
        self.call: Any = None

    def _shifted(self) -> list[tuple[Array, int, int, list[tuple[int, int]]]]:
        """Where integers are added: (table, place, what they are added to, (scalar, factor) of each). Into an address they come by its offset."""
        patches = {p: k for k, p in enumerate(self.linked.positions.tolist())} if self.linked.dynamic else {}
        found: dict[int, tuple[Array, int, int, list[tuple[int, int]]]] = {}
        for position, leaf, factor in self.linked.dynamic:
            if position not in found:
                table, place = (self.offsets, patches[position]) if position in patches else (self.array, position)
                found[position] = (table, place, int(table[place]), [])
            found[position][3].append((leaf, factor))
        return list(found.values())

    def integers(self, scalars: Sequence[Scalar]) -> None:
        """Set what follows from run-time integers: they are few, and native code does not read Python's."""
        for position, leaf in self._ints:
            self.array[position] = _wrapped(scalars[leaf])
        for table, place, value, terms in self._shifts:
            for leaf, factor in terms:
                value += factor * int(scalars[leaf])
            table[place] = value

    def prepare(self, launches: int, count: int, alone: bool) -> None:
        """Lay out the request of `calque_step` for launches that are all there is to a run, and bind it to that. `alone`: the launches are over
        sooner than the interpreter's lock would be back."""
        save, restore = (0, 0) if alone else native_calls.lock_functions()
        values = {
            "control": control_alone() if alone else 0, "launches": launches, "count": count, "words": self.address, "alone": alone,
            "patches": self._count, "positions": self._tables[0], "sources": self._tables[1], "offsets": self._tables[2],
            "floats": len(self._leaves), "float_positions": _address(self.linked.float_positions), "float_leaves": _address(self._leaves),
            "float_type": id(float), "save": save, "restore": restore, "progress": 0,
        }  # fmt: skip
        self.request = np.array([int(values[name]) for name in REQUEST], np.int64)
        self.call = native_calls.bound(native().step, self.request)

    def fill(self, arrays: list[Array], scalars: Sequence[Scalar]) -> None:
        """Set what differs between runs."""
        linked = self.linked
        self.integers(scalars)
        if self._native:
            objects = array("q", map(id, arrays))
            TEAM.runtime.native.patch(self.address, self._count, *self._tables, objects.buffer_info()[0])
        elif self._count:
            addresses = np.array([_address(a) for a in arrays], np.int64)
            self.array[linked.positions] = addresses[linked.sources] + self.offsets
        if linked.float_leaves:
            self._floats[linked.float_positions] = [scalars[k] for k in linked.float_leaves]


class _Share(weakref.ref["CpuExecutable"]):
    """What one executable keeps; ends up on `KeptMemory.left` when that dies."""

    __slots__ = ("nbytes",)
    nbytes: int


class KeptMemory:
    """Bytes of small outputs and arenas that executables keep for their next run, and who keeps them. Executables die by C code alone: whatever a
    signal handler raised in a `__del__` of theirs would be lost."""

    total = 0
    shares: ClassVar[dict[int, _Share]] = {}
    left: ClassVar[deque[_Share]] = deque()

    @classmethod
    def take(cls, owner: "CpuExecutable", nbytes: int) -> bool:
        """Count what `owner` wants to keep; False if there is no room. When all is taken, everybody gives up theirs: who still runs has it again
        after a run, and programs that are never run again do not stand in the way of new ones."""
        cls.settle()
        if cls.total + nbytes > KEPT_TOTAL:
            cls.empty()
            if cls.total + nbytes > KEPT_TOTAL:
                return False
        share = owner.share
        if share is None:
            share = owner.share = _Share(owner, cls.left.append)
            share.nbytes = 0
            cls.shares[id(share)] = share
        share.nbytes += nbytes
        cls.total += nbytes
        return True

    @classmethod
    def give(cls, owner: "CpuExecutable", nbytes: int) -> None:
        """The opposite of `take`."""
        if owner.share is not None:
            owner.share.nbytes -= nbytes
            cls.total -= nbytes

    @classmethod
    def settle(cls) -> None:
        """Count out what those kept that are dead."""
        while cls.left:
            share = cls.left.popleft()
            cls.total -= share.nbytes
            cls.shares.pop(id(share), None)

    @classmethod
    def empty(cls) -> None:
        """Nobody keeps anything any more."""
        for share in list(cls.shares.values()):
            owner = share()
            if owner is not None:
                owner.give_up()


class CpuExecutable(Executable):
    """A linked schedule and its run-time data. See `link.py` for how the words are laid out."""

    def __init__(self, schedule: Schedule | Callable[[], Schedule], linked: Linked, memory: Sequence[Array] = ()) -> None:
        """`schedule`: itself, or what makes it if somebody asks. `memory`: of the packed weights that the argument words name."""
        self._schedule, self._memory = schedule, memory
        self.packs = tuple(sorted({int(linked.sources[pack.weights]) for pack in linked.packs}))
        self.packed_bytes = sum([block.nbytes for block in memory])
        self.linked = linked
        self.share: _Share | None = None
        self.launches = sum(s.count or 1 for s in linked.stretches)
        self._checked = linked.stretches[: linked.check_stretches]
        self._rest = linked.stretches[linked.check_stretches :]
        ends, fresh = linked.ends, linked.ends.fresh
        self._fresh = [(count, dtype.np) for count, dtype in fresh]
        self._input_count = ends.inputs
        self._arena_bytes = linked.arena_bytes
        self._sizes = [rounded(count * dtype.itemsize) for count, dtype in fresh] + ([rounded(self._arena_bytes)] if self._arena_bytes else [])
        self._new_bytes = sum(self._sizes)
        self._records = _address(linked.records)
        self._idle: list[Words] = []  # argument words that no run is using
        self._direct = list(ends.outputs)
        self._kept: list[Any] = [None] * len(fresh)  # small outputs of the last run...
        self._spare: list[Any] = [None] * len(fresh)  # ... and of the one before, which a loop has let go when it has the next
        self.distinct = min(self._direct, default=0) >= 0 and len(set(self._direct)) == len(self._direct)
        self._chosen = _chooser(self._direct)
        native = linked.stretches
        self._alone = bool(native) and runs_alone(native[0])
        self._brief = sum(stretch.work for stretch in native) < BRIEF_WORK
        self._single = len(native) == 1 and not ends.checks and native[0].host is None and native_calls.supported()
        self._integers = bool(linked.int_leaves or linked.dynamic)
        whole = self._single and not self._integers and not self._alone and self._arena_bytes
        self._most_kept = KEPT_WHOLE if whole and self._new_bytes <= KEPT_WHOLE else KEPT_BYTES
        self._short = [count * dtype.itemsize <= self._most_kept for count, dtype in self._fresh]
        self._tiny = _tiny([count * dtype.itemsize for count, dtype in self._fresh])
        together = len(self._rest) == 1 and all(s.host is None for s in native)  # one native call, perhaps behind one for the checks
        self._soon, self._limits = limits_of(linked.ready if together and self.distinct else (), self.launches)

    @cached_property
    def schedule(self) -> Schedule:
        """What this was compiled from."""
        made = self._schedule
        return made if isinstance(made, Schedule) else made()

    @cached_property
    def _places(self) -> dict[int, int]:
        """Buffers with fresh memory -> the numbers of their arrays in a run."""
        fresh = [k for k, b in enumerate(self.schedule.buffers) if b.kind == "output" and b.donor < 0]
        return {k: self._input_count + i for i, k in enumerate(fresh)}

    @property
    def needed_bytes(self) -> int:
        """Bytes that a run allocates: fresh outputs and the arena."""
        return self._new_bytes

    def prepacked(self, weights: Mapping[int, Array]) -> "CpuExecutable":
        """See `backend.base.Executable.prepacked`."""
        linked = self.linked
        self.give_up()  # the other runs in its place, and keeps memory of its own
        memory = [HERE.pool.empty(pack.nbytes, np.dtype(np.uint8)) for pack in linked.packs]
        job, words, rows = linked.words.copy(), linked.words.copy(), [pack.weights for pack in linked.packs]
        for pack, block in zip(linked.packs, memory, strict=True):
            place, position = _address(block), linked.positions[pack.weights]
            job[position] = _address(weights[int(linked.sources[pack.weights])]) + linked.offsets[pack.weights]
            job[pack.space], words[position] = place | TO_PACK, place | PACKED
        records = linked.records[[pack.launch for pack in linked.packs]]
        records[:, 2] = 1  # a barrier behind each
        TEAM.runtime.run(_address(records), len(records), _address(job), False, 0, False)
        positions, sources, offsets = (np.delete(column, rows) for column in (linked.positions, linked.sources, linked.offsets))
        there = replace(linked, words=words, positions=positions, sources=sources, offsets=offsets, packs=())
        return CpuExecutable(self._schedule, there, memory)

    def follow(self) -> LaunchProgress | None:
        """See `backend.base.Executable.follow`."""
        return LaunchProgress(self._soon, self._limits) if self._soon else None

    def run(self, inputs: Sequence[Array], scalars: Sequence[Scalar] = (), progress: Any = None) -> Sequence[Array]:
        """See `backend.base.Executable.run`."""
        if config.settings.verify:
            self._verify(inputs, scalars)
        kept = self._kept
        arrays = [*inputs[: self._input_count], *kept]
        renewed = bool(kept) and max(map(getrefcount, kept)) > 3  # `kept`, `arrays`, the argument: somebody else has one, or there is none
        if self._new_bytes > CHECKED_BYTES and (renewed or self._arena_bytes > self._most_kept):
            HERE.pool.check(self._sizes if renewed else self._sizes[len(self._fresh) :])
        if renewed:
            del arrays[-len(kept) :]
            arrays += self._renewed()
        words = self._free_words()
        if self._arena_bytes:
            arrays.append(HERE.pool.arena(self._arena_bytes) if words.arena is None else words.arena)
        if config.settings.poison:
            for array in arrays[self._input_count :]:
                poison(array)
        if progress is not None:
            progress.results = self._chosen(arrays)
        try:
            if not (self._single and scalars.__class__ is list and self._started(words, arrays, scalars, progress)):
                self._stepwise(words, arrays, scalars, progress)
        finally:
            self._idle.append(words)
        if self.distinct:
            return self._chosen(arrays)
        return [arrays[k] if k >= 0 else self._output(b, arrays) for b, k in zip(self.schedule.outputs, self._direct, strict=True)]

    def _free_words(self) -> Words:
        try:
            return self._idle.pop()
        except IndexError:  # every set is in use by another thread
            return self._new_words()

    def _started(self, words: Words, arrays: list[Array], scalars: list[Any], progress: LaunchProgress | None) -> bool:
        """Run all launches in one native call; False, and nothing has run, if a scalar is not of the class it should be."""
        if self._integers:
            words.integers(scalars)
        if self._alone:
            return words.call(arrays, scalars) is arrays
        brief = self._brief
        if progress is None:
            return TEAM.runtime.step(words.call, words.request, brief and beside(), brief, arrays, scalars) is arrays
        words.request[_PROGRESS] = progress.address
        try:
            return TEAM.runtime.step(words.call, words.request, brief and beside(), brief, arrays, scalars) is arrays
        finally:
            words.request[_PROGRESS] = 0

    def again(self, inputs: Sequence[Any], outputs: Sequence[Any], results: Sequence[tuple[int, Any]], count: int) -> Any:
        """See `backend.base.Executable.again`."""
        if not self._single or self._integers or not self.distinct:
            return None
        fresh = {place: source for place, source in zip(self._direct, outputs, strict=True) if place >= self._input_count}
        sources = [*inputs[: self._input_count], *(fresh.get(self._input_count + k) for k in range(len(self._fresh)))]
        if any(source is None for source in sources):
            return None
        words = self._prepared(Words(self.linked))
        borrowed = self._arena_bytes if self._arena_bytes > KEPT_BYTES else 0
        if self._arena_bytes:
            sources.append(count + len(results))
            words.arena = None if borrowed else HERE.pool.empty(self._arena_bytes, np.dtype(np.uint8))
        for table in (self._kept, self._spare):  # memory that stays with whom it is now
            for k, kept in enumerate(table):
                if kept is not None and any(kept is source for source in sources):
                    KeptMemory.give(self, kept.nbytes)
                    table[k] = None
        return Rerun(words, results, self._alone, self._brief, borrowed), tuple(sources)

    def _stepwise(self, words: Words, arrays: list[Array], scalars: Sequence[Scalar], progress: LaunchProgress | None) -> None:
        words.fill(arrays, scalars)
        for stretch in self._checked:
            self._step(stretch, words.address, arrays, scalars)
        for number, (buffer, first) in enumerate(self.linked.ends.checks):  # the schedule would have to be made for it
            found = int((arrays[-1][first : first + 8].view(np.int64) if first >= 0 else self.array(buffer, arrays))[0])
            if found != -1:
                raise CheckFailed(number, found)
        for stretch in self._rest:
            self._step(stretch, words.address, arrays, scalars, progress)

    def _new_words(self) -> Words:
        words = Words(self.linked)
        if 0 < self._arena_bytes <= self._most_kept and KeptMemory.take(self, self._arena_bytes):
            words.arena = HERE.pool.empty(self._arena_bytes, np.dtype(np.uint8))
        return self._prepared(words) if self._single else words

    def _prepared(self, words: Words) -> Words:
        only = self.linked.stretches[0]
        words.prepare(self._records + 24 * only.first, only.count, self._alone)
        return words

    def _renewed(self) -> list[Array]:
        """Memory of the fresh outputs: of small ones that of an earlier run if nobody has it any more (any view of it would refer to it)."""
        found: list[Any] = []
        tiny: list[int] = []
        for k, (count, dtype) in enumerate(self._fresh):
            kept, spare = self._kept[k], self._spare[k]
            if kept is not None and getrefcount(kept) == 3:  # the list, the variable, the argument
                found.append(kept)
            elif spare is not None and getrefcount(spare) == 3:
                self._kept[k], self._spare[k] = spare, kept
                found.append(spare)
            elif k in self._tiny:
                tiny.append(k)
                found.append(None)
            else:
                found.append(HERE.pool.empty(count, dtype))
                if self._short[k]:
                    self._keep(k, found[k])
        if tiny:
            for k, made in zip(tiny, HERE.pool.together([self._fresh[k] for k in tiny]), strict=True):
                found[k] = made
                self._keep(k, made)
        return found

    def _keep(self, k: int, made: Array) -> None:
        """Use the memory of an output in the next runs, too."""
        if (self._kept[k] is None or self._spare[k] is None) and not KeptMemory.take(self, made.nbytes):
            return
        if self._kept[k] is not None:
            self._spare[k] = self._kept[k]
        self._kept[k] = made

    def give_up(self) -> None:
        """Keep nothing any more; memory that a run uses at this moment stays with that run."""
        for table in (self._kept, self._spare):
            for k, kept in enumerate(table):
                if kept is not None:
                    table[k] = None
                    KeptMemory.give(self, kept.nbytes)
        if 0 < self._arena_bytes <= self._most_kept:
            idle, self._idle = self._idle, []
            KeptMemory.give(self, sum(words.arena.nbytes for words in idle if words.arena is not None))

    def run_timed(self, inputs: Sequence[Array], scalars: Sequence[Scalar] = ()) -> tuple[Sequence[Array], Sequence[float]]:
        """See `backend.base.Executable.run_timed`."""
        timed = _Timed(self.schedule, self.linked, self._memory)
        return timed.run(inputs, scalars), timed.seconds

    def _step(
        self, stretch: NativeCall, words: int, arrays: list[Array], scalars: Sequence[Scalar], progress: LaunchProgress | None = None
    ) -> None:
        if stretch.host is None:
            told = 0 if progress is None else progress.address
            alone = runs_alone(stretch) or (self._brief and beside())
            TEAM.runtime.run(self._records + 24 * stretch.first, stretch.count, words, alone, told, self._brief)
        elif isinstance(stretch.host, Host):
            host = stretch.host
            run_host(
                host,
                [self.array(k, arrays) for k in host.operands],
                self.array(host.output, arrays),
                scalars,
                self.schedule.scalars,
            )
        else:
            run_contract(stretch.host, [self.array(k, arrays) for k in stretch.host.operands], scalars)

    def array(self, buffer: int, arrays: list[Array]) -> Array:
        """The memory of a buffer in this run as a flat array."""
        b = self.schedule.buffers[buffer]
        if b.kind == "arena":
            return arrays[-1][b.index : b.index + b.nbytes].view(b.dtype.np)
        if b.kind == "constant":
            return self.linked.constants[buffer]
        source = b.index if b.kind == "input" else b.donor if b.donor >= 0 else self._places[buffer]
        return _typed(arrays[source], b)

    def _output(self, buffer: int, arrays: list[Array]) -> Array:
        found = self.array(buffer, arrays)
        return found.copy() if self.schedule.buffers[buffer].kind in ("arena", "constant") else found

    def _verify(self, inputs: Sequence[Array], scalars: Sequence[Scalar]) -> None:
        """Debugging aid (`settings.verify`): inputs must be what the schedule was compiled for."""
        if len(inputs) < self._input_count or len(scalars) < len(self.schedule.scalars):
            raise ArgumentError(
                f"[run] expected {self._input_count} inputs and {len(self.schedule.scalars)} scalars, "
                f"got {len(inputs)} and {len(scalars)}; "
                "pass them in the order of the program's leaves"
            )
        for b in self.schedule.buffers:
            if b.kind == "input":
                a = inputs[b.index]
                if a.dtype != b.dtype.np or a.size != b.numel or not a.flags.c_contiguous:
                    raise ArgumentError(
                        f"[run] expected input {b.index} as {b.numel} dense elements of {b.dtype.name}, "
                        f"got {a.size} of {a.dtype}; "
                        "copy it with numpy.ascontiguousarray"
                    )


class _Timed(CpuExecutable):
    """The same schedule with a clock between the launches, for profiles: each launch is a native call of its own."""

    def __init__(self, schedule: Schedule | Callable[[], Schedule], linked: Linked, memory: Sequence[Array]) -> None:
        super().__init__(schedule, linked, memory)
        self._single = False  # never all launches in one go
        self.seconds: list[float] = []

    def _step(
        self, stretch: NativeCall, words: int, arrays: list[Array], scalars: Sequence[Scalar], progress: LaunchProgress | None = None
    ) -> None:
        parts = [stretch]
        if stretch.host is None:
            parts = [NativeCall(stretch.first + k, 1, stretch.work) for k in range(stretch.count)]
        for part in parts:
            start = time.perf_counter()
            super()._step(part, words, arrays, scalars)
            self.seconds.append(time.perf_counter() - start)


def _typed(array: Array, buffer: Buffer) -> Array:
    """The array itself when it fits, else a view of its first bytes."""
    if array.dtype == buffer.dtype.np and array.size == buffer.numel and array.ndim == 1:
        return array
    return array.reshape(-1).view(np.uint8)[: buffer.nbytes].view(buffer.dtype.np)


def _wrapped(value: Scalar) -> int:
    """A number as a signed 64-bit integer."""
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else 0
    return (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)
