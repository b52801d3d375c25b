"""The handles of a call's arguments while it is recorded, and which of its results are views of what.

The graph of a recording keeps handles, which must not be the caller's: what becomes of those is the caller's business. So the function works on other
handles on the same memory, except for leaves, which a gradient knows by identity. What it does to a handle, rather than to values, is done to the
caller's tensor when the call is over, also if it raised. A recording does not repeat that, so such calls run as written.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from calque.autograd.api import passing_on
from calque.autograd.assign import continue_history, refresh_views
from calque.hybrid.graph import Unsupported
from calque.record.nodes import StandIn
from calque.record.versions import Silent
from calque.tensor import GradNode, Tensor, wrap

NOT_NOTES = {"_name", "_departed", "_share", "_post_accumulate"}  # attributes of tensors that are the library's
LEAF, DATA = 2, 3  # in a signature: requires a gradient and has no history; what `.data` gave

_State = tuple[Any, ...]


class StandIns:
    """Handles in the places of `tensors`. `others`: by id of the argument; `own`: the argument by id of the handle; `nodes`: what passes their
    gradients on, by its id; `used`: what the function works on."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.others: dict[int, Tensor] = {}
        self.own: dict[int, Tensor] = {}
        self.nodes: dict[int, tuple[int, Any]] = {}
        for k, t in enumerate(tensors):
            if t._requires_grad and t._grad_fn is None:
                continue
            self.others[id(t)] = made = _stand_in(t)
            self.own[id(made)] = t
            if made._grad_fn is not None:
                self.nodes[id(made._grad_fn)] = (k, made._grad_fn)
        self.used = [self.others.get(id(t), t) for t in tensors]
        self._before = [state_of_handle(t) for t in self.used]

    def hand_back(self) -> str:
        """Do to the caller's tensors what the call did to their handles: the reason why a recording cannot repeat that, or ""."""
        reason = differences(self._before, self.used)
        for t, used, before in zip(self.tensors, self.used, self._before, strict=True):
            if used is not t:
                _hand_back(t, used, before)
        return reason

    def settle(self, result: Any, first: int) -> Any:
        """The result of a call whose graph is no template: it has saved the caller's handles, as that of the call as written. `first`: number of the
        call's first node."""
        stack, seen = [result], set()
        while stack:
            item = stack.pop()
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, (list, tuple)):
                stack += item
            elif isinstance(item, dict):
                stack += item.values()
            elif isinstance(item, Tensor):
                stack.append(item._grad_fn)
            elif isinstance(item, GradNode) and item.number >= first:
                stack += item.next
                for position, value in (item.saved or {}).items():
                    own = self.own.get(id(value))
                    if own is not None and own._storage is value._storage and own._layout is value._layout:
                        item.saved[position] = own
        return result

    def looked_at(self, gradients: set[int]) -> bool:
        """Whether the handles whose gradients somebody looked at are among these."""
        return any(id(t) in gradients for t in self.used)


def _stand_in(t: Tensor) -> Tensor:
    """Another handle on the memory of an argument; if that requires a gradient, a node passes it on."""
    made: Tensor = wrap(t._storage, t._layout, type(t))
    made.__dict__.update(t.__dict__)
    made._grad = t._grad
    if t._views.__class__ is Silent:  # what `.data` gave
        made._views = Silent()
    if t._base is not None:  # a write to a view changes the history of its base
        made._base = t._base
        t._base._views.append(weakref.ref(made))
    if t._requires_grad:
        made._grad_fn, made._requires_grad = passing_on(t), True
    return made


def noted(tensors: Sequence[Tensor]) -> bool:
    """Whether somebody has put an attribute on one of the tensors."""
    return any(t.__dict__ and not t.__dict__.keys() <= NOT_NOTES for t in tensors)


def state_of_handle(t: Tensor) -> _State:
    """What a call could change of a tensor besides values."""
    node = t._grad_fn
    seen = None if node is None else (node.hooks, node.retain)
    return t._layout, t._storage, t._storage.version, t._requires_grad, node, seen, t._grad, dict(t.__dict__)


