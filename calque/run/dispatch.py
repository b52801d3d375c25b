"""From program to running task: choose interpreter or compiled code, and hand the work to the engine.

The choice is a rule on the program alone (its work, how often it was seen, whether it updates state) and on what was recorded before, never on
timing, so seeded processes are bit-reproducible: small programs without in-place state are interpreted the first few times, everything else is
compiled, except what comes from a line whose programs seldom repeat: that is interpreted until this has taken as long as planning would, and what
rounds alike in both forms: in a process that has compiled nothing, until this has taken as long as loading the compiler. Other programs' forms round
differently; `settings.deterministic` has everything compiled, so how often a program was seen changes nothing.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.backend.base import Progress
from calque.base.collector import without_full_collections
from calque.base.config import settings
from calque.base.device import CPU, Device
from calque.base.dtypes import DType
from calque.ir.program import Program
from calque.observe import events
from calque.observe.causes import compiled
from calque.observe.source import user_line
from calque.run.backends import Compiled, Interpreted, Structure, allocate, compile_or_interpret, compiles
from calque.run.buffer import Buffer, host_array, interrupted, next_program
from calque.run.checked import Inspection
from calque.run.diagnose import Salvage
from calque.run.engine import CPU_QUEUE, ENGINE, Queue, Task, alone, depths, drain, forget_frames, somebody_waits
from calque.run.estimate import ALIKE_WORK, LOADING, PLAN_NODE, SIZED_NODE, estimates, in_operations, interpreted_for, rounds_alike
from calque.run.interrupt import SHIELD, of_handler
from calque.run.memory import UNNAMED, out_of_memory, out_of_program
from calque.run.partial import LEFT, Absence, Partial, back
from calque.run.queues import at, on, queue_of

INTERPRET_WORK = 16_384  # scalar operations below which a program is interpreted at first; 0: none is, however seldom it comes
INTERPRET_TIMES = 16  # compiling takes as long as interpreting some hundred times; a loop that goes on has soon earned it back
QUEUE_FULL = 1e-3  # seconds from which handing a task over is shown in a profile
INLINE_WORK = 200_000  # cost (see `estimate_cost`) below which a wake-up of the engine thread takes longer than what it hides
INLINE_HABIT_WORK = 100_000_000  # the same for a program whose result was always waited for at once: some ten milliseconds
AT_ONCE = 3e-4  # seconds between the start of a program and a wait for it in which less is done than queueing costs
HABIT = 8  # times in a row that make a habit
TRUSTED = 64  # starts after which a habit has to be shown again
INLINE_READ_WORK = 4_000_000  # the same for a thread that waits for the result anyway: a millisecond or two, in which no other thread flushes

Array = np.ndarray[Any, Any]


class _DispatchCounters:
    """How many program forms were made; read by `calque.stats()`. One object, for the reason that `Counters` of `record/path.py` is one."""

    __slots__ = ("compiled", "interpreted", "fallbacks")

    def __init__(self) -> None:
        self.compiled = self.interpreted = 0
        self.fallbacks = 0  # programs that the backend failed to compile or run and the reference computed


DispatchCounters = _DispatchCounters()


class Plan:
    """A program with its executable forms: interpreted for the first few times if it is small, compiled otherwise."""

    __slots__ = (
        "program", "device", "structure", "compiled", "interpreted", "seen", "work", "cost", "stateful", "seldom", "lock", "cause", "floating",
        "habit", "absence",
    )  # fmt: skip

    def __init__(self, program: Program, cause: str = "new program", device: Device = CPU, seldom: bool = False) -> None:
        self.program = program
        self.cause = cause
        self.device = device
        self.compiled: Any = None
        self.interpreted: Compiled | Interpreted | None = None
        self.seen = 0
        plain, products = estimates(program)
        self.work, self.cost = plain + products, in_operations(plain, products)
        self.stateful = bool(program.updates)
        self.seldom = seldom  # whether it comes from a line whose programs seldom repeat
        self.floating: tuple[int, ...] = ()  # outputs computed from constants alone (see `places`)
        self.lock = threading.RLock()
        self.habit = 0  # how often in a row somebody waited for the result at once; from HABIT on, starts left until that is looked at again
        self.absence = Absence()
        self.structure: Structure | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the program with what was planned and linked for it, roughly."""
        return 6_000 + 1_200 * len(self.program.nodes)

    def watch(self, task: Task, queue: Queue) -> None:
        """Learn whether somebody waits for the task as soon as it is queued, and no other device works meanwhile: then nothing was gained by
        queueing it."""
        row, self.habit, since = self.habit, 0, events.clock()

        def waited() -> None:
            if events.clock() - since < AT_ONCE and alone(queue):
                self.habit = row + 1 if row + 1 < HABIT else HABIT + TRUSTED

        task.waited = waited

    def ready(self) -> bool:
        """Whether it need not be compiled first."""
        return self.compiled is not None

    def expected(self) -> bool:
        """Whether `habitual` would say so; nothing is counted."""
        return self.habit >= HABIT and self.compiled is not None

    def habitual(self) -> bool:
        """Whether the result was waited for at once so often that the program may as well run where it is started."""
        if self.habit < HABIT or self.compiled is None:  # `expected`
            return False
        self.habit -= 1
        return True

    def packed(self, inputs: list[Buffer]) -> Compiled | None:
        """The form that has the weights among these inputs packed, if there is one. Asked for when the program is started, before anybody overwrites
        them behind it."""
        prepacking = None if self.compiled is None else self.compiled.prepacking
        return None if prepacking is None else on(self.device, lambda: prepacking.of(inputs))

    def execute(self, *given: Any) -> None:
        """What a task of the plan does: see `_execute`."""
        _execute(self, *given)

    def start(
        self, inputs: list[Buffer], scalars: Sequence[Any], outputs: list[Buffer], errors: list[Callable[[int], Exception]],
        previous: Sequence[Buffer | None], awaited: bool,
    ) -> bool:  # fmt: skip
        """`dispatch`, for plans of other kinds than this."""
        raise NotImplementedError

    def run(
        self, inputs: list[Array], scalars: Sequence[Any], progress: Progress | None, packed: Compiled | None
    ) -> tuple[Sequence[Array], int, int]:
        """(outputs, failed check number or -1, its bad position). `progress`: what the compiled form's `follow` gave; `packed`: see there."""
        form: Any = packed or self.compiled
        if form is None:
            with self.lock:
                form = self._choose()
        if events.active is not None:
            return events.active.run(form, inputs, scalars)  # type: ignore[no-any-return]
        return form.run(inputs, scalars, progress) if progress is not None else form.run(inputs, scalars)  # type: ignore[no-any-return]

    def patience(self) -> int:
        """How often it is interpreted before it is compiled."""
        if self.seldom and self.program.nodes and INTERPRET_WORK:
            return min(3 * INTERPRET_TIMES, interpreted_for(PLAN_NODE, self.program, self.cost))
        if self.work < INTERPRET_WORK and not self.stateful:
            return INTERPRET_TIMES
        if not INTERPRET_WORK or self.work >= ALIKE_WORK or compiles() or not rounds_alike(self.program):
            return 0
        return interpreted_for(PLAN_NODE, self.program, self.cost, LOADING)

    def _sized(self) -> bool:
        """Whether planning it by arithmetic, or for others that are planned so, is worth what it costs; that is asked once. All programs of a
        structure together are interpreted no longer than planning one of them whole would take."""
        if self.seen != 1 + interpreted_for(SIZED_NODE, self.program, self.cost):
            return False
        self.structure = Structure(self.program)
        return self.structure.pays(min(INTERPRET_TIMES, interpreted_for(PLAN_NODE, self.program, self.cost)))

    def _choose(self) -> Compiled | Interpreted:
        self.seen += 1
        compile_all = settings.deterministic or (events.active is not None and events.active.compile_all)
        if not compile_all and self.seen <= self.patience() and not self._sized():
            if self.interpreted is None:
                self.interpreted = compile_or_interpret(self.program, True)
                DispatchCounters.interpreted += 1
            return self.interpreted
        if self.compiled is None:
            start = events.clock()
            with without_full_collections():
                self.compiled = compile_or_interpret(self.program, False, self.structure)
            self.structure = None
            DispatchCounters.compiled += 1
            self._report(start)
            self.interpreted = None
        form: Compiled | Interpreted = self.compiled
        return form

    def _report(self, start: float) -> None:
        seconds, form = events.clock() - start, self.compiled
        launches = form.launches
        compiled(self.program, self.cause, launches, seconds, form.lowering)
        if events.active is not None:
            facts = {"cause": self.cause, "nodes": len(self.program.nodes), "launches": launches, "lowering": form.lowering}
            events.active.span(f"compile {events.label(self.program)}", events.COMPILE, start, **facts)

