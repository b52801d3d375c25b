"""From groups to the ordered list of entries (launches before memory), keeping only what somebody needs."""

from __future__ import annotations

from dataclasses import field

from calque.base.dataclass import dataclass
from calque.base.shapes import Shape, contiguous_strides
from calque.ir.program import Program
from calque.kernel.facts import Class, Facts
from calque.kernel.group import Group
from calque.kernel.lower import Launch
from calque.kernel.memo import MEMORY
from calque.kernel.reader import Fusion, static_offset
from calque.ops.routines import Spec


@dataclass(slots=True)
class PlannedStep:
    """One step before memory. `launch` (loops) or `node` (a contraction or host step; -1 otherwise). `reads` and `writes` are
    program nodes; `bases` the (target, base) pairs whose target continues the base's value; `copy` a whole-value copy (target,
    source); `parts`: (result of the contraction, elements from the beginning of a row) where results are parts of the rows of the one value that
    it writes."""

    launch: Launch | None = None
    node: int = -1
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    bases: list[tuple[int, int]] = field(default_factory=list)
    check: bool = False
    copy: tuple[int, int] | None = None
    parts: tuple[tuple[int, int], ...] = ()


def assemble(program: Program, fusion: Fusion) -> list[PlannedStep]:
    """Entries in execution order. Groups are lowered last to first, so that values nobody loads are not stored."""
    facts = fusion.facts
    needed = {facts.output_alias.get(o, o) for o in program.outputs} | {c.value for c in program.checks}
    entries: list[PlannedStep] = []
    for g in reversed(fusion.groups):
        entry = _loop_entry(fusion, g, needed) if g.kind == "loop" else _library_entry(fusion, g, needed)
        if entry is not None:
            entry.check = bool(program.checks) and g.order <= fusion.fence
            needed.update(entry.reads)
            needed.update(base for _, base in entry.bases)
            entries.append(entry)
    entries.reverse()
    updates = Updates(program, fusion)
    return updates.advance(updates.delay(entries)) if updates.donated else entries


class Updates:
    """Where launches that replace donated inputs go: after the last read of the old value, and then as early as possible, because
    they need no new memory and free the gradients they read."""

    def __init__(self, program: Program, fusion: Fusion) -> None:
        facts = fusion.facts
        inputs = {n.attrs[0]: i for i, n in enumerate(program.nodes) if n.op.role == "input"}
        self.donated = {inputs[i] for i in program.donated if i in inputs}
        self.replaced: dict[int, list[int]] = {}  # node -> inputs whose memory it wants
        for output, index in program.updates:
            if index in program.donated:
                node = program.outputs[output]
                self.replaced.setdefault(facts.output_alias.get(node, node), []).append(inputs[index])

    def old_values(self, e: PlannedStep) -> set[int]:
        """Inputs that an entry wants to overwrite."""
        return {i for node in e.writes for i in self.replaced.get(node, ())} | {b for _, b in e.bases if b in self.donated}

    def delay(self, entries: list[PlannedStep]) -> list[PlannedStep]:
        """Move entries behind the last read of what they overwrite when nothing in between needs their results."""
        readers = _readers(entries)
        keys = [float(t) for t in range(len(entries))]
        for t in range(len(entries) - 1, -1, -1):
            e = entries[t]
            old = [keys[r] for i in self.old_values(e) for r in readers.get(i, ()) if r != t]
            if not old or max(old) < keys[t] or e.check:
                continue
            results = {*e.writes, *(node for node, _ in e.bases)}
            users = [keys[r] for node in results for r in readers.get(node, ())]
            if not users or min(users) > max(old):
                keys[t] = max(old) + 1e-6 * (1 + t / len(entries))
        return [entries[t] for t in sorted(range(len(entries)), key=lambda t: keys[t])]

    def advance(self, entries: list[PlannedStep]) -> list[PlannedStep]:
        """Move entries that only replace inputs to the first place where their operands exist and the old values are read no
        more."""
        readers = _readers(entries)
        checks = sum(1 for e in entries if e.check)
        keys = [float(t) for t in range(len(entries))]
        written: dict[int, float] = {}
        for t, e in enumerate(entries):
            if e.launch is not None and not e.check and e.writes and all(node in self.replaced for node in e.writes):
                before = [written.get(node, -1.0) for node in e.reads]
                before += [keys[r] for i in self.old_values(e) for r in readers.get(i, ()) if r != t]
                place = max([checks - 1.0, *before])
                if not e.bases and place < t - 1:
                    keys[t] = place + 1e-6 * (1 + t / len(entries))
            for node in (*e.writes, *(node for node, _ in e.bases)):
                written[node] = max(written.get(node, -1.0), keys[t])
        return [entries[t] for t in sorted(range(len(entries)), key=lambda t: keys[t])]


