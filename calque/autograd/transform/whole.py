"""Functions that NumPy computes, where something moves: forward mode has no rules for what they do, but they have gradient formulas of their own.

Such a function is asked as a whole, one level below, for its value and, by the gradient of its gradient, for its tangent (`DualFrame.whole`), or for
all slices of a batch (`BatchFrame.whole`). Its gradient on the level of the frame is a function of the same kind: that of the operands and of the
gradient of the result, all of which may move. So it is asked in the same way, and so is the gradient of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.autograd.engine import require_history
from calque.autograd.host import Whole
from calque.autograd.transform import tree
from calque.autograd.transform.frame import is_tensor
from calque.record.nodes import FunctionNode
from calque.record.recorder import local
from calque.tensor import Tensor, constant, function_node, output_nodes


class Transforms:
    """What is made of functions here; `transform/gradients.py`, which stands above, puts it here."""

    linearize: Any = None
    vjp: Any = None


def through(function: Callable[..., Any], args: Any, keywords: Any) -> Any:
    """`function(*args, **keywords)` on the level that records now; its frame is asked if one of forward mode, there or further out, has no rule."""
    try:
        return function(*args, **keywords)
    except Whole:
        return local.state.trace.whole(function, args, keywords)  # type: ignore[union-attr]


def give_history(function: Callable[..., Any], leaves: list[Any], structure: Any, results: list[Any]) -> None:
    """Give the results of `function` a history on the level that records now. `leaves`, `structure`: its arguments and keywords."""
    inputs = [k for k, x in enumerate(leaves) if is_tensor(x) and x._requires_grad]
    outputs = [k for k, out in enumerate(results) if is_tensor(out) and out._layout.dtype.category >= 2]
    if not (local.state.grad and inputs and outputs):
        return

    def pulled(given: list[Any], weights: tuple[Tensor, ...]) -> Any:
        def of_inputs(*values: Any) -> tuple[Any, ...]:
            found = list(given)
            for k, value in zip(inputs, values, strict=True):
                found[k] = value
            arguments, named = tree.unflatten(found, structure)
            made = tree.flatten(function(*arguments, **named))[0]
            return tuple([made[k] for k in outputs])

        return Transforms.vjp(of_inputs, *[given[k] for k in inputs])[1](weights)

    layouts = tuple([results[k]._layout for k in outputs])

    def rule(node: FunctionNode, grads: list[Any]) -> Any:
        require_history(node)
        weights = tuple([constant(0.0, view) if g is None else g for g, view in zip(grads, layouts, strict=True)])
        return through(pulled, (leaves, weights), {})

    needed = tuple([leaves[k] for k in inputs])
    node = function_node("HostBackward0", needed, layouts, rule)
    node.saved, node.versions = dict(enumerate(needed)), [x._storage.version for x in needed]
    for k, end in zip(outputs, output_nodes(node, len(outputs)), strict=True):
        results[k]._grad_fn, results[k]._requires_grad = end, True
