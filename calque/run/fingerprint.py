"""Programs described without loss in a few bytes, the same in every process, so that what became of one can be found again."""

from __future__ import annotations

from calque.ir.program import Program
from calque.ops.structure import Description, describe

LONG = 100
"""Nodes from which planning takes longer than reading a plan."""
EARLY = 8
"""Programs of a process that are kept on the disk whatever their length: another process may have to load the planner for nothing else."""
SIZED = 32
"""Nodes from which it takes longer than reading what other processes have found out about programs that differ in sizes."""


def fingerprint(program: Program, described: Description | None = None, early: bool = False) -> bytes:
    """Everything that the passes read of a program; empty if it is short, or cannot be described. Source lines and error texts do not count.
    `described`: its description, if it is there already; `early`: whether it is one of the first of this process."""
    if len(program.nodes) < LONG and not early:
        return b""
    described = described or describe(program)
    return described.whole() if described is not None else b""
