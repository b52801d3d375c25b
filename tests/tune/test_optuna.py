"""Configurations that Optuna proposes. Skips where it is not installed."""

from __future__ import annotations

from typing import Any

import pytest

from calque import tune
from calque.base.errors import ArgumentError

SPACE = {
    "kind": tune.choice([None, (1, 2), "c"]),
    "deep": {"x": tune.uniform(-5, 5), "lr": tune.loguniform(1e-4, 1e-1)},
    "width": tune.randint(2, 5),
    "steps": tune.lograndint(1, 9),
    "share": tune.quniform(0.1, 0.95, 0.25),
    "double": tune.sample_from(lambda spec: spec.config.width * 2),
    "fixed": 7,
}


def _train(config: dict[str, Any]) -> dict[str, Any]:
    if config["kind"] == "c":
        raise ValueError("this kind fails")
    return {"loss": (config["deep"]["x"] - 1) ** 2}


def _search(**more: Any) -> Any:
    return tune.run(
        _train,
        config=SPACE,
        num_samples=40,
        resources_per_trial={"cpu": 0.5},
        max_concurrent_trials=1,
        verbose=0,
        raise_on_failed_trial=False,
        **more,
    )


def test_optuna_learns_and_its_values_lie_where_they_should() -> None:
    optuna = pytest.importorskip("optuna")
    search = tune.OptunaSearch()
    found = _search(search_alg=search, seed=1, metric="loss", mode="min")
    for trial in found.trials:
        c = trial.config
        assert list(c) == list(SPACE) and c["kind"] in (None, (1, 2), "c") and c["fixed"] == 7 and c["double"] == 2 * c["width"]
        assert -5 <= c["deep"]["x"] <= 5 and 1e-4 <= c["deep"]["lr"] <= 1e-1 and c["width"] in (2, 3, 4) and c["steps"] in range(1, 9)
        assert c["share"] in (0.25, 0.5, 0.75)
    states = [t.state.name for t in search.study.trials]
    assert states == ["FAIL" if t.status == "ERROR" else "COMPLETE" for t in found.trials] and {"FAIL", "COMPLETE"} == set(states)
    assert search.study.best_value == found.best_result["loss"]
    late, early = ([abs(t.config["deep"]["x"] - 1) for t in part] for part in (found.trials[20:], found.trials[:10]))
    assert sum(late) / 20 < sum(early) / 10 / 2  # later ones are nearer to the best
    again = _search(search_alg=tune.OptunaSearch(), seed=1, metric="loss", mode="min")
    assert [t.config for t in again.trials] == [t.config for t in found.trials]
    further = _search(search_alg=tune.OptunaSearch(study=search.study), metric="loss", mode="min")
    assert len(search.study.trials) == 80 and further.best_result["loss"] >= search.study.best_value
    other = tune.OptunaSearch(sampler=optuna.samplers.RandomSampler(seed=0))
    assert len(_search(search_alg=other, metric="loss", mode="min").trials) == 40


def test_what_optuna_cannot_is_said() -> None:
    optuna = pytest.importorskip("optuna")
    with pytest.raises(ArgumentError, match="expected metric and mode"):
        _search(search_alg=tune.OptunaSearch())
    for value in (tune.grid_search([1, 2]), tune.randn(0, 1)):
        with pytest.raises(ArgumentError, match=r"expected choice, .*for 'a/b'"):
            tune.run(_train, config={"a": {"b": value}}, search_alg=tune.OptunaSearch(), metric="loss", mode="min")
    with pytest.raises(ArgumentError, match="a study that does minimize, .*got MAXIMIZE"):
        _search(search_alg=tune.OptunaSearch(study=optuna.create_study(direction="maximize")), metric="loss", mode="min")
    with pytest.raises(ArgumentError, match="a study of one value, got one of 2"):
        tune.OptunaSearch(study=optuna.create_study(directions=["minimize", "maximize"]))
    with pytest.raises(ArgumentError, match="a search_alg of calque.tune, got str; Ray's run with runner='ray'"):
        _search(search_alg="hyperopt")