def new_array(numel: int, dtype: DType | None, np_dtype: Any = None) -> Array:
    """An uninitialised 64-byte aligned 1-D array from the backend's pool; raises `OutOfMemoryError` if it cannot fit."""
    try:
        return allocate(numel, np_dtype if dtype is None else dtype.np)
    except MemoryError as error:
        raise out_of_memory(error, UNNAMED, f"{numel:,} elements of {dtype or np_dtype!r}") from None


unreported: list[BaseException] = []  # raised at the next read: they have kept state from being written
# Raised by `wait_for_queues` unless somebody has met the error before, or nobody has the values any more that could not be computed.
# A value's error is asked of the value: kept here it would keep alive the frames that met it.
_unseen: deque[tuple[BaseException | None, list[weakref.ref[Buffer]]]] = deque(maxlen=64)
_UNSEEN_LOCK = threading.Lock()
ELSEWHERE: list[Callable[[], None]] = []
"""What else `wait_for_queues` waits for."""


def raise_pending() -> None:
    """Raise the first error of earlier asynchronous work that nobody has seen yet."""
    while unreported:
        first = [unreported.pop(0)]
        if not getattr(first[0], "calque_reported", False):
            first[0].calque_reported = True  # type: ignore[attr-defined]  # other values that it has cost may be kept, and never read
            raise first.pop()  # the frame would refer to what refers to it


