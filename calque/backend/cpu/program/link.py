"""From a schedule to launches: addresses of compiled kernels, argument words with their patch tables, and where barriers
stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from calque.backend.base import Array
from calque.backend.cpu import contract
from calque.backend.cpu.code import library
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.contract.packed import WEIGHTS
from calque.backend.cpu.loops.emit_plan import instruction_cost
from calque.backend.cpu.program import follow, tune
from calque.backend.cpu.program.calls import CallFacts, call_of
from calque.backend.cpu.program.executable import CpuExecutable
from calque.backend.cpu.program.linked import BRIEF_WORK, Ends, Linked, NativeCall, Pack, ends_of, runs_alone
from calque.backend.cpu.program.streams import with_streams
from calque.backend.cpu.team.memory import ALIGNMENT, POOL
from calque.base import config
from calque.base.cache import memoised
from calque.base.dataclass import dataclass
from calque.kernel.epilogue import NOT_READ, Epilogue, Refusal
from calque.kernel.epilogue import follow as epilogue
from calque.kernel.loops import LoopKernel
from calque.kernel.schedule import Contract, Host, Loop, Schedule, Step

Range = tuple[int, int, int, bool]  # memory object, first byte, end, written


@dataclass(frozen=True, slots=True)
class Unlinked:
    """A schedule with all its arguments and without native code: plain numbers, so that what was found for some sizes can hold for others (see
    `sized.py`). `arguments`: where those of each launch begin, in bytes; `looped`: whether a launch is the next of `loops` or of `contractions`;
    `fixed`: (position, constant, bytes behind its address) of words; the rest as in `Linked`, the patch table column by column."""

    words: tuple[int, ...]
    arguments: tuple[int, ...]
    flags: tuple[int, ...]
    loops: tuple[LoopKernel, ...]
    contractions: tuple[library.Contraction, ...]
    looped: tuple[bool, ...]
    positions: tuple[int, ...]
    sources: tuple[int, ...]
    offsets: tuple[int, ...]
    fixed: tuple[tuple[int, int, int], ...]
    floats: tuple[tuple[int, int], ...]
    ints: tuple[tuple[int, int], ...]
    dynamic: tuple[tuple[int, int, int], ...]
    constants: tuple[tuple[int, Array], ...] = field(compare=False)
    stretches: tuple[NativeCall, ...]
    check_stretches: int
    arena_bytes: int
    ready: tuple[tuple[int, int], ...]
    ends: Ends
    packs: tuple[Pack, ...]


class Linker:
    """Builds the words and records of one schedule."""

    def __init__(self, schedule: Schedule, calls: Sequence[CallFacts] | None = None) -> None:
        """`calls`: of its native contractions in order, if that is known."""
        self.schedule = schedule
        self.words: list[int] = []
        self.patches: list[tuple[int, int, int]] = []
        self.floats: list[tuple[int, int]] = []
        self.ints: list[tuple[int, int]] = []
        self.dynamic: list[tuple[int, int, int]] = []
        self.constants: dict[int, Array] = {}
        self.fixed: list[tuple[int, int, int]] = []  # position of a word, the constant whose address it is, bytes behind that
        self.offsets: list[int] = []
        self.packs: list[Pack] = []
        self._overwritten = {b.donor for b in schedule.buffers if b.kind == "output"}
        self._ranges: dict[int, tuple[Any, list[Range]]] = {}  # by the id of a launch, which stays alive
        self._calls: dict[int, CallFacts] = {}  # by the id of a step of the schedule
        if calls is not None:
            self._calls = {id(step): call for step, call in zip(native_contractions(schedule.steps), calls, strict=True)}
        self.arena_bytes = -(-schedule.arena_bytes // ALIGNMENT) * ALIGNMENT
        inputs = 1 + max(
            (b.index if b.kind == "input" else b.donor for b in schedule.buffers if b.kind == "input" or b.donor >= 0), default=-1
        )
        self.objects: dict[int, int] = {}  # buffer id -> memory object
        fresh = inputs
        for k, b in enumerate(schedule.buffers):
            if b.kind == "input":
                self.objects[k] = b.index
            elif b.kind == "output" and b.donor >= 0:
                self.objects[k] = b.donor
            elif b.kind == "output":
                self.objects[k] = fresh
                fresh += 1
        self.arena = fresh
        for k, b in enumerate(schedule.buffers):
            if b.kind == "arena":
                self.objects[k] = self.arena
                self.arena_bytes = max(self.arena_bytes, ALIGNMENT)  # also for an arena of empty buffers
            elif b.kind == "constant":
                copy = POOL.empty(b.numel, b.dtype.np)
                copy[:] = np.asarray(b.data, b.dtype.np).reshape(-1)
                self.constants[k] = copy
                self.objects[k] = -1 - k
        self._places = [
            (self.objects[k], b.index, b.index + b.nbytes) if b.kind == "arena" else (self.objects[k], 0, 1 << 62)
            for k, b in enumerate(schedule.buffers)
        ]  # memory object, first byte, end

    def address(self, buffer: int, byte_offset: int = 0) -> None:
        """Append the address of a buffer."""
        b = self.schedule.buffers[buffer]
        if b.kind == "constant":
            self.fixed.append((len(self.words), buffer, byte_offset))
            self.words.append(0)
            return
        if b.kind == "arena":
            byte_offset += b.index
        self.patches.append((len(self.words), self.objects[buffer], byte_offset))
        self.words.append(0)

    def loop(self, step: Loop) -> None:
        """Arguments of a loop kernel."""
        self.offsets.append(8 * len(self.words))
        for k in step.operands:
            self.address(k)
        start = len(self.words)
        self.words.extend(step.params)
        self.dynamic.extend((start + position, leaf, factor) for position, leaf, factor in step.dynamic)
        for leaf, dtype in zip(step.scalars, step.kernel.scalars, strict=True):
            (self.floats if dtype.is_floating_point else self.ints).append((len(self.words), leaf))
            self.words.append(0)

    def call(self, step: Contract) -> CallFacts:
        """What is known of a contraction of the schedule."""
        found = self._calls.get(id(step))
        if found is None:
            found = self._calls[id(step)] = call_of(step.kind, step.spec, step.dtype.name, _contraction(self.schedule, step))
        return found

    def follower(self, pair: Epilogue) -> None:
        """Arguments of a loop that runs on parts of the result before it."""
        self.words.extend(follow.before(pair.loop))
        self.loop(pair.loop)
        self.words.extend(follow.behind(pair))

    def contract(self, step: Contract) -> None:
        """Arguments of a contraction: its buffers (0 for an output that nobody needs), the workspace, the parameters."""
        self.offsets.append(8 * len(self.words))
        call, buffers, first = self.call(step), self.schedule.buffers, len(self.patches)
        for position, leaf, factor in step.dynamic:
            self.dynamic.append((len(self.words) + position, leaf, factor * buffers[step.operands[position]].dtype.itemsize))
        for buffer, offset in zip(step.operands, step.offsets, strict=True):
            if buffer >= 0:
                self.address(buffer, offset * buffers[buffer].dtype.itemsize)
            else:
                self.words.append(0)
        if step.workspace >= 0:
            self.address(step.workspace)
        elif call.workspace:
            base = -(-self.schedule.arena_bytes // ALIGNMENT) * ALIGNMENT
            self.patches.append((len(self.words), self.arena, base))
            self.words.append(0)
            self.arena_bytes = max(self.arena_bytes, base + call.workspace)
        else:  # nothing is read there, and a run that needs no arena takes none
            self.words.append(0)
        if self._packs(step) and call.packed > 0:
            self.packs.append(Pack(len(self.offsets) - 1, first + WEIGHTS, len(self.words) - 1, call.packed))
        self.words.extend(call.words)

    def _packs(self, step: Contract) -> bool:
        """Whether the weights of a contraction are the same in all runs that are given the same, and all its operands stand in the patch table."""
        places = [self.schedule.buffers[k] if k >= 0 else None for k in step.operands]
        if step.inputs <= WEIGHTS or any(b is None or b.kind == "constant" for b in places) or any(k == WEIGHTS for k, _, _ in step.dynamic):
            return False
        weights = places[WEIGHTS]
        return weights is not None and weights.kind == "input" and weights.index not in self._overwritten

    def ranges(self, step: Loop | Contract) -> list[Range]:
        """Memory a launch touches."""
        known = self._ranges.get(id(step))
        if known is not None:
            return known[1]
        if isinstance(step, Loop):
            written = [o.out for o in step.kernel.operands]
        else:
            inputs = step.inputs
            written = [k >= inputs for k in range(len(step.operands))]
        places = self._places
        found: list[Range] = [(*places[k], out) for k, out in zip(step.operands, written, strict=True) if k >= 0]
        if isinstance(step, Contract):
            if step.workspace >= 0:
                found.append(self.range_of(step.workspace, True))
            elif self.call(step).workspace:
                found.append((self.arena, self.schedule.arena_bytes, 1 << 62, True))
        self._ranges[id(step)] = step, found
        return found

    def range_of(self, buffer: int, written: bool) -> Range:
        """Memory of a buffer."""
        return (*self._places[buffer], written)


def _conflict(a: list[Range], b: list[Range]) -> bool:
    for memory, first, end, written in a:
        for other, start, behind, also in b:
            if memory == other and (written or also) and first < behind and start < end:
                return True
    return False


def is_native(step: Step) -> bool:
    """Whether a step runs as native code (opaque primitives and contractions of integers run on the host)."""
    return isinstance(step, Loop) or (isinstance(step, Contract) and contract.is_native(step.kind, step.dtype.name))


def native_contractions(steps: Sequence[Step]) -> list[Contract]:
    """Those of some steps, in order."""
    return [step for step in steps if isinstance(step, Contract) and is_native(step)]


def _work_of(linker: Linker, step: Loop | Contract) -> int:
    """Rough size of a native launch in simple element operations; about 20 of them take a nanosecond."""
    if isinstance(step, Contract):
        return linker.call(step).flops // 32
    kernel = step.kernel
    return prod(step.params[: kernel.rank_p + kernel.rank_r]) * _point_cost(kernel)


@memoised("costs of loops", 400, 1 / 1024)
def _point_cost(kernel: LoopKernel) -> int:
    """Of one iteration."""
    return max(1, sum(instruction_cost(s.instrs) for s in kernel.stages) // 4)


def _stretches(schedule: Schedule, work: Sequence[int]) -> tuple[tuple[NativeCall, ...], int]:
    """Native calls and host steps in order, and how many of them compute the checks. `work`: of every native launch."""
    found: list[NativeCall] = []
    checks = launches = 0
    open_ = False
    for number, step in enumerate(schedule.steps):
        if schedule.check_steps and number == schedule.check_steps:
            checks, open_ = len(found), False
        if not is_native(step):
            found.append(NativeCall(launches, 0, 0, step))  # type: ignore[arg-type]
            open_ = False
            continue
        if not open_:
            found.append(NativeCall(launches, 0))
        last, open_ = found[-1], True
        found[-1] = NativeCall(last.first, last.count + 1, last.work + work[launches])
        launches += 1
    if schedule.check_steps and schedule.check_steps >= len(schedule.steps):
        checks = len(found)
    return tuple(found), checks


def _contraction(schedule: Schedule, step: Contract) -> contract.Contraction:
    """The native schedule of a step: the cost model's if the plan left too little room for a tuned one (it was made before tuning was on)."""
    native = tune.contraction(step.kind, step.spec, step.dtype.name)
    if step.workspace >= 0 and schedule.buffers[step.workspace].nbytes < native.workspace_bytes(step.dtype.name, current()):
        return contract.contraction(step.kind, step.spec, step.dtype.name)
    return native


