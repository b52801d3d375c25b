"""Gradients of recorded operations without running their rules.

What the rule of an operation records follows from the operation, its attributes, the layouts of its operands and of what is given to it, and which
operands need a gradient. So the third node of a kind has its rule watched, and what was recorded is kept relative to the operands
(`record/tape.py`); for later nodes, wherever they are, the same operations are appended, where the place is known by a function that is written
for it (`straight.py`). A rule that does anything else (that reads a value, makes a
tensor of Python data, is cut by a flush) is run as ever. Views, whose nodes say what maps their gradient, are nodes of the same sort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque.autograd.straight import AGAIN, GIVEN, MADE, NOTHING, SAME, SHOWN, WITHIN, Operands, Straight, shape_of, straight
from calque.base.cache import Cache
from calque.base.config import settings
from calque.base.dtypes import get_default_dtype
from calque.base.layout import Layout
from calque.record.live import LIVE
from calque.record.nodes import FunctionNode, GradNode
from calque.record.path import unknown
from calque.record.recorder import BACKWARD, Storage, Trace, local
from calque.record.state import State
from calque.record.storage import pending
from calque.record.tape import Beginning, Tape, Unread, moved
from calque.tensor import TENSOR_TYPES, Tensor

Rule = Callable[[Any, Any], Sequence[Any]]
BEFORE = 2  # times that a rule runs before it is watched: of sizes that never come again, each layer of a model may bring one node
TRIES = 4  # times that a rule is watched before it is left alone
VARIANTS = 16  # of one operation with operands of these layouts: what gradients look like, and Python numbers
_new: Any = object.__new__
_variants = Cache("gradients of operations", 6000, 1 / 128)  # (operation, attributes, operands, result) -> what `GradNode`s give
_views = Cache("gradients of views", 1500, 1 / 512)  # what maps a gradient -> the same for views


class Variants(dict[Any, Any]):
    """The templates of one operation with operands of certain layouts, by what else they depend on; a number counts how often a rule was watched.
    `last`: the function of the one that was used last, for views; operations have it on their edges."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        super().__init__()
        self.last: Straight = unknown


