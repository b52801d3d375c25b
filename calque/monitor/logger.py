"""What keeps the figures of a run: one interface for files of comma-separated values, TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import described
from calque.monitor.host import is_tensor, to_host


class Logger(ABC):
    """Keeps named numbers by step. `log` is what a plain loop calls; it is a function that `Trainer(on_epoch=...)` calls after an epoch.

    Loggers are `CSVLogger`, `MLflowLogger`, `SummaryWriter` and `WandbLogger`; one of your own is a class with `log`.

    >>> from calque.monitor import Logger
    >>> class Printer(Logger):
    ...     def log(self, figures, step):
    ...         print(step, figures)
    >>> Printer().log({"loss": 0.5}, 1)
    1 {'loss': 0.5}
    """

    @abstractmethod
    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Keep the figures of a step.

        figures: names and numbers; tensors of one element are read (a sync point). step: a whole number from 0, an epoch or an update. Raises
        DTypeError, ShapeError or ArgumentError for others.
        """

    def close(self) -> None:
        """Write what is not written yet, and close."""
        return

    def __call__(self, trainer: Any, figures: Mapping[str, float]) -> None:
        """Keep the figures of an epoch of a `Trainer`, with the learning rate: "lr", or "lr/0", "lr/1" and so on of several groups."""
        rates = [group["lr"] for group in trainer.optimizer.param_groups]
        names = ["lr"] if len(rates) == 1 else [f"lr/{k}" for k in range(len(rates))]
        self.log({**{name: value for name, value in figures.items() if name != "epoch"}, **dict(zip(names, rates))}, int(figures["epoch"]))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def numbers(op: str, figures: Mapping[str, Any], step: int) -> dict[str, float]:
    """The figures as floats, or an error that names the one that is none.

    >>> numbers("log", {"loss": calque.tensor(0.5)}, 3)
    {'loss': 0.5}
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ArgumentError(f"[{op}] expected step to be an integer >= 0, got {described(step)}; pass the epoch or the number of updates")
    if not isinstance(figures, Mapping):
        raise DTypeError(f'[{op}] expected figures as a dict of names and numbers, got {described(figures)}; pass {{"loss": loss}}')
    found = {}
    for name, value in figures.items():
        if not isinstance(name, str) or not name:
            raise DTypeError(f"[{op}] expected the name of a figure as a text, got {described(name)}; give each number a name")
        if is_tensor(value) and value.numel() != 1:
            raise ShapeError(f"[{op}] expected one number for {name!r}, got shape {tuple(value.shape)}; use .mean() or .sum()")
        try:
            found[name] = float(to_host(value).reshape(()) if is_tensor(value) else value)
        except (TypeError, ValueError):
            raise DTypeError(f"[{op}] expected a number for {name!r}, got {described(value)}; texts belong into the options of a run") from None
    return found
