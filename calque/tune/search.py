"""Who proposes the configurations of a search: chance and grids, or Optuna."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.extras import need
from calque.base.text import shown
from calque.tune.space import Domain, Spec, configs, leaves_of, put


class RandomSearch:
    """Draws every configuration by itself, and crosses grids."""

    def begin(self, space: dict[str, Any], num_samples: int, metric: str | None, mode: str | None, rng: random.Random) -> None:
        """Take what there is to search. total: the number of trials."""
        self.total = num_samples * math.prod(len(value["grid_search"]) for _, value in leaves_of(space) if isinstance(value, dict))
        self._drawn: Iterator[dict[str, Any]] = configs(space, num_samples, rng)

    def suggest(self, trial: str) -> dict[str, Any] | None:
        """The configuration of a new trial; None when there are no more."""
        return next(self._drawn, None)

    def complete(self, trial: str, result: dict[str, Any] | None) -> None:
        """A trial has ended with this as its last result; None: it has failed."""


class OptunaSearch(RandomSearch):
    """Configurations that Optuna proposes, from what the trials before have given: `tune.run(..., search_alg=OptunaSearch(), metric=..., mode=...)`.

    sampler: of Optuna, `TPESampler` with the search's seed by default. study: of Optuna, for instance one that is stored on disk and goes on; a new
    one in memory by default. A trial counts with its last result, also where the scheduler has stopped it; one without a number as failed. What
    `sample_from` draws is not told to Optuna; it has neither grids nor normally distributed numbers. Needs the package optuna.
    """

    def __init__(self, *, sampler: Any = None, study: Any = None) -> None:
        self._optuna = need("optuna", "optuna", "optuna", "OptunaSearch")
        if study is not None and sampler is not None:
            raise ArgumentError("[OptunaSearch] expected a sampler or a study, which has one, got both")
        if study is not None and len(study.directions) != 1:
            raise ArgumentError(f"[OptunaSearch] expected a study of one value, got one of {len(study.directions)}")
        self._sampler, self.study = sampler, study

    def begin(self, space: dict[str, Any], num_samples: int, metric: str | None, mode: str | None, rng: random.Random) -> None:
        """See `RandomSearch`."""
        if metric is None or mode is None:
            raise ArgumentError("[OptunaSearch] expected metric and mode, in tune.run or in the scheduler, got none; for instance metric='loss'")
        leaves = list(leaves_of(space))
        self._fixed = [(path, value) for path, value in leaves if not isinstance(value, Domain | dict)]
        self._called = [(path, value) for path, value in leaves if isinstance(value, Domain) and value.name == "sample_from"]
        self._asked = {"/".join(map(str, path)): (path, value) for path, value in leaves if (path, value) not in self._fixed + self._called}
        self._distributions = {name: self._distribution(name, value) for name, (_, value) in self._asked.items()}
        self._order, self._left, self._metric, self._rng = [path for path, _ in leaves], num_samples, metric, rng
        self.total = num_samples
        self._trials: dict[str, Any] = {}
        direction = "minimize" if mode == "min" else "maximize"
        if self.study is None:
            sampler = self._sampler or self._optuna.samplers.TPESampler(seed=rng.randrange(1 << 32))
            self.study = self._optuna.create_study(direction=direction, sampler=sampler)
        elif self.study.direction.name.lower() != direction:
            raise ArgumentError(f"[OptunaSearch] expected a study that does {direction}, as mode={mode!r} says, got {self.study.direction.name}")

    def _distribution(self, name: str, value: Any) -> Any:
        """What Optuna calls a domain. Of several values it gets numbers: it takes few kinds of values."""
        kinds = self._optuna.distributions
        if isinstance(value, Domain):
            made: Any = {
                "uniform": lambda low, high: kinds.FloatDistribution(low, high),
                "quniform": lambda low, high, q: kinds.FloatDistribution(math.ceil(low / q) * q, math.floor(high / q) * q, step=q),
                "loguniform": lambda low, high: kinds.FloatDistribution(low, high, log=True),
                "randint": lambda low, high: kinds.IntDistribution(low, high - 1),
                "lograndint": lambda low, high: kinds.IntDistribution(low, high - 1, log=True),
                "choice": lambda values: kinds.CategoricalDistribution(range(len(values))),
            }.get(value.name)
            if made is not None:
                return made(*value.given)
        known = "choice, uniform, quniform, loguniform, randint, lograndint or sample_from"
        raise ArgumentError(f"[OptunaSearch] expected {known}, got {shown(value)} for {name!r}")

    def suggest(self, trial: str) -> dict[str, Any] | None:
        """See `RandomSearch`."""
        if self._left <= 0:
            return None
        self._left -= 1
        self._trials[trial] = asked = self.study.ask(self._distributions)
        config: dict[str, Any] = {}
        for path in self._order:
            put(config, path, None)
        done: dict[str, Any] = {}
        values = [(path, asked.params[name], domain) for name, (path, domain) in self._asked.items()]
        for path, value in self._fixed + [(path, domain.given[0][v] if domain.name == "choice" else v) for path, v, domain in values]:
            put(config, path, value)
            done[path[0]] = config[path[0]]
        for path, domain in self._called:
            put(config, path, domain.sample(self._rng, Spec(done)))
            done[path[0]] = config[path[0]]
        return config

    def complete(self, trial: str, result: dict[str, Any] | None) -> None:
        """See `RandomSearch`."""
        asked, value = self._trials.pop(trial), (result or {}).get(self._metric)
        if value is None or not math.isfinite(value):
            self.study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        else:
            self.study.tell(asked, value)
