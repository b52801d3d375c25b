"""Programs described without loss in a few bytes, the same in every process, so that what became of one can be found again."""

from __future__ import annotations

from calque.ir.program import Program
from calque.ops.structure import Description, describe

LONG = 100
"""Nodes from which planning takes longer than reading a plan."""
SIZED = 32
"""Nodes from which it takes longer than reading what other processes have found out about programs that differ in sizes."""


def fingerprint(program: Program, described: Description | None = None) -> bytes:
    """Everything that the passes read of a program; empty if it is short, or cannot be described. Source lines and error texts do not count.
    `described`: its description, if it is there already."""
    if len(program.nodes) < LONG:
        return b""
    described = described or describe(program)
    return described.whole() if described is not None else b""
