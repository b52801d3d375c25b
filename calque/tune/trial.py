"""One trial, and what a search has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.tune.session import Checkpoint
from calque.tune.space import missing

PENDING, RUNNING, TERMINATED, ERROR, REFUSED = "PENDING", "RUNNING", "TERMINATED", "ERROR", "REFUSED"


@dataclass
class Trial:
    """One configuration, and what it has reported. status: PENDING, RUNNING, TERMINATED (by itself or by the scheduler), ERROR, or REFUSED (does not
    fit in memory). failures: how often its process has died or raised. error: the last traceback, or why it was refused."""

    trial_id: str
    config: dict[str, Any]
    folder: Path
    status: str = PENDING
    results: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0
    error: str = ""
    latest: str | None = None

    @property
    def last_result(self) -> dict[str, Any]:
        """The newest result; empty before the first."""
        return self.results[-1] if self.results else {}

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint."""
        return None if self.latest is None else Checkpoint(self.latest)

    def value(self, metric: str, mode: str, scope: str) -> float | None:
        """A metric of the trial: of its last result, its best, or the average."""
        values = [float(r[metric]) for r in self.results if r.get(metric) is not None]
        values = [v for v in values if v == v]
        if not values:
            return None
        if scope == "last":
            return values[-1]
        if scope == "avg":
            return sum(values) / len(values)
        return min(values) if mode == "min" else max(values)


class ExperimentAnalysis:
    """What `tune.run` returns. path: the folder with checkpoints."""

    def __init__(self, trials: list[Trial], path: Path, metric: str | None, mode: str | None) -> None:
        self.trials, self.path, self.metric, self.mode = trials, path, metric, mode

    def get_best_trial(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Trial | None:
        """The trial whose metric is smallest or largest ("min", "max"); None if none has any. scope: "last", "avg" or "all" (its best)."""
        metric, mode = metric or self.metric, mode or self.mode
        if metric is None or mode not in ("min", "max"):
            raise ArgumentError(f"[get_best_trial] expected a metric and mode='min' or 'max', got {shown(metric)} and {shown(mode)}")
        if scope not in ("last", "avg", "all"):
            raise ArgumentError(f"[get_best_trial] expected scope='last', 'avg' or 'all', got {shown(scope)}")
        names = dict.fromkeys(name for t in self.trials for result in t.results for name in result)
        if names and metric not in names:
            raise missing("get_best_trial", metric, names, "report it in every trial")
        sign = 1 if mode == "min" else -1
        found = [(sign * value, k, t) for k, t in enumerate(self.trials) if (value := t.value(metric, mode, scope)) is not None]
        return min(found)[2] if found else None

    def get_best_config(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> dict[str, Any] | None:
        """The configuration of the best trial."""
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.config

    @property
    def best_trial(self) -> Trial | None:
        """By the metric that `tune.run` got."""
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any] | None:
        """Its configuration."""
        return self.get_best_config()

    @property
    def best_result(self) -> dict[str, Any]:
        """Its last result."""
        best = self.get_best_trial()
        return {} if best is None else best.last_result

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Last results by trial."""
        return {t.trial_id: t.last_result for t in self.trials}
