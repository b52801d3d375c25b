"""Values that are computed again where they are read last, instead of being kept from the forward to the backward pass.

A contraction needs its operands once more for the gradient of its weight. Where such an operand is elementwise arithmetic on a value that the
backward pass reads in any case (GELU of a projection, a layer norm), it is written again by the kernel that reads that value there, so that only
one of the two stays in memory in between. The arithmetic is the same, so are the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from calque.base.dataclass import dataclass
from calque.ir.program import Check, Node, Program

LARGE = 1 << 20  # bytes from which a value is worth the trouble
FAR = 8  # contractions between the uses
MAX_CHAIN = 8  # operations that are repeated
SMALL = 32  # what else the operations read is smaller than the value by this factor


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Compute `chain` (in program order; the value last) again behind node `after`, then the contractions `late`, which read it."""

    chain: tuple[int, ...]
    after: int
    late: tuple[int, ...]


def rematerialise(program: Program) -> Program:
    """Apply the rule of this file to every value that it fits."""
    if sum([n.op.kind == "contract" for n in program.nodes]) < FAR:
        return program
    found = Search(program).repeats()
    return _rebuilt(program, found) if found else program


def _repeatable(n: Node) -> bool:
    return n.op.kind == "elementwise" and n.op.body is not None and bool(n.inputs)