def _contracts_alone(steps: list[Loop | Contract], stretches: tuple[NativeCall, ...]) -> bool:
    """Whether a contraction runs on the calling thread alone."""
    return any(isinstance(step, Contract) for s in stretches if runs_alone(s) for step in steps[s.first : s.first + s.count])


def _kernels(linker: Linker, steps: list[Loop | Contract], flags: list[int]) -> tuple[LoopKernel, ...]:
    """Of the loops among some launches."""
    target, schedule = current(), linker.schedule
    parts = [k > 0 and flags[k - 1] & follow.FOLLOWED for k in range(len(steps))]  # they may begin anywhere in a line
    return tuple([s.kernel if parts[k] else with_streams(schedule, s, target) for k, s in enumerate(steps) if isinstance(s, Loop)])


def _contractions(linker: Linker, steps: list[Loop | Contract], alone: bool) -> tuple[library.Contraction, ...]:
    """Of the contractions among some launches. `alone`: they may run while this thread holds the interpreter's lock, so nothing can be compiled
    meanwhile (see `gates.py`). What a program of other sizes than others calls is there but for a few functions: asking which those are would take
    longer than gates."""
    schedule, found = linker.schedule, []
    for step in steps:
        if not isinstance(step, Loop):
            dtype, expected = step.dtype.name, None if alone else frozenset[str]()
            if not alone and not schedule.sized:
                expected = contract.expected(step.kind, _contraction(schedule, step), dtype, current(), config.settings.threads)
            found.append(library.Contraction(step.kind, dtype, linker.call(step).ways, expected))
    return tuple(found)


