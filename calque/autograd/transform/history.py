"""Histories of values of a batch on the level below.

Most operations record theirs there themselves, when they are recorded. But what has a gradient formula of its own here (functions of the user's,
composites of the library, writes through views) is a `FunctionNode` on this level, recorded without history. Below, it becomes a node
whose rule goes back into the frame and asks that formula for all slices at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from calque.autograd.api import passing_on
from calque.autograd.transform.frame import FrameEdge, depending, functional
from calque.base.errors import BatchError
from calque.base.layout import Layout, dense_layout
from calque.record.nodes import VIEW_RULE, FunctionNode, GradNode, OutputNode
from calque.tensor import Tensor, function_node, output_nodes, wrap


class Entered(FunctionNode):
    """The node of a value that came into the frame with a history."""

    __slots__ = ()


def _not_there(node: GradNode, grads: Sequence[Any]) -> Any:
    raise BatchError(
        "[vmap] expected gradients inside vmap to be asked for by calque.func or autograd.grad, got a backward pass that leads out of vmap; "
        "call backward() on what vmap returns"
    )


def _is_view(node: GradNode) -> bool:
    rule = getattr(node, "backward", None)
    return getattr(rule, "__code__", None) is VIEW_RULE


class History:
    """The nodes below of those of one frame."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.entries: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # node of a value that came in -> where it came from
        self.own: weakref.WeakSet[Any] = weakref.WeakSet()  # nodes with formulas of values of the frame
        self.below: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # id of a node, which its value holds -> that node

    def is_native(self, t: Tensor) -> bool:
        """Whether the operations below have given the value its history there. Notes the nodes that have not."""
        node: Any = t._grad_fn
        while isinstance(node, FunctionNode) and _is_view(node):
            self.own.add(node)
            node = node.next[0]
        if node is None or isinstance(node, Tensor) or node.__class__ is GradNode or node.__class__ is Entered:
            return True
        self.own.add(node)
        if node.__class__ is OutputNode:
            self.own.add(node.next[0])
        return False

    def attached(self, value: Tensor, t: Tensor) -> Tensor:
        """`value`, which has no history, with that of `t`."""
        result: Tensor = wrap(value._storage, value._layout)
        result._grad_fn, result._requires_grad = self.node(t._grad_fn), True
        return self.frame.below(depending, result)  # type: ignore[no-any-return]

    def recalled(self, value: Tensor, t: Tensor) -> Tensor:
        """`value` with the history that `t` had when it got its own: a write through a tensor without one (`detach()`) changes numbers alone."""
        node: Any = t._grad_fn
        target = None
        if node.__class__ is Entered:
            target = self.entries.get(node)
        elif node is not None and node.edge.__class__ is FrameEdge and node.edge.frame is self.frame:
            target = node.edge.below
        if target is None or target is value or target is value._grad_fn:
            return value
        result: Tensor = wrap(value._storage, value._layout)
        result._grad_fn, result._requires_grad = passing_on(target) if isinstance(target, Tensor) else target, True
        return result

    def node(self, node: Any) -> Any:
        """The node below of one of this level."""
        found = self.below.get(id(node))
        if found is not None:
            return found
        if node.__class__ is OutputNode:
            inner = self.node(node.next[0])
            made = output_nodes(inner, len(inner.outputs))[node.index]
        else:
            frame = self.frame
            outputs = tuple(self._batched(lay) for lay in node.outputs)
            targets = [self.target(t) for t in node.next]
            made = function_node(node.label, (), outputs, lambda _, grads: self._apply(node, [m for _, m in targets], grads))
            made.next = tuple([t for t, _ in targets])
            made.context = frame
        self.below[id(node)] = made
        return made

    def _batched(self, view: Layout) -> Layout:
        return dense_layout((self.frame.size, *view.shape), view.dtype, view.device)

    def target(self, target: GradNode | Tensor | None) -> tuple[Any, bool]:
        """(where a gradient goes below, whether that is a value of every slice)."""
        if target is None:
            return None, False
        if isinstance(target, Tensor):
            return target, False
        if target.__class__ is GradNode:
            edge = target.edge
            return (edge.below, True) if edge.__class__ is FrameEdge and edge.frame is self.frame else (target, False)
        if target.__class__ is Entered:
            found = self.entries.get(target)
            return (target, False) if found is None else (found, True)
        if target in self.own or any(self.target(t)[1] for t in target.next):
            return self.node(target), True
        return target, False

    def entering(self, batch: Tensor, view: Layout) -> Entered:
        """The node of a slice whose tensor below has a history."""
        node: Any = function_node("VmapInput", (), (view,), _not_there)
        node.__class__ = Entered
        self.entries[node] = batch._grad_fn or batch
        return node  # type: ignore[no-any-return]

    def _apply(self, node: FunctionNode, mapped: list[bool], grads: list[Any]) -> tuple[Any, ...]:
        """The formula of `node` for all slices."""
        frame = self.frame

        def rule() -> list[Any]:
            given = [None if g is None else frame.lifted(g) for g in grads]
            found: list[Any] = []
            for g, target, every in zip(node.backward(node, given), node.next, mapped, strict=True):
                if g is None or target is None:
                    found.append(None)
                elif frame.mine(g):
                    batch = frame.lower(g)
                    found.append(batch if every else frame.below(functional().sum, batch, 0))
                elif every:
                    found.append(frame.below(functional().expand, g, (frame.size, *g._layout.shape)))
                else:
                    found.append(frame.below(lambda g=g: g * frame.size))
            return found

        return tuple(frame.again(rule))