class Template:
    """`created`: (register, layout) of the values that somebody gets, in the order of their slots; `results`: (what it is, which, layout, register
    that the handle remembers) of each gradient. `straight`: the template as a function, from the first time on that it is used at a known place."""

    __slots__ = ("tape", "created", "results", "straight")

    def __init__(self, mark: Beginning, gradients: Sequence[Any]) -> None:
        path = mark.path()
        self.tape = Tape.read(mark)
        self.created: tuple[tuple[int, Any], ...] = ()
        registers = self.tape.registers
        slots = sorted({g._storage.slot for g in gradients if g is not None and g._storage.trace is mark.trace and g._storage.slot >= mark.n})
        slots = [slot for slot in slots if registers[slot] >= len(mark.storages)]
        self.created = tuple([(registers[slot], path[slot - mark.n].layout) for slot in slots])
        self.results = tuple([self._result(g, gradients[:k], mark, slots) for k, g in enumerate(gradients)])
        self.straight: Straight | None = None

    def written(self, node: GradNode, operands: Operands) -> Straight:
        """Write the function, for operands of which the template holds."""
        self.straight = straight(self.tape, self.created, self.results, node, operands)
        return self.straight

    def _result(self, g: Tensor | None, before: Sequence[Any], mark: Beginning, slots: list[int]) -> tuple[Any, ...]:
        if g is None:
            return NOTHING, None, None, None
        for how, known in ((SAME, mark.handles), (AGAIN, before)):
            for k, other in enumerate(known):
                if other is g:
                    return how, k, None, None
        storage, cache = g._storage, g._cache
        if g.__class__ is not Tensor or g.__dict__ or g._requires_grad or g._hooks:
            raise Unread
        seen = None
        if cache is not None:
            if cache[0] is not mark.trace or cache[1] != storage.slot:
                raise Unread
            seen = self.tape.registers[cache[2]]
        if any(operand is storage for operand in mark.storages):
            return (*self._of_operand(g, mark), seen)
        if storage.trace is not mark.trace or storage.slot not in slots:
            raise Unread
        k = slots.index(storage.slot)
        return (MADE if g._layout is storage.layout else SHOWN), k, g._layout, seen

    @staticmethod
    def _of_operand(g: Tensor, mark: Beginning) -> tuple[Any, ...]:
        """A result that shows the memory of an operand."""
        k = next(k for k, operand in enumerate(mark.storages) if operand is g._storage)
        handle, view = mark.shown(k), g._layout
        if handle is None:
            return GIVEN, k, view
        beginning = mark.handles[handle]._layout
        if beginning.dtype is not view.dtype:
            raise Unread  # it counts other elements
        return WITHIN, k, moved((view, handle), -beginning.offset)

    def append(self, node: GradNode, storages: list[Storage], handles: list[Any]) -> list[Any] | None:
        """Record what the rule would record; None if it has to be run."""
        state = local.state
        trace = state.trace
        slots: Any = ()
        tape = self.tape
        if tape.steps:
            line = node.line
            line = state.started if not line else line if line.endswith(BACKWARD) else line + BACKWARD
            slots = tape.append(trace, storages, handles, line)
            if slots is None:
                return None
        made = [pending(trace, slots[register], view) for register, view in self.created]
        trace.storages += made
        results: list[Any] = []
        for how, k, view, seen in self.results:
            if how == NOTHING:
                results.append(None)
            elif how == SAME:
                results.append(handles[k])
            elif how == AGAIN:
                results.append(results[k])
            else:
                t = _new(Tensor)
                t._storage = storage = storages[k] if how >= GIVEN else made[k]
                if how == WITHIN:
                    view = moved(view, handles[view[1]]._layout.offset)[0]
                t._layout, t._requires_grad = view, False
                t._grad_fn = t._grad = t._base = t._views = t._hooks = None
                t._cache = None if seen is None else (trace, storage.slot, slots[seen])
                results.append(t)
        return results

    def facts(self) -> tuple[Any, ...]:
        """All that it says."""
        return self.tape.steps, self.created, self.results


def _given(key: list[Any], handle: Tensor | None, view: Layout, storage: Storage, handles: list[Any], storages: list[Storage]) -> None:
    """Add an operand, and to the key what tells it from others."""
    whole = storage.layout
    if view is whole:
        key.append(view)
    else:
        key += (None, shape_of(view), whole)
    if storage in storages:  # the same value again
        same = handle is not None and any(other is handle for other in handles)
        key += (True, storages.index(storage), same, view, *[other._layout for other in handles if other is not None])
        if not same:
            handles.append(handle)
    else:
        storages.append(storage)
        handles.append(handle)


def possible(state: State) -> bool:
    """Whether gradients may be appended in the modes of a thread."""
    return settings.macros and not state.grad and state.device is None and state.trace.__class__ is Trace


def may_append(state: State) -> bool:
    """Whether what edges know of their gradients may be used."""
    if state.trace.eager:
        return settings.macros and not state.grad
    return possible(state) and not settings.verify


def described(node: GradNode, grad: Tensor, numbers: bool = True) -> tuple[Any, Any, list[Storage], list[Any]] | None:
    """(what is the same for all nodes of an edge, what else the rule of a primitive depends on, its operands as storages and as handles); None if
    that cannot be said. `numbers`: floats among the operands are part of it."""
    edge = node.edge
    place = (edge.op, edge.attrs, edge.input_layouts, edge.layout)
    targets = node.next
    needed: Any = len(targets)
    if needed == 2:
        needed = (targets[0] is not None) + 2 * (targets[1] is not None)
    elif needed != 1:
        needed = tuple([target is None for target in targets])
    storage = grad._storage
    key: list[Any] = [needed, get_default_dtype(), grad._layout]
    storages, handles = [storage], [grad]
    if grad._layout is not storage.layout:
        key[2:] = None, shape_of(grad._layout), storage.layout
    saved = node.saved
    if saved is not None:
        for value, version in zip(saved.values(), node.versions, strict=True):
            kind = value.__class__
            if kind in TENSOR_TYPES:
                storage, shown = value._storage, value._layout
            elif kind is Storage:
                storage, shown, value = value, edge.layout, None
            elif kind in LIVE:
                return None
            else:
                key += (kind, value or str(value)) if numbers or kind is not float else (kind,)  # the zeros differ
                continue
            if storage.version != version:
                return None
            if shown is storage.layout and storage not in storages:
                key.append(shown)
                storages.append(storage)
                handles.append(value)
            else:
                _given(key, value, shown, storage, handles, storages)
    return place, tuple(key), storages, handles