class Search:
    """Finds what to repeat in one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes = nodes = program.nodes
        self.users = program.users()
        self.kept = {*program.outputs, *(c.value for c in program.checks)}
        calls = [n.op.kind == "contract" for n in nodes]
        self.before = list(accumulate(calls, initial=0))  # contractions in front of a node
        self.latest: list[int] = []  # the last contraction that a node depends on
        for i, n in enumerate(nodes):
            self.latest.append(i if calls[i] else max([self.latest[k] for k in n.inputs], default=-1))

    def repeats(self) -> list[Recomputed]:
        """Everything that fits the rule; a contraction moves for one value only."""
        found: list[Recomputed] = []
        moved: set[int] = set()
        for i, n in enumerate(self.nodes):
            if _repeatable(n) and i not in self.kept:
                repeat = self._repeat(i)
                if repeat is not None and moved.isdisjoint(repeat.late):
                    found.append(repeat)
                    moved.update(repeat.late)
        return found

    def _repeat(self, value: int) -> Recomputed | None:
        readers = self._readers(value)
        if readers is None or len(readers) < 2:
            return None
        gaps = [(self.before[b] - self.before[a], k) for k, (a, b) in enumerate(pairwise(readers), start=1)]
        widest, split = max(gaps)
        late = readers[split:]
        if widest < FAR or any(self.nodes[c].op.kind != "contract" for c in late):
            return None
        if self.nodes[value].nbytes < LARGE:  # last: what was asked about sizes has to be answered alike for every program planned like this one
            return None
        chain = self._chain(value, readers[split - 1])
        if chain is None:
            return None
        repeated, source = chain
        after = self._reading(source, self.nodes[value].shape, readers[split - 1])
        # The contractions move behind it: nobody may ask for their results before.
        if after < 0 or any(min(self.users[c], default=after + 1) <= after for c in late):
            return None
        return Recomputed(tuple(sorted(repeated)), after, tuple(late))

    def _readers(self, value: int) -> list[int] | None:
        """What reads a value, directly or through one view, in program order; None if it is read as something else."""
        found: set[int] = set()
        for u in self.users[value]:
            if self.nodes[u].op.role != "view":
                found.add(u)
                continue
            if u in self.kept or any(self.nodes[w].op.role == "view" for w in self.users[u]):
                return None
            found.update(self.users[u])
        return sorted(found)

    def _chain(self, value: int, early: int) -> tuple[set[int], int] | None:
        """The operations below a value, down to the one large value that they read and that is read behind node `early` in any case."""
        size = self.nodes[value].nbytes
        chain, sources, stack = {value}, set(), [value]
        while stack:
            for k in self.nodes[stack.pop()].inputs:
                n = self.nodes[k]
                if n.nbytes * SMALL <= size or k in chain:
                    continue
                if _repeatable(n) and self.users[k][-1] <= early:
                    chain.add(k)
                    stack.append(k)
                    continue
                source = n.inputs[0] if n.op.role == "view" else k
                sources.add(source)
                if self.nodes[source].nbytes > size or self.nodes[source].op.kind == "leaf":
                    return None
            if len(chain) > MAX_CHAIN or len(sources) > 1:
                return None
        return (chain, sources.pop()) if sources else None

    def _reading(self, source: int, shape: Sequence[int], early: int) -> int:
        """The first node of a shape that reads `source` together with something that is computed behind node `early`; -1 if there is none."""
        best, seen, stack = -1, {source}, [source]
        while stack:
            for u in self.users[stack.pop()]:
                n = self.nodes[u]
                if u in seen or not (_repeatable(n) or n.op.role == "view"):
                    continue
                seen.add(u)
                if u > early and self.latest[u] > early and n.shape == shape and _repeatable(n):
                    best = u if best < 0 else min(best, u)
                elif self.latest[u] <= early:
                    stack.append(u)
        return best


def _rebuilt(program: Program, repeats: list[Recomputed]) -> Program:
    """The program with repeated chains, contractions moved behind them, everything numbered anew."""
    return Rebuild(program.nodes, repeats).program(program)


class Rebuild:
    """The nodes of a program in their new order. `place`: where a node of the old program is; `late`: see `Program`."""

    def __init__(self, nodes: tuple[Node, ...], repeats: list[Recomputed]) -> None:
        self.nodes = nodes
        self.made: list[Node] = []
        self.place: dict[int, int] = {}
        self.late: list[tuple[int, int]] = []
        self.twins: dict[Recomputed, dict[int, int]] = {r: {} for r in repeats}  # nodes with the place of their second form
        self.caller = {c: r for r in repeats for c in r.late}
        self.waiting: dict[int, Recomputed] = {}  # contractions that may follow now
        behind: dict[int, list[Recomputed]] = {}
        for r in repeats:
            behind.setdefault(r.after, []).append(r)
        for i in range(len(nodes)):
            caller = self.caller.get(i)
            if nodes[i].op.kind == "contract" and caller is None or not self.waiting.keys().isdisjoint(nodes[i].inputs):
                self._call_waiting()
            if caller is None:
                self.place[i] = self._put(i, {})
            elif i > caller.after:
                self._call(i, caller)
            for r in behind.get(i, ()):
                self._repeat(r)
        self._call_waiting()

    def _put(self, i: int, own: dict[int, int]) -> int:
        """Append node i with the operands that `own` names instead of those at their usual place."""
        n, place = self.nodes[i], self.place
        inputs = tuple([own[k] if k in own else place[k] for k in n.inputs])
        self.made.append(Node(n.op, inputs, n.attrs, n.shape, n.dtype, n.line))
        return len(self.made) - 1

    def _repeat(self, r: Recomputed) -> None:
        own = self.twins[r]
        for k in r.chain:
            own[k] = self._put(k, own)
            self.late.append((own[k], self.place[r.after]))
        self.waiting |= {c: r for c in r.late if c < r.after}

    def _call_waiting(self) -> None:
        """Put the contractions that were moved behind a repeated value: not right behind it, where they would stand between the kernel that computes
        it and others that read the same memory (the sums of a layer norm), but in front of the next contraction or of whoever reads them."""
        waiting, self.waiting = self.waiting, {}
        for c, r in waiting.items():
            self._call(c, r)

    def _call(self, c: int, r: Recomputed) -> None:
        """A contraction that reads the repeated value."""
        own, value = self.twins[r], r.chain[-1]
        for k in self.nodes[c].inputs:
            if self.nodes[k].op.role == "view" and self.nodes[k].inputs[0] == value and k not in own:
                own[k] = self._put(k, own)
        self.place[c] = self._put(c, own)

    def program(self, old: Program) -> Program:
        """The whole program."""
        place = self.place
        checks = tuple([Check(place[c.value], c.make_error, c.line) for c in old.checks])
        outputs = tuple([place[o] for o in old.outputs])
        return Program(tuple(self.made), outputs, old.donated, old.updates, checks, old.name, tuple(self.late))