def epilogues(linker: Linker) -> dict[int, Epilogue]:
    """Number of a contraction among the steps -> the next step as its epilogue."""
    return {number: pair for number, pair in _behind(linker).items() if isinstance(pair, Epilogue)}


def notes(schedule: Schedule) -> dict[int, str]:
    """Number of a loop right behind a contraction -> whether it runs part by part behind it, or why not."""
    alone = "a pass of its own behind the contraction"
    pairs = _behind(Linker(schedule)).items()
    texts = {number + 1: f"{alone}: {pair}" if isinstance(pair, Refusal) else follow.TOGETHER for number, pair in pairs}
    return {number: texts[number] for number in texts if not texts[number].endswith(NOT_READ)}


def _behind(linker: Linker) -> dict[int, Epilogue | Refusal]:
    """For every native contraction before a loop: the loop as its epilogue, or why it is none."""
    found: dict[int, Epilogue | Refusal] = {}
    schedule = linker.schedule
    for number, (step, after) in enumerate(zip(schedule.steps, schedule.steps[1:], strict=False)):
        if not isinstance(step, Contract) or not isinstance(after, Loop) or not is_native(step) or number + 1 == schedule.check_steps:
            continue
        call = linker.call(step)
        pair = Refusal("this contraction takes none") if call.grid is None else epilogue(step, after, schedule.buffers, call.grid, call.flops)
        if isinstance(pair, Epilogue) and not _apart(linker, step, pair.loop):
            pair = Refusal("it writes what the contraction still reads")
        found[number] = pair
    return found