def dispatch(
    plan: Plan, inputs: list[Buffer], scalars: Sequence[Any], outputs: list[Buffer], errors: list[Callable[[int], Exception]],
    previous: Sequence[Buffer | None] = (), awaited: bool = False,
) -> bool:  # fmt: skip
    """Queue the plan, or run it at once (True) if that is cheaper (`awaited`: this thread will wait for the result anyway); `outputs` are filled
    when it has run. Outputs that already hold an array are updated in place; the others fall back to the value of their storage before it was
    written (`previous`, among the inputs) if the program fails: a failure loses nothing."""
    number = next_program()
    for buffer in outputs:
        buffer.made = number
    if plan.__class__ is not Plan:
        return plan.start(inputs, scalars, outputs, errors, previous, awaited)
    if LEFT.absence is not None:
        back()
    queue = CPU_QUEUE if plan.device is CPU else queue_of(plan.device)
    short = plan.cost < INLINE_WORK or (awaited and plan.cost < INLINE_READ_WORK and plan.compiled is not None)
    if short and not queue.idle() and queue.light() and not ENGINE.tracking:
        queue.drain()  # one short program behind another would stay there for ever: each call would find the one before it
    short = (short or plan.habitual()) and queue.idle() and not (ENGINE.tracking and read_elsewhere(outputs))
    if short and not settings.checked:
        arrays = settled(inputs)
        if arrays is not None:
            _run_here(plan, arrays, scalars, outputs, errors, previous, plan.packed(inputs))
            return True
    held = SHIELD.hold()
    try:
        hand_over(plan, queue, short, inputs, scalars, outputs, errors, previous)
    finally:
        if held:
            SHIELD.release()
    return False


def hand_over(
    plan: Plan, queue: Queue, short: bool, inputs: list[Buffer], scalars: Sequence[Any], outputs: list[Buffer],
    errors: list[Callable[[int], Exception]], previous: Sequence[Buffer | None],
) -> None:  # fmt: skip
    """Make a task of the plan, and queue it unless it is `short`."""
    before, packed = [_writer(b) for b in inputs], plan.packed(inputs)
    line, updates_state = user_line(), writes_state(outputs, previous)

    session = events.active
    flow = events.where.flow if session is not None else 0

    def guarded() -> None:
        if session is not None:
            events.where.flow = flow
        try:
            plan.execute(inputs, before, scalars, outputs, errors, progress, packed)
        except Exception as error:
            note_failure(error, line, outputs, previous, updates_state)
            raise

    progress = None if short else _followed(plan, session)
    task = Task(guarded)
    if progress is not None:
        task.partial = Partial(progress, outputs, plan.absence)
    task.light = plan.cost < INLINE_WORK and plan.compiled is not None
    task.brief = plan.cost < INLINE_HABIT_WORK and plan.compiled is not None
    if short and all(w is None or w.done for w in before):
        for buffer in outputs:
            buffer.task = task
        there = at(plan.device)
        try:
            task.run()
        finally:
            at(there)
        return
    if plan.cost < INLINE_HABIT_WORK:
        plan.watch(task, queue)
    if queue is CPU_QUEUE and not ENGINE.tracking:  # of several queues one that is full would keep work from the others
        task.cost = plan.cost
    task.hold(inputs, outputs)
    if session is None:
        queue.submit(task, inputs, outputs)
    else:
        _submit(session, queue, task, inputs, outputs)


