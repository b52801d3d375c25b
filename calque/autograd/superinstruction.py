"""Library functions and gradients that are computed at once, as one superinstruction of the compiled module each.

Where small operations are computed where they are written (`eager.py`), what is left of a function like a softmax are the frames of Python between
its operations, and handles that nobody sees. So a function that lasts and comes again with operands of the same layouts, and otherwise the same
arguments, is watched: which steps it takes follows from these alone. From then on `native/superinstruction.c` runs the steps one after the other, and
makes handles of the results only. Values are the same, bit for bit.

Source of the idea: Ertl and Gregg, "The Structure and Performance of Efficient Interpreters" (2003), section 6.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from calque.autograd.eager import Eager, Step, step_of
from calque.backend.ref.interpret import number_as_array
from calque.base import dtypes
from calque.base.cache import Cache
from calque.base.device import Device
from calque.base.dtypes import DType
from calque.base.layout import Layout
from calque.base.native import hot
from calque.base.shapes import Size
from calque.observe import source
from calque.ops.opdef import OpDef
from calque.record.live import LiveFloat, plain
from calque.record.recorder import Storage, local
from calque.tensor import Tensor, sub_layout, wrap

Function = TypeVar("Function", bound=Callable[..., Any])
Source = tuple[int, int, Layout] | Any
"""Where an operand of a step comes from: (number of an operand or, behind those, of a step; offset there; how it is seen), or a number."""
KEPT = 1 << 12  # bytes of a value that is always the same and is kept, not computed again
_BOUNDED = (dtypes.int64, dtypes.int32, dtypes.uint8, dtypes.float32, dtypes.float64)
OTHERS = 16  # numbers with a point that a function comes with, from which on those that are new are taken for new at each call
WHOLE, MEMBER = 900, 200  # bytes of a superinstruction and of a step in one, roughly
_known = Cache("library functions computed at once", 600, 1 / 32)
"""(function, default dtype, whether gradients are on, layouts of tensors, other arguments)
-> its superinstruction; True: it was seen once; False: it has none. With `float` in the place of numbers with a point: with how many it was seen;
False: they are others each time."""

instructed: Any = None if hot is None else hot.instructed
if hot is not None:
    hot.set_instructed({Size}, {int, str, DType, Device}, vars(dtypes), lambda view, offset: sub_layout(view, tuple(view.shape), view.strides, offset))


class _Member:
    """A step that was watched. `how`: the kernel, the routine, a flat array with the value that it always has, or the bounds within which the
    elements of its operand are. `check`: it is the code of a check. `floating`: its buffer is, see there."""

    __slots__ = ("how", "sources", "memory", "check", "floating")

    def __init__(self, how: Any, sources: tuple[Source, ...], memory: Layout) -> None:
        self.how, self.sources, self.memory, self.check, self.floating = how, sources, memory, False, False


class _Watched(Eager):
    """Computes a function as `Eager` does, and notes its steps. `steady`: whether they are all there is to it. Until it is not, no storage shows its
    value to anybody but the steps, as if all were only recorded: whoever reads one, or decides by one, has to ask for it here. `gradient`: it gives
    gradients, which may show the memory of its operands."""

    def __init__(self, eager: Eager, operands: tuple[Any, ...], gradient: bool = False) -> None:
        super().__init__()
        self.loose, self.gradient = eager.loose, gradient
        self.members: list[_Member] = []
        self.operands = operands
        self.handles = [x for x in operands if isinstance(x, Tensor)]  # keep the storages, whose numbers nobody else gets
        # By id of a storage: the number of the operand or, behind those, of the step whose result lies there, and where that begins.
        self.place = {id(x._storage): (k, x._layout.offset) for k, x in enumerate(operands) if isinstance(x, Tensor)}
        self.numbers = {id(x): k for k, x in enumerate(operands) if x.__class__ is tuple}
        self.steady, self.warned, self.inside = True, source.warned, False
        self.values: dict[int, Any] = {}  # id of a storage -> its buffer, while it is hidden
        for t in self.handles:
            self._hide(t._storage)

    def _hide(self, storage: Storage) -> None:
        if self.steady and storage.buffer is not None:
            self.values[id(storage)], storage.buffer = storage.buffer, None

    def show(self) -> None:
        """Let all values be seen again."""
        for t in self.handles:
            t._storage.buffer = t._storage.buffer or self.values.get(id(t._storage))
        self.values.clear()

    def unsteady(self) -> None:
        """Something else than steps has happened, or will."""
        self.steady = False
        self.show()

    def array(self, t: Tensor) -> np.ndarray[Any, Any]:
        """As `Eager.array`."""
        if not self.inside:
            self.unsteady()
        return super().array(t)

    def made(self, value: Any, view: Layout, fresh: bool) -> Tensor:
        """As `Eager.made`."""
        if not self.inside:
            self.unsteady()
        return super().made(value, view, fresh)

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
        numbers = tuple([(plain(x[0]), x[1]) if x.__class__ is tuple else x for x in operands])
        t: Tensor = self._computed(Eager.record, op, numbers, attrs, row_major)
        if self.steady:
            shown = tuple([x[1] if x.__class__ is tuple else x._layout.origin or x._layout for x in operands])
            step = step_of(op, shown, attrs, row_major)
            sources = tuple([self._number(x, step) if x.__class__ is tuple else self._source(x) for x in operands])
            if None in sources or (step.large and not self.gradient) or (step.kernel is None and not _plain(step)):
                self.unsteady()
            self._made(t, _Member(step.kernel or step.function, sources, step.memory), op.kind != "random")
        return t

    def uploaded(self, values: Any, view: Layout) -> Tensor:
        """As `Eager.uploaded`: what is no operand follows from the arguments."""
        t: Tensor = self._computed(Eager.uploaded, values, view)
        if self.steady:
            self._made(t, _Member(None, (), view), True)
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
        self.members.append(_Member((low, high), (place,), view))
        self.members[-1].check = True
        self.handles.append(t)
        return True

    def _made(self, t: Tensor, member: _Member, same: bool) -> None:
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

    def superinstruction(self, found: Any, guards: tuple[Any, ...] | None = None) -> Any:
        """Of the steps that make what the function gave, or are codes of checks, and its bytes; False if something else is to it. `guards`: what its
        operands must be if it gives gradients, see `native/superinstruction.c`."""
        values = found if isinstance(found, (tuple, list)) else (found,)
        make = None if values is not found else getattr(values, "_make", values.__class__)
        ends = [self._end(t) for t in values]
        if not self.steady or source.warned != self.warned or None in ends:
            return False
        return self._of_steps(ends, make, guards)

    def _end(self, t: object) -> tuple[int, int, Any] | None:
        """Where a result comes from: from a step, or it is an operand, or None; or, of gradients, the memory of an operand."""
        if t is None:
            return -1, 0, None
        own = next((k for k, x in enumerate(self.operands) if x is t), -1)
        if own >= 0:
            return own, 0, None
        place = self._source(t) if isinstance(t, Tensor) and t.__class__ is Tensor and _as_made(t) else None
        return None if place is None or (place[0] < len(self.operands) and not self.gradient) else place

    def _of_steps(self, ends: list[Any], make: Any, guards: tuple[Any, ...] | None) -> Any:
        first = len(self.operands)
        needed = {end[0] for end in ends} | {first + k for k, member in enumerate(self.members) if member.check}
        for k in reversed(range(len(self.members))):
            if first + k in needed:
                needed.update(x[0] for x in self.members[k].sources if x.__class__ is tuple)
        numbers = {place: place for place in range(first)}
        members = []
        for k, member in enumerate(self.members):
            if first + k in needed:
                sources = tuple([(numbers[x[0]], x[1], x[2]) if x.__class__ is tuple else x for x in member.sources])
                members.append((member.how, sources, member.memory, member.check, member.floating))
                numbers[first + k] = len(numbers)
        try:
            made = hot.Superinstruction(first, tuple(members), tuple([(numbers.get(end[0], -1), *end[1:]) for end in ends]), make, guards)
        except (ValueError, TypeError):  # there are too many steps, or a number is none that its kernel takes
            return False
        return made, WHOLE + MEMBER * len(members) + sum(member[0].nbytes for member in members if member[0].__class__ is np.ndarray)

    def forget(self) -> None:
        """Let all tensors go: they remember who computed them."""
        self.show()
        self.operands, self.handles, self.members = (), [], []


def _as_made(t: Tensor) -> bool:
    """Whether a tensor has nothing but a place in memory."""
    return not t._requires_grad and t._grad_fn is None and not t._hooks


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

    def apply(self: _Watched, *given: Any) -> Any:
        self.unsteady()
        return method(self, *given)

    return apply


for _name in ("read", "parts", "total", "seen", "write", "put", "twin", "materialise"):
    setattr(_Watched, _name, _unknown(_name))


def computed(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """`function(*args, **keywords)`. The function lasts; it changes nothing, and what it does follows from the layouts of the tensors and the values
    of all else among its arguments. A number as (number, dtype) is an operand like a tensor, of which the function may use the pair alone."""
    if instructed is None:
        return function(*args, **keywords)
    found = instructed(_known, function, args, keywords)
    if found is None:
        return function(*args, **keywords)
    return _seldom(function, args, keywords) if found is False else found


def superinstruction(function: Function) -> Function:
    """A library function that is `computed` wherever it is called."""
    if instructed is None:
        return function

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        found = instructed(_known, function, args, keywords)
        if found is None:
            return function(*args, **keywords)
        return _seldom(function, args, keywords) if found is False else found

    return call  # type: ignore[return-value]


_CODE = superinstruction(print).__code__ if instructed is not None else None  # type: ignore[attr-defined]


def is_superinstruction(function: Any) -> bool:
    """Whether `superinstruction` has made a function, of which only `__wrapped__` has defaults."""
    return _CODE is not None and getattr(function, "__code__", None) is _CODE


def _seldom(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The same step by step; watched when the call comes again."""
    trace, told = local.state.trace, hot.told(function, args, keywords)
    if told is None or trace.__class__ is not Eager or any(isinstance(x, Tensor) and x._storage.buffer is None for x in told[1]):
        return function(*args, **keywords)
    key, _, of_any = told
    lately = key in _known  # else it was as long ago as what is forgotten next, and what comes so seldom is watched in vain
    known = _known.get(key)
    if known is None:
        met = 0 if of_any is None else _known.get(of_any) or 0
        _known.keep(key, True)
        if of_any is not None:
            _known.keep(of_any, met < OTHERS and met + 1)
        return function(*args, **keywords)
    if known is not True:  # from where native code does not look
        found = instructed(_known, function, args, keywords)
        return function(*args, **keywords) if found is None or found is False else found
    if not lately:
        return function(*args, **keywords)
    shadows: list[Any] = []
    mine = _shadowed(args, shadows)
    named = {name: _shadowed(x, shadows) for name, x in keywords.items()}
    made, found = watch(trace, tuple(shadows), lambda: function(*mine, **named))
    if not made:
        _known.keep(key, False)
        return function(*args, **keywords)
    _known.keep(key, *made)
    return found


