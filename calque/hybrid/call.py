"""`Hybridized`: a function whose calls are recorded once per signature and replayed without running its Python.

The first call of a signature runs as it is written. The next ones are recorded; as soon as two recordings agree, calls are replays. What a
replay depends on is in the signature (arguments, modes) or in the guards (see `guards.py`). A call that cannot be replayed runs as it is
written and is counted with its reason.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

from calque.autograd.leaves import RuleNamespace
from calque.base.config import settings
from calque.base.device import DEFAULT
from calque.base.dtypes import get_default_dtype
from calque.base.errors import NotDense
from calque.base.native import hot
from calque.base.text import type_name
from calque.hybrid.graph import CallGraph, Spent, Unsupported
from calque.hybrid.guards import Guards, Refused
from calque.hybrid.handles import DATA, LEAF, StandIns, differences, noted, state_of_handle, views_among
from calque.hybrid.outcome import Outcome, given
from calque.hybrid.region import MISSES, CallKey, CallMemory, Place, handle, place_of
from calque.hybrid.repeat import FIRST, LAST, MISSED, USEFUL, Interrupted, Repeat, repeat_of
from calque.hybrid.structure import Args, Kwargs, Lent, containers, describe, tell_apart
from calque.hybrid.walk import Walk
from calque.nn.module import Module
from calque.nn.parameter import Parameter
from calque.observe.causes import guard_missed
from calque.observe.source import user_line
from calque.record.nodes import GradNode
from calque.record.recorder import Storage, Trace, flush, local, record_from_here
from calque.record.state import State
from calque.record.threads import SECTION, Sharing, handed_over
from calque.record.trie import BOUND
from calque.record.versions import Silent
from calque.replay.capture import Capture, Script
from calque.replay.counts import Changes, Counts
from calque.replay.macro import Macro
from calque.replay.macro_text import tree_of
from calque.report.losses import ReplayedLoss
from calque.tensor import TENSOR_TYPES, Tensor, next_number

SIGNATURES = 64
ENTRIES = 8  # of one signature, with different guards
STRANGERS = 200  # new signatures without a replay in between, after which no more are recorded
LOOKS = 6  # at the guards of an entry, before native code takes that over
CHANGES = 4  # calls that change what they depend on
FEW = 4  # operations, views and inputs that code of the library records in less time than a replay takes
_KEYWORDS = object()
LATE: Any = object()
_NOTED = "is given a tensor with an attribute of its own"
_SHORT = "records so little that it is quicker as written"


class Entry:
    """Everything known about calls of one signature under one state of the guards."""

    def __init__(self, roots: list[Any]) -> None:
        guards = Guards()
        guards.collect(roots)
        self.guards, self.roots = guards, roots
        self.handles = [(t, t._storage, t._layout, t._requires_grad) for t in guards.tensors]
        fixed: dict[int, Storage] = {id(st): st for _, st, _, _ in self.handles}
        self.fixed = list(fixed.values())
        self.known = frozenset(fixed)
        self.leaves = [t for t, _, _, needs in self.handles if (needs or isinstance(t, Parameter)) and t._grad_fn is None]  # frozen ones, too
        self.uses_grads = bool(self.leaves)
        self.grads_matter = False  # whether some call has looked which ones exist
        self.complete = (False,) * len(self.leaves)  # the key if all gradients exist
        self.memory = CallMemory()
        self.hooks = Changes.hooks
        self.looks = 0  # until the table below is made
        self.same: Any = None  # what native code compares of all this; False if it cannot

    def current(self) -> bool:
        """Whether the tensors are those of old; values that were exchanged hardly come back."""
        return all(t._storage is st for t, st, _, _ in self.handles)

    def valid(self) -> bool:
        """Whether what the function can reach is as it was."""
        same = self.same
        if same is None:
            holds = self._compared()
            if holds:
                self._look()
            return holds
        if same and same.hold() and self.hooks == Changes.hooks and self.guards.rest_holds():
            return True
        return self._compared()

    def _look(self) -> None:
        """Calls that are replayed again and again are worth a table of what holds now."""
        self.looks += 1
        if self.looks >= LOOKS:
            facts = [("kind", fact[1]) if fact[0] == "class" else fact for fact in self.guards.facts]
            for t, storage, layout, needs in self.handles:
                facts += [("slot", t, "_storage", storage), ("slot", t, "_layout", layout), ("slot", t, "_requires_grad", needs)]
            self.same = (hot is not None and hot.unchanged(facts)) or False

    def _compared(self) -> bool:
        """The same, compared by Python."""
        if not self.guards.hold() or self.hooks != Changes.hooks:
            return False
        for t, st, lay, needs in self.handles:
            if t._storage is not st or t._layout is not lay or t._requires_grad is not needs:
                return False
        return True

    def first_change(self) -> str:
        """The name of something that is not as it was."""
        if all(t._storage is st and t._layout is lay and t._requires_grad is needs for t, st, lay, needs in self.handles):
            return self.guards.first_change() if self.hooks == Changes.hooks else "the hooks of a tensor"
        return "a tensor that the function reaches"

    def needs_gradients(self, capture: Capture) -> bool:
        """Whether a recorded call has looked at gradients that are not among the cells; they will be, from now on."""
        self.grads_matter = self.grads_matter or bool(capture.looked_at)
        if not self.grads_matter or self.uses_grads or not self.leaves:
            return False
        self.uses_grads = True
        return True

    def cells(self, tensors: list[Tensor]) -> tuple[list[Storage | None], tuple[bool, ...]] | None:
        """Storages of arguments, of what the function reaches, and of gradients, with which of these do not exist or look unusual, if the function
        touches any; None if some of all these share memory."""
        found: list[Storage | None] = [t._storage for t in tensors]
        if len(found) > 1 and len({id(st) for st in found}) < len(found):
            return None
        for st in found:
            if id(st) in self.known:
                return None
        found += self.fixed
        if not self.uses_grads:
            return found, ()
        usual = True
        for t in self.leaves:
            grad = t._grad
            if grad is None:
                usual = False
                found.append(None)
            else:
                storage = grad._storage
                usual = usual and grad._layout is t._layout and storage.layout is t._layout and not grad._requires_grad
                found.append(storage)
        given = [id(st) for st in found if st is not None]
        if len(set(given)) < len(given):
            return None
        return found, self.complete if usual else tuple([_look_of(t) for t in self.leaves])


class Hybridized:
    """A callable like `function`. `roots`: what else it reaches (a module whose method it is)."""

    # Callers do not depend on what it has learned.
    not_guarded = frozenset({"entries", "changes", "refused", "misses", "repeat", "wait", "pause", "short"})

    def __init__(self, function: Callable[..., Any], roots: list[Any] | None = None, fullgraph: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.roots = [function] if roots is None else roots
        self.fullgraph = fullgraph
        self.entries: dict[Any, list[Entry]] = {}
        self.changes: dict[Any, int] = {}
        self.refused: dict[Any, str] = {}
        self.misses = 0  # new signatures since the last replay
        self.short = ""  # why calls are not worth a replay, if they are not
        self.repeat: Repeat | None = None
        self.wait = self.pause = FIRST  # replays until another repeat is looked for
        Counts.functions += 1

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Hybridized, (self.function, None if self.roots[:1] == [self.function] else self.roots, self.fullgraph))

    def recordings(self) -> str:
        """What has been recorded of the calls, as text: for each set of arguments that calls differ in, the stretches of operations with what they
        read, write and make, and the values on which they depend; or why there is none. Empty before the second call. The lines are described in
        `calque/replay/macro_text.py`.

        >>> double = calque.compile(lambda x: x * 2)
        >>> for _ in range(3): y = double(calque.ones(200, 200)).sum().item()
        >>> print(double.recordings())
        call 1
        expect $0 is %0
        %1 = mul(%0, 2.0) : float32[200, 200]
        new %1
        """
        found: list[str] = []
        for entry in [entry for entries in self.entries.values() for entry in entries]:
            memory, number = entry.memory, len(found) + 1
            text = tree_of([macro for level in memory.roots.values() for macro in ([m for m in level if m.ready] or level)])
            found.append(f"call {number}{f': {memory.refused}' if memory.refused else ''}" + (f"\n{text}" if text else ""))
        return "\n\n".join([*found, *(f"not recorded: {reason}" for reason in self.refused.values())])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state = local.state
        if state.trace.eager:
            record_from_here(state, "hybridized call")
        if state.capture is not None or settings.checked or RuleNamespace.check_nan or state.trace.__class__ is not Trace:
            return self.function(*args, **kwargs)
        if self.short:
            Counts.because(self.short)
            return self.function(*args, **kwargs)
        repeat = self.repeat
        if repeat is not None and not kwargs:
            with SECTION:  # the next numbers belong to the next step, also if this one goes on as an ordinary replay
                result = repeat(args)
                if result.__class__ is Interrupted:
                    return self._interrupted(repeat, args, result)
            if result is not MISSED:
                self.misses = 0
                return result
        return self._found(state, args, kwargs)

    def _found(self, state: State, args: Args, kwargs: Kwargs) -> Any:
        """A call whose recording has to be found, if there is one."""
        tensors: list[Tensor] = []
        objects: list[Any] = []
        parts: list[Any] = [state.grad, state.inference, state.autocast, get_default_dtype(), DEFAULT.device]
        try:
            for value in args:
                if value.__class__ in TENSOR_TYPES:
                    history: Any = (LEAF if value._grad_fn is None else True) if value._requires_grad else value._views.__class__ is Silent and DATA
                    parts += (value._layout, value._storage.layout, history, value.__class__)
                    tensors.append(value)
                else:
                    tell_apart(value, parts, tensors, objects)
            if kwargs:
                parts.append(_KEYWORDS)  # f(x, {"y": z}) is another call than f(x, y=z)
                tell_apart(kwargs, parts, tensors, objects)
        except (Refused, NotDense) as refusal:
            return self._as_written(args, kwargs, _why(refusal))
        key = tuple(parts)
        for entry in self.entries.get(key, ()):
            if entry.valid():
                break
        else:
            return self._new_entry(key, objects, tensors, args, kwargs)
        memory = entry.memory
        if memory.refused:
            return self._as_written(args, kwargs, memory.refused)
        if entry.guards.asks and noted(tensors):
            return self._as_written(args, kwargs, _NOTED)
        result: Any = LATE
        if memory.writes is False:
            result = self._again(key, entry, tensors, args, kwargs, False)
        if result is LATE:
            with SECTION:  # else another thread finds leaves without gradients, or state that is only recorded
                result = self._again(key, entry, tensors, args, kwargs, True)
                if Sharing.left:
                    handed_over(flush, state, "hybridize")
        return result if result is not MISSED else self._as_written(args, kwargs, "arguments share memory")

    def _again(self, key: CallKey, entry: Entry, tensors: list[Tensor], args: Args, kwargs: Kwargs, alone: bool) -> Any:
        """A call whose guards hold; `MISSED` if its arguments share memory. `alone`: no other thread writes meanwhile. If none may and one could,
        `LATE` comes back, and nothing has happened."""
        try:
            found = entry.cells(tensors)
        except NotDense:  # a leaf has a sparse gradient
            return self._as_written(args, kwargs, "meets a sparse gradient")
        if found is None:
            return MISSED
        cells, place = found
        macro = entry.memory.find(place, cells)
        if entry.memory.writes and not alone:  # another thread has found that since this call asked
            return LATE
        if macro is None:
            return self._record(key, entry, tensors, args, kwargs)
        self.misses = 0
        if macro.result is None or macro.fresh:
            return self._walk(key, entry, macro, cells, place, tensors, args, kwargs, alone)
        result = _replayed(entry, macro, cells, tensors)
        if macro.start_up and not entry.guards.asks:
            self._look_for_repeat(key, entry, place, macro, args, kwargs)
        return result

    def _look_for_repeat(self, key: CallKey, entry: Entry, place: CallKey, macro: Macro, args: Args, kwargs: Kwargs) -> None:
        """Calls go on being replayed: perhaps the next ones find everything as this one has left it."""
        self.wait -= not kwargs
        if self.wait:
            return
        useful = self.repeat is not None and self.repeat.hits >= USEFUL
        self.wait = self.pause = FIRST if useful else min(2 * self.pause, LAST)
        self.repeat = repeat = repeat_of(entry, macro, args)
        if repeat is not None:
            repeat.key, repeat.place = key, place

    def _interrupted(self, repeat: Repeat, args: Args, drawn: Interrupted) -> Any:
        """A repeat that could not go on after it had drawn its numbers: a replay or a recording goes on with those."""
        entry, macro, tensors = repeat.entry, repeat.macro, [args[k] for k in repeat.arguments]
        found = entry.cells(tensors)
        if found is not None and found[1] == repeat.place and macro.fits(local.state.trace, found[0]):
            return _replayed(entry, macro, found[0], tensors, drawn.known)
        script = Script()
        script.asked = drawn.asked
        return self._record(repeat.key, entry, tensors, args, {}, script)

    def _walk(
        self, key: CallKey, entry: Entry, macro: Macro, cells: list[Any], place: CallKey, tensors: list[Tensor], args: Args, kwargs: Kwargs,
        alone: bool,
    ) -> Any:  # fmt: skip
        """A call that looks at values. Where it goes a way that is not known, Python goes on."""
        walk = Walk(cells, alone)
        last = walk.go(macro, entry.memory)
        if last is not None:
            Counts.replays += 1
            outcome, created = last.result, [walk.cells[k] for k in last.kept or ()]
            outcome.give_gradients(entry.leaves, created, cells)
            return given(entry.handles, outcome, cells, created, tensors, walk.known)
        Counts.continued += 1
        test = walk.steps[-1][0].test if walk.steps else None
        if test is not None and test.misses >= MISSES:
            entry.memory.refused = f"goes another way at every call, because of a value ({test.line})"
        with SECTION:
            script = walk.take_back()
            try:
                return self._record(key, entry, tensors, args, kwargs, script, (cells, place))
            finally:
                if script.broken:
                    walk.restore()

    def _as_written(self, args: Args, kwargs: Kwargs, reason: str) -> Any:
        Counts.because(reason)
        if self.fullgraph:
            raise Refused(f"[compile] expected a function that can be replayed as a whole (fullgraph=True), but it {reason}; leave fullgraph out")
        return self.function(*args, **kwargs)

    def _new_entry(self, key: CallKey, objects: list[Any], tensors: list[Tensor], args: Args, kwargs: Kwargs) -> Any:
        """First call of a signature, or what the function depends on has changed."""
        reason = self.refused.get(key) or ("is never called twice alike" if self.misses > STRANGERS else None)
        if reason is not None:
            return self._as_written(args, kwargs, reason)
        self.misses += 1
        self.repeat = None
        if key in self.entries:
            guard_missed(local.state.trace)
        if len(self.refused) > SIGNATURES:
            self.refused.clear()
        if len(self.changes) > SIGNATURES:
            self.changes.clear()
        found = self.entries.get(key)
        changed = found[-1].first_change() if found else ""
        before = [state_of_handle(t) for t in tensors]
        result = self.function(*args, **kwargs)
        try:
            entry = Entry([*self.roots, *objects])
        except Refused as refusal:
            self.refused[key] = str(refusal)
            Counts.because(str(refusal))
            return result
        if found is None:
            if len(self.entries) >= SIGNATURES:
                self.entries.pop(next(iter(self.entries)))
            found = self.entries[key] = []
        found[:] = [e for e in found if e.current()][1 - ENTRIES :]
        found.append(entry)
        entry.memory.refused = differences(before, tensors)
        Counts.because(f"{changed} has changed ({user_line()})" if changed else "first call of a signature")
        return result

    # ------------------------------------------------------------------------------------------------------------ recording

    def _record(
        self, key: CallKey, entry: Entry, tensors: list[Tensor], args: Args, kwargs: Kwargs, script: Script | None = None,
        found: tuple[list[Storage | None], CallKey] | None = None,
    ) -> Any:  # fmt: skip
        """Run the function and learn what it records. Other threads that record, replay what writes, or train wait meanwhile; it waits for none of
        them: what could is refused by the guards. `found`: cells and place of what the script tells of."""
        with SECTION:
            if found is None and (script is not None or entry.valid()):
                found = entry.cells(tensors)
            if found is not None:
                return self._recorded(key, entry, tensors, args, kwargs, script, *found)
        Counts.because("finds that another thread has changed what it depends on")
        return self.function(*args, **kwargs)

    def _recorded(
        self, key: CallKey, entry: Entry, tensors: list[Tensor], args: Args, kwargs: Kwargs, script: Script | None, cells: list[Any], place: CallKey
    ) -> Any:
        memory = entry.memory
        grads_before = [t._grad for t in entry.leaves]
        first = next_number()
        modes, histories = _modes(), [t._grad_fn for t, *_ in entry.handles]
        stand_ins = StandIns(tensors)
        lent = Lent(args, kwargs, stand_ins.others, tensors)
        try:
            capture = Capture(cells, True, True, not entry.guards.inexact, script)
            capture.stand_ins, capture.oldest = stand_ins.own, first
            result = capture.watch(lambda: self.function(*lent.args, **lent.kwargs))
        finally:
            changed, handles = lent.give_back(), stand_ins.hand_back()
        if changed:
            capture.abort("changes a list or dict that it is given")
        if noted(stand_ins.used):
            capture.abort(_NOTED)
        if modes != _modes():
            capture.abort("changes a mode or the default dtype")
        Counts.recordings += 1
        macro = capture.finish()
        if handles:
            capture.abort(handles)
        if any(t._grad_fn is not node for (t, *_), node in zip(entry.handles, histories, strict=True)):
            capture.abort("changes the history of a tensor that it reaches")
        if stand_ins.looked_at(capture.looked_at):
            capture.abort("looks at the gradient of an argument")
        if not entry.valid():
            return self._changed(key, entry, lent.original(stand_ins.settle(result, first)))
        with_gradients = len(cells) > len(tensors) + len(entry.fixed)  # another thread may have found that they matter since the cells were listed
        if entry.needs_gradients(capture) or with_gradients is not entry.uses_grads:
            return lent.original(stand_ins.settle(result, first))
        if macro is None or capture.failed:
            memory.refused = "" if capture.met else capture.failed  # what comes of threads that meet need not come again
            Counts.because(capture.failed)
            return lent.original(stand_ins.settle(result, first))
        try:
            if lent.within(result) or any(entry.guards.reached(value) for value in containers(result)):
                raise Unsupported("returns a list or dict that somebody else has, too")
            result = lent.original(self._learn(entry, place, macro, capture, result, cells, grads_before, first, stand_ins))
            self.short = self._shortness(entry, macro, capture)
        except (Unsupported, Refused) as reason:
            memory.refused = "" if capture.met else str(reason)
            Counts.because(str(reason))
            result = lent.original(stand_ins.settle(result, first))
        capture.release()
        return result

    def _shortness(self, entry: Entry, macro: Macro, capture: Capture) -> str:
        """Why calls of this are not worth a replay: it is a layer of the library, which records next to nothing."""
        few = len(capture.segments) == 1 and macro.slots - capture.entry_first <= FEW
        return _SHORT if few and not self.fullgraph and not entry.guards.functions and isinstance(next(iter(self.roots), None), Module) else ""

    def _changed(self, key: CallKey, entry: Entry, result: Any) -> Any:
        """The call changed what it depends on: once is normal (state that is made when first needed), always is a side effect."""
        self.repeat = None
        self.changes[key] = count = self.changes.get(key, 0) + 1
        reason = f"changes what it reads: {entry.guards.first_change()}"
        if count >= CHANGES:
            self.refused[key] = reason
        self.entries[key].remove(entry)
        Counts.because(reason)
        return result

    def _learn(
        self, entry: Entry, place: CallKey, macro: Macro, capture: Capture, result: Any, cells: list[Any], grads_before: list[Any], first: int,
        stand_ins: StandIns,
    ) -> Any:  # fmt: skip
        """Take in the recording of a call, and return its result. Once it is the second that agrees, its graph becomes the template of all replays,
        and it gives back what they do."""
        tensors = stand_ins.tensors
        outputs, outcome, touched = self._given_back(entry, capture, result, cells, grads_before, stand_ins)
        leaves_at = len(cells) - len(entry.leaves)
        if entry.uses_grads and not (entry.grads_matter or outcome.grads or any(c >= leaves_at for c in touched)):
            entry.uses_grads = False
            place = ()
        roots = [outputs[k]._grad_fn for k in outcome.differentiable]
        spent = bool(roots) and all(_is_spent(root, stand_ins.nodes) for root in roots)
        places = (*outcome.places, *(g for _, g in outcome.grads if g is not None))
        needed = {p[1] for p in places if p[0] == "created"}
        if not roots or spent:
            if len(needed) < len(capture.storages):
                raise Unsupported("keeps a value in a place that the guards do not reach")
            if spent:
                ends = {id(root): Spent(root, stand_ins.nodes, tensors) for root in roots}  # type: ignore[arg-type]
                outcome.spent = [ends[id(root)] for root in roots]
        mark = (outcome.structure, tuple(outcome.places), tuple(outcome.grads), tuple(outcome.differentiable), tuple(outcome.views), spent)
        macro.result = outcome
        memory = entry.memory
        memory.writes = bool(memory.writes or outcome.grads or any(segment.written for segment in capture.segments))  # before anybody can find it
        if not roots or spent:
            memory.learn(place, capture, mark)
            return result
        reached = frozenset(id(t) for t, *_ in entry.handles)
        template = CallGraph(roots, first, cells, stand_ins.nodes, capture.storages, needed, reached, tensors, stand_ins.used)
        if not memory.learn(place, capture, mark):
            return stand_ins.settle(result, first)
        outcome.template = template
        created = template.take_over()
        for k, p in outcome.grads:
            if p is not None and p[0] == "created":
                entry.leaves[k]._grad = handle(p, created, cells)
        return given(entry.handles, outcome, cells, created, tensors, capture.values)

    @staticmethod
    def _given_back(
        entry: Entry, capture: Capture, result: Any, cells: list[Any], grads_before: list[Any], stand_ins: StandIns
    ) -> tuple[list[Tensor], Outcome, set[int]]:
        """The tensors of a call's result, where a replay finds all that the call gives back, and the cells that the call read or wrote."""
        outputs: list[Tensor] = []
        own = {id(t): ("argument", k) for k, t in enumerate(stand_ins.used)}
        own |= {id(t): ("reached", k) for k, (t, *_) in enumerate(entry.handles)}
        structure = describe(result, outputs, own)
        if noted(outputs):
            raise Unsupported("puts an attribute on a tensor that it returns")
        views = views_among(outputs, stand_ins.tensors, [t for t, *_ in entry.handles])
        places = [_found(place_of(t, capture.storages, cells)) for t in outputs]
        grads = [
            (k, None if t._grad is None else _found(place_of(t._grad, capture.storages, cells)))
            for k, (t, before) in enumerate(zip(entry.leaves, grads_before, strict=True))
            if t._grad is not before
        ]
        differentiable = [k for k, t in enumerate(outputs) if t._requires_grad]
        if any(outputs[k]._grad_fn is None for k in differentiable):
            raise Unsupported("returns a new tensor that requires a gradient")
        mine = capture.entries
        cells_of = [[row[0] for row in rows] for s in capture.segments for rows in (s.expect, s.inputs, s.written)]
        touched = {c for found in cells_of for c in found if c < mine}
        outcome = Outcome(structure, places, grads, differentiable, views)
        outcome.unread = {k for k, _ in grads if len(cells) - len(entry.leaves) + k not in touched}
        outcome.losses = [(k, ReplayedLoss(line)) for held, line in capture.losses for k, st in enumerate(capture.storages) if held() is st]
        return outputs, outcome, touched


