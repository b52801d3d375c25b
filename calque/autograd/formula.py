"""Gradients of operations that are computed at once: Python functions of arrays, made of what their rules record.

As for recorded operations (`template.py`), the second node of a kind has its rule watched: it records into a trace of its own, which never runs, and
what it recorded is read as a `Tape`. Instead of being appended to a trace, the tape is written as a function that computes its steps one
after the other with NumPy's routines. The guards of that function, and what is given back, are those of `straight.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np

from calque.autograd import template
from calque.autograd.routines import kernel, routine, same
from calque.autograd.straight import AGAIN, GIVEN, MADE, MOST, NOTHING, SAME, WITHIN, Operands, Straight, Writer
from calque.backend.ref.interpret import number_as_array
from calque.base.cache import Cache
from calque.base.device import CPU
from calque.base.dtypes import DType
from calque.base.layout import Layout
from calque.base.native import hot
from calque.ops.opdef import OpDef
from calque.record.live import LiveFloat, live
from calque.record.nodes import GradNode
from calque.record.path import ALWAYS, Counters, Edge, unknown
from calque.record.recorder import Storage, Trace, local, result_of
from calque.record.tape import BINARY, ENTER, GENERAL, NUMBER, OWN, UNARY, Beginning, Passed, Tape, Unread
from calque.run.buffer import strided
from calque.tensor import Tensor, wrap

_BY_NUMBER: Any = object()  # in the place of a function: there is one for each number
_variants = Cache("gradients computed at once", 6000, 1 / 64)  # (operation, attributes, operands, result) -> variants, as in `template.py`
Rule = Callable[[Any, Any], Sequence[Any]]


class AtOnce(Protocol):
    """What computes at once (`eager.py` `Eager`), as formulas know it."""

    eager: bool
    quietly: Callable[..., Any]

    def array(self, t: Tensor) -> np.ndarray[Any, Any]:
        """The values of a tensor, where they lie."""

    def whole(self, storage: Storage) -> np.ndarray[Any, Any]:
        """The values of a storage."""

    def made(self, value: Any, view: Layout, fresh: bool) -> Tensor:
        """A tensor of what a routine gave."""


class Formulas(dict[Any, Any]):
    """The functions of one operation with operands of certain layouts, by what else they depend on; a number counts how often a rule was watched."""


class LastOnes:
    """The functions that fitted nodes of one edge last: a line of a loop, or of the library, multiplies by one number and then by another."""

    MOST = 4
    functions: tuple[Straight, ...]
    __slots__ = ("functions",)

    def __init__(self, function: Straight, before: Any) -> None:
        earlier = before.functions if before.__class__ is LastOnes else (before,)
        self.functions = (function, *[f for f in earlier if f is not function][: self.MOST - 1])

    def __call__(self, *given: Any) -> Any:
        for function in self.functions:
            found = function(*given)
            if found is not None:
                return found
        return None


def gradients(trace: AtOnce, node: GradNode, grad: Tensor, rule: Rule) -> Sequence[Any] | None:
    """What a primitive's node, whose edge has no function that is for it, gives; None if its rule has to be run, or the pass is refused."""
    function = None if node.freed else _function(node, grad, rule)[0]
    if function is None:
        return None
    node.edge.formula = function if node.edge.formula is unknown else LastOnes(function, node.edge.formula)
    return trace.quietly(function, trace, node, grad)  # type: ignore[no-any-return]


def verified(trace: AtOnce, node: GradNode, grad: Tensor, rule: Rule) -> Sequence[Any] | None:
    """Instead of `gradients` (`settings.verify`): run the rule, and compare it with what the function computes."""
    if node.freed:
        return None
    function, storages = _function(node, grad, rule)
    operands = [trace.whole(storage) for storage in storages]  # terms of a sum may cancel: rounding depends on them, not on the sum
    found = None if function is None else trace.quietly(function, trace, node, grad)
    result = rule(node, grad)
    for ours, theirs in zip(found or (), result, strict=False):
        if (ours is None) is not (theirs is None) or (ours is not None and ours._layout.shape != theirs._layout.shape):
            raise AssertionError(f"the gradient of {node.name()} computed at once is not what its rule gives")
        if ours is not None and local.state.trace is trace:
            same(f"the gradient of {node.name()}", trace.array(ours), trace.array(theirs), operands)
    return result


