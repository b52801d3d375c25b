"""Who took the time: the seconds of every launch, divided among the operations in it, by name and source line.

With exact times (`kernels=True`) a launch has its own seconds; otherwise the seconds of a program are divided among its launches in proportion to
what each takes at the machine's limits. Within a launch the operations share by their work: a contraction takes all of it, elementwise
operations and reductions share by the elements they touch. What only moves indices (views) takes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from calque.ir.program import Node, Program
from calque.kernel.cost import describe
from calque.observe.events import ProgramForm, Ran
from calque.report.explain import Limits

LAUNCH = 1e-6  # seconds that a launch takes at least, when the time of a program is divided


@dataclass(slots=True)
class Share:
    """One operation of one launch: its part of the launch's time, FLOPs, bytes and time at the limit; shapes are those of its operands."""

    op: str
    line: str
    shapes: tuple[tuple[int, ...], ...]
    part: float


@dataclass(slots=True)
class Launch:
    """One launch of a program, the same in all runs. `least`: seconds at the machine's limit; `out`: bytes of its results."""

    name: str
    flops: int
    nbytes: int
    least: float
    shares: list[Share]


@dataclass(slots=True)
class Row:
    """What a group of operations cost over all runs; `op`, `line` and `shapes` are those of the first. `seconds`: their parts of the launches;
    `calls`: how many were computed; `launches`: of how many launches they were part; `least`: seconds at the machine's limits; `exact`: whether
    launches were timed one by one; `ops`: seconds by operation; `kernels`: the launches they were computed in, and how often each ran."""

    op: str
    line: str
    shapes: tuple[tuple[int, ...], ...]
    seconds: float = 0.0
    calls: int = 0
    launches: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    least: float = 0.0
    exact: bool = True
    ops: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Time at the machine's limits divided by the time it took; NaN if launches were not timed or the limits are unknown."""
        return self.least / self.seconds if self.exact and self.least > 0 and self.seconds > 0 else float("nan")


def shares(positions: Iterable[int], program: Program) -> list[Share]:
    """Parts of a launch that computes the nodes at these positions."""
    nodes = program.nodes
    chosen = [nodes[k] for k in positions if nodes[k].op.kind != "leaf"]
    heavy = [n for n in chosen if n.op.kind == "contract"] or [n for n in chosen if n.op.kind != "movement"] or chosen
    if not heavy:
        return [Share("copy", "", (), 1.0)]
    work = [max([n.numel, *(nodes[i].numel for i in n.inputs)], default=1) or 1 for n in heavy]
    total = sum(work)
    return [Share(n.op.name, n.line, _shapes(n, nodes), w / total) for n, w in zip(heavy, work, strict=True)]


def _shapes(node: Node, nodes: tuple[Node, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(nodes[i].shape) for i in node.inputs)


class Costs:
    """Divides the runs of a session. Keeps what it has found about programs."""

    def __init__(self) -> None:
        self.limits = Limits()
        self._launches: dict[int, tuple[Any, list[Launch]]] = {}

    def launches(self, form: ProgramForm) -> list[Launch]:
        """The launches of a program; an interpreted one counts as one launch per operation."""
        known = self._launches.get(id(form))
        if known is None:
            known = self._launches[id(form)] = (form, self._find(form))
        return known[1]

    def _find(self, form: ProgramForm) -> list[Launch]:
        program = form.program
        if form.schedule is None:
            found = []
            for node in program.nodes:
                if node.op.kind != "leaf":
                    name = f"{node.op.name} {list(node.shape)} (interpreted)"
                    found.append(Launch(name, 0, node.nbytes, 0.0, [Share(node.op.name, node.line, _shapes(node, program.nodes), 1.0)]))
            return found
        found = []
        for step in form.schedule.steps:
            cost, least, _ = self.limits.least(step, form.schedule)
            found.append(Launch(describe(step, program.nodes), cost.flops, cost.nbytes, least, shares(step.nodes, program)))
        return found

    def times(self, ran: Ran) -> tuple[list[float], bool]:
        """Seconds of each launch of a run, and whether they were measured one by one."""
        launches = self.launches(ran.form)
        if len(ran.steps) == len(launches) and launches:
            return list(ran.steps), True
        weights = [x.least + LAUNCH for x in launches]
        total = sum(weights)
        return [ran.seconds * w / total for w in weights], False

    def rows(self, runs: Iterable[Ran], key: Callable[[Share], Any]) -> dict[Any, Row]:
        """One row per value of `key`, longest first."""
        found: dict[Any, Row] = {}
        for ran in runs:
            times, exact = self.times(ran)
            for launch, seconds in zip(self.launches(ran.form), times, strict=True):
                touched: dict[int, Row] = {}
                for share in launch.shares:
                    name = key(share)
                    row = found.get(name)
                    if row is None:
                        row = found[name] = Row(share.op, share.line, share.shapes)
                    row.calls += 1
                    row.seconds += seconds * share.part
                    row.flops += launch.flops * share.part
                    row.bytes += launch.nbytes * share.part
                    row.least += launch.least * share.part
                    row.exact = row.exact and exact
                    row.ops[share.op] = row.ops.get(share.op, 0.0) + seconds * share.part
                    touched[id(row)] = row
                for row in touched.values():
                    row.launches += 1
                    row.kernels[launch.name] = row.kernels.get(launch.name, 0) + 1
        return dict(sorted(found.items(), key=lambda item: -item[1].seconds))
