"""What steps a function takes that is computed at once: it is watched while it runs.

Used for library functions (`superinstruction.py`) and for the rules of gradients (`formula.py`, `node_steps.py`). While one is watched no storage
shows its value, so that nothing is believed about who decides by values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from calque.autograd.eager import Eager, Step, step_of
from calque.backend.ref.interpret import number_as_array
from calque.base import dtypes
from calque.base.layout import Layout
from calque.base.native import hot
from calque.observe import source
from calque.ops.opdef import OpDef
from calque.record.at_once import possible
from calque.record.live import LiveFloat, plain
from calque.record.recorder import Storage, local
from calque.record.tape import Unread
from calque.tensor import Tensor

Source = tuple[int, int, Layout] | Any
"""Where an operand of a step comes from: (number of an operand or, behind those, of a step; offset there; how it is seen), or a number."""
KEPT = 1 << 12  # bytes of a value that is always the same and is kept, not computed again
WHOLE, MEMBER, NODE = 900, 200, 2000  # bytes of a superinstruction, of a step and of a node in one, roughly
_BOUNDED = (dtypes.int64, dtypes.int32, dtypes.uint8, dtypes.float32, dtypes.float64)


class NotAtOnce(BaseException):
    """An operation is to be recorded: nothing of what is watched may be, for that would be part of a program, beside what runs instead. No error,
    which public functions would say more about."""


class Member:
    """A step that was watched. `how`: the kernel, the routine, a flat array with the value that it always has, or the bounds within which the
    elements of its operand are. `check`: it is the code of a check. `floating`: its buffer is, see there."""

    __slots__ = ("how", "sources", "memory", "check", "floating")

    def __init__(self, how: Any, sources: tuple[Source, ...], memory: Layout) -> None:
        self.how, self.sources, self.memory, self.check, self.floating = how, sources, memory, False, False


class NodePlan(NamedTuple):
    """A node that a superinstruction makes. `next`: where gradients of its operands go: to operands or, behind those, nodes of these numbers, or -1;
    `uses`: operands or steps whose values its rule is given, numbered as in `Watched.place`; `apart`: of each, whether the rule has
    only views of it, so that what `.data` is set to later is nothing to it; `keeps`: whether the node has anything that a pass frees."""

    label: str
    outputs: tuple[Layout, ...]
    rule: Any
    next: tuple[int, ...]
    uses: tuple[int, ...]
    apart: tuple[bool, ...]
    keeps: bool


class NodePlans(NamedTuple):
    """The nodes that a function has made, in their order, and their numbers by id."""

    nodes: list[NodePlan]
    places: dict[int, int]


Guards = Callable[[list[int]], "tuple[Any, ...] | None"]
"""Of a rule that is given operands of these numbers: (default dtype, which targets there are, what each operand must be), as the compiled module
compares them (`native/superinstruction.c`); None if it cannot be said."""


class Watched(Eager):
    """Computes a function as `Eager` does, and notes its steps. `steady`: whether they are all there is to it. Until it is not, no storage shows its
    value to anybody but the steps, as if all were only recorded: whoever reads one, or decides by one, has to ask for it here. `rule`: it gives
    gradients, which may show the memory of its operands; `known`: it was watched before, so that all may be computed in whatever mode."""

    def __init__(self, eager: Eager, operands: tuple[Any, ...], rule: bool, known: bool) -> None:
        super().__init__()
        self.loose, self.rule, self.known = eager.loose, rule, known
        self.members: list[Member] = []
        self.operands = operands
        self.handles = [x for x in operands if isinstance(x, Tensor)]  # keep the storages, whose numbers nobody else gets
        # By id of a storage: the number of the operand or, behind those, of the step whose result lies there, and where that begins.
        self.place = {id(x._storage): (k, x._layout.offset) for k, x in enumerate(operands) if isinstance(x, Tensor)}
        self.numbers = {id(x): k for k, x in enumerate(operands) if x.__class__ is tuple}
        self.steady, self.warned, self.inside = True, source.warned, False
        self.hidden: dict[int, Any] = {}  # id of a storage -> its buffer, which nobody sees
        for t in self.handles:
            self._hide(t._storage)

    def _hide(self, storage: Storage) -> None:
        if self.steady and storage.buffer is not None:
            self.hidden[id(storage)], storage.buffer = storage.buffer, None

    def show(self) -> None:
        """Let all values be seen again."""
        for t in self.handles:
            t._storage.buffer = t._storage.buffer or self.hidden.get(id(t._storage))
        self.hidden.clear()

    def unsteady(self) -> None:
        """Something else than steps has happened, or will."""
        self.steady = False
        self.show()

    def array(self, t: Tensor) -> np.ndarray[Any, Any]:
        """As `Eager.array`."""
        if not self.inside:
            self.unsteady()
        found, t._cache = super().array(t), None  # the graph that was watched may stay, which keeps handles
        return found

    def made(self, value: Any, view: Layout, fresh: bool) -> Tensor:
        """As `Eager.made`."""
        if not self.inside:
            self.unsteady()
        t = super().made(value, view, fresh)
        t._cache = None
        return t

    def _computed(self, function: Callable[..., Any], *given: Any) -> Any:
        """A step of `Eager`, for which all values are there."""
        self.show()
        self.inside = True
        try:
            return function(self, *given)
        finally:
            self.inside = False
            if local.state.trace is not self:
                self.unsteady()

    def _hidden(self) -> None:
        for t in self.handles:
            self._hide(t._storage)

    def record(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False) -> Tensor:
        """As `Eager.record`."""
        shown = tuple([x[1] if x.__class__ is tuple else x._layout.origin or x._layout for x in operands])
        step = step_of(op, shown, attrs, row_major)
        state = local.state
        if not self.known and ((step.large and (state.waiting is None or step.slow or not self.rule)) or not possible(state)):
            raise NotAtOnce
        numbers = tuple([(plain(x[0]), x[1]) if x.__class__ is tuple else x for x in operands])
        t: Tensor = self._computed(Eager.record, op, numbers, attrs, row_major)
        if self.steady:
            sources = tuple([self._number(x, step) if x.__class__ is tuple else self._source(x) for x in operands])
            if None in sources or (step.kernel is None and not _plain(step)):
                self.unsteady()
            self._made(t, Member(step.kernel or step.function, sources, step.memory), op.kind != "random")
        return t

    def uploaded(self, values: Any, view: Layout) -> Tensor:
        """As `Eager.uploaded`: what is no operand follows from the arguments."""
        t: Tensor = self._computed(Eager.uploaded, values, view)
        if self.steady:
            self._made(t, Member(None, (), view), True)
        return t

    def check(self, slot: int, make_error: Callable[[int], Exception]) -> None:
        """As `Eager.check`."""
        place = self._source(self.last)
        if place is None or place[0] < len(self.operands) or place[1]:
            self.unsteady()
        elif self.steady:
            self.members[place[0] - len(self.operands)].check = True
        self._computed(Eager.check, slot, make_error)
        self._hidden()

    def all_within(self, t: Tensor, low: float, high: float) -> bool:
        """As `Eager.all_within`; whether they do at a later call is looked at there."""
        place, view = self._source(t), t._layout
        if not self.steady or place is None or view.dtype not in _BOUNDED or not view.dense:
            return False
        values = self._computed(Eager.array, t)
        self._hidden()
        if not bool(((values >= low) & (values <= high) | (values != values)).all()):
            return False
        self.members.append(Member((low, high), (place,), view))
        self.members[-1].check = True
        self.handles.append(t)
        return True

    def _made(self, t: Tensor, member: Member, same: bool) -> None:
        """`same`: the step gives the same again if its operands are the same."""
        fixed = [x.__class__ is not tuple or (x[0] >= len(self.operands) and self._kept(x[0])) for x in member.sources]
        if all(fixed):
            if not same:
                self.unsteady()
            elif t._layout.nbytes <= KEPT and t._storage.layout is member.memory:
                member.how, member.sources = self.whole(t._storage).ravel().copy(), ()
        member.floating = t._storage.buffer is not None and t._storage.buffer.floating
        if member.how is None or not member.memory.numel:
            self.unsteady()
        self.place[id(t._storage)] = len(self.operands) + len(self.members), 0
        self.members.append(member)
        self.handles.append(t)
        self._hidden()

    def _kept(self, place: int) -> bool:
        return self.members[place - len(self.operands)].how.__class__ is np.ndarray

    def _number(self, x: tuple[Any, Any], step: Step) -> Source:
        """The place of an operand that is a number, or the number that a step always has."""
        place = x[0].index if x[0].__class__ is LiveFloat else self.numbers.get(id(x))
        if place is not None:
            return (place, 0, step.value) if step.kernel is not None or step.numbers else None
        return x[0] if step.kernel is not None or step.numbers else number_as_array(*x)

    def _source(self, x: Tensor | None) -> tuple[int, int, Layout] | None:
        if x is None:
            return None
        place, begins = self.place.get(id(x._storage), (-1, 0))
        return None if place < 0 else (place, x._layout.offset - begins, x._layout)

    def superinstruction(self, found: Any, guards: Guards | None = None, graph: NodePlans | None = None, every: bool = False) -> Any:
        """(what the compiled module runs, its bytes) for what the function gave; False if something else than steps is to it. `guards`, of a rule,
        which is given only operands that it needs, or `every` one: what those must be. `graph`: the nodes of the results."""
        values = found if isinstance(found, (tuple, list)) else (found,)
        make = None if values is not found else getattr(values, "_make", values.__class__)
        nodes, places = ([], {}) if graph is None else graph
        ends = [end for t in values if (end := self._end(t, places)) is not None]
        if len(ends) < len(values):
            return False
        needed = self.needed({end[0] for end in ends} | {place for node in nodes for place in node.uses})
        given = [place for place in range(len(self.operands)) if guards is None or every or not place or place in needed]
        told = None if guards is None else guards(given)
        if guards is not None and told is None:
            return False
        numbers = {place: k for k, place in enumerate(given)}
        members = self._numbered(needed, numbers)
        results = tuple([(numbers.get(end[0], -1), *end[1:]) for end in ends])
        plans = tuple([tuple(node._replace(uses=tuple([numbers[u] for u in node.uses]))) for node in nodes])
        try:
            made = hot.Superinstruction(len(given), tuple(members), results, make, told, plans)
        except (ValueError, TypeError):  # there are too many steps, or a number is none that its kernel takes
            return False
        kept = sum(member[0].nbytes for member in members if member[0].__class__ is np.ndarray)
        return made, WHOLE + MEMBER * len(members) + kept + NODE * len(plans)

    def needed(self, wanted: set[int]) -> set[int]:
        """Operands and steps that make what is wanted, or codes of checks."""
        first = len(self.operands)
        needed = wanted | {first + k for k, member in enumerate(self.members) if member.check}
        for k in reversed(range(len(self.members))):
            if first + k in needed:
                needed.update(x[0] for x in self.members[k].sources if x.__class__ is tuple)
        return needed

    def _numbered(self, needed: set[int], numbers: dict[int, int]) -> list[tuple[Any, ...]]:
        """The steps that are needed, as the compiled module is told of them. `numbers`: of the operands, to which those of the steps are added."""
        members: list[tuple[Any, ...]] = []
        for place, member in enumerate(self.members, len(self.operands)):
            if place in needed:
                sources = tuple([(numbers[x[0]], x[1], x[2]) if x.__class__ is tuple else x for x in member.sources])
                members.append((member.how, sources, member.memory, member.check, member.floating))
                numbers[place] = len(numbers)
        return members

    def _end(self, t: object, nodes: dict[int, int]) -> tuple[int, int, Any, int] | None:
        """Where a result comes from: from a step, or it is an operand, or None; or, of gradients, the memory of an operand. `nodes`: numbers of those
        that results have, by id."""
        if t is None:
            return -1, 0, None, -1
        own = next((k for k, x in enumerate(self.operands) if x is t), -1)
        if own >= 0:
            return own, 0, None, -1
        if not isinstance(t, Tensor) or t.__class__ is not Tensor or t._hooks or t.__dict__:
            return None
        node = -1 if t._grad_fn is None else nodes.get(id(t._grad_fn), -1)
        place = self._source(t) if t._requires_grad is (node >= 0) else None
        return None if place is None or (place[0] < len(self.operands) and not self.rule) else (*place, node)

    def forget(self) -> None:
        """Let all tensors go: they remember who computed them."""
        self.show()
        self.operands, self.handles, self.members = (), [], []


def _plain(step: Step) -> bool:
    """Whether a step without a kernel is a function of arrays that the compiled module makes."""
    if step.order is not None or step.saved or step.layout is not step.memory:
        return False
    inputs = [x for x in step.inputs if isinstance(x, Layout)]
    kinds = [step.memory.dtype, *[x.dtype if isinstance(x, Layout) else x for x in step.inputs]]
    return all(kind.np.isbuiltin == 1 and not kind.hosted for kind in kinds) and all(x.numel for x in inputs)


def _unknown(name: str) -> Any:
    """A method of `Eager` after which it is not steady."""
    method = getattr(Eager, name)

    def apply(self: Watched, *given: Any) -> Any:
        self.unsteady()
        return method(self, *given)

    return apply


for _name in ("read", "parts", "total", "seen", "write", "put", "twin", "materialise"):
    setattr(Watched, _name, _unknown(_name))




def watch(
    trace: Eager, operands: tuple[Any, ...], function: Callable[[], Any], rule: bool = False, known: bool = False
) -> tuple[Watched | None, Any]:
    """What was watched of a function of these operands, which the caller has to `forget`, or None if something else than steps is to it, an error
    included; and what the function gave. `trace`: what computes in this thread; `rule`: the function gives gradients;
    `known`: it was watched before."""
    watched = local.state.trace = Watched(trace, operands, rule, known)
    steady, found = False, None
    try:
        found = function()
        steady = watched.steady and local.state.trace is watched and source.warned == watched.warned
    except Unread:
        raise
    except (Exception, NotAtOnce):  # the caller has it run with the operands themselves, which then says so, unless it is about their shadows
        pass
    finally:
        if local.state.trace is watched:
            local.state.trace, trace.last = trace, watched.last  # a check may look at what the function gave
        if steady:
            watched.show()
        else:
            watched.forget()
    return watched if steady else None, found


def shadow_storage(storage: Storage) -> Storage:
    """Another storage with the same memory, so that each operand has one of its own: what came twice need not come twice the next time."""
    found: Storage = object.__new__(Storage)
    found.trace, found.slot, found.layout, found.buffer = storage.trace, storage.slot, storage.layout, storage.buffer
    found.home, found.version, found.writer = storage.home, storage.version, storage.writer
    return found
