"""What was alive when the most memory was in use, by source line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from calque.ir.program import Node
from calque.kernel.schedule import Buffer, Contract, Host, Schedule
from calque.observe.events import Ran, Session

KEPT, TEMPORARY, BEFORE, OTHER = "kept", "temporary", "made before", "other"


@dataclass(slots=True)
class Held:
    """Memory of one line and kind. "kept": results that outlive their program; "temporary": intermediate values of the program that ran then;
    "made before": values that no program of the profile made (parameters, data); "other": room between values, results kept for reuse.
    `values`: description -> (how many, bytes)."""

    line: str
    kind: str
    nbytes: int = 0
    values: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, name: str, nbytes: int) -> None:
        """One more value."""
        times, before = self.values.get(name, (0, 0))
        self.values[name] = (times + 1, before + nbytes)
        self.nbytes += nbytes


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment with the most memory in use, and what was alive then, most first (empty if the lives of values were not followed)."""

    moment: float
    nbytes: int
    running: str
    held: tuple[Held, ...]


def peak(session: Session) -> Peak | None:
    """The peak of a session; None if it has no sample."""
    if not session.memory:
        return None
    moment, nbytes = max(session.memory, key=lambda sample: sample[1])
    ran = _running(session, moment)
    found: dict[tuple[str, str], Held] = {}

    def note(line: str, kind: str, name: str, size: int) -> None:
        if size > 0:
            found.setdefault((line, kind), Held(line, kind)).add(name, size)

    if session.track:
        for value in session.values:
            if value.start <= moment < value.end:
                if value.form is None:
                    note("", BEFORE, f"{value.dtype} values of {_size(value.nbytes)}", value.nbytes)
                else:
                    node = value.form.source.nodes[value.node]
                    note(node.line, KEPT, f"{node.op.name} {list(node.shape)} {node.dtype.name}", value.nbytes)
        if ran is not None and ran.form.schedule is not None:
            for line, name, size in temporaries(ran.form.schedule, ran.form.program.nodes):
                note(line, TEMPORARY, name, size)
        note("", OTHER, "room between values, results kept for the next run", nbytes - sum(h.nbytes for h in found.values()))
    running = "" if ran is None else next((n.line for n in reversed(ran.form.source.nodes) if n.line), "")
    return Peak(moment, nbytes, running, tuple(sorted(found.values(), key=lambda h: -h.nbytes)))


def _running(session: Session, moment: float) -> Ran | None:
    """The compiled program that ran then."""
    runs = sorted((r for r in session.runs if r.form.schedule is not None), key=lambda r: r.start)
    k = bisect_right(runs, moment, key=lambda r: r.start) - 1
    return runs[k] if k >= 0 and moment <= runs[k].start + runs[k].seconds else None


def temporaries(schedule: Schedule, nodes: Sequence[Node]) -> Iterator[tuple[str, str, int]]:
    """(line, description, bytes) of the intermediate values that a program holds when it holds most of them."""
    life = _lives(schedule)
    change = [0] * (len(schedule.steps) + 1)
    for b, (first, last) in life.items():
        change[first] += schedule.buffers[b].nbytes
        change[last + 1] -= schedule.buffers[b].nbytes
    held, most, at = 0, -1, 0
    for k, delta in enumerate(change[:-1]):
        held += delta
        if held > most:
            most, at = held, k
    for b, (first, last) in life.items():
        if first <= at <= last:
            step, nbytes = schedule.steps[first], schedule.buffers[b].nbytes
            made = [nodes[n] for n in step.nodes]
            if isinstance(step, Contract) and b == step.workspace:
                yield made[-1].line if made else "", f"workspace of {step.kind}", nbytes
                continue
            node = next((n for n in reversed(made) if n.nbytes == nbytes), made[-1] if made else None)
            yield ("", "copy", nbytes) if node is None else (node.line, f"{node.op.name} {list(node.shape)} {node.dtype.name}", nbytes)


def _lives(schedule: Schedule) -> dict[int, tuple[int, int]]:
    """{buffer in the arena: its first and its last step}. What its last step overwrites in place is dead by then: the bytes are the new
    buffer's."""
    life: dict[int, tuple[int, int]] = {}
    for k, step in enumerate(schedule.steps):
        used = [*step.operands]
        if isinstance(step, Host):
            used.append(step.output)
        if isinstance(step, Contract):
            used.append(step.workspace)
        for b in used:
            if b >= 0 and schedule.buffers[b].kind == "arena":
                life[b] = (life[b][0], k) if b in life else (k, k)
    new: dict[int, list[Buffer]] = {}
    for b, (first, _) in life.items():
        new.setdefault(first, []).append(schedule.buffers[b])
    for b, (first, last) in life.items():
        old = schedule.buffers[b]
        if first < last and any(n.index < old.index + old.nbytes and old.index < n.index + n.nbytes for n in new.get(last, ())):
            life[b] = (first, last - 1)
    return life


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes / 1024:.1f} KiB" if nbytes >= 1024 else f"{nbytes} B"
