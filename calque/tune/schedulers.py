"""Which trials go on. Names and meanings are those of Ray Tune."""

from __future__ import annotations

import math
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.tune.space import missing

__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler", "FIFOScheduler"]


class FIFOScheduler:
    """All trials run to their end."""

    def wants(self, metric: str | None, mode: str | None) -> None:
        """What `tune.run` was told to look at, where the scheduler itself was not."""

    def goes_on(self, trial: str, result: dict[str, Any]) -> bool:
        """Whether a trial goes on after a result."""
        return True


class ASHAScheduler(FIFOScheduler):
    """Successive halving that waits for nobody: a trial that comes to a rung (`grace_period` times a power of `reduction_factor`, of `time_attr`)
    stops unless it is among the best 1 / `reduction_factor` of those that have come there until then; at `max_t` every trial stops.

    metric, mode: "min" or "max"; those of `tune.run` by default. brackets: only 1. Source: Li et al., "A System for Massively Parallel
    Hyperparameter Tuning" (2020).

    >>> from calque.tune.schedulers import ASHAScheduler
    >>> halving = ASHAScheduler(metric="loss", mode="min", max_t=8, grace_period=2, reduction_factor=2)
    >>> [halving.goes_on(name, {"loss": loss, "training_iteration": 2}) for name, loss in (("a", 1.0), ("b", 3.0), ("c", 0.5))]
    [True, False, True]
    """

    def __init__(
        self, time_attr: str = "training_iteration", metric: str | None = None, mode: str | None = None, max_t: float = 100, grace_period: float = 1,
        reduction_factor: float = 4, brackets: int = 1, stop_last_trials: bool = True,
    ) -> None:  # fmt: skip
        if mode not in (None, "min", "max"):
            raise ArgumentError(f"[ASHAScheduler] expected mode='min' or 'max', got {shown(mode)}")
        if not max_t > 0 or not 0 < grace_period <= max_t or not reduction_factor > 1:
            got = f"max_t={shown(max_t)}, grace_period={shown(grace_period)}, reduction_factor={shown(reduction_factor)}"
            raise ArgumentError(f"[ASHAScheduler] expected 0 < grace_period <= max_t and reduction_factor above 1, got {got}")
        if brackets != 1:
            raise ArgumentError(f"[ASHAScheduler] expected brackets=1, got {shown(brackets)}; leave it out")
        self.time_attr, self.metric, self.mode, self.max_t, self.factor = time_attr, metric, mode, max_t, reduction_factor
        self.grace_period, self.stop_last_trials = grace_period, stop_last_trials
        count = int(math.log(max_t / grace_period, reduction_factor) + 1e-9)
        self._rungs: list[tuple[float, dict[str, float]]] = [(grace_period * reduction_factor**k, {}) for k in reversed(range(count + 1))]

    def wants(self, metric: str | None, mode: str | None) -> None:
        """See `FIFOScheduler`."""
        if metric is not None and self.metric is not None and (metric, mode) != (self.metric, self.mode):
            raise ArgumentError(f"[tune.run] expected metric and mode in run or in the scheduler, got {shown(metric)} and {shown(self.metric)}")
        self.metric, self.mode = self.metric or metric, self.mode or mode
        if self.metric is None or self.mode is None:
            raise ArgumentError("[ASHAScheduler] expected metric and mode, here or in tune.run, got none; for instance metric='loss', mode='min'")

    def goes_on(self, trial: str, result: dict[str, Any]) -> bool:
        """See `FIFOScheduler`."""
        for name in (self.time_attr, str(self.metric)):
            if name not in result:
                raise missing("ASHAScheduler", name, result, "every tune.report(...) must have it")
        time, value = result[self.time_attr], float(result[str(self.metric)])
        value = value if self.mode == "max" else -value
        if math.isnan(value):
            value = -math.inf
        if time >= self.max_t and self.stop_last_trials:
            return False
        for milestone, seen in self._rungs:  # the latest that it has come to
            if time < milestone or trial in seen:
                continue
            best = sorted(seen.values())
            seen[trial] = value
            return not best or value >= _quantile(best, 1 - 1 / self.factor)
        return True


AsyncHyperBandScheduler = ASHAScheduler  # Ray's other name


def _quantile(values: list[float], share: float) -> float:
    """With straight lines between values, as NumPy's."""
    at = share * (len(values) - 1)
    low, high = values[math.floor(at)], values[math.ceil(at)]
    return low if low == high else low + (high - low) * (at - math.floor(at))
