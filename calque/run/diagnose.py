"""After a program failed: find the operation that failed, and compute what does not depend on it, node by node with the reference.

This is the slow path of an error. It runs only if the program had no time to change any state (no donated inputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.backend.ref.interpret import run_node
from calque.ir.program import Program

Array = np.ndarray[Any, Any]


class Salvage:
    """`values[i]` is output i, or None if it depends on a failed operation; `error` the first failure with its source line as a note."""

    def __init__(self, program: Program, inputs: Sequence[Any], scalars: Sequence[Any], lost: frozenset[int] = frozenset()) -> None:
        self.error: Exception | None = None
        found: list[Array | None] = []
        shaped = [None if a is None else a.reshape(program.nodes[i].shape) for a, i in zip(inputs, program.inputs, strict=True)]
        with np.errstate(all="ignore"):
            for position, node in enumerate(program.nodes):
                operands = [found[i] for i in node.inputs]
                missing = position in lost or (node.op.name == "input" and shaped[node.attrs[0]] is None)
                if missing or any(o is None for o in operands):
                    found.append(None)
                    continue
                try:
                    found.append(run_node(node, operands, shaped, scalars))
                except Exception as error:
                    found.append(None)
                    if self.error is None:
                        self.error = error
                        error.calque_line = node.line  # type: ignore[attr-defined]
                        error.add_note(f"[{node.op.name}] recorded at {node.line or 'an unknown line'}")
        self.values = [found[o] for o in program.outputs]


def checked_values(program: Program, check: int) -> frozenset[int]:
    """Positions of the values that the check at `check` is computed from: nothing that uses them can be trusted after it failed."""
    found = {check}
    for position in range(check, -1, -1):
        if position in found:
            found.update(program.nodes[position].inputs)
    return frozenset(p for p in found if program.nodes[p].op.name not in ("scalar", "constant"))
