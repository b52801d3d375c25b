"""Forward-mode rules of primitives: what stands in `OpDef.jvp`, and what follows from the kind where nothing stands there.

A rule is `rule(F, op, c, tangents)` and gives the tangent of the result. `c` says of the operands what it says in a `Vjp` (`c.x(i)`, `c.out`,
`c.attrs`, `c.shape(i)`...), here for every operand; `tangents` has one entry per operand, None where it does not move. Whoever asks
makes sure that some operand moves and that the result is floating.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque.ops.opdef import JvpRule, OpDef


def _zeros(F: Any, x: Any) -> Any:
    return (0.0, x[1]) if x.__class__ is tuple else F.zeros_like(x)


def differentiable(op: OpDef, position: int) -> bool:
    """Whether the operand at this position has a gradient rule."""
    rules = op.vjp
    return position < len(rules) and rules[position] is not None


def linear(F: Any, op: OpDef, c: Any, tangents: Sequence[Any]) -> Any:
    """Primitives that are linear in all operands with a gradient rule at once: the same of the tangents."""
    operands = [
        t if t is not None else _zeros(F, c.operand(i)) if differentiable(op, i) else c.operand(i) for i, t in enumerate(tangents)
    ]
    return F.prim(op.name, *operands, *c.attrs)


def multilinear(F: Any, op: OpDef, c: Any, tangents: Sequence[Any]) -> Any:
    """Primitives that are linear in each operand: one after the other moves."""
    total = None
    for i, t in enumerate(tangents):
        if t is not None:
            part = F.prim(op.name, *[t if k == i else c.operand(k) for k in range(len(tangents))], *c.attrs)
            total = part if total is None else total + part
    return total


def elementwise(F: Any, op: OpDef, c: Any, tangents: Sequence[Any]) -> Any:
    """Functions of one element: the gradient of operand i is g times the derivative, and so is what its tangent g adds to the result's."""
    total = None
    for i, t in enumerate(tangents):
        if t is None or not differentiable(op, i):
            continue
        part = op.vjp[i].rule(F, F.expand(t, c.out_shape), c)  # type: ignore[union-attr]
        total = part if total is None else total + part
    return total


def flat(F: Any, op: OpDef, c: Any, tangents: Sequence[Any]) -> Any:
    """Steps, which do not move."""
    return F.zeros_like(c.out)


def pulled_twice(F: Any, op: OpDef, c: Any, tangents: Sequence[Any]) -> Any:
    """Any primitive with gradient rules: these are linear in the gradient u that they are given, <u, J t> = <J' u, t>, so the derivative of the
    right hand side by u is J t, exactly."""
    return c.pulled_twice(tangents)


_OF_KIND: dict[str, JvpRule] = {"elementwise": elementwise}


def jvp_rule(op: OpDef) -> JvpRule:
    """The rule of a primitive: its own, else what follows from its kind, else its gradient rules twice."""
    return op.jvp or _OF_KIND.get(op.kind, pulled_twice)
