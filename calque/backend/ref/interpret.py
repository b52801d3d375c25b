"""The executable definition of a program: every node in order, by the NumPy reference of its record.

Values are dense arrays of the node's exact dtype, but for numbers beside float16 and bfloat16 (see `rounded`). Elementwise references see these as
float32; the result is rounded after every primitive. This file is meant to be obvious, not fast: every compiled result is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.backend.ref.builder import run_body
from calque.base.dtypes import DType
from calque.base.errors import VerificationError
from calque.ir.program import Node, Program
from calque.ops.opdef import OpDef
from calque.ops.rules import widen

Array = np.ndarray[Any, Any]
Number = bool | int | float


def interpret(program: Program, inputs: Sequence[Array], scalars: Sequence[Number] = ()) -> list[Array]:
    """Outputs of a program; `inputs` and `scalars` are ordered by leaf number.

    Values are freed after their last use. Outputs never share memory with each other or with the inputs. The program's checks
    are the caller's to evaluate (they are values like any other).
    """
    values: list[Array | None] = [None] * len(program.nodes)
    last_use = last_uses(program)
    with np.errstate(all="ignore"):
        for position, node in enumerate(program.nodes):
            if last_use[position] < 0:
                continue
            values[position] = run_node(node, [values[i] for i in node.inputs], inputs, scalars)
            for source in node.inputs:
                if last_use[source] == position:
                    values[source] = None
    return [np.array(values[o]) for o in program.outputs]


def run_node(node: Node, operands: Sequence[Any], inputs: Sequence[Any], scalars: Sequence[Number]) -> Array:
    """The value of one node."""
    return _leaf(node, inputs, scalars) if node.op.kind == "leaf" else _apply(node, operands)


def last_uses(program: Program, kept: Sequence[int] = ()) -> list[int]:
    """For every node the last position that needs it: the number of nodes for outputs and what is `kept` besides, -1 for dead nodes."""
    last = [-1] * len(program.nodes)
    for output in (*program.outputs, *kept):
        last[output] = len(program.nodes)
    for position in range(len(program.nodes) - 1, -1, -1):
        if last[position] >= 0:
            for source in program.nodes[position].inputs:
                last[source] = max(last[source], position)
    return last


def number_as_array(value: Number, dtype: DType) -> Array:
    """A Python number as a 0-d array of `dtype`; of float32 for 16-bit floats, which are computed in it: see `rounded`."""
    if dtype.compute is not dtype:
        return np.asarray(value, dtype.compute.np)
    return dtype.encode(np.asarray(int(value) if dtype.category == 1 else value))


def _leaf(node: Node, inputs: Sequence[Array], scalars: Sequence[Number]) -> Array:
    if node.op.role == "scalar":
        return number_as_array(scalars[node.attrs[0]], node.dtype)
    if node.op.role == "constant":
        return number_as_array(node.attrs[0], node.dtype)
    value = np.asarray(inputs[node.attrs[0]])
    if value.shape != node.shape or value.dtype != node.dtype.np:
        raise VerificationError(
            f"[interpret] expected input {node.attrs[0]} of {node.dtype!r} {node.shape}, got {value.dtype} {value.shape}"
        )
    return value


def rounded(op: OpDef, operands: Sequence[Any]) -> Sequence[Any]:
    """Operands of an operation: numbers beside 16-bit floats are of these, but where it takes them as they are."""
    kinds = [x.dtype for x in operands if x.dtype.itemsize == 2 and x.dtype.kind not in "iub"]
    if not kinds:
        return operands
    return [x.astype(kinds[0]) if x.dtype == np.float32 and k not in op.wide else x for k, x in enumerate(operands)]


def _apply(node: Node, operands: Sequence[Any]) -> Array:
    op = node.op
    if op.kind == "elementwise":
        operands = rounded(op, operands)
    if op.ref is None:
        return run_body(op, operands, node.attrs, node.shape, node.dtype)
    if op.kind == "elementwise":
        operands = [widen(x) for x in operands]
    result = np.asarray(op.ref(*operands, *node.attrs))
    if result.shape != tuple(node.shape):
        raise VerificationError(f"[interpret] expected {op.name} to give shape {node.shape}, its reference gives {result.shape}")
    return np.asarray(node.dtype.encode(result), order="C")
