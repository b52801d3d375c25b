"""Gradients of attention that are only put side by side are written there at once.

Queries, keys and values often come from one product, so their gradients are its gradient: three parts of every row of one value. The kernel
writes rows any step apart, so nothing needs to be copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from calque.base.shapes import contiguous_strides
from calque.ir.program import Program
from calque.kernel.assemble import PlannedStep
from calque.kernel.facts import Class, Facts
from calque.ops.opdef import OpDef


def write_joined(program: Program, facts: Facts, entries: Sequence[PlannedStep]) -> list[PlannedStep]:
    """The entries without copies of results of `attention_grad` into the value that joins them."""
    found = Joined(facts, entries, {facts.output_alias.get(o, o) for o in program.outputs} | {c.value for c in program.checks})
    dropped: set[int] = set()
    for t, entry in enumerate(entries):
        if entry.node >= 0 and _beside(facts.nodes[entry.node].op):
            dropped |= found.join(t)
    return [e for t, e in enumerate(entries) if t not in dropped]


def _beside(op: OpDef) -> bool:
    return op.routine is not None and op.routine.beside


class Joined:
    """Finds what may be joined in one list of entries. `kept`: nodes that are needed behind them."""

    def __init__(self, facts: Facts, entries: Sequence[PlannedStep], kept: set[int]) -> None:
        self.facts = facts
        self.entries = entries
        self.kept = kept
        self.readers: dict[int, list[int]] = {}
        for t, e in enumerate(entries):
            for node in {*e.reads, *(base for _, base in e.bases)}:
                self.readers.setdefault(node, []).append(t)

    def join(self, t: int) -> set[int]:
        """Let entry t write its results into the value that joins them; returns the copies that are not needed any more."""
        entry, nodes = self.entries[t], self.facts.nodes
        copies = [self.copy(member) for member in entry.writes]
        targets = {self.entries[k].writes[0] for k in copies if k >= 0}
        if not nodes[entry.node].attr("turned") or min(copies) < 0 or len(targets) > 1:
            return set()
        target = targets.pop()
        offsets: dict[int, int] = {}
        total = 0
        for piece in nodes[target].inputs:
            member = self.whole(piece)
            if member not in entry.writes or member in offsets:
                return set()
            offsets[member] = total
            total += nodes[piece].shape[-1]
        entry.writes, entry.parts = (target,), tuple(offsets.items())
        return set(copies)

    def copy(self, member: int) -> int:
        """The entry that reads a result, if it is the only one and copies it into a value that joins rows; else -1."""
        readers = self.readers.get(member, ())
        if len(readers) != 1 or member in self.kept:
            return -1
        e = self.entries[readers[0]]
        if e.launch is None or e.check or e.bases or len(e.writes) != 1 or e.reads != (member,) or tuple(e.launch.nodes) != e.writes:
            return -1
        n = self.facts.nodes[e.writes[0]]
        return readers[0] if n.op.role == "join" and n.attr("dim") % len(n.shape) == len(n.shape) - 1 else -1

    def whole(self, piece: int) -> int:
        """The value of which a piece is a view that shows all of it, with two dims as one row; -1 if there is none."""
        p = self.facts.nodes[piece]
        if self.facts.cls[piece] is not Class.VIEW or p.op.role != "view" or p.attr("offset") or p.attr("strides") != contiguous_strides(p.shape):
            return -1
        source = self.facts.nodes[p.inputs[0]]
        return p.inputs[0] if p.numel == source.numel and p.shape[-1] == source.shape[-2] * source.shape[-1] else -1