def _function(node: GradNode, grad: Tensor, rule: Rule) -> tuple[Straight | None, list[Storage]]:
    """The function for a node, if there is one, and the storages of its operands. It holds for any floats among these, if the rule does not decide by
    them."""
    if node.edge.layout.device is not CPU or len(node.next) > MOST:
        return None, []
    function: Any = _BY_NUMBER
    for numbers in (False, True):
        told = template.described(node, grad, numbers)
        if told is None:
            return None, []
        place, key, storages, handles = told
        variants = _variants.get(place)
        if variants is None:
            variants = _variants.keep(place, Formulas())
        function = variants.get(key)
        if function is not _BY_NUMBER:
            break
    if function is None or function.__class__ is int:
        function = _watched(variants, key, node if numbers else _passing(node), grad, storages, handles, rule)
    return function, storages


def _passing(node: GradNode) -> GradNode:
    """The node, with floats that no rule can do anything with but hand them on; itself if it has none."""
    saved = node.saved
    if saved is None or float not in map(type, saved.values()):
        return node
    watcher, other = Passed(), copy(node)
    other.saved = {k: live(LiveFloat, value, k, watcher) if value.__class__ is float else value for k, value in saved.items()}
    return other


def _watched(
    variants: Formulas, key: Any, node: GradNode, grad: Tensor, storages: list[Storage], handles: list[Any], rule: Rule
) -> Straight | None:
    """The function of the gradients of nodes like this one, if it is time for it and if it can be written."""
    times = variants.get(key, 0)
    if times == 0 or times >= template.TRIES:
        if len(variants) >= template.VARIANTS:
            by_number = [known for known, found in variants.items() if found is _BY_NUMBER]
            variants.clear()
            variants.update(dict.fromkeys(by_number, _BY_NUMBER))
        variants[key] = max(times, 1)
        return None
    try:
        function = variants[key] = _written(node, grad, storages, handles, rule)
    except Unread:
        saved = node.saved
        variants[key] = _BY_NUMBER if saved is not None and LiveFloat in map(type, saved.values()) else times + 1
        return None
    return function


def _written(node: GradNode, grad: Tensor, storages: list[Storage], handles: list[Any], rule: Rule) -> Straight:
    """Have the rule record into a trace that is then forgotten, and write what it recorded as a function. Raises `Unread` if that is not possible."""
    operands = Operands(node, grad, storages, handles)
    state, edges = local.state, Counters.edges
    before, scratch = state.trace, Trace(Edge(None, None, (), (), None, ""))
    scratch.recorded = ALWAYS
    state.trace = scratch
    try:
        mark = Beginning(scratch, storages, handles)
        return template.Template(mark, rule(node, grad)).written(node, operands, _formula)
    finally:
        written = [storage for storage in storages if storage.trace is scratch and storage.buffer is None]
        assert not written, "library code that only makes values wrote to one"
        state.trace = before
        Counters.edges = edges
        for storage in scratch.attached.values():
            if storage.trace is scratch:
                storage.trace = None
        scratch.inputs, scratch.attached, scratch.storages = [], {}, []  # buffers know it; it must not keep memory alive


def _formula(tape: Tape, made: tuple[tuple[int, Any], ...], results: tuple[tuple[Any, ...], ...], node: GradNode, operands: Operands) -> Straight:
    """The function of a template, as `straight.straight`."""
    writer = _Writer(tape)
    writer.lines.append("if not trace.eager: return None")
    writer.guards(node, operands)
    writer.compute({entry.storage: entry.handle for entry in operands.entries if entry.handle >= 0 and entry.shown is entry.whole})
    writer.give(made, results)
    return writer.function()


