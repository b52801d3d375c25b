"""Running a variant: its nodes are recorded as the function's operations were, so that they are fused, differentiated and replayed as those are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from calque.base.errors import ExportError, OutOfRangeError
from calque.base.shapes import contiguous_strides, is_contiguous
from calque.exported.graph import Variant
from calque.ir.program import Node
from calque.nn.functional.recurrent import SCANS
from calque.ops.opdef import get
from calque.record.recorder import add_check, local
from calque.tensor import record, slot_of

LSTM, VIEW = get("lstm"), get("view")
_INSTEAD = "run it under no_grad()"


def play(variant: Variant, attributes: Sequence[tuple[Any, ...]], inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a variant's program."""
    program = variant.program
    values: list[Any] = [None] * len(program.nodes)
    scans: dict[Any, Any] = {}
    checks = {check.value: check.line for check in program.checks}
    for position, (node, attrs) in enumerate(zip(program.nodes, attributes, strict=True)):
        role = node.op.role
        if role == "input":
            values[position] = inputs[attrs[0]]
        elif role == "constant":
            values[position] = attrs
        elif node.op.name in SCANS:
            values[position] = _recurrent(node, attrs, [values[k] for k in node.inputs], scans)
        elif node.op is VIEW and values[node.inputs[0]].__class__ is _Cells:
            values[position] = values[node.inputs[0]].seen(attrs)
        else:
            operands = tuple([_whole(values[k]) for k in node.inputs])
            values[position] = record(node.op, operands, attrs, True)
        if position in checks:  # at once: what computes operations where they are written knows the last value alone
            add_check(slot_of(local.state.trace, values[position]), _failure(checks[position]))
        for k in variant.last_uses[position]:
            values[k] = None
    return [_whole(values[k]) for k in program.outputs]


def _failure(line: str) -> Callable[[int], Exception]:
    def error(position: int) -> Exception:
        return OutOfRangeError(
            f"[export] expected indices inside the dimension that they select from, and other values in their range, got one that is not (recorded "
            f"at {line or 'an unknown line'})"
        )

    return error


class _Cells:
    """All cells of an LSTM whose gradient is wanted: it has one for the last."""

    def __init__(self, shape: tuple[int, ...], last: Any) -> None:
        self.shape, self.last = shape, last

    def seen(self, attrs: tuple[Any, ...]) -> Any:
        """What a view of them shows."""
        length, rows, columns = self.shape
        shape, strides, offset = attrs
        if offset == (length - 1) * rows * columns and prod(shape) == rows * columns and is_contiguous(shape, strides):
            return record(VIEW, (self.last,), (shape, strides, 0))
        raise ExportError(f"[export] expected a program that reads the last cell state of an LSTM alone, got one that reads others; {_INSTEAD}")


def _whole(value: Any) -> Any:
    """An operand that is read as a whole; the cells of one step are its last."""
    return value.seen((value.shape, contiguous_strides(value.shape), 0)) if value.__class__ is _Cells else value


def _recurrent(node: Node, attrs: tuple[Any, ...], operands: list[Any], scans: dict[Any, Any]) -> Any:
    """A value of a recurrent layer, whose primitive has no gradient: the function around it has."""
    if not local.state.grad or not any(x._requires_grad for x in operands):
        return record(node.op, tuple(operands), attrs)
    part, key = attrs[0] if attrs else "out", (node.op, node.inputs)
    if part == "gates":
        raise ExportError(f"[export] expected a program that reads results of a recurrent layer alone, got one that reads its gates; {_INSTEAD}")
    if key not in scans:
        scans[key] = SCANS[node.op.name](*operands)
    if node.op is not LSTM:
        return scans[key]
    out, last = scans[key]
    return out if part == "out" else _Cells(tuple(out._layout.shape), last)
