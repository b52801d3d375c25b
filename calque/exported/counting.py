"""Numbers that optimizers count: while a step is exported, they are values of the program, kept in a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calque.base.dtypes import float64
from calque.base.errors import ExportError
from calque.base.layout import dense_layout
from calque.exported.frame import Counted, ExportFrame
from calque.exported.names import Reached
from calque.functional.common import is_tensor
from calque.optim.kept import ParameterState, held


class Counters:
    """What the optimizers of a step count, as values of a frame from here on until `finish`. Parameters with the same count share one."""

    def __init__(self, frame: ExportFrame, reached: Reached) -> None:
        self.frame = frame
        self.starts: dict[str, tuple[int, float]] = {}  # by name: input, value now
        self.places: list[tuple[dict[str, Any], str, Any, str]] = []  # state of a parameter, key, number, name of the counter
        for optimizer, prefix in zip(reached.optimizers, reached.optimizer_names, strict=True):
            known: dict[Any, str] = {}
            for entries, key in _numbers(optimizer):
                value: Any = held(entries, key)
                name = known.get((key, value))
                if name is None:
                    name = known[key, value] = f"{prefix}{key}" + (f".{len(known)}" if known else "")
                    self.starts[name] = frame.input(dense_layout((), float64)), float(value)
                self.places.append((entries, key, value, name))
                entries[key] = Counted(frame, self.starts[name][0])

    def put_back(self) -> None:
        """The optimizers have their numbers again."""
        for entries, key, value, _ in self.places:
            entries[key] = value

    def finish(self) -> list[tuple[str, int, int, float]]:
        """(name, input, value behind the step, value now) of all that the program uses."""
        ends: dict[str, int] = {}
        for entries, key, _, name in self.places:
            now = held(entries, key)
            if type(now) is not Counted or ends.setdefault(name, now.node) != now.node:
                raise ExportError(
                    f"[export] expected a step in which an optimizer counts {name} for all its parameters in one way; are some of them left out? "
                    "Give these to an optimizer of their own"
                )
        return [(name, self.starts[name][0], end, self.starts[name][1]) for name, end in ends.items()]


def _numbers(optimizer: Any) -> Iterator[tuple[dict[str, Any], str]]:
    for entries in optimizer.state.values():
        for key in optimizer.on_host if isinstance(entries, dict) else ():
            value: Any = held(entries, key)
            if is_tensor(value) and isinstance(entries, ParameterState):  # a program has asked for it
                value = entries[key] = int(value) if key == "step" else float(value)
            if isinstance(value, int | float):
                yield entries, key