def _followed(plan: Plan, session: events.Session | None) -> Progress | None:
    """How to follow a run of the plan that is queued; None if all its values are there at its end alone."""
    form = plan.compiled
    if form is None or not form.distinct or session is not None or settings.sync or settings.checked or not settings.early_reads:
        return None
    return form.executable.follow()  # type: ignore[no-any-return]


def run_at_once(plan: Plan, inputs: list[Buffer], scalars: list[Any], awaited: bool) -> Sequence[Any] | None:
    """Results of a compiled program that overwrites nothing, as `dispatch` would run it on this thread; None, and nothing has happened, if it would
    not, or if the program fails."""
    form = plan.compiled
    if form is None or not form.plain or plan.stateful or settings.checked or plan.cost >= (INLINE_READ_WORK if awaited else INLINE_WORK):
        return None
    if LEFT.absence is not None:
        back()
    several = ENGINE.tracking
    if not (CPU_QUEUE if plan.device is CPU else queue_of(plan.device)).idle():
        return None
    arrays = settled(inputs)
    if arrays is None:
        return None
    there = at(plan.device) if several else plan.device
    try:
        result: Sequence[Any] = (form if form.prepacking is None else plan.packed(inputs) or form).executable.run(arrays, scalars)
    except Exception as error:
        if of_handler(error):
            raise
        return None  # again the long way, which knows what to do
    finally:
        if several:
            at(there)
    return result


def _run_here(
    plan: Plan, arrays: list[Any], scalars: Sequence[Any], outputs: list[Buffer], errors: list[Callable[[int], Exception]],
    previous: Sequence[Buffer | None], packed: Compiled | None,
) -> None:  # fmt: skip
    """Run the plan on this thread; its inputs are there. `packed`: see `Plan.packed`."""
    several = ENGINE.tracking  # without it there is one device, and this thread is there
    there = at(plan.device) if several else plan.device
    try:
        form = packed or plan.compiled
        if form is None or not form.plain or events.active is not None:
            _compute(plan, arrays, scalars, outputs, errors, None, packed)
        else:
            try:
                results = form.executable.run(arrays, scalars)
            except MemoryError as error:
                raise out_of_program(error, plan.program) from None
            except Exception as error:
                if of_handler(error):
                    raise
                raise _cause(error, plan, arrays, scalars, outputs, errors) from None
            for buffer, array in zip(outputs, results, strict=True):  # nobody judges references meanwhile: the thread that flushes is here
                buffer.array = array
    except BaseException as error:
        if not failed_here(error, plan, outputs, previous):
            raise
    finally:
        if several:
            at(there)


def failed_here(error: BaseException, plan: Plan, outputs: list[Buffer], previous: Sequence[Buffer | None]) -> bool:
    """A program has failed on this thread: its results say so when they are read. False if a signal handler has raised the error: the user wants
    that now, and once."""
    failure = error if isinstance(error, Exception) and not of_handler(error) else None
    task = Task.failed(failure or interrupted())
    for buffer in outputs:
        buffer.task = task
    if failure is None:
        return False
    note_failure(failure, user_line(), outputs, previous, bool(previous) or plan.stateful)
    forget_frames(failure)
    return True


def _submit(session: events.Session, queue: Queue, task: Task, inputs: list[Buffer], outputs: list[Buffer]) -> None:
    """Queue the task under a profile: how full the queue is, and whether it was so full that this thread had to wait."""
    start = events.clock()
    queue.submit(task, inputs, outputs)
    session.depth(queue.name, queue.depth)
    if events.clock() - start > QUEUE_FULL:
        session.span(f"{queue.name} queue is full", events.RECORDING, start)


