"""A replay that finds every object as the replay before it left it: gradients nobody has looked at, parameters that only the model has, arguments of
the same kind.

Then next to nothing is left to do in Python: the compiled module compares all that (`native/unchanged.c`) and runs the program on the memory of the
run before (`Executable.again`). No gradient changes hands: handle, storage, buffer and memory of each are those that a replay has put
there. Whatever is not as it was makes the call an ordinary replay, the twin of this one.
"""

from __future__ import annotations

from typing import Any, Protocol

from calque.base.config import settings
from calque.base.device import DEFAULT
from calque.base.dtypes import get_default_dtype, int64
from calque.base.layout import Layout
from calque.base.native import hot
from calque.functional.checks import Within
from calque.hybrid.guards import PLAIN
from calque.hybrid.outcome import Outcome, given
from calque.hybrid.region import CallMemory
from calque.observe import events
from calque.record.path import Counters
from calque.record.recorder import Storage, count_flush, local, realised
from calque.record.threads import LOCK
from calque.record.trie import root
from calque.record.versions import silence
from calque.replay.counts import Counts
from calque.replay.macro import Direct, Macro
from calque.run.buffer import Buffer
from calque.run.dispatch import INLINE_WORK, Plan
from calque.run.engine import ENGINE
from calque.run.interrupt import of_handler
from calque.run.queues import at, on, queue_of
from calque.tensor import TENSOR_TYPES, Tensor

MISSED: Any = object()
_NONE: list[Any] = []
FIRST = 3  # ordinary replays before the first attempt; after each attempt twice as many wait for the next
LAST = 4096
USEFUL = 16  # repeats that pay for an attempt

Fact = tuple[Any, ...]  # (what, object, details ...), see `native/unchanged.c`


class Recorded(Protocol):
    """What a repeat asks of a call that was recorded (`call.py` `Entry`)."""

    fixed: list[Storage]
    handles: list[tuple[Tensor, Storage, Layout, bool]]
    leaves: list[Tensor]
    uses_grads: bool
    memory: CallMemory

    def valid(self) -> bool:
        """Whether what the function can reach is as it was."""


class Repeat:
    """Repeats of one call. `hits`: how often it was one."""

    def __init__(
        self, entry: Recorded, macro: Macro, rerun: Any, same: Any, arguments: list[int], written: list[Storage], executable: Any
    ) -> None:
        state = local.state
        self.executable = executable
        self.entry: Any = entry  # what stands above knows more of it
        self.macro, self.rerun, self.same, self.arguments = macro, rerun, same, arguments
        self.modes = (state.grad, state.inference, state.autocast, get_default_dtype(), DEFAULT.device)
        self.written = [(storage, versions) for storage, (_, _, versions, _, _) in zip(written, macro.written, strict=True)]
        numbers = _gradients(macro)
        self.results = [(k, macro.created[k][1]) for k in macro.start_up.firsts if k not in numbers]
        self.twins = [(k, first) for k, first in macro.start_up.twins if k not in numbers]
        self.layouts = [storage.layout for storage in entry.fixed]  # known by their addresses, which no others may get
        plan = macro.start_up.plan
        self.device = plan.device
        self.long = plan if plan.cost >= INLINE_WORK else None  # it runs here only as long as that is a habit
        self.queue = queue_of(self.device)
        self.generation = Counters.evictions
        self.hits = 0
        self.key: Any = None  # where the call finds its entry...
        self.place: Any = None  # ... and there its recording

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """The result of the call; `MISSED`, and nothing has happened, if something is not as it was. The caller holds `SECTION`."""
        state, macro, grad = local.state, self.macro, self.modes
        if (
            state.trace.cur is not macro.start or state.grad is not grad[0] or state.inference is not grad[1] or state.autocast is not grad[2]
            or get_default_dtype() is not grad[3] or DEFAULT.device is not grad[4] or events.active is not None or settings.verify
            or Counters.evictions != self.generation or self.executable.outdated
            or not self.queue.idle() or (self.long is not None and not self.long.expected())
            or not self.same.stands(args) or not self.entry.valid() or (self.long is not None and not self.long.habitual())
        ):  # fmt: skip
            return MISSED
        known: list[Any] = []
        asked: list[Any] = []
        if macro.definitions:
            macro.define(known, asked)
        scalars = macro.numbered(known)
        created: list[Any] = [None] * len(macro.created)
        with LOCK:
            for storage, versions in self.written:
                if versions > 0:
                    storage.version += versions
                else:
                    silence(storage, -versions)
            several = ENGINE.tracking  # without it there is one device, and this thread is there
            there = at(self.device) if several else self.device
            try:
                arrays = self.rerun.results()
                if not self.queue.idle() or not self.rerun.run(self.same.run, args, scalars, arrays):
                    return Interrupted(known, asked)
            except MemoryError as error:
                if of_handler(error):
                    raise
                return Interrupted(known, asked)  # an ordinary replay says so at the user's line
            finally:
                if several:
                    at(there)
            for (k, layout), array in zip(self.results, arrays, strict=True):
                created[k] = realised(Buffer(array), layout)
        for k, first in self.twins:
            created[k] = realised(created[first].buffer, macro.created[k][1])
        self.hits += 1
        Counts.replays += 1
        Counters.plan_hits += 1
        memory = self.entry.memory
        memory.tick = macro.used = memory.tick + 1
        count_flush(macro.end, macro.ending, 3)
        return given(self.entry.handles, macro.result, _NONE, created, [args[k] for k in self.arguments], known)


