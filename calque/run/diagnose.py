"""After a program failed: find the operation that failed, and compute what does not depend on it, node by node with the reference.

This is the slow path of an error. It runs only if the program had no time to change any state (no donated inputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.backend.ref.interpret import last_uses, run_node
from calque.ir.program import Node, Program

Array = np.ndarray[Any, Any]


class Salvage:
    """`values[i]` is output i, or None if it depends on a failed operation or on what a failed check has looked at; `error` the first failure of an
    operation with its source line as a note; `failed` (number, what it reports) of failed checks, first those that took an output away."""

    def __init__(self, program: Program, inputs: Sequence[Any], scalars: Sequence[Any]) -> None:
        self.error: Exception | None = None
        found: list[Array | None] = []
        last = last_uses(program, [c.value for c in program.checks])
        shaped = [None if a is None else a.reshape(program.nodes[i].shape) for a, i in zip(inputs, program.inputs, strict=True)]
        with np.errstate(all="ignore"):
            for position, node in enumerate(program.nodes):
                found.append(None if last[position] < 0 else self._value(node, [found[i] for i in node.inputs], shaped, scalars))
                for source in node.inputs:
                    if last[source] <= position:
                        found[source] = None  # the values of a large program at once can be many times what the program itself takes
        reports = [(k, c.value, found[c.value]) for k, c in enumerate(program.checks)]
        bad = [(k, int(report), _users(program, value)) for k, value, report in reports if report is not None and int(report) != -1]
        lost = {position for *_, users in bad for position in users}
        self.values = [None if o in lost else found[o] for o in program.outputs]
        self.failed = [(k, report) for k, report, users in sorted(bad, key=lambda b: b[2].isdisjoint(program.outputs))]

    def _value(self, node: Node, operands: list[Array | None], inputs: Sequence[Any], scalars: Sequence[Any]) -> Array | None:
        missing = node.op.role == "input" and inputs[node.attrs[0]] is None
        if missing or any(o is None for o in operands):
            return None
        try:
            return run_node(node, operands, inputs, scalars)
        except Exception as error:
            if self.error is None:
                self.error = error
                error.calque_line = node.line  # type: ignore[attr-defined]
                error.add_note(f"[{node.op.name}] recorded at {node.line or 'an unknown line'}")
            return None


def _users(program: Program, check: int) -> set[int]:
    """Positions of the values that the check at `check` is computed from and of all that use them: nothing of it can be trusted after it failed."""
    found = {check}
    for position in range(check, -1, -1):
        if position in found:
            found.update(program.nodes[position].inputs)
    found = {p for p in found if program.nodes[p].op.role not in ("scalar", "constant")}
    for position, node in enumerate(program.nodes):
        if not found.isdisjoint(node.inputs):
            found.add(position)
    return found