def differences(before: list[_State], tensors: list[Tensor]) -> str:
    """What has been done to the tensors besides writing values that need no gradient; "" if nothing."""
    return next((found for state, t in zip(before, tensors, strict=True) if (found := _difference(state, state_of_handle(t)))), "")


def _difference(before: _State, after: _State) -> str:
    view, storage, version, needs, node, seen, grad, attributes = before
    if after[0] is not view or after[1] is not storage:
        return "changes the shape or the memory of an argument"
    if after[3] is not needs or after[4] is not node or after[5] != seen or after[6] is not grad or (needs and storage.version != version):
        return "changes the gradient or the history of an argument"
    found = after[7]
    if found.keys() != attributes.keys() or any(found[name] is not attributes[name] for name in found):
        return "sets an attribute of an argument"
    return ""


def _hand_back(t: Tensor, used: Tensor, before: _State) -> None:
    """Do to `t` what was done to its stand-in."""
    view, storage, version, _, node, _, grad, _ = before
    if used._layout is not view or used._storage is not storage:
        t._layout, t._storage, t._cache = used._layout, used._storage, None
    if used._grad is not grad:
        t._grad = used._grad
    t.__dict__.clear()
    t.__dict__.update(used.__dict__)
    if used._base is not None:
        used._base._views[:] = [held for held in used._base._views if held() is not used]
    _hand_back_history(t, used, node, storage.version != version)
    for held in used._views or ():  # what the call made of the stand-in is a view of the argument
        made = held()
        if made is not None:
            made._base = t
            t._views = Silent(t._views or ()) if t._views.__class__ is Silent else list(t._views or ())
            t._views.append(held)
    used._base = used._views = None


def _hand_back_history(t: Tensor, used: Tensor, node: GradNode, written: bool) -> None:
    found = used._grad_fn
    if found is not node and found.__class__ is not StandIn:  # those have told the argument
        if found is None:
            t._grad_fn, t._requires_grad = None, used._requires_grad
        else:
            continue_history(t, found)
            if written and t._base is None:
                refresh_views(t, None)
    for seen in (node, found):
        if seen is not None and seen.retain is not None and seen.retain() is used:
            seen.retain = None
            if t._grad_fn is not None:
                t._grad_fn.retain = weakref.ref(t)
    if node is not None and node.hooks and t._grad_fn is not None:
        t._grad_fn.hooks = {**t._grad_fn.hooks, **node.hooks} if t._grad_fn.hooks else node.hooks
        node.hooks = None


def views_among(outputs: list[Tensor], tensors: Sequence[Tensor], reached: Sequence[Tensor]) -> list[tuple[int, tuple[str, int]]]:
    """Which outputs are views, and of what: an argument, a tensor that the function reaches, or an output. A tensor that was made in the call becomes
    an output that the caller does not see if several results are views of it, or writes to it are silent. First those that `.data` gave."""
    whole: dict[int, list[tuple[str, int, Any]]] = {}  # by handle and by base, which stays what it was when the memory of a handle is exchanged
    known = [*(("argument", k, t) for k, t in enumerate(tensors)), *(("reached", k, t) for k, t in enumerate(reached))]
    for own in (True, False):
        for what, k, t in known:
            whole.setdefault(id(t if own else t._base), []).append((what, k, t._storage))
    whole |= {id(t): [("output", k, t._storage)] for k, t in enumerate(outputs)}
    inner = [id(t._base) for t in outputs if t._base is not None and t._base._storage is t._storage and id(t._base) not in whole]
    found: list[tuple[int, tuple[str, int]]] = []
    for k, t in enumerate(outputs[:]):
        base = t._base
        if base is None:
            continue
        if all(storage is not t._storage for _, _, storage in whole.get(id(base), [("", 0, base._storage)])):
            raise Unsupported("exchanges the data of a view that it returns")
        if id(base) not in whole:
            if inner.count(id(base)) < 2 and base._views.__class__ is not Silent:
                continue
            whole[id(base)] = [("output", len(outputs), base._storage)]
            outputs.append(base)
        found += [(k, (what, number)) for what, number, storage in whole[id(base)] if storage is t._storage][:1]
    return [(k, ("data", k)) for k, t in enumerate(outputs) if t._views.__class__ is Silent] + found