class Interrupted:
    """Something changed after the numbers of a call were drawn: it goes on as an ordinary replay with those. `asked`: what each source gave."""

    __slots__ = ("known", "asked")

    def __init__(self, known: list[Any], asked: list[Any]) -> None:
        self.known, self.asked = known, asked


def repeat_of(entry: Recorded, macro: Macro, args: tuple[Any, ...]) -> Repeat | None:
    """How to repeat a call that has just been replayed with these arguments, if that is possible."""
    direct, outcome = macro.start_up, macro.result
    if hot is None or direct.__class__ is not Direct or macro.start is not root(macro.ending) or not _plain(macro, direct, outcome):
        return None
    tensors = [k for k, a in enumerate(args) if a.__class__ in TENSOR_TYPES]
    few, all_ = len(tensors), len(tensors) + len(entry.fixed)
    used = sorted({*direct.inputs, *direct.written, *macro.realised})
    if any(c >= all_ for c in used) or any(c < few for c in direct.written):
        return None
    if any(a.__class__ not in PLAIN for a in args if a.__class__ not in TENSOR_TYPES):
        return None
    if any(args[k]._requires_grad for k in tensors):
        return None
    storages = [args[k]._storage for k in tensors] + entry.fixed
    if any(_array(storages[c]) is None for c in used):
        return None
    rows, grads = _gradient_facts(entry, macro) if entry.uses_grads else ([], {})
    if grads is None:
        return None
    for c in used:
        if c >= few:
            rows += _state_facts(storages[c], c in direct.written)
    return _made(entry, macro, args, tensors, storages, rows, grads)


def _plain(macro: Macro, direct: Direct, outcome: Outcome) -> bool:
    """Whether the call is one program that runs where it is started, whose results are gradients of leaves that nobody reads, and new tensors."""
    plan, gradients = direct.plan, _gradients(macro)
    if plan.__class__ is not Plan or plan.compiled is None or not plan.compiled.plain or (plan.cost >= INLINE_WORK and not plan.expected()):
        return False
    if outcome.template is not None or macro.checks or macro.unusual or macro.test is not None:
        return False
    if any(k not in outcome.unread or place is None or place[0] != "created" for k, place in outcome.grads):
        return False
    if any((k in gradients) is not (first in gradients) for k, first in direct.twins):
        return False
    return all(place[0] == "created" and place[1] not in gradients for place in outcome.places) and not any(k in gradients for k, _ in outcome.losses)


def _gradients(macro: Macro) -> set[int]:
    """Numbers of the new storages that are gradients."""
    return {place[1] for _, place in macro.result.grads if place is not None and place[0] == "created"}


def _array(storage: Storage) -> Any:
    """The array of a value that is there, and that nobody outside sees."""
    buffer = storage.buffer
    if storage.trace is not None or buffer is None or buffer.task is not None or buffer.owner is not None or buffer.export is not None:
        return None
    return buffer.array


def _slots(held: Any, **values: Any) -> list[Fact]:
    return [("slot", held, name, value) for name, value in values.items()]


def _state_facts(storage: Storage, written: bool) -> list[Fact]:
    buffer: Any = storage.buffer
    if buffer is None:  # gone since it was looked for: then no fact knows its array
        return []
    facts = _slots(storage, trace=None, layout=storage.layout, buffer=buffer)
    if written:
        facts += [*_slots(storage, home=None, writer=storage.writer), ("references", buffer, 1), *_slots(buffer, pins=0, readers=None)]
    array = buffer.array  # read once: another thread may put the next one there, and only one that a fact has met is alive
    return [*facts, *_slots(buffer, array=array, task=None, owner=None, export=None), ("data", array)]