def _readers(entries: list[PlannedStep]) -> dict[int, list[int]]:
    """Entries that read a node."""
    readers: dict[int, list[int]] = {}
    for t, e in enumerate(entries):
        for node in {*e.reads, *(base for _, base in e.bases)}:
            readers.setdefault(node, []).append(t)
    return readers


def _loop_entry(fusion: Fusion, g: Group, needed: set[int]) -> PlannedStep | None:
    facts = fusion.facts
    launch = MEMORY.lower(fusion, g, needed)
    bases = []
    empty = [m for m in g.members if m in needed and not facts.nodes[m].numel]
    for w in g.writes:
        if w.target in needed and not facts.covers(w.target):
            bases.append((w.target, facts.nodes[w.target].inputs[0]))
        elif w.target in needed:
            empty.append(w.target)
    if launch is None and not bases and not empty:
        return None
    reads = tuple(launch.reads) if launch else ()
    writes = tuple(dict.fromkeys([*(launch.stores if launch else ()), *empty]))
    return PlannedStep(launch, reads=reads, writes=writes, bases=bases)


def _library_entry(fusion: Fusion, g: Group, needed: set[int]) -> PlannedStep | None:
    facts = fusion.facts
    node = g.members[0]
    wanted = tuple(m for m in g.members if m in needed)  # several parts of one computation
    if not wanted:
        return None
    reads = []
    for operand in facts.nodes[node].inputs:
        source = facts.nodes[operand].inputs[0] if facts.cls[operand] is Class.VIEW else operand
        if not (g.kind == "host" and facts.nodes[source].op.role == "scalar"):
            reads.append(source)
    return PlannedStep(node=node, reads=tuple(dict.fromkeys(reads)), writes=wanted)


@dataclass(slots=True)
class ContractCall:
    """A contraction before memory: kind, operand nodes, offsets, parameters, and dynamic offset terms."""

    kind: str
    sources: tuple[int, ...]
    offsets: tuple[int, ...]
    spec: Spec
    dynamic: tuple[tuple[int, int, int], ...]


def contract_call(facts: Facts, node: int) -> ContractCall:
    """Parameters of a contraction: views of operands become strides."""
    n = facts.nodes[node]
    sources: list[int] = []
    offsets: list[int] = []
    strides: list[Shape] = []
    shapes: list[Shape] = []
    dynamic: list[tuple[int, int, int]] = []
    for position, operand in enumerate(n.inputs):
        o = facts.nodes[operand]
        shapes.append(o.shape)
        if facts.cls[operand] is Class.VIEW:
            offset, terms = static_offset(facts.nodes, o)
            sources.append(o.inputs[0])
            offsets.append(offset)
            strides.append(o.attr("strides"))
            dynamic += [(position, leaf, factor) for leaf, factor in terms]
        else:
            sources.append(operand)
            offsets.append(0)
            strides.append(contiguous_strides(o.shape))
    return ContractCall(n.op.name, tuple(sources), tuple(offsets), n.op.routine.spec(shapes, strides, n.attrs, n.shape), tuple(dynamic))
