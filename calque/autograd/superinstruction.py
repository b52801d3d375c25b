"""Library functions that are computed at once, as one superinstruction of the compiled module.

Where small operations are computed where they are written (`eager.py`), what is left of a function like a softmax are the frames of Python between
its operations, and handles that nobody sees. So a function that lasts and comes again with operands of the same layouts is watched: which steps it
takes follows from these layouts alone. From then on `native/superinstruction.c` runs the steps' kernels one after the other, and makes handles of the
results only. Values are the same, bit for bit.

Source of the idea: Ertl and Gregg, "The Structure and Performance of Efficient Interpreters" (2003), section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.autograd.eager import Eager, step_of
from calque.base.cache import Cache
from calque.base.layout import Layout
from calque.base.native import hot
from calque.ops.opdef import OpDef
from calque.record.recorder import local
from calque.tensor import Tensor

Function = Callable[..., Any]  # of tensors, numbers as (number, dtype), or None, for a tuple of tensors, or one
_known = Cache("library functions computed at once", 2500, 1 / 256)
"""(function, layouts of operands) -> its superinstruction; True: it was seen once; False: it has none."""


def _layout_of(x: Any) -> Any:
    """What the steps depend on of an operand: its layout, or the dtype of a number."""
    return None if x is None else x[1] if x.__class__ is tuple else x._layout.origin or x._layout


class _Watched(Eager):
    """Computes a function as `Eager` does, and notes its steps. `steady`: whether they are all there is to it."""

    def __init__(self, eager: Eager, operands: tuple[Any, ...]) -> None:
        super().__init__()
        self.loose = eager.loose
        self.members: list[tuple[Any, tuple[Any, ...]]] = []
        self.operands = operands
        self.handles: list[Tensor] = []
        tensors = {k: x for k, x in enumerate(operands) if isinstance(x, Tensor)}
        floating = all(x._layout.dtype.category == 2 for x in tensors.values())  # what integers become depends on the default dtype as well
        # By id of a storage: the number of the operand or, behind those, of the result that lies there, and where that begins.
        self.place = {id(x._storage): (k, x._layout.offset) for k, x in tensors.items()}
        self.steady = floating and len(self.place) == len(tensors)
        self.numbers = {id(x): k for k, x in enumerate(operands) if x.__class__ is tuple}

    def record(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False) -> Tensor:
        """As `Eager.record`."""
        t = super().record(op, operands, attrs, row_major)
        shown = tuple([x[1] if x.__class__ is tuple else x._layout.origin or x._layout for x in operands])
        step = step_of(op, shown, attrs, row_major)
        sources = [self._number(x) if x.__class__ is tuple else self._source(x) for x in operands]
        always = op.kind == "random" and any(x.__class__ is not tuple for x in sources)  # the same numbers at each call
        if step.kernel is None or step.large or always or None in sources:
            self.steady = False
        self.members.append((step.kernel, tuple(sources)))
        self.place[id(t._storage)] = len(self.operands) + len(self.handles), 0
        self.handles.append(t)  # keeps the storage, whose number nobody else gets
        return t

    def _number(self, x: tuple[Any, Any]) -> Any:
        """The place of an operand that is a number, or the number that a step always has."""
        place = self.numbers.get(id(x))
        return x[0] if place is None else (place, 0)

    def _source(self, x: Tensor) -> tuple[int, int] | None:
        place, begins = self.place.get(id(x._storage), (-1, 0))
        return None if place < 0 else (place, x._layout.offset - begins)

    def results(self, values: tuple[Any, ...]) -> tuple[tuple[int, Layout], ...] | None:
        """Where the results come from; None if one of them is no result of a step."""
        found = []
        for t in values:
            source = self._source(t) if isinstance(t, Tensor) else None
            if source is None or source[0] < len(self.operands):
                return None
            found.append((source[0], t._layout))
        return tuple(found)

    def forget(self) -> None:
        """Let all tensors go: they remember who computed them."""
        self.operands, self.handles = (), []


def _unknown(name: str) -> Any:
    """A method of `Eager` after which it is not steady."""
    method = getattr(Eager, name)

    def apply(self: _Watched, *given: Any) -> Any:
        self.steady = False
        return method(self, *given)

    return apply


for _name in ("read", "uploaded", "parts", "total", "gradients", "seen", "write", "put", "twin", "check", "materialise"):
    setattr(_Watched, _name, _unknown(_name))


def _values(function: Function, operands: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
    found = function(*operands, *given)
    return found if found.__class__ is tuple else (found,)


def computes() -> bool:
    """Whether operations are computed at once and nothing asks for gradients: then functions without a formula of their own are steps alone, too."""
    state = local.state
    return not state.grad and bool(state.trace.eager)


def computed(function: Function, operands: tuple[Any, ...], given: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """The values of `function(*operands, *given)`, where operations are computed at once. The function lasts, and decides nothing by the values of
    its operands. `given`: whatever else it depends on, which has a hash."""
    if hot is None:
        return _values(function, operands, given)
    found: tuple[Any, ...] | None = hot.instructed(_known, (function, given) if given else function, operands)
    return _seldom(function, operands, given) if found is None else found


def _seldom(function: Function, operands: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same step by step; watched when the layouts come again."""
    trace = local.state.trace
    if trace.__class__ is not Eager:
        return _values(function, operands, given)
    key = (function, given) if given else function, *[_layout_of(x) for x in operands]
    known = _known.get(key)
    if known is not True:
        if known is None:
            _known.keep(key, True)
        return _values(function, operands, given)
    watched = local.state.trace = _Watched(trace, operands)
    try:
        values = _values(function, operands, given)
        results = watched.results(values) if watched.steady and local.state.trace is watched else None
    finally:
        watched.forget()
        if local.state.trace is watched:
            local.state.trace = trace
    _known.keep(key, False if results is None else _made(len(operands), tuple(watched.members), results))
    return values


def _made(operands: int, members: tuple[Any, ...], results: tuple[tuple[int, Layout], ...]) -> Any:
    """The superinstruction, or False: there are too many steps, or a number that its kernel does not take."""
    try:
        return hot.Superinstruction(operands, members, results)
    except (ValueError, TypeError):
        return False
