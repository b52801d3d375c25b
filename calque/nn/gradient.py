"""`with_gradient`: a composite function with a gradient formula of its own, as one node of the autograd graph.

The forward runs without recording history. Under `create_graph` a formula of the result alone is given the result, which leads to the node; for any
other, what it reads is recomputed differentiably from the saved inputs. So a formula written in differentiable functions is correct at every order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from calque.autograd.assign import without_base
from calque.autograd.engine import with_history
from calque.autograd.passes import COMPOSITES
from calque.base.errors import AutogradError, UnsupportedTypeError
from calque.observe.source import user_line
from calque.ops.opdef import no_complex
from calque.record.nodes import FunctionNode
from calque.record.recorder import local
from calque.record.versions import modified
from calque.tensor import Tensor, function_node, output_nodes, wrap


class Saved:
    """What a gradient formula may use: `inputs`, forward `values` (outputs first, then what else forward returned), `needs` per input."""

    __slots__ = ("inputs", "values", "needs")

    def __init__(self, inputs: tuple[Any, ...], values: tuple[Any, ...], needs: tuple[bool, ...]) -> None:
        self.inputs = inputs
        self.values = values
        self.needs = needs


Forward = Callable[..., tuple[Any, ...]]
Backward = Callable[..., tuple[Any, ...]]


_OF_INTEGERS = frozenset(["MaxPool2DWithIndicesBackward0", "AvgPool2DBackward0", "EmbeddingBackward0", "NllLossBackward0"])


def not_of_integers(label: str, x: Tensor) -> UnsupportedTypeError:
    """What is said of a function whose result would be cut down to whole numbers."""
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", label.removesuffix("Backward0")).lower()
    return UnsupportedTypeError(f"[{name}] expected a floating dtype, got {x._layout.dtype!r}: not implemented for it; convert with .float()")


def with_gradient(
    label: str, forward: Forward, backward: Backward, inputs: tuple[Any, ...], count: int = 1, uses: tuple[int, ...] = (), reads: bool = True,
    every: bool = False, keeps: tuple[Any, ...] = (),
) -> Any:  # fmt: skip
    """The first `count` values of `forward(*inputs)` (all if `every`), with `backward(saved, *grads)` as gradient.

    `forward` depends on nothing but its operands and what it closes over, and changes nothing.
    A `backward` that `formula` has made belongs to a `forward` that lasts.
    `uses`: numbers of the outputs that `backward` reads, which must not be modified in place until then; `reads`: whether it reads inputs.
    `keeps`: tensors besides the inputs that it reads, None among them, which must not be modified either.
    `backward` gets one gradient per output (None where unused) and returns one per input, None where `saved.needs` is False.
    """
    state = local.state
    category = inputs[0]._layout.dtype.category
    if category != 2:
        if category == 3:
            return of_complex(label, forward, inputs, count, every)
        if label not in _OF_INTEGERS:
            raise not_of_integers(label, inputs[0])
    wanted = False
    for x in inputs:  # loops: each generator is a function of its own, cold at every step
        if x is not None and x._requires_grad:
            wanted = True
    if not state.grad or not wanted:
        values = forward(*inputs)
        return values if every else values[0] if count == 1 else values[:count]
    if state.trace.exports:
        inputs = tuple(map(state.trace.as_operand, inputs))
    state.grad = False
    try:
        values = forward(*inputs)
    finally:
        state.grad = True
    layouts, shown = [], list(values)
    for k in range(count):
        v = values[k]
        layouts.append(v._layout)
        shown[k] = wrap(v._storage, v._layout)
    rule = backward if getattr(backward, "__code__", None) is RULE else formula(forward, backward)
    node = function_node(label, inputs, tuple(layouts), rule)
    node.where = state.trace.cur.line or user_line()
    _save(node, inputs, values, tuple(shown), uses, reads, keeps)
    targets = (node,) if count == 1 else output_nodes(node, count)
    for out, target in zip(values, targets, strict=False):
        if out._base is not None:
            without_base(out, inputs)
        out._grad_fn, out._requires_grad = target, True
    return values if every else values[0] if count == 1 else values[:count]


def _save(
    node: FunctionNode, inputs: tuple[Any, ...], values: tuple[Any, ...], shown: tuple[Any, ...], uses: tuple[int, ...], reads: bool,
    keeps: tuple[Any, ...],
) -> None:  # fmt: skip
    """Keep what a node's rule reads, and count the versions of what nobody may change until then."""
    versions = []
    for x in inputs:
        versions.append(0 if x is None else x._storage.version)
    before = tuple(versions)
    node.saved = dict(enumerate(inputs)) if reads else {}
    node.versions = before if reads else ()
    for k in uses:
        storage = values[k]._storage
        node.saved[-1 - k] = storage
        node.versions += (storage.version,)
    for k, t in enumerate(keeps, len(inputs)):
        if t is not None:
            node.saved[k] = t
            node.versions += (t._storage.version,)
    node.context = (inputs, before, shown)
    trace = local.state.trace
    if trace.transforms:
        trace.saving(node)


ANALYTIC = ("SiluBackward0", "RmsNormBackward0")
"""Formulas whose forward function, differentiated as it stands, is right for complex numbers."""


def of_complex(label: str, forward: Forward, inputs: tuple[Any, ...], count: int, every: bool) -> Any:
    """`with_gradient` of complex operands: formulas are written for real ones, so what is defined is differentiated operation by operation."""
    if label not in ANALYTIC:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"^Native|Backward\d*$", "", label)).lower()
        raise no_complex(name, [inputs[0]._layout.dtype])
    values = forward(*inputs)
    return values if every else values[0] if count == 1 else values[:count]


def formula(forward: Forward, backward: Backward) -> Callable[[Any, list[Any]], tuple[Any, ...]]:
    """The rule of a node, from its formulas: what `with_gradient` takes for `backward` as well, from a function that has the same ones for long."""

    def apply(node: FunctionNode, grads: list[Any], history: FunctionNode | None = None) -> tuple[Any, ...]:
        """`history`: the node of the results, if that is another one."""
        inputs, versions, values = node.context
        if local.state.grad:
            if -1 in node.saved and 0 not in node.saved:  # whatever has become of the inputs, the result is what it was
                result = wrap(values[0]._storage, values[0]._layout)
                result._grad_fn, result._requires_grad = history or node, True
                return backward(Saved(inputs, (result,), tuple([t is not None for t in node.next])), *grads)
            if any(x is not None and modified(x._storage, v) for x, v in zip(inputs, versions, strict=True)):
                raise AutogradError(
                    f"[backward] {node.name()} (recorded at {node.line}) needs its operands for create_graph=True, but one has been modified by an "
                    "inplace operation; use the out-of-place form there, or clone() the value first"
                )
            inputs = tuple(map(with_history, inputs, node.next))
            values = forward(*inputs)
        return backward(Saved(inputs, values, tuple([t is not None for t in node.next])), *grads)

    return apply


RULE = formula(print, print).__code__  # type: ignore[attr-defined, arg-type]
COMPOSITES[RULE] = RULE.co_freevars.index("backward")
