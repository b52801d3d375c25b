"""Nodes of the autograd graph, and the warning about a graph that grows without end."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from calque.base.layout import Layout


class GradNode:
    """One node of the autograd graph. `next[i]` is where operand i's gradient goes: a GradNode, a leaf Tensor, or None.

    `edge` is the trie edge of the recorded operation (operand layouts, attributes, source line); `saved` the values the gradient rule needs,
    `versions` their versions when saved.
    """

    __slots__ = ("edge", "next", "saved", "versions", "number", "hooks", "retain", "freed", "__weakref__")
    edge: Any
    next: tuple[Any, ...]
    saved: Any
    versions: Any
    number: int
    hooks: Any
    retain: Any
    freed: str

    def name(self) -> str:
        """PyTorch's name of the node, e.g. `MulBackward0`."""
        parts = self.edge.op.name.split("_")
        return "".join(p.capitalize() for p in parts) + "Backward0"

    @property
    def line(self) -> str:
        """Source line of the forward operation."""
        result: str = self.edge.line
        return result

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """PyTorch's view of the graph."""
        return tuple((t, 0) for t in self.next)

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


# ---------------------------------------------------------------------------------------------------------------- leaks

_history: dict[str, int] = {}
_HISTORY_LIMIT = 50


def watch_history(t: Any) -> None:
    """A realised value with autograd history enters a new trace: once is normal, fifty times in one chain keeps every graph alive."""
    node = t._grad_fn
    if not isinstance(node, GradNode) or isinstance(node, OutputNode):
        return
    line = node.line
    seen = _history[line] = _history.get(line, 0) + 1
    if seen % _HISTORY_LIMIT or not line:
        return
    length = _chain_length(node, line)
    if length < _HISTORY_LIMIT:
        return
    name, frame = "", sys._getframe(1)
    while frame is not None and not name:
        name = next((k for k, v in frame.f_locals.items() if v is t and k not in ("t", "a", "b", "self", "other", "value")), "")
        frame = frame.f_back  # type: ignore[assignment]
    warnings.warn(
        f"{name or 'a tensor'} ({line}) keeps the autograd history of {length} earlier iterations alive, so memory grows at every step; "
        "accumulate a Python number instead: use .item() or .detach()",
        ResourceWarning,
        stacklevel=4,
    )


def _chain_length(node: Any, line: str) -> int:
    found, seen, stack = 0, set(), [node]
    while stack and found < 10 * _HISTORY_LIMIT:
        item = stack.pop()
        if id(item) in seen or not isinstance(item, GradNode):
            continue
        seen.add(id(item))
        found += item.line == line
        stack.extend(item.next)
    return found
