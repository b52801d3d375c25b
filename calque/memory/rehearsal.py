"""A rehearsal: a function runs and records as ever, but its programs are planned and not run.

A `Rehearsal` stands in the place of a capture, so whatever a thread records and wherever it starts a program, it hears of it. The program is the one
that a run would start, and is lowered as it would be; what it would hold follows from its memory plan. Its results are buffers without values,
whose deaths are noted: memory is held for as long as Python would hold it.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, NoReturn
from weakref import ref

import numpy as np

from calque.base.dataclass import dataclass
from calque.base.device import Device
from calque.base.errors import MemoryPlanError
from calque.base.layout import Layout
from calque.ir.program import Program
from calque.kernel.schedule import Schedule
from calque.observe.source import user_line
from calque.record import recorder
from calque.record.exclusive import judge
from calque.record.live import plain
from calque.record.places import Split
from calque.record.recorder import Storage, Trace, following, hand_out, local, plan_of
from calque.record.threads import LOCK
from calque.record.watching import Watcher
from calque.run.backends import Structure, backend, compiler, host_memory
from calque.run.buffer import Buffer, strided
from calque.run.dispatch import Plan

LARGEST = 256  # elements of a value that Python may read; a plan takes them for ones


@dataclass(slots=True)
class Known:
    """Memory of one value. `node`: of `form`, that makes it (-1: it was there before); `name`: what the caller calls it."""

    nbytes: int
    form: Any = None
    node: int = -1
    name: str = ""

    @property
    def line(self) -> str:
        """The user's line that makes it."""
        return "" if self.node < 0 else self.form.source.nodes[self.node].line

    @property
    def text(self) -> str:
        """What it is."""
        if self.node < 0:
            return self.name
        n = self.form.source.nodes[self.node]
        return f"{self.name or n.op.name} {list(n.shape)} {n.dtype.name}"


@dataclass(slots=True)
class Form:
    """A program as it would run: `schedule` is None where it would be interpreted."""

    source: Program
    program: Program
    schedule: Schedule | None


@dataclass(slots=True)
class Moment:
    """A program that would start. `nbytes`: in use while it runs; `form`: what runs; `alive`: what is held then beside its own memory, its results
    included."""

    nbytes: int
    form: Form
    line: str
    reason: str
    alive: list[Known]


class _Unknown:
    """Stands in the place of the task that would compute a value."""

    done, error, partial, light, brief = True, None, None, True, True

    def wait(self) -> NoReturn:
        """Nobody will compute it."""
        line = user_line()
        raise MemoryPlanError(
            f"[plan] expected a step that leaves the values of its tensors alone, but at {line or 'an unknown line'} Python needs some, which are "
            "not known before anything runs; item() and other reads of few numbers are possible"
        )


_UNKNOWN: Any = _Unknown()


def unknown() -> Buffer:
    """A buffer whose value nobody computes."""
    return Buffer(None, _UNKNOWN)