def _apart(linker: Linker, step: Contract, loop: Loop) -> bool:
    """Whether the loop touches nothing that the contraction still needs: their common memory is the result, or what both only read."""
    result = linker.range_of(step.operands[step.inputs], True)
    others = [r for r in linker.ranges(step) if r != result]
    return not any(_conflict([r], others) for r in linker.ranges(loop))


def _launches(schedule: Schedule, linker: Linker) -> tuple[list[Loop | Contract], list[int]]:
    """The native launches with their arguments, and for each whether a barrier must stand behind it (or a loop follows it block by block)."""
    native: list[Loop | Contract] = []
    recent: list[Range] = []  # memory of the launches since the last barrier
    flags: list[int] = []
    pairs = epilogues(linker)
    for number, step in enumerate(schedule.steps):
        if not is_native(step) or isinstance(step, Host):
            continue
        before, pair = pairs.get(number - 1), pairs.get(number)
        if before is not None:  # the barrier is for whoever runs the two one by one
            flags[-1] = 1 | follow.FOLLOWED
            linker.follower(before)
            native.append(before.loop)
            flags.append(0)
            continue
        ranges = linker.ranges(step) + (linker.ranges(pair.loop) if pair is not None else [])
        if _conflict(ranges, recent):
            flags[-1] |= 1
            recent = []
        recent += ranges
        flags.append(0)
        native.append(step)
        if isinstance(step, Loop):
            linker.loop(step)
        else:
            linker.contract(step)
    return native, flags


