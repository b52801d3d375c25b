"""Checked mode (`settings.checked`, `CALQUE_CHECKED=1`): before a program runs, the reference interpreter runs it node by node and names the
first operation that made a NaN or an infinity that reaches a result, or an integer that wrapped around. Nothing has changed then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.backend.ref.interpret import run_node
from calque.base.errors import IntegerOverflowError, NonFiniteError
from calque.ir.program import Node, Program

Array = np.ndarray[Any, Any]


class Inspection:
    """`values[i]` is output i, or None if it holds what checked mode forbids; `error` says why."""

    def __init__(self, program: Program, inputs: Sequence[Array], scalars: Sequence[Any]) -> None:
        self.program = program
        self.error: Exception | None = None
        self._found: list[Array] = []
        shaped = [a.reshape(program.nodes[i].shape) for a, i in zip(inputs, program.inputs, strict=True)]
        wrapped: set[int] = set()  # nodes that depend on an overflow
        with np.errstate(all="ignore"):
            for position, node in enumerate(program.nodes):
                operands = [self._found[i] for i in node.inputs]
                value = np.asarray(run_node(node, operands, shaped, scalars))
                self._found.append(value)
                if any(i in wrapped for i in node.inputs):
                    wrapped.add(position)
                elif _wraps(node, operands, value):
                    wrapped.add(position)
                    self.error = self.error or _overflow(node, operands)
        self.values = [None if o in wrapped or self._forbidden(o) else self._found[o] for o in program.outputs]
        if self.error is not None:
            self.error.calque_line = getattr(self.error, "calque_line", "") or "checked"  # type: ignore[attr-defined]

    def _forbidden(self, output: int) -> bool:
        """Whether the output holds a NaN, or an infinity that an operation made of finite numbers."""
        value = self._found[output]
        if _finite(value):
            return False
        for position in self._ancestors(output):
            node = self.program.nodes[position]
            made = self._found[position]
            if _finite(made):
                continue
            if node.op.role == "input":
                if np.isnan(made).any() and np.isnan(value).any():
                    self._raise(node, f"input of shape {node.shape}", made, [])
                    return True
                continue
            operands = [self._found[i] for i in node.inputs]
            if node.op.kind != "leaf" and node.op.role != "fill" and all(_finite(o) for o in operands):
                self._raise(node, "result", made, operands)
                return True
            if np.isnan(made).any() and not any(np.isnan(o).any() for o in operands if o.dtype.kind != "b"):
                self._raise(node, "result", made, operands)
                return True
        return False

    def _raise(self, node: Node, what: str, made: Array, operands: list[Array]) -> None:
        if self.error is not None:
            return
        where = node.line or "an unknown line"
        self.error = NonFiniteError(_message(node, what, made, operands))
        self.error.calque_line = where  # type: ignore[attr-defined]

    def _ancestors(self, output: int) -> list[int]:
        found, stack = {output}, [output]
        while stack:
            for source in self.program.nodes[stack.pop()].inputs:
                if source not in found:
                    found.add(source)
                    stack.append(source)
        return sorted(found)


def _finite(value: Array) -> bool:
    return value.dtype.kind in "biu" or bool(np.isfinite(value.astype(np.float64)).all())


def _message(node: Node, what: str, made: Array, operands: list[Array]) -> str:
    wide = made.astype(np.float64)
    nan, inf = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    first = tuple(int(i) for i in np.argwhere(~np.isfinite(wide))[0])
    counts = " and ".join(text for text in (f"{nan} NaN" if nan else "", f"{inf} infinite" if inf else "") if text)
    given = "".join(f"; operand {k}: {_range(o)}" for k, o in enumerate(operands))
    at = f" at {node.line}" if node.line else ""
    return (
        f"[{node.op.name}] expected finite values in checked mode, got {counts} of {made.size} in the {what}{at}, first at index {first}{given}; "
        "keep the operands inside the function's domain, or clamp them"
    )


def _range(value: Array) -> str:
    if not value.size:
        return f"shape {value.shape}, empty"
    wide = value.astype(np.float64)
    known = wide[~np.isnan(wide)]
    span = f"min {known.min():g}, max {known.max():g}" if known.size else "all NaN"
    return f"shape {value.shape}, {span}"


def _wraps(node: Node, operands: list[Array], value: Array) -> bool:
    """Whether integers wrapped around, by comparison with float64 (exact below 2^53, and far beyond wrapping is far off)."""
    if not node.op.wraps or value.dtype.kind not in "iu" or not value.size:
        return False
    return bool((_exact(node, operands) != value.astype(np.float64)).any()) if value.dtype.itemsize < 8 else _far(node, operands)


def _exact(node: Node, operands: list[Array]) -> Array:
    return np.asarray(node.op.ref(*[o.astype(np.float64) for o in operands], *node.attrs))


def _far(node: Node, operands: list[Array]) -> bool:
    return bool((np.abs(_exact(node, operands)) > 2.0**63 * (1 + 1e-9)).any())


def _overflow(node: Node, operands: list[Array]) -> Exception:
    exact = _exact(node, operands)
    info = np.iinfo(node.dtype.np)
    bad = np.argwhere((exact < float(info.min)) | (exact > float(info.max)))
    first = tuple(int(i) for i in bad[0]) if len(bad) else ()
    shown = ""
    if node.op.kind == "elementwise":
        shown = " of " + " and ".join(str(np.broadcast_to(o, exact.shape)[first].item()) for o in operands)
    at = f" at {node.line}" if node.line else ""
    error = IntegerOverflowError(
        f"[{node.op.name}] expected values of {node.dtype!r} ({info.min}..{info.max}) in checked mode, got {exact[first]:.0f}{shown} at index "
        f"{first}{at}; convert to a wider dtype first"
    )
    error.calque_line = node.line  # type: ignore[attr-defined]
    return error
