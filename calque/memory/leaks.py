"""`LeakWatch`: which variable keeps the graphs of iterations that are over."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from calque.base.text import human
from calque.memory.graphs import graph
from calque.observe.source import inside_package, warn_user
from calque.observe.variables import variables

ROWS = 4  # samples in a row that must grow
_FIRST = 2  # iterations that say nothing: caches, states of optimizers


class LeakWarning(UserWarning):
    """A variable keeps the graphs of iterations that are over."""


@dataclass
class Leak:
    """`name` holds more at every iteration: `nodes` of graphs, and `nbytes` of values that these have saved, an iteration. `line`: of what made
    the newest of it."""

    name: str
    nodes: float
    nbytes: float
    iterations: int
    line: str

    def __str__(self) -> str:
        size = f", +{human(int(self.nbytes))}" if self.nbytes >= 1 else ""
        return (
            f"`{self.name}` ({self.line or 'an unknown line'}) keeps the graphs of {self.iterations} iterations: +{self.nodes:.0f} operations{size} "
            "an iteration; keep numbers (.item(), float()), a copy without a graph (.detach()), or calque.monitor.Meter"
        )


@dataclass
class _Row:
    nodes: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    line: str = ""


class LeakWatch:
    """Watches a loop: call `step()` once an iteration; a variable that keeps the graphs of past iterations (`total += loss`) is named, once, by a
    LeakWarning.

    Looks at the variables of the function that calls it and of those around it, at their modules' globals, and through lists, dicts, objects, modules
    and closures. Only growing graphs count: lists of numbers, of detached tensors, and graphs that stay of one size are as you mean them.

    every: iterations between looks (default: 1, 2, 4, .. iterations as the loop goes on, so that a long loop is hardly slower).
    `leaks`: what was found.

    >>> import calque
    >>> model, watch, total = calque.nn.Linear(2, 1), calque.memory.LeakWatch(warn=False), 0.0
    >>> for _ in range(12):
    ...     loss = model(calque.ones(3, 2)).sum()
    ...     total += loss
    ...     watch.step()
    >>> [leak.name for leak in watch.leaks]
    ['total']
    """

    def __init__(self, every: int | None = None, warn: bool = True) -> None:
        self.every, self.warn = every, warn
        self.iterations = 0
        self.next = _FIRST + 1
        self.leaks: list[Leak] = []
        self._rows: dict[str, _Row] = {}
        self._looks = 0

    def step(self) -> None:
        """An iteration is over."""
        self.iterations += 1
        if self.iterations < self.next:
            return
        self._looks += 1
        self.next = self.iterations + (self.every or max(1, 1 << max(0, self._looks - 2 * ROWS)))
        frames: list[FrameType] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not inside_package(frame.f_code.co_filename):
                frames.append(frame)
            frame = frame.f_back
        found = variables(frames)
        del frame, frames
        self._look(found)

    def _look(self, found: list[Any]) -> None:
        sizes: dict[str, tuple[int, int, str]] = {}
        for variable in found:
            if variable.roots:
                nodes, nbytes = graph(variable.roots)
                before = sizes.get(variable.name, (0, 0, ""))
                sizes[variable.name] = before[0] + nodes, before[1] + nbytes, variable.where
        named = {leak.name for leak in self.leaks}
        grown = []
        for name, (nodes, nbytes, line) in sizes.items():
            row = self._rows.setdefault(name, _Row())
            if row.nodes and nodes <= row.nodes[-1]:
                row.nodes, row.nbytes, row.steps = [], [], []
            row.nodes.append(nodes)
            row.nbytes.append(nbytes)
            row.steps.append(self.iterations)
            row.line = line
            if len(row.nodes) > ROWS and name not in named:
                grown.append((name, row))
        for name in [name for name in self._rows if name not in sizes]:
            del self._rows[name]
        for name, row in grown:
            steps = row.steps[-1] - row.steps[0]
            leak = Leak(name, (row.nodes[-1] - row.nodes[0]) / steps, (row.nbytes[-1] - row.nbytes[0]) / steps, row.steps[-1], row.line)
            self.leaks.append(leak)
            if self.warn:
                warn_user(f"[LeakWatch] expected a loop that lets go of its graphs, but {leak}", LeakWarning)