class Rehearsal(Watcher):
    """Hears of all that a thread records between `__enter__` and `__exit__`. `moments`: the program that needs most, in each step (`next_step`);
    `reads`: (line, reason) of values that Python looked at."""

    rehearses = True

    def __init__(self, charge: Callable[[Form], None] | None = None) -> None:
        super().__init__()
        self.charge = charge  # is told of every program, lowered
        self.alive: dict[int, tuple[ref[Buffer], Known]] = {}
        self.dead: deque[ref[Buffer]] = deque()
        self.held = 0  # bytes that a run would hold more than are in use
        self.reads: list[tuple[str, str]] = []
        self.moments: list[Moment] = []
        self.programs = 0
        self.replaced: dict[int, tuple[Storage, Buffer | None, Layout, int, Any]] = {}  # by id of a storage: what it was (None: its buffer stays)
        self._forms: dict[int, tuple[Any, Form]] = {}

    def __enter__(self) -> "Rehearsal":
        recorder.flush("plan")
        local.state.capture = self
        return self

    def __exit__(self, *_: object) -> None:
        state = local.state
        try:
            if state.trace.__class__ is recorder.Trace and state.trace.n:
                recorder.flush("plan")
        finally:
            state.capture = None
            for storage, buffer, view, version, writer in self.replaced.values():
                storage.buffer = buffer or storage.buffer or storage.home
                storage.trace = storage.home = None
                storage.layout, storage.version, storage.writer = view, version, writer

    # -------------------------------------------------------------------------------------------------- what is held

    def note(self, buffer: Buffer, known: Known) -> None:
        """Follow the life of a buffer."""
        life = ref(buffer, self.dead.append)  # C code alone: what a signal handler raises in a callback would be lost
        self.alive[id(life)] = life, known

    def fresh(self, nbytes: int, name: str) -> Buffer:
        """New memory that a run would hold."""
        buffer, known = unknown(), Known(host_memory().held(nbytes), name=name)
        self.note(buffer, known)
        self.held += known.nbytes
        return buffer

    def left(self) -> Known | None:
        """A value without an end: somebody still holds it."""
        self._settle()
        if self.alive:
            gc.collect()  # graphs that refer to themselves
            self._settle()
        return next((known for _, known in self.alive.values()), None)

    def stand_in(self, storage: Storage, name: str) -> None:
        """Give a storage that is not needed afterwards a buffer without a value, which may be overwritten and dropped as the real one."""
        buffer = storage.buffer
        if buffer is None or buffer.array is None:
            return
        storage.buffer = unknown()
        self.note(storage.buffer, Known(host_memory().held(buffer.array.nbytes), name=name))

    def call(self, names: dict[int, str]) -> None:
        """Give values names, by id of their buffers."""
        for life, known in self.alive.values():
            buffer = life()
            if buffer is not None and not known.name:
                known.name = names.get(id(buffer), "")

    def _settle(self) -> None:
        while self.dead:
            _, known = self.alive.pop(id(self.dead.popleft()))
            self.held -= known.nbytes

    # -------------------------------------------------------------------------------------------------- programs

    def flushing(self, trace: Trace, reason: str) -> bool:
        """A program would start here."""
        with LOCK:
            local.state.trace = following(trace, reason)
            self._start(trace, reason)
        trace.inputs, trace.scalars = [], []
        return True

    def _start(self, trace: Trace, reason: str) -> None:
        edge = trace.cur
        for storage in trace.attached.values():
            if storage.trace is trace:
                storage.trace = None
        trace.attached.clear()
        live = [st for st in trace.storages if getrefcount(st) > 3 and st.trace is trace]  # 3: the list, `st`, the argument
        trace.storages.clear()
        if not live and not trace.checks:
            return
        numbers: dict[int, int] = {}
        homes: dict[int, Buffer] = {}
        judge(trace, live, numbers, homes, {})
        for storage in live:  # first of all: whatever goes wrong from here on, they are put back
            if storage.home is not None:
                self._remember(storage, storage.home, storage.home is homes.get(storage.slot))
        trace.scalars = [plain(s) for s in trace.scalars]
        key = (tuple(numbers), tuple(numbers.values()), tuple([c[0] for c in trace.checks]) if trace.checks else ())
        plan: Any = None if edge.plans is None else edge.plans.get(key)
        if plan is None:
            plan = plan_of(trace, reason, key, (), None, False)  # it is not counted: a search among sizes is no loop that does not repeat
        if plan.__class__ is Split:
            raise MemoryPlanError(f"[plan] expected work for one device, got some for several that starts at {user_line()}; plan its parts")
        made = {slot: homes.get(slot) or unknown() for slot in numbers}
        self._planned(plan, list(made.values()), homes, reason)
        hand_out(trace, live, made)

    def _remember(self, storage: Storage, home: Buffer, stays: bool) -> None:
        """A storage gets another value. A buffer that would be overwritten `stays` with it, and nobody else refers to it: the next step will see."""
        if home.task is _UNKNOWN:
            return
        known = self.replaced.get(id(storage))
        buffer = None if stays else home
        if known is None:
            self.replaced[id(storage)] = storage, buffer, storage.layout, storage.version, storage.writer
        elif known[1] is None and buffer is not None:
            self.replaced[id(storage)] = known[0], buffer, *known[2:]

    def _planned(self, plan: Plan, outputs: list[Buffer], homes: dict[int, Buffer], reason: str) -> None:
        """Note what a run would hold, and what it leaves."""
        self._settle()
        form = self._form(plan)
        if self.charge is not None:
            self.charge(form)
        program, old = form.source, {id(b) for b in homes.values()}
        arena, seen = 0, set(old)
        schedule = form.schedule
        if schedule is not None and schedule.arena_bytes:
            arena = host_memory().held(schedule.arena_bytes)
        for buffer, node in zip(outputs, program.outputs, strict=True):
            if id(buffer) not in seen:
                seen.add(id(buffer))
                known = Known(host_memory().held(program.nodes[node].nbytes), form, node)
                self.note(buffer, known)
                self.held += known.nbytes
        self.programs += 1
        total = host_memory().memory().in_use + self.held + arena
        if self.moments and total > self.moments[-1].nbytes:
            line = next((n.line for n in reversed(program.nodes) if n.line), "")
            self.moments[-1] = Moment(total, form, line, reason, [known for _, known in self.alive.values()])

    def next_step(self) -> None:
        """Another step begins."""
        self._settle()
        nothing = Form(Program((), ()), Program((), ()), None)
        self.moments.append(Moment(host_memory().memory().in_use + self.held, nothing, "", "", [known for _, known in self.alive.values()]))

    def _form(self, plan: Plan) -> Form:
        """A plan's program, lowered as it would be. It is only computed operation by operation if a run would do that now."""
        found = self._forms.get(id(plan))
        if found is None:
            found = self._forms[id(plan)] = plan, _lowered(plan, self.charge is not None)
        return found[1]

    # -------------------------------------------------------------------------------------------------- what Python asks

    def read(self, storage: Storage, view: Layout, reason: str, convert: Callable[[Any], Any]) -> Any:
        """Python looks at a value: one that nobody has computed is taken for ones."""
        if storage.buffer is None:
            recorder.flush(reason)
        buffer = storage.buffer or recorder.materialise(storage, reason)
        if buffer.task is not _UNKNOWN:
            return convert(strided(buffer.readable(), view))
        if view.numel > LARGEST:
            buffer.wait()
        self.reads.append((user_line(), reason))
        return convert(np.ones(tuple(view.shape), view.dtype.np))

    def abort(self, reason: str) -> None:
        """Nothing of this is to be replayed."""

    def copied(self, sources: Sequence[tuple[Storage, Layout]], device: Device, *_: Any) -> NoReturn:
        """Values would go to another device."""
        raise MemoryPlanError(f"[plan] expected work for one device, but at {user_line()} values are copied to {device}; plan the parts one by one")


def _lowered(plan: Plan, always: bool) -> Form:
    source: Program = plan.program
    if plan.compiled is not None:
        return Form(source, plan.compiled.program, plan.compiled.schedule)
    if plan.seen < plan.patience() and not always:
        return Form(source, source, None)
    passes, target = compiler(), backend()
    structure = Structure(source)
    sized = structure.launches(target)
    launches = passes.lowered_once(structure.described, source, target) if sized is None else sized.result()
    return Form(source, passes.simplified(source, target.narrow), passes.placed(launches, target.workspace_bytes))