def watch(trace: Eager, operands: tuple[Any, ...], function: Callable[[], Any], guards: tuple[Any, ...] | None = None) -> tuple[Any, Any]:
    """What `_Watched.superinstruction` says of a function of these operands, and what the function gives. `trace`: what computes in this thread."""
    watched = local.state.trace = _Watched(trace, operands, guards is not None)
    made: Any = False
    try:
        found = function()
        made = watched.superinstruction(found, guards) if local.state.trace is watched else False
    finally:
        watched.forget()
        if local.state.trace is watched:
            local.state.trace, trace.last = trace, watched.last  # a check may look at what the function gave
    return made, found


def shadow(storage: Storage) -> Storage:
    """Another storage with the same memory."""
    found = object.__new__(Storage)
    found.trace, found.slot, found.layout, found.buffer = storage.trace, storage.slot, storage.layout, storage.buffer
    found.home, found.version, found.writer = storage.home, storage.version, storage.writer
    return found


def _shadowed(x: Any, shadows: list[Any]) -> Any:
    """An argument with other handles of the same memory in place of tensors, so that each operand has a storage of its own: what came twice need not
    come twice the next time. `shadows`: the operands, as `told` has them."""
    if isinstance(x, Tensor):
        shadows.append(wrap(shadow(x._storage), x._layout))
        return shadows[-1]
    if x.__class__ is tuple and len(x) == 2 and isinstance(x[1], DType):
        shadows.append(x)
    elif x.__class__ in (tuple, list, Size):
        return x.__class__([_shadowed(y, shadows) for y in x])
    return x