def primitive(node: GradNode, grad: Tensor, rule: Rule) -> Sequence[Any]:
    """Gradients of the operands of a primitive whose edge does not know them yet. `rule`: runs its rules."""
    found = described(node, grad)
    if found is None:
        return rule(node, grad)
    place, key, storages, handles = found
    variants = _variants.get(place)
    if variants is None:
        variants = _variants.keep(place, Variants())
    return _gradients(variants, key, node, grad, rule, storages, handles)


def view(node: FunctionNode, grad: Tensor, rule: Rule) -> Sequence[Any]:
    """The gradient of what a view was taken of. `rule`: runs the node's."""
    backward = node.backward.__closure__[0].cell_contents  # type: ignore[index]
    variants = _views.get(backward)
    if variants is None:
        variants = _views.keep(backward, Variants())
    result = None if settings.verify else variants.last(local.state.trace, node, grad)
    if result is not None:
        return result
    storage, shown = grad._storage, grad._layout
    whole = storage.layout
    if shown is not whole:
        shown = shape_of(shown)
    return _gradients(variants, (shown, whole, get_default_dtype()), node, grad, rule, [storage], [grad])


def _gradients(variants: Variants, key: Any, node: GradNode, grad: Tensor, rule: Rule, storages: list[Storage], handles: list[Any]) -> Sequence[Any]:
    found = variants.get(key)
    if found.__class__ is Template:
        if settings.verify:
            return _verified(found, node, grad, rule, storages, handles)
        trace, appended = local.state.trace, None
        if trace.cur.next or not found.tape.steps:  # else the place is new: nothing is there that could be followed
            function = found.straight or found.written(node, Operands(node, grad, storages, handles))
            if node.edge is None:
                last, variants.last = variants.last, function
            else:
                last, node.edge.gradients = node.edge.gradients, function
            if last is not function:
                appended = function(trace, node, grad)
        if appended is None:
            appended = found.append(node, storages, handles)
        return rule(node, grad) if appended is None else appended
    if found is None and len(variants) >= VARIANTS:
        variants.clear()
    found = found or 0
    if found < BEFORE:
        variants[key] = found + 1
    elif found < BEFORE + TRIES:
        mark = Beginning(local.state.trace, storages, handles)
        result = rule(node, grad)
        try:
            variants[key] = Template(mark, result)
        except Unread:
            variants[key] = found + 1
        return result
    return rule(node, grad)


def _verified(template: Template, node: GradNode, grad: Tensor, rule: Rule, storages: list[Storage], handles: list[Any]) -> Sequence[Any]:
    """Instead of appending (`settings.verify`): run the rule, which must record what the template says. If it does not, it depends on something that
    the key of templates leaves out, and appended gradients were wrong."""
    mark = Beginning(local.state.trace, storages, handles)
    expected = template.tape.expected(mark.trace, storages, handles, node.line + BACKWARD)
    result = rule(node, grad)
    if expected is None:
        return result
    try:
        same = Template(mark, result).facts() == template.facts() and mark.trace.cur is expected.cur
        same = same and mark.trace.scalars[mark.counts[1] :] == expected.numbers
    except Unread:
        same = False
    if not same:
        raise AssertionError(
            f"the gradient of {node.name()} recorded something else than for operands like these before: it must depend on the operation, its "
            "attributes and the layouts of its operands alone"
        )
    return result
