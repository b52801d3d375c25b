"""Searches with real processes, small ones."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import tune
from calque.base.errors import ArgumentError, DeviceError, WorkerError
from calque.tune import Checkpoint, CLIReporter
from calque.tune.schedulers import ASHAScheduler
from calque.tune.space import configs

DOMAINS: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "uniform": (tune.uniform(-2, 3), lambda v: -2 <= v <= 3),
    "quniform": (tune.quniform(0, 1, 0.25), lambda v: v in (0, 0.25, 0.5, 0.75, 1.0)),
    "loguniform": (tune.loguniform(1e-4, 1e-1), lambda v: 1e-4 <= v <= 1e-1),
    "randint": (tune.randint(2, 5), lambda v: v in (2, 3, 4)),
    "lograndint": (tune.lograndint(1, 9), lambda v: v in range(1, 9)),
    "randn": (tune.randn(1.0, 0.1), math.isfinite),
    "choice": (tune.choice(["a", None, 3]), lambda v: v in ("a", None, 3)),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_values_lie_where_they_should(name: str) -> None:
    domain, right = DOMAINS[name]
    values = [domain.sample(random.Random(k)) for k in range(2000)]
    assert all(map(right, values)) and values == [domain.sample(random.Random(k)) for k in range(2000)]
    if name == "loguniform":  # each decade as often as the others
        assert all(abs(sum(low <= v < 10 * low for v in values) - 2000 / 3) < 100 for low in (1e-4, 1e-3, 1e-2))
    elif name in ("randint", "choice", "quniform", "lograndint"):
        assert len(set(map(str, values))) == {"randint": 3, "choice": 3, "quniform": 5, "lograndint": 8}[name]


def test_grids_are_crossed_and_functions_see_what_was_drawn() -> None:
    space = {
        "f": tune.sample_from(lambda spec: spec.config.lr * 2), "lr": tune.uniform(1, 2), "deep": {"a": tune.grid_search([1, 2]), "b": 7},
        "c": tune.grid_search("xyz"),
    }  # fmt: skip
    found = list(configs(space, 2, random.Random(0)))
    assert [(c["deep"]["a"], c["c"]) for c in found] == [(a, c) for a in (1, 2) for c in "xyz"] * 2
    assert all(c["f"] == 2 * c["lr"] and c["deep"]["b"] == 7 for c in found) and len({c["lr"] for c in found}) == 12
    assert list(found[0]) == list(space)


def test_halving_keeps_the_best_of_those_that_have_come() -> None:
    """Against the definition, played on random results in a random order."""
    rng = random.Random(3)
    for _ in range(50):
        factor, grace = rng.choice([2, 3, 4]), rng.choice([1, 2])
        halving = ASHAScheduler(metric="m", mode="max", max_t=20, grace_period=grace, reduction_factor=factor)
        milestones = [grace * factor**k for k in range(10) if grace * factor**k <= 20]
        seen: dict[int, list[float]] = {m: [] for m in milestones}
        times = dict.fromkeys("abcdefgh", 0)
        while times:
            name = rng.choice(list(times))
            times[name] += 1
            value, time_now = rng.random(), times[name]
            right = time_now < 20
            if right and time_now in seen:
                before = seen[time_now]
                right = not before or bool(value >= np.quantile(before, 1 - 1 / factor))
                seen[time_now].append(value)
            assert halving.goes_on(name, {"m": value, "training_iteration": time_now}) is right
            if not right:
                del times[name]


def test_the_snippet_of_the_sources_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def train_cifar(config: dict[str, Any], checkpoint_dir: Any = None, data_dir: Any = None) -> None:
        assert data_dir == "data"
        net = calque.nn.Linear(int(config["l1"]), 1)
        optimizer = calque.optim.SGD(net.parameters(), lr=config["lr"])
        for _ in range(4):
            loss = (net(calque.ones(config["batch_size"], int(config["l1"]))) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tune.report(loss=loss, accuracy=0.5)

    data_dir, max_num_epochs, num_samples, gpus_per_trial = "data", 4, 4, 0
    config = {
        "l1": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "l2": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "lr": tune.loguniform(1e-4, 1e-1),
        "batch_size": tune.choice([2, 4, 8, 16]),
    }
    scheduler = ASHAScheduler(metric="loss", mode="min", max_t=max_num_epochs, grace_period=1, reduction_factor=2)
    reporter = CLIReporter(metric_columns=["loss", "accuracy", "training_iteration"])
    result = tune.run(
        partial(train_cifar, data_dir=data_dir),
        resources_per_trial={"cpu": 0.5, "gpu": gpus_per_trial},
        config=config, num_samples=num_samples,
        scheduler=scheduler,
        progress_reporter=reporter)  # fmt: skip
    text = capsys.readouterr().out
    assert " at a time: 4 TERMINATED ==" in text and "batch_size | loss" in text and len(result.trials) == 4
    best = result.get_best_trial("loss", "min", "last")
    assert best is not None and best.last_result["loss"] == min(t.last_result["loss"] for t in result.trials)
    assert all(t.config["l1"] in [2**k for k in range(2, 9)] for t in result.trials)


def test_a_killed_trial_goes_on_from_its_checkpoint() -> None:
    def train(config: dict[str, Any]) -> None:
        found = tune.get_checkpoint()
        net = calque.nn.Linear(2, 1)
        state = {"epoch": 0} if found is None else found.state()
        if found is not None:
            net.load_state_dict(state["net"])
        for epoch in range(state["epoch"], 5):
            with calque.no_grad():
                net.weight.fill_(float(epoch))
            kept = Checkpoint.from_state({"epoch": epoch + 1, "net": net.state_dict()})
            tune.report({"epoch": epoch, "weight": net.weight.sum().item()}, checkpoint=kept)
            if epoch == 2 and found is None and config["dies"]:
                os.kill(os.getpid(), signal.SIGKILL)

    result = tune.run(train, config={"dies": tune.grid_search([True, False])}, max_failures=1, verbose=0)
    for trial in result.trials:
        assert [r["epoch"] for r in trial.results] == [0, 1, 2, 3, 4] and [r["training_iteration"] for r in trial.results] == [1, 2, 3, 4, 5]
        assert trial.status == "TERMINATED" and trial.failures == trial.config["dies"]
        assert trial.checkpoint is not None and trial.checkpoint.state()["epoch"] == 5
    with pytest.raises(WorkerError, match="1 of 2 that failed:\n00000 with .*its process was ended by SIGKILL"):
        tune.run(train, config={"dies": tune.grid_search([True, False])}, verbose=0)


def test_errors_are_shown_and_others_go_on() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"y": 1 / config["x"]}

    found = tune.run(train, config={"x": tune.grid_search([0, 1, 2])}, raise_on_failed_trial=False, verbose=0)
    assert [t.status for t in found.trials] == ["ERROR", "TERMINATED", "TERMINATED"] and "ZeroDivisionError" in found.trials[0].error
    assert found.get_best_config("y", "max") == {"x": 1} and found.results["00002"]["y"] == 0.5
    assert "ZeroDivisionError: division by zero" in CLIReporter().table(found.trials)
    frames = [line for line in found.trials[0].error.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1 and __file__ in frames[0]  # the trial's own lines


def test_names_that_are_not_there_are_said_with_what_is_like_them() -> None:
    """Bad input, row 51."""

    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"loss": config["learning_rate"] if config["right"] else config["lerning_rate"]}

    space = {"learning_rate": tune.uniform(0, 1), "right": tune.grid_search([True, False])}
    found = tune.run(train, config=space, verbose=0, raise_on_failed_trial=False)
    assert "expected an entry 'lerning_rate', got only ['learning_rate', 'right']; did you mean 'learning_rate'?" in found.trials[1].error
    with pytest.raises(KeyError, match=r"expected an entry 'los', got only \['training_iteration', .*'loss'\]; did you mean 'loss'\?"):
        found.get_best_trial("los", "min")
    space["right"] = True  # type: ignore[assignment]
    with pytest.raises(KeyError, match="expected an entry 'lose', .*did you mean 'loss'"):
        tune.run(train, config=space, metric="lose", mode="min", verbose=0, scheduler=ASHAScheduler(max_t=3))
    space["x"] = tune.sample_from(lambda spec: spec.config.learning_rat)
    with pytest.raises(AttributeError, match="'learning_rat', .*did you mean 'learning_rate'"):
        tune.run(train, config=space, verbose=0)


def test_what_does_not_fit_in_memory_does_not_start() -> None:
    def step(net: Any, width: int) -> None:
        net(calque.ones(64, width)).sum().backward()

    def rehearse(config: dict[str, Any]) -> tuple[Any, ...]:
        return step, calque.nn.Linear(config["width"], config["width"]), config["width"]

    def train(config: dict[str, Any]) -> dict[str, Any]:
        assert config["width"] < 1000
        return {"loss": 0.0}

    space = {"width": tune.grid_search([64, 4096])}
    found = tune.run(train, config=space, rehearse=rehearse, resources_per_trial={"memory": "32MiB"}, verbose=0)
    assert [t.status for t in found.trials] == ["TERMINATED", "REFUSED"]
    assert "holds at most 33,554,432 bytes, got one that would hold 2" in found.trials[1].error


def test_each_trial_has_random_numbers_of_its_own_and_the_same_every_time() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"a": calque.rand(1).item(), "b": np.random.rand(), "c": random.random()}

    runs = [tune.run(train, config={"x": tune.uniform(0, 1)}, num_samples=3, seed=5, verbose=0, resources_per_trial={"cpu": 0}) for _ in range(2)]
    rows = [[(t.config["x"], t.last_result["a"], t.last_result["b"], t.last_result["c"]) for t in found.trials] for found in runs]
    assert rows[0] == rows[1] and all(len({row[k] for row in rows[0]}) == 3 for k in range(4))


def test_trials_stop_by_value_and_by_time() -> None:
    def train(config: dict[str, Any]) -> None:
        while True:
            tune.report(level=1.0)
            time.sleep(0.01)

    found = tune.run(train, stop={"training_iteration": 7}, verbose=0)
    assert len(found.trials[0].results) == 7
    found = tune.run(train, time_budget_s=0.5, verbose=0, raise_on_failed_trial=False)
    assert found.trials[0].status == "ERROR" and "the search ended before it" in found.trials[0].error


PROGRAM = """
import os, sys, time
from calque import tune
def train(config):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)
tune.run(train, num_samples=2, verbose=0, resources_per_trial={"cpu": 0.5})
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_search_that_ends_leaves_no_process(number: signal.Signals) -> None:
    root = str(Path(calque.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as search:
        assert search.stdout is not None
        pids = [int(search.stdout.readline()) for _ in range(2)]
        search.send_signal(number)
        assert search.wait(300) != 0
    until = time.monotonic() + 100
    while any(map(_lives, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_lives, pids))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _idle(config: Any) -> None:
    """Nothing."""


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: tune.run(3), ArgumentError, "expected a function of the configuration"),  # type: ignore[arg-type]
    (lambda: tune.run(_idle, num_samples=0), ArgumentError, "num_samples of 1 or more"),
    (lambda: tune.run(_idle, resources_per_trial={"gpu": 0.5}), DeviceError, "expected trials without a GPU"),
    (lambda: tune.run(_idle, resources_per_trial={"cpu": 10**6}), ArgumentError, "the cores of this machine"),
    (lambda: tune.run(_idle, resources_per_trial={"cpus": 1}), ArgumentError, "numbers for 'cpu', 'gpu', 'memory'"),
    (lambda: tune.run(_idle, scheduler=ASHAScheduler()), ArgumentError, "expected metric and mode, here or in tune.run"),
    (lambda: ASHAScheduler(max_t=1, grace_period=2), ArgumentError, "0 < grace_period <= max_t"),
    (lambda: tune.loguniform(0, 1), ArgumentError, "numbers lower < upper, above 0"),
    (lambda: tune.choice([]), ArgumentError, "expected some values"),
    (lambda: tune.report(loss=1.0), RuntimeError, "expected to be called in a trial"),
    (lambda: Checkpoint.from_directory("/nowhere"), ArgumentError, "expected a folder"),
]


@pytest.mark.parametrize(("call", "kind", "text"), BAD, ids=[text for _, _, text in BAD])
def test_what_is_wrong_is_said(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
