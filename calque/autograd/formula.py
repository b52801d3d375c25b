"""Gradients of operations that are computed at once: the steps that their rules take, as superinstructions of the compiled module.

What the rule of an operation does follows from the operation, its attributes, the layouts of what it is given and of what the node has saved, and
which operands need a gradient, as for recorded operations (`template.py`). So the second node of a kind has its rule watched (`watched.py`); of
later ones the steps are run. Edges know the superinstructions that fitted their nodes last, so that a backward pass looks nothing up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from calque.autograd.eager import Eager
from calque.autograd.routines import same
from calque.autograd.watched import shadow_storage, watch
from calque.base.cache import Cache
from calque.base.device import CPU
from calque.base.dtypes import get_default_dtype
from calque.base.layout import Layout
from calque.base.native import hot
from calque.record.live import LiveFloat, live
from calque.record.nodes import GradNode
from calque.record.recorder import Storage, local
from calque.record.tape import Passed, Unread
from calque.tensor import Tensor, wrap

LAST = 4  # superinstructions that an edge knows: a line of a loop, or of the library, multiplies by one number and then by another
_BY_NUMBER: Any = object()  # in the place of a superinstruction: there is one for each number
_known = Cache("gradients computed at once", 600, 1 / 64)
"""What a gradient depends on -> its superinstruction; True: it was met once; False: it has none."""
_PLAIN = (Layout, type)
Rule = Callable[[Any, Any], Sequence[Any]]


def gradients(trace: Eager, node: GradNode, grad: Tensor, rule: Rule) -> Sequence[Any] | None:
    """What a primitive's node gives, of which its edge knows no superinstruction; None if its rule has to be run."""
    found = _found(trace, node, grad, rule)
    if not found:
        return None
    edge = node.edge
    edge.formula = (found, *[other for other in edge.formula if other is not found][: LAST - 1])
    return hot.gradients((found,), trace, node, grad)  # type: ignore[no-any-return]


def verified(trace: Eager, node: GradNode, grad: Tensor, rule: Rule) -> Sequence[Any] | None:
    """Instead of `gradients` (`settings.verify`): run the rule, and compare it with what the superinstruction gives."""
    formula = _found(trace, node, grad, rule)
    found = hot.gradients((formula,), trace, node, grad) if formula else None
    if found is None:
        return None
    saved = [] if node.saved is None else list(node.saved.values())
    operands = [trace.whole(x if isinstance(x, Storage) else x._storage) for x in (grad, *saved) if isinstance(x, (Storage, Tensor))]
    result = rule(node, grad)
    for ours, theirs in zip(found, result, strict=True):
        if (ours is None) is not (theirs is None) or (ours is not None and ours._layout.shape != theirs._layout.shape):
            raise AssertionError(f"the gradient of {node.name()} computed at once is not what its rule gives")
        if ours is not None and local.state.trace is trace:
            same(f"the gradient of {node.name()}", trace.array(ours), trace.array(theirs), operands)
    return result


def _found(trace: Eager, node: GradNode, grad: Tensor, rule: Rule) -> Any:
    """The superinstruction for a node; None or False if there is none. It holds for any floats among what is saved, if the rule decides nothing by
    them."""
    if hot is None or node.freed or node.edge.layout.device is not CPU:
        return None
    for any_number in (True, False):
        edge, guards = node.edge, _guards(node, grad, any_number)
        if guards is None:
            return None
        told = [x if x.__class__ in _PLAIN else (x.__class__, str(x)) for x in guards]  # numbers may be equal that differ
        key = (edge.op, edge.attrs, edge.input_layouts, edge.layout, *told)
        known = _known.get(key)
        if known is not _BY_NUMBER:
            break
    if known is None:
        _known.keep(key, True)
    elif known is True and guards is not None:
        known, size = _watched(trace, node, grad, rule, guards)
        _known.keep(key, known, size)
    return None if known is True or known is _BY_NUMBER else known


def _guards(node: GradNode, grad: Tensor, any_number: bool) -> tuple[Any, ...] | None:
    """(default dtype, which targets there are, what the gradient and each saved value must be), as `native/superinstruction.c` compares them; None if
    something has been written since, of which the rule says so. Of layouts origins are asked for."""
    found: list[Any] = [get_default_dtype(), sum((t is not None) << k for k, t in enumerate(node.next)), grad._layout.origin or grad._layout]
    for value, version in zip(() if node.saved is None else node.saved.values(), node.versions, strict=True):
        if not isinstance(value, (Storage, Tensor)):
            found.append(float if any_number and value.__class__ is float else value)
            continue
        if (value if isinstance(value, Storage) else value._storage).version != version:
            return None
        found.append(value.layout if isinstance(value, Storage) else value._layout.origin or value._layout)
    return tuple(found)


def _watched(trace: Eager, node: GradNode, grad: Tensor, rule: Rule, guards: tuple[Any, ...]) -> tuple[Any, int]:
    """The superinstruction of nodes like this one and its bytes, or what else `_known` keeps of it."""
    watcher, other = Passed(), copy(node)
    first = wrap(shadow_storage(grad._storage), grad._layout)
    operands: list[Any] = [first]
    if node.saved is not None:
        other.saved = {}
        for k, (position, value) in enumerate(node.saved.items()):
            seen = value._layout if isinstance(value, Tensor) else node.edge.layout
            if isinstance(value, (Storage, Tensor)):
                twin = shadow_storage(value if isinstance(value, Storage) else value._storage)
                operands.append(wrap(twin, seen))
                other.saved[position] = twin if isinstance(value, Storage) else operands[-1]
            else:
                operands.append(value)
                other.saved[position] = live(LiveFloat, value, k + 1, watcher) if guards[k + 3] is float else value
    if any(x._storage.buffer is None for x in operands if isinstance(x, Tensor)):
        return True, 0  # its values are elsewhere
    try:
        watched, found = watch(trace, tuple(operands), lambda: tuple(rule(other, first)), True)
    except Unread:
        return _BY_NUMBER, 0
    if watched is None:
        return False, 0
    try:
        made = watched.superinstruction(found, lambda given: guards, every=True)
    finally:
        watched.forget()
    return made or (False, 0)
