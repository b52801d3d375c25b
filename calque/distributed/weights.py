"""What the gradients of one rank count beside those of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

from calque.autograd.engine import running_pass
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.nn.parallel.primitives import tensors_in


class _Forward:
    """One forward pass."""

    __slots__ = ("rows",)

    def __init__(self, rows: float) -> None:
        self.rows = rows


class Weights:
    """Counts the samples of the forward passes through whose results the backward passes of a step go. A forward pass that no backward pass follows
    counts nothing, and one that two follow counts twice, as its gradients do. `dim`: of the samples, in the first tensor that has it."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._given: float | None = None
        self._rows, self._met = 0.0, 0  # of the passes that have ended
        self._pass: Any = None
        self._now: list[_Forward] = []  # in the pass that runs; one that fails counts nothing

    def give(self, weight: Any) -> None:
        """The weight of the next step."""
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
            raise ArgumentError(f"[set_weight] expected a number of 0 or more, got {shown(weight)}; .item() makes one of a tensor")
        self._given = float(weight)

    def forward(self, inputs: Any, outputs: Any) -> None:
        """Look whether a backward pass comes through the outputs."""
        first = next((t for t in tensors_of(inputs) if t._layout.ndim > self.dim), None)
        here = _Forward(1.0 if first is None else float(first._layout.shape[self.dim]))
        found = [t for t in tensors_of(outputs) if t._grad_fn is not None]
        for t in found:
            t.register_hook(partial(self._come, here))
        if not found:  # it hides them, in an object of its own
            self._rows, self._met = self._rows + here.rows, self._met + 1

    def _come(self, here: _Forward, gradient: Any) -> None:
        running = running_pass()
        if running is not self._pass:
            self._pass, self._now = running, []
        if here not in self._now:
            self._now.append(here)

    def pending(self) -> float:
        """What counts so far, the pass that runs included."""
        rows, met = self._rows + sum(f.rows for f in self._now), self._met + len(self._now)
        return self._given if self._given is not None else rows if met else 1.0  # who calls the module itself says nothing of samples

    def end(self) -> None:
        """The pass has ended well."""
        self._rows, self._met = self._rows + sum(f.rows for f in self._now), self._met + len(self._now)
        self._pass, self._now = None, []

    def take(self) -> float:
        """The weight of the step that ends here."""
        found = self.pending()
        self._rows, self._met, self._given = 0.0, 0, None
        self._pass, self._now = None, []
        return found


def tensors_of(value: Any) -> Iterator[Any]:
    """Those inside tuples, lists, dicts and dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    yield from tensors_in(value)