def _look_of(leaf: Tensor) -> Any:
    """What the gradient of a leaf is like: False for the usual."""
    grad: Any = leaf._grad
    if grad is None:
        return True
    layout, storage = grad._layout, grad._storage
    usual = layout is leaf._layout and storage.layout is leaf._layout and not grad._requires_grad
    return False if usual else (layout, storage.layout, grad._requires_grad)


def _found(place: Place | None) -> Place:
    if place is None:
        raise Unsupported("returns a tensor that was made neither by it nor by its caller")
    return place


def _is_spent(root: GradNode | None, ends: Iterable[int]) -> bool:
    """Whether a backward pass has used the graph already. `ends`: ids of nodes at which the call's part of it ends: what is behind them is another at
    the next call."""
    seen = set(ends)
    stack = [root]
    while stack:
        node = stack.pop()
        if node is None or isinstance(node, Tensor) or id(node) in seen:
            continue
        if node.freed:
            return True
        seen.add(id(node))
        stack.extend(node.next)
    return False


def _replayed(entry: Entry, macro: Macro, cells: list[Any], tensors: list[Tensor], numbers: list[Any] | None = None) -> Any:
    """`numbers`: those of the call, if they have been drawn already."""
    outcome: Outcome = macro.result
    ending, leaves = macro.ending, entry.leaves
    for k in outcome.unread:  # nobody keeps them any more, so their memory is free for this program
        leaves[k]._grad = cells[k - len(leaves)] = None
    known: list[Any] = numbers or []
    if macro.definitions and numbers is None:
        macro.define(known, [])
    created = macro.start_directly(cells, known) if ending else None
    if created is None:
        created = macro.replay(local.state.trace, cells, known)
    else:
        ending = ""
    outcome.give_gradients(leaves, created, cells)
    result = given(entry.handles, outcome, cells, created, tensors, known)
    Counts.replays += 1
    if ending:
        del created  # what nobody keeps need not be written
        flush(ending)
    elif macro.end.boundary:
        flush(BOUND)
    return result


def _why(refusal: Refused | NotDense) -> str:
    return str(refusal) if isinstance(refusal, Refused) else f"got a Tensor subclass {type_name(refusal.tensor)}"


def _modes() -> tuple[Any, ...]:
    state = local.state
    return (state.grad, state.inference, state.autocast, get_default_dtype(), DEFAULT.device)
