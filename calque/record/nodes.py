"""Nodes of the autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from calque.base.layout import Layout
from calque.observe.source import line_of
from calque.record.path import Edge


class GradNode:
    """One node of the autograd graph. `next[i]` is where operand i's gradient goes: a GradNode, a leaf Tensor, or None.

    `edge` is the trie edge of the recorded operation (operand layouts, attributes, source line); `saved` the values the gradient rule needs,
    `versions` their versions when saved.
    """

    __slots__ = ("edge", "next", "saved", "versions", "number", "hooks", "retain", "freed", "__weakref__")
    edge: Edge
    next: tuple[Any, ...]
    saved: Any
    versions: Any
    number: int
    hooks: Any
    retain: Any
    freed: str

    def name(self) -> str:
        """PyTorch's name of the node, e.g. `MulBackward0`."""
        op = self.edge.op
        if op.role == "join" and self._is_stack():
            return "StackBackward0"
        if callable(op.node):
            found = op.node(tuple([x.ndim if isinstance(x, Layout) else None for x in (*self.edge.input_layouts, self.edge.layout)]))
        else:
            found = op.node or "".join(p.capitalize() for p in op.name.split("_"))
        return found if "Backward" in found else f"{found}Backward0"

    def _is_stack(self) -> bool:
        """Whether what is joined has just got the dim along which it is joined: `stack` is made of these two."""
        given = reversed([n for n in self.next if n is not None])
        fresh = [n.__class__ is FunctionNode and n.label == "UnsqueezeBackward0" and n.number == self.number - k for k, n in enumerate(given, 1)]
        return all(fresh) and all(x.shape[self.edge.attrs[0]] == 1 for x in self.edge.input_layouts)

    @property
    def line(self) -> str:
        """Source line of the forward operation."""
        result: str = self.edge.line
        return result

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class FunctionNode(GradNode):
    """A node whose gradient is a Python callable: views, composites with a formula of their own, user Functions.

    `backward(node, grads)` gets the list of output gradients (None where unused) and returns one gradient per entry of `next`.
    """

    __slots__ = ("backward", "label", "outputs", "where", "context")
    backward: Callable[..., Any]
    label: str
    outputs: tuple[Layout, ...]
    where: str
    context: Any

    def name(self) -> str:
        return self.label

    @property
    def line(self) -> str:
        return self.where


class StandIn(FunctionNode):
    """A node in the place of `next[0]` while a call is recorded; a gradient goes there at once, unless somebody wants to see it."""

    __slots__ = ()


class Handle(FunctionNode):
    """The node of a handle that a transform has made of a tensor with a history, while it may ask for the handle's gradient. Whoever writes to the
    handle finds a leaf."""

    __slots__ = ()


class CallNode(FunctionNode):
    """The node of a hybridized call. `context.told(facts)` adds what its gradient depends on, for passes that are recorded again; `site`: where
    the call is, of which a line is made only if somebody asks; `leads`: by output the numbers of the targets that its gradient goes to."""

    __slots__ = ("site", "leads")
    site: tuple[CodeType | None, int]
    leads: tuple[frozenset[int], ...]

    @property
    def line(self) -> str:
        return line_of(*self.site)


class OutputNode(GradNode):
    """Output number `index` of a FunctionNode with several outputs (`next[0]`)."""

    __slots__ = ("index",)
    index: int

    def name(self) -> str:
        result: str = self.next[0].name()
        return result

    @property
    def line(self) -> str:
        result: str = self.next[0].line
        return result


def view_rule(backward: Callable[[Any], Any]) -> Callable[..., Any]:
    """The rule of a view's node, from what maps the gradient of the view to that of the tensor."""

    def apply(node: GradNode, grads: Sequence[Any]) -> tuple[Any]:
        return (backward(grads[0]),)

    return apply


VIEW_RULE = view_rule(print).__code__