def _gradient_facts(entry: Recorded, macro: Macro) -> tuple[list[Fact], Any]:
    """What the gradients of the leaves have to be like, and their arrays by number; None for those if one is not what a replay leaves."""
    rows: list[Fact] = []
    arrays: dict[int, Any] = {}
    given_ = {id(entry.leaves[k]): (number, macro.created[number][1], view) for k, (_, number, view) in macro.result.grads}
    buffers = [leaf._grad._storage.buffer for leaf in entry.leaves if id(leaf) in given_ and leaf._grad is not None]
    for leaf in entry.leaves:
        grad = leaf._grad
        rows.append(("slot", leaf, "_grad", grad))
        if id(leaf) not in given_:
            continue
        number, value, view = given_[id(leaf)]
        if grad is None or grad.__class__ is not Tensor:
            return rows, None
        storage: Any = grad._storage
        buffer = storage.buffer
        array = _array(storage)
        if storage.layout is not value or array is None or buffer is None:
            return rows, None
        arrays[number] = array
        rows += _handle_facts(grad, storage, view)
        rows += _value_facts(storage, buffer, array, value, sum(b is buffer for b in buffers))
    return rows, arrays


def _handle_facts(grad: Tensor, storage: Storage, view: Layout) -> list[Fact]:
    bare = dict.fromkeys(("_grad_fn", "_grad", "_base", "_views", "_cache", "_hooks"))
    return [
        ("references", grad, 1), ("kind", grad), ("unseen", grad), ("bare", grad),
        *_slots(grad, _storage=storage, _layout=view, _requires_grad=False, **bare),
    ]  # fmt: skip


def _value_facts(storage: Storage, buffer: Buffer, array: Any, value: Any, sharing: int) -> list[Fact]:
    """`sharing`: so many gradients are this value."""
    return [
        ("references", storage, 1), ("kind", storage), ("unseen", storage),
        *_slots(storage, trace=None, slot=-1, layout=value, buffer=buffer, home=None, version=0, writer=None),
        ("references", buffer, sharing), ("kind", buffer), ("unseen", buffer),
        *_slots(buffer, array=array, task=None, owner=None, export=None, trace=None, readers=None),
        *_slots(buffer, number=-1, pins=0, floating=False),
        ("references", array, 1), ("data", array),
    ]  # fmt: skip


def _made(
    entry: Recorded, macro: Macro, args: tuple[Any, ...], tensors: list[int], storages: list[Storage], rows: list[Fact], grads: dict[int, Any]
) -> Repeat | None:
    """The repeat, with what the backend makes of it."""
    direct, few = macro.start_up, len(tensors)
    fresh = [k for k in direct.firsts if k not in grads]
    indices = []
    for cell, view, verdict, result in macro.peeks:
        if verdict.__class__ is not Within or result != verdict.good or view.dtype is not int64 or not view.contiguous:
            return None
        if cell >= few:
            rows += _state_facts(storages[cell], False)
        indices.append((tensors[cell] if cell < few else _array(storages[cell]), 8 * view.offset, view.numel, verdict.size))
    inputs = [tensors[c] if c < few else _array(storages[c]) for c in direct.inputs]
    outputs = [grads[k] if k in grads else len(args) + fresh.index(k) for k in direct.firsts] + [_array(storages[c]) for c in direct.written]
    met = {id(fact[1]) for fact in rows if fact[0] == "data"}
    arrays = [array for array in (*inputs, *outputs, *(check[0] for check in indices)) if array.__class__ is not int]
    if any(array is None or id(array) not in met for array in arrays):
        return None  # another thread has put something else there meanwhile
    wanted = tuple([(a.__class__, a._layout, a._requires_grad, a._storage.layout) if a.__class__ in TENSOR_TYPES else (None, a) for a in args])
    results = [(macro.created[k][1].numel, macro.created[k][1].dtype.np) for k in fresh]
    plan = direct.plan
    executable = _executable(plan, direct, tensors, args, storages)
    found = on(plan.device, lambda: executable.again(inputs, outputs, results, len(args)))
    if found is None:
        return None
    rerun, sources = found
    same = hot.unchanged(rows, wanted, tuple(entry.fixed), tuple(indices), sources, rerun.step)
    return None if same is None else Repeat(entry, macro, rerun, same, tensors, [storages[c] for c in direct.written], executable)


def _executable(plan: Plan, direct: Direct, tensors: list[int], args: tuple[Any, ...], storages: list[Storage]) -> Any:
    """What runs the plan, with weights packed that are no arguments: facts say that they stay what they are."""
    form, few = plan.compiled, len(tensors)
    if form.prepacking is None:
        return form.executable
    if any(direct.inputs[k] < few for k in form.prepacking.places):
        form.prepacking.release()  # what runs with these packed keeps memory of results, which a repeat wants
        return form.executable
    with LOCK:  # nobody overwrites what is packed meanwhile
        packed = on(plan.device, lambda: form.prepacking.of([storages[c].buffer for c in direct.inputs], True))
    return (packed or form).executable