def read_elsewhere(outputs: list[Buffer]) -> bool:
    """Whether a task of some queue still reads what is to be overwritten."""
    return any(any(not r.done for r in b.readers) for b in outputs if b.readers)


def writes_state(outputs: list[Buffer], previous: Sequence[Buffer | None]) -> bool:
    """Whether a failure would be noticed by nobody: what the program was to write has a value already."""
    return bool(previous) or any(b.array is not None or b.task is not None for b in outputs)


def note_failure(error: Exception, line: str, outputs: list[Buffer], previous: Sequence[Buffer | None], updates_state: bool) -> None:
    """Say where the program was run, give back old values, and remember an error that nobody may read."""
    for buffer, old in zip(outputs, previous, strict=False):
        if buffer.array is None and old is not None and old.array is not None:
            buffer.array = _flat_copy(old.array)
    remember(error, line, [b for b in outputs if b.array is None])
    if updates_state:
        unreported[:] = [e for e in unreported if not getattr(e, "calque_reported", False)] + [error]


def remember(error: Exception, line: str, failed: list[Buffer] | None = None) -> None:
    """Note where asynchronous work was started, and let `wait_for_queues` raise its error unless somebody meets it before; if there are `failed`
    values, only as long as somebody has one of them."""
    if line and not getattr(error, "calque_line", ""):
        error.calque_line = line  # type: ignore[attr-defined]
        error.add_note(f"in the program that was run at {line}")
    if failed is None or failed:
        with _UNSEEN_LOCK:
            _unseen.append((None if failed else error, [weakref.ref(b) for b in failed or ()]))


def settled(inputs: list[Buffer]) -> list[Any] | None:
    """The arrays of inputs that are all computed, else None."""
    arrays = []
    for buffer in inputs:
        array = buffer.array
        if array is None or (buffer.task is not None and _writer(buffer) is not None):
            return None
        arrays.append(array)
    return arrays


def _execute(
    plan: Plan, inputs: list[Buffer], before: list[Task | None], scalars: Sequence[Any], outputs: list[Buffer],
    errors: list[Callable[[int], Exception]], progress: Progress | None = None, packed: Compiled | None = None,
) -> None:  # fmt: skip
    """Run a plan and fill the outputs; `before` are the tasks that fill the inputs."""
    arrays, poison = gather(inputs, before)
    if poison is not None:
        raise _rescue(plan.program, arrays, scalars, outputs, errors) or poison
    _check(plan.program, arrays, scalars, outputs)
    _compute(plan, arrays, scalars, outputs, errors, progress, packed)


def _compute(
    plan: Plan, arrays: list[Any], scalars: Sequence[Any], outputs: list[Buffer], errors: list[Callable[[int], Exception]],
    progress: Progress | None = None, packed: Compiled | None = None,
) -> None:  # fmt: skip
    try:
        results, failed, position = plan.run(arrays, scalars, progress, packed)
    except MemoryError as error:  # nothing has run; trying again by another path would not fit either
        raise out_of_program(error, plan.program) from None
    except Exception as error:
        if of_handler(error):
            raise
        raise _cause(error, plan, arrays, scalars, outputs, errors) from None
    if failed >= 0:
        raise _rescue(plan.program, arrays, scalars, outputs, errors) or refused(plan.program, failed, position, errors)
    form = plan.compiled
    with ENGINE.pins:
        if form is not None and form.distinct:
            for buffer, array in zip(outputs, results, strict=True):
                buffer.array = array
        else:
            _store(outputs, results, arrays)


def _cause(
    error: Exception, plan: Plan, arrays: list[Any], scalars: Sequence[Any], outputs: list[Buffer], errors: list[Callable[[int], Exception]]
) -> Exception:
    """What to raise for a program that failed, once the outputs are computed that do not depend on that."""
    overwritten = _overwrites(outputs)  # asked first: what is rescued is memory in use
    cause = _rescue(plan.program, arrays, scalars, outputs, errors)
    if cause is None and not overwritten:  # the reference computes what the backend could not: a bug of ours, never a silent one
        DispatchCounters.fallbacks += 1
        warnings.warn(f"[run] a compiled program failed ({error}); the reference interpreter computed it", RuntimeWarning, stacklevel=3)
    return cause or error


