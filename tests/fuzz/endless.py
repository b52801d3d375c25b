"""Random loops that go on without anybody reading: wherever it is cut, the same loop has to come to a fixed set of programs.

`python -m tests.fuzz.endless --count 1000 --seed 0` prints every seed whose loop goes on making programs or edges of the trie, or whose values
differ from those of the same loop flushed once in every iteration.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import calque
from calque import nn
from calque.base.config import settings
from calque.record import recorder, trie
from calque.run import dispatch
from tests.fuzz.command import main

PENDING = 256  # operations that may be pending
ENOUGH = 6_000  # operations that a loop is run for, at least...
PERIODS = 15  # ... and how often it is repeated: the last third of both must bring nothing new
VARIED = 24_000  # operations of a loop whose iterations differ now and then...
NEW = 0.25  # ... and which share of its last programs may be new

State = dict[str, Any]
Step = Callable[[State], None]


class Loop:
    """A random nest of loops over small tensors. `varied`: its iterations differ now and then; `size`: operations of one, roughly."""

    def __init__(self, seed: int, varied: bool = False) -> None:
        self.rng = random.Random(seed)
        self.varied = varied
        self.learns = self.rng.random() < 0.4
        self.hybrid = self.rng.random() < 0.3
        self.size = 0
        body, self.size = self._body(self.rng.randint(0, 3))
        self.text = body[0]
        self.run = body[1]
        self.chance = random.Random(seed + 1)

    def state(self) -> State:
        """Where the loop begins."""
        calque.manual_seed(3)
        state: State = {"h": calque.rand(2, 3), "g": calque.rand(2, 3), "x": [calque.rand(2, 3) for _ in range(4)]}
        state["w"] = (calque.rand(3, 3) * 0.3).requires_grad_()
        state["cell"] = nn.GRUCell(3, 3)
        state["layers"] = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        if self.hybrid:
            state["layers"].hybridize()
        recorder.flush("test")
        return state

    def iterate(self, state: State) -> None:
        """One iteration of the outermost loop."""
        if not self.learns:
            with calque.no_grad():
                self.run(state)
            return
        self.run(state)
        (state["h"].sum() + state["g"].mean() + state["w"].sum()).backward()
        state["h"], state["g"] = state["h"].detach(), state["g"].detach()

    def _body(self, depth: int) -> tuple[tuple[str, Step], int]:
        parts: list[tuple[str, Step]] = []
        size = 0
        for _ in range(self.rng.randint(1, 3)):
            if depth and self.rng.random() < 0.6:
                (text, inner), length = self._body(depth - 1)
                times = self.rng.choice([2, 3, 5, 7, 10, 30])
                if length * times > 1500:
                    times = 1
                parts.append((f"{times} x [{text}]", _repeated(times, inner)))
                size += times * length
            else:
                for _ in range(self.rng.choice([1, 2, 3, 5, 8])):
                    part, length = self._piece()
                    parts.append(part)
                    size += length
        return ("; ".join(text for text, _ in parts), _sequence([step for _, step in parts])), size

    def _piece(self) -> tuple[tuple[str, Step], int]:
        """One statement, or now and then another."""
        text, step, length = self.rng.choice(PIECES)
        if self.varied and self.rng.random() < 0.08:
            other, instead, longer = self.rng.choice(PIECES)
            return (f"{text} or {other}", lambda state: (step if self.chance.random() < 0.97 else instead)(state)), max(length, longer)
        return (text, step), length


def _repeated(times: int, step: Step) -> Step:
    def run(state: State) -> None:
        for _ in range(times):
            step(state)

    return run


def _sequence(steps: list[Step]) -> Step:
    def run(state: State) -> None:
        for step in steps:
            step(state)

    return run


def _set(name: str, function: Callable[[State], Any]) -> Step:
    def run(state: State) -> None:
        state[name] = function(state)

    return run


def _written(state: State) -> None:
    """In place, through a view too; not where a gradient needs the value."""
    with calque.no_grad():
        total = state["x"][3]
        total.mul_(0.5)
        total[0:1].add_(0.25)


def _turned(state: State) -> None:
    state["h"], state["g"] = state["g"], state["h"]


PIECES: list[tuple[str, Step, int]] = [
    ("h = (h * 0.9 + x).tanh()", _set("h", lambda s: (s["h"] * 0.9 + s["x"][0]).tanh()), 3),
    ("h = h - x * 0.3", _set("h", lambda s: s["h"] - s["x"][1] * 0.3), 2),
    ("h = h * h", _set("h", lambda s: s["h"] * s["h"]), 1),
    ("g = sigmoid(g + h)", _set("g", lambda s: (s["g"] + s["h"]).sigmoid()), 2),
    ("g = (g @ w).relu()", _set("g", lambda s: (s["g"] @ s["w"]).relu()), 2),
    ("h = tanh(h @ w + g)", _set("h", lambda s: (s["h"] @ s["w"] + s["g"]).tanh()), 3),
    ("h = cell(x, h)", _set("h", lambda s: s["cell"](s["x"][2], s["h"])), 20),
    ("g = layers(g)", _set("g", lambda s: s["layers"](s["g"])), 8),
    ("h = h / (1 + h.abs().sum())", _set("h", lambda s: s["h"] / (1.0 + s["h"].abs().sum())), 4),
    ("g = cat of views", _set("g", lambda s: calque.cat([s["h"][0:1], s["g"][1:2]])), 3),
    ("x[3] in place", _written, 6),
    ("h, g = g, h", _turned, 0),
]


@contextmanager
def bounds(ops: int, nbytes: int = 4 << 30) -> Iterator[None]:
    """At most so much may be pending; small programs are interpreted, so that bits do not depend on where they are cut."""
    before = settings.max_pending_ops, settings.max_pending_bytes, dispatch.INTERPRET_TIMES
    recorder.flush("test")
    calque.synchronize()
    trie.forget()
    settings.max_pending_ops, settings.max_pending_bytes, dispatch.INTERPRET_TIMES = ops, nbytes, 1 << 30
    try:
        yield
    finally:
        recorder.flush("test")
        calque.synchronize()
        settings.max_pending_ops, settings.max_pending_bytes, dispatch.INTERPRET_TIMES = before
        trie.forget()


def counts() -> tuple[int, int, int]:
    """(programs, edges, flushes) so far."""
    return trie.Counters.plan_misses, trie.Counters.edges, trie.Counters.flushes


def values(state: State) -> list[list[float]]:
    """What the loop has computed."""
    tensors = [state["h"], state["g"], state["x"][3], *(p.grad for m in ("cell", "layers") for p in state[m].parameters() if p.grad is not None)]
    return [t.detach().flatten().tolist() for t in tensors]


def wrong(seed: int, varied: bool = False, nbytes: int = 4 << 30) -> str:
    """What is wrong with the cuts of this loop; "" if nothing is."""
    loop = Loop(seed, varied)
    periods = max(PERIODS, (VARIED if varied else ENOUGH) // max(1, loop.size))
    periods -= periods % 3
    with bounds(PENDING, nbytes):
        state = loop.state()
        for _ in range(periods * 2 // 3):
            loop.iterate(state)
        programs, edges, flushes = counts()
        for _ in range(periods // 3):
            loop.iterate(state)
        more_programs, more_edges, more_flushes = (after - before for after, before in zip(counts(), (programs, edges, flushes), strict=True))
        found = values(state)
    if varied:
        if more_programs > NEW * more_flushes + 2:
            return f"{more_programs} of the last {more_flushes} programs are new: {loop.text}"
        return ""
    if more_programs or more_edges:
        return f"{more_programs} programs and {more_edges} edges are new in the last third of {periods} iterations: {loop.text}"
    with bounds(1 << 20):
        twin, state = Loop(seed), loop.state()
        for _ in range(periods):
            twin.iterate(state)
            recorder.flush("test")
        expected = values(state)
    differs = any(abs(a - b) > 1e-4 * max(1.0, abs(b)) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True))
    return f"other values than without cuts: {loop.text}" if differs else ""


KINDS: dict[str, dict[str, Any]] = {"count": {}, "bytes": {"nbytes": 700}, "varied": {"varied": True}}


def check(seed: int) -> str:
    """"" or what is wrong with a loop, cut in every way."""
    return "\n".join(f"seed {seed}, {kind}: {text}" for kind, arguments in KINDS.items() if (text := wrong(seed, **arguments)))


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.endless", __doc__, check, 1000))