def _ready(linker: Linker, native: list[Loop | Contract], work: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """For every output: how many launches have run when nothing is written to its memory any more, and the work of those behind."""
    done: dict[int, int] = {}
    for number, step in enumerate(native, 1):
        for memory, _, _, written in linker.ranges(step):
            if written:
                done[memory] = number
    before = list(accumulate(work, initial=0))
    last = [done.get(linker.objects[k], 0) for k in linker.schedule.outputs]
    return tuple([(number, before[-1] - before[number]) for number in last])


ALL, ALONE, BRIEF = range(3)
"""Whose launches are that run elsewhere: all threads'; the calling thread's; all threads' where these are not kept waiting (`team.runtime`)."""


def standalone_launches(schedule: Schedule) -> tuple[Linker, list[Loop | Contract], list[int], tuple[int, int]]:
    """Of a schedule without steps on the host, that runs elsewhere: its arguments, the native launches in order, their flags (see
    `runtime_text.py`), and whose are its checks, which are a call of their own, and what is behind them."""
    linker = Linker(schedule)
    native, flags = _launches(schedule, linker)
    work, first = [_work_of(linker, step) for step in native], schedule.check_steps
    shared = BRIEF if sum(work) < BRIEF_WORK else ALL
    checks, rest = (ALONE if runs_alone(NativeCall(0, len(part), sum(part))) else shared for part in (work[:first], work[first:]))
    return linker, native, flags, (checks, rest)


def native_contraction(schedule: Schedule, step: Contract) -> library.Contraction:
    """What a step calls, whatever sizes it has."""
    native, dtype = _contraction(schedule, step), step.dtype.name
    return library.Contraction(step.kind, dtype, contract.ways_of(step.kind, native, dtype, current()))


def unlinked(schedule: Schedule, calls: Sequence[CallFacts] | None = None) -> Unlinked:
    """The arguments of a schedule. `calls`: of its native contractions in order, if that is known."""
    linker = Linker(schedule, calls)
    native, flags = _launches(schedule, linker)
    work = [_work_of(linker, step) for step in native]
    stretches, checks = _stretches(schedule, work)
    return Unlinked(
        words=tuple(linker.words),
        arguments=tuple(linker.offsets),
        flags=tuple(flags),
        loops=_kernels(linker, native, flags),
        contractions=_contractions(linker, native, _contracts_alone(native, stretches)),
        looped=tuple([isinstance(step, Loop) for step in native]),
        positions=tuple([position for position, _, _ in linker.patches]),
        sources=tuple([source for _, source, _ in linker.patches]),
        offsets=tuple([offset for _, _, offset in linker.patches]),
        fixed=tuple(linker.fixed),
        floats=tuple(linker.floats),
        ints=tuple(linker.ints),
        dynamic=tuple(linker.dynamic),
        constants=tuple(linker.constants.items()),
        stretches=stretches,
        check_stretches=checks,
        arena_bytes=linker.arena_bytes,
        ready=_ready(linker, native, work),
        ends=ends_of(schedule),
        packs=tuple(linker.packs),
    )


def linked(a: Unlinked) -> Linked:
    """The same with native code, which is compiled if it is not there."""
    needed = library.needed(a.loops, a.contractions)
    loops, contractions = iter(needed.loops), iter(needed.called)
    launched = tuple([next(loops) if looped else next(contractions) for looped in a.looped])
    constants = dict(a.constants)
    words = POOL.empty(max(len(a.words), 1), np.dtype(np.int64))
    words[:] = a.words or [0]
    for position, buffer, byte_offset in a.fixed:
        words[position] = constants[buffer].ctypes.data + byte_offset
    return Linked(
        words=words,
        records=np.array([[needed.address(module) for module in launched], a.arguments, a.flags], np.int64).T.copy(),
        positions=np.array(a.positions, np.int64),
        sources=np.array(a.sources, np.int64),
        offsets=np.array(a.offsets, np.int64),
        float_positions=np.array([p for p, _ in a.floats], np.int64),
        float_leaves=tuple([k for _, k in a.floats]),
        int_positions=np.array([p for p, _ in a.ints], np.int64),
        int_leaves=tuple([k for _, k in a.ints]),
        dynamic=a.dynamic,
        constants=constants,
        stretches=a.stretches,
        check_stretches=a.check_stretches,
        arena_bytes=a.arena_bytes,
        launched=launched,
        needed=needed,
        ready=a.ready,
        ends=a.ends,
        packs=a.packs,
    )


def link(schedule: Schedule) -> Linked:
    """Compile the kernels of a schedule and lay out its arguments."""
    return linked(unlinked(schedule))


def compile_schedule(schedule: Schedule) -> CpuExecutable:
    """Machine code and argument words for a schedule."""
    return CpuExecutable(schedule, link(schedule))


def target_key() -> str:
    """What an executable was compiled for; an executable stays valid while this does not change."""
    return f"{current().key} {config.settings.cache_dir}"