class _Writer(Writer):
    """Writes the lines of one that computes: register j is an array. `fresh`: registers whose memory is nobody else's."""

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape)
        self.fresh: set[int] = set()

    def compute(self, handles: dict[int, int]) -> None:
        """Take the steps. `handles`: those that show the whole value of a storage."""
        for kind, op, a, b, more in self.tape.steps:
            if kind == ENTER:
                self.lines.append(f"r{a} = array(trace, h{handles[a]})" if a in handles else f"r{a} = trace.whole(s{a})")
                continue
            if kind == BINARY:
                self._operation(op, [a, b], (), more)
            elif kind == UNARY:
                self._operation(op, [a], (), more)
            elif kind == NUMBER:
                self._operation(op, [a, more[0]], (), more[1], (1,))
            elif kind == GENERAL:
                values, layouts, _ = more
                given = [x if x.__class__ is int else values[k] for k, x in enumerate(a)]
                self._operation(op, given, b, layouts, [k for k, x in enumerate(a) if x.__class__ is not int])
            elif kind == OWN:
                self.lines.append(f"r{self.register} = array(trace, h{b})")
            elif b is None:
                self.lines.append(f"r{self.register} = {self._shown(a, *more)}")
            else:
                self.lines.append(f"r{self.register} = shown(r{a}, moved({self.constant(more)}, h{b}._layout.offset)[0])")
            self.register += 1

    def _operation(self, op: OpDef, operands: list[Any], attrs: tuple[Any, ...], layouts: tuple[Any, ...], numbers: Sequence[int] = ()) -> None:
        view = result_of(op, attrs, layouts, CPU)
        found = routine(op, attrs, layouts, view)
        names = [self._argument(x, layouts[k], found.numbers) if k in numbers else f"r{x}" for k, x in enumerate(operands)]
        native = kernel(op, attrs, layouts, view, view, found, False)
        self.lines.append(f"r{self.register} = {self.constant(native or found.function)}({', '.join(names)})")
        if found.fresh or native is not None:
            self.fresh.add(self.register)

    def _argument(self, value: Any, dtype: DType, plain: bool) -> str:
        """A number as a routine takes it: `plain`, or as an array."""
        if value.__class__ is LiveFloat:
            return f"n{value.index}" if plain else f"as_array(n{value.index}, {self.constant(dtype)})"
        return self.constant(value if plain else number_as_array(value, dtype))

    def _shown(self, base: int, view: Layout, whole: Layout) -> str:
        """A view of a register that holds a whole value."""
        if view.dense and view.numel == whole.numel:
            return f"r{base}.reshape({self.constant(tuple(view.shape))})"
        order = permutation(view, whole)
        return f"r{base}.transpose({self.constant(order)})" if order is not None else f"shown(r{base}, {self.constant(view)})"

    def give(self, made: tuple[tuple[int, Any], ...], results: tuple[tuple[Any, ...], ...]) -> None:
        """Make what is given back."""
        for k, (register, view) in enumerate(made):
            self.lines.append(f"m{k} = made(trace, r{register}, {self.constant(view)}, {register in self.fresh})")
        names: list[str] = []
        taken: set[int] = set()
        for k, (how, which, view, _) in enumerate(results):
            if how == MADE and which not in taken:
                taken.add(which)
                names.append(f"m{which}")
                continue
            names.append("None" if how == NOTHING else f"h{which}" if how == SAME else names[which] if how == AGAIN else f"t{k}")
            if how >= MADE:
                storage = f"s{which}" if how >= GIVEN else f"m{which}._storage"
                layout = f"moved({self.constant(view)}, h{view[1]}._layout.offset)[0]" if how == WITHIN else self.constant(view)
                self.lines.append(f"t{k} = wrap({storage}, {layout})")
        self.lines.append(f"return [{', '.join(names)}]")


def permutation(view: Layout, whole: Layout) -> tuple[int, ...] | None:
    """The order of a whole value's dims in which a view shows them, if it does nothing else."""
    if view.offset or view.ndim != whole.ndim or view.numel != whole.numel or view.dtype is not whole.dtype:
        return None
    there = {(extent, stride): d for d, (extent, stride) in enumerate(zip(whole.shape, whole.strides, strict=True))}
    order = [there.get(pair, -1) for pair in zip(view.shape, view.strides, strict=True)]
    return tuple(order) if sorted(order) == list(range(whole.ndim)) else None


def shown(values: np.ndarray[Any, Any], view: Layout) -> np.ndarray[Any, Any]:
    """A view of a whole value, told from the beginning of its memory."""
    return strided(np.ascontiguousarray(values).reshape(-1), view)


def _array(trace: AtOnce, t: Tensor) -> np.ndarray[Any, Any]:
    return trace.array(t)


def _made(trace: AtOnce, value: Any, view: Layout, fresh: bool) -> Tensor:
    return trace.made(value, view, fresh)


_Writer.names = {
    **Writer.names, "shown": shown, "wrap": wrap, "as_array": number_as_array,
    "array": _array if hot is None else hot.array, "made": _made if hot is None else hot.made,
}  # fmt: skip