def _writer(buffer: Buffer) -> Task | None:
    """Who fills the buffer. Finished writers are forgotten: an error of theirs would keep the frames that it passed through alive."""
    task = buffer.task
    if task is not None and task.done and buffer.array is not None:
        task = buffer.task = None
    return task


def gather(inputs: list[Buffer], before: list[Task | None]) -> tuple[list[Any], BaseException | None]:
    """Arrays of the inputs (None where an earlier failure left nothing) and that failure."""
    for writer in before:
        if writer is not None:
            writer.wait()  # done already, unless there is no engine (`settings.sync`)
    with ENGINE.pins:
        return _arrays(inputs, before)


def _arrays(inputs: list[Buffer], before: list[Task | None]) -> tuple[list[Any], BaseException | None]:
    arrays: list[Any] = []
    poison: BaseException | None = None
    for buffer, writer in zip(inputs, before, strict=True):
        if writer is not None:
            if writer.error is not None and buffer.array is None:
                poison = writer.error
        if buffer.array is None and poison is None:
            poison = interrupted()
        arrays.append(buffer.array)
    return arrays, poison


def _store(outputs: list[Buffer], results: Sequence[Any], arrays: list[Any]) -> None:
    """Hand the results over. An output that is an input unchanged, or twice the same value, gets memory of its own."""
    taken: set[int] | None = None
    for buffer, array in zip(outputs, results, strict=True):
        if array is None or buffer.array is array:
            continue
        if taken is None:
            taken = {id(a) for a in arrays}
        if id(array) in taken:
            copy = new_array(array.size, None, array.dtype)
            copy[...] = array
            array = copy
        taken.add(id(array))
        buffer.array = array


def _overwrites(outputs: list[Buffer]) -> bool:
    """Whether the program writes to memory in use: after a failure it may be half overwritten, and is kept as it is."""
    return any(b.array is not None for b in outputs)


def _rescue(
    program: Program, arrays: list[Any], scalars: Sequence[Any], outputs: list[Buffer], errors: list[Callable[[int], Exception]]
) -> Exception | None:
    """Compute the outputs that do not depend on the failure; returns that of a check, or of an operation with its own source line."""
    if _overwrites(outputs):
        return None
    salvage = Salvage(program, arrays, scalars)
    _store(outputs, [None if v is None else _flat_copy(v) for v in salvage.values], arrays)
    return refused(program, *salvage.failed[0], errors) if salvage.failed else salvage.error


def refused(program: Program, check: int, report: int, errors: list[Callable[[int], Exception]]) -> Exception:
    """The error of a failed check."""
    wrong = errors[check](report)
    wrong.add_note(f"recorded at {program.checks[check].line}")
    return wrong


def _check(program: Program, arrays: list[Any], scalars: Sequence[Any], outputs: list[Buffer]) -> None:
    """Checked mode: raise what the program would do wrong, before it runs; outputs that are fine are kept."""
    if not settings.checked:
        return
    found = Inspection(program, arrays, scalars)
    if found.error is None:
        return
    fresh = [None if value is None or buffer.array is not None else _flat_copy(value) for value, buffer in zip(found.values, outputs, strict=True)]
    _store(outputs, fresh, arrays)
    raise found.error


def _flat_copy(value: Array) -> Array:
    if value.__class__ is not np.ndarray:
        value = host_array(value)
    fresh = new_array(value.size, None, value.dtype)
    fresh[...] = value.reshape(-1)
    return fresh


def wait_for_queues() -> None:
    """Wait for all queued work of all devices; raise what failed and was not reported yet. What is only recorded stays so."""
    session = events.active if any(depths().values()) else None
    start = session.begin() if session is not None else 0.0
    try:
        somebody_waits()
        drain()
        for wait in ELSEWHERE:
            wait()
    finally:
        if session is not None:
            session.end("synchronize", start)
    raise_pending()
    with _UNSEEN_LOCK:
        unseen = [e for error, values in _unseen for e in [error or _error_of(values)] if e is not None and not getattr(e, "calque_reported", False)]
        _unseen.clear()
    if unseen:
        unseen[0].calque_reported = True  # type: ignore[attr-defined]
        raise unseen[0]


def _error_of(values: list[weakref.ref[Buffer]]) -> BaseException | None:
    """Why a value is missing that somebody still has."""
    for value in values:
        buffer = value()
        if buffer is not None and buffer.array is None and buffer.task is not None and buffer.task.error is not None:
            return buffer.task.error
    return None
