"""`tune.run`: many trials on this machine, each in a process of its own."""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError, DeviceError, WorkerError
from calque.base.text import shown, type_name
from calque.memory.plan import bytes_of
from calque.report.devices import synchronize
from calque.tune import child, on_ray
from calque.tune.reporter import CLIReporter
from calque.tune.schedulers import FIFOScheduler
from calque.tune.search import RandomSearch
from calque.tune.session import Session, tell, told
from calque.tune.trial import ERROR, REFUSED, RUNNING, TERMINATED, ExperimentAnalysis, Trial

LONGEST_WAIT = 0.5  # seconds between looks at the table


@dataclass
class _Process:
    """A trial that runs."""

    trial: Trial
    pid: int
    connection: Connection
    over: bool = False  # it has said how it ended


class _Runner:
    """One search."""

    def __init__(
        self, function: Callable[..., Any], room: int, threads: int, scheduler: FIFOScheduler, max_failures: int, options: dict[str, Any]
    ) -> None:
        self.function, self.room, self.threads, self.scheduler, self.max_failures = function, room, threads, scheduler, max_failures
        self.rehearse, self.memory, self.stop, self.seed = options["rehearse"], options["memory"], options["stop"], options["seed"]
        self.searcher: RandomSearch = options["searcher"]
        self.where = f"on this machine, {room} at a time"
        self.running: list[_Process] = []
        self.again: list[Trial] = []  # whose process has died

    def start(self, trial: Trial, number: int) -> None:
        """Fork a process for it."""
        ours, theirs = multiprocessing.Pipe()
        done = trial.last_result
        kept = trial.latest
        if trial.results:  # what came after the checkpoint comes again
            at = int(Path(kept).name.split("_")[1]) if kept else 0
            trial.results = [r for r in trial.results if r["training_iteration"] <= at]
            done = trial.last_result
        session = Session(trial.trial_id, trial.folder, theirs, done.get("training_iteration", 0), kept, done.get("time_total_s", 0.0))
        seed = random.Random(f"{self.seed} {number}").randrange(1 << 63)
        run = partial(child.trial, self.function, trial.config, session, seed, self.threads, self.rehearse, self.memory)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # nobody is forked and then forgotten
        try:
            pid = child.start(run, theirs, [ours, *(p.connection for p in self.running)])
            self.running.append(_Process(trial, pid, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        trial.status = RUNNING

    def hear(self, seconds: float) -> None:
        """Wait for news of the processes, and answer."""
        ready = wait([p.connection for p in self.running], seconds)
        for process in [p for p in self.running if p.connection in ready]:
            try:
                while process.connection.poll():
                    self._message(process, told(process.connection))
            except (EOFError, OSError):
                self._ended(process)

    def _message(self, process: _Process, message: list[Any]) -> None:
        trial = process.trial
        if message[0] == "result":
            trial.results.append(message[1])
            trial.latest = message[2] or trial.latest
            reached = any(message[1].get(name, -math.inf) >= value for name, value in self.stop.items())
            tell(process.connection, self.scheduler.goes_on(trial.trial_id, message[1]) and not reached)
        elif message[0] == "done":
            trial.status, process.over = TERMINATED, True
        elif message[0] == "refused":
            trial.status, trial.error, process.over = REFUSED, message[1], True
        else:
            trial.error = message[1]

    def _ended(self, process: _Process) -> None:
        """Its end of the pipe is closed."""
        _, status = os.waitpid(process.pid, 0)
        process.connection.close()
        self.running.remove(process)
        trial = process.trial
        if process.over:
            self.searcher.complete(trial.trial_id, trial.last_result)
            return
        trial.failures += 1
        if os.WIFSIGNALED(status):
            trial.error = f"its process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
        elif not trial.error:
            trial.error = f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"
        trial.status = ERROR
        if self.max_failures < 0 or trial.failures <= self.max_failures:
            trial.status, trial.error = "PENDING", ""
            self.again.append(trial)
        else:
            self.searcher.complete(trial.trial_id, None)

    def end(self) -> None:
        """End all processes, whatever they do."""
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        for process in self.running:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, 0)
            process.connection.close()
            if process.trial.status == RUNNING:
                process.trial.status, process.trial.error = ERROR, "the search ended before it"
        self.running = []


def _asked(resources: Any) -> tuple[dict[str, float], int | None]:
    """(what a trial gets, its memory)."""
    given = dict(resources or {})
    memory = given.pop("memory", None)
    asked = {"cpu": 1.0, **given}
    unknown = sorted(set(asked) - {"cpu", "gpu"})
    if unknown or not all(isinstance(n, int | float) and not isinstance(n, bool) and n >= 0 for n in asked.values()):
        raise ArgumentError(f"[tune.run] expected resources_per_trial with numbers for 'cpu', 'gpu', 'memory', got {shown(resources)}")
    return asked, None if memory is None else bytes_of("tune.run", memory)


def _room(asked: dict[str, float], most: int | None) -> tuple[int, int]:
    """(trials at a time, threads of each)."""
    if asked.get("gpu", 0):
        raise DeviceError(
            f"[tune.run] expected trials without a GPU, got resources_per_trial with gpu={asked['gpu']}: this machine's CPUs run them; use gpu=0"
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked["cpu"] > cores:
        raise ArgumentError(f"[tune.run] expected at most cpu={cores} for a trial, the cores of this machine, got {asked['cpu']}")
    room = max(1, int(cores / asked["cpu"] + 1e-9)) if asked["cpu"] else 4 * cores
    return room if most is None else min(room, most), max(1, int(asked["cpu"]))


def _check(run_or_experiment: Any, num_samples: Any, mode: Any, runner: Any) -> None:
    if not callable(run_or_experiment):
        raise ArgumentError(f"[tune.run] expected a function of the configuration, got {type_name(run_or_experiment)}")
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
        raise ArgumentError(f"[tune.run] expected num_samples of 1 or more, got {shown(num_samples)}")
    if mode not in (None, "min", "max"):
        raise ArgumentError(f"[tune.run] expected mode='min' or 'max', got {shown(mode)}")
    if runner not in (None, "local", "ray"):
        raise ArgumentError(f"[tune.run] expected runner='local' or 'ray', got {shown(runner)}")


def run(
    run_or_experiment: Callable[..., Any], *, config: dict[str, Any] | None = None, num_samples: int = 1, metric: str | None = None,
    mode: str | None = None, scheduler: Any = None, progress_reporter: Any = None, resources_per_trial: dict[str, Any] | None = None,
    stop: dict[str, float] | None = None, name: str | None = None, storage_path: Any = None, local_dir: Any = None, max_failures: int = 0,
    max_concurrent_trials: int | None = None, search_alg: Any = None, raise_on_failed_trial: bool = True, time_budget_s: float | None = None,
    verbose: int = 2, seed: int | None = None, rehearse: Callable[..., Any] | None = None, runner: str | None = None,
) -> ExperimentAnalysis:  # fmt: skip
    """Try configurations: call a function in a process of its own for each, some at a time, and stop early what promises little.

    run_or_experiment: `train(config)`, which calls `tune.report(...)`; a dict that it returns is a last report. With a parameter `checkpoint_dir` it
    gets the path of the checkpoint from which it goes on. config: values, domains (`tune.loguniform(1e-4, 1e-1)`) and `tune.grid_search([...])`,
    nested dicts too. num_samples: how many are drawn. scheduler: `ASHAScheduler(...)`; all run to their end by default. progress_reporter:
    `CLIReporter(...)`; verbose=0 prints nothing. resources_per_trial: as many run at a time as there are cores for, `{"cpu": 0.5}` two per core.
    stop: values of metrics at which a trial ends. max_failures: how often a trial whose process dies, or raises, begins anew from its newest
    checkpoint (-1: always). storage_path: where checkpoints are kept, a folder of temporary files by default; name: of the folder in it. seed: makes
    configurations and the trials' random numbers the same every time, but for what functions of `sample_from` draw.

    rehearse: `rehearse(config)` returns `(step, *inputs)` of a trial. Before the trial starts, `calque.memory.plan` finds out what the step would
    hold, and refuses the trial if that is more than `resources_per_trial["memory"]` (bytes, or "2GiB"; by default the machine's available memory,
    shared among the trials that run at a time).

    runner: "local", where trials are forks of this process; or "ray", where Ray Tune runs them on its cluster, or on one that it starts here for as
    long as the search takes. By default Ray's where the program has called `ray.init()`; the table says which. Under Ray, functions are pickled,
    `scheduler`, `search_alg` and `progress_reporter` may also be Ray's own, and `storage_path` is a folder that all machines see.
    search_alg: who proposes configurations; `OptunaSearch()` learns from results.

    Raises WorkerError once all have ended if some have failed (raise_on_failed_trial).

    >>> from calque import tune
    >>> def train(config):
    ...     for epoch in range(3):
    ...         tune.report(loss=(config["x"] - 2) ** 2 / (epoch + 1))
    >>> found = tune.run(train, config={"x": tune.grid_search([1.0, 1.5, 3.5])}, metric="loss", mode="min", verbose=0)
    >>> found.best_config, found.best_result["training_iteration"]
    ({'x': 1.5}, 3)
    """
    _check(run_or_experiment, num_samples, mode, runner)
    asked, memory = _asked(resources_per_trial)
    scheduler = FIFOScheduler() if scheduler is None else scheduler
    searcher = RandomSearch() if search_alg is None else search_alg
    by_ray = runner == "ray" or (runner is None and on_ray.is_joined())
    if isinstance(scheduler, FIFOScheduler):
        scheduler.wants(metric, mode)
    metric, mode = metric or getattr(scheduler, "metric", None), mode or getattr(scheduler, "mode", None)
    reporter = (CLIReporter() if progress_reporter is None else progress_reporter) if verbose else None
    base = Path(storage_path or local_dir or mkdtemp(prefix="calque-tune-")) / str(name or getattr(run_or_experiment, "__name__", "search"))
    rng = random.Random(seed)
    options = {"rehearse": rehearse, "memory": memory, "seed": rng.random()}
    if isinstance(searcher, RandomSearch):
        searcher.begin(config or {}, num_samples, metric, mode, rng)
    analysis = ExperimentAnalysis([], base, metric, mode)
    if by_ray:
        more = {"stop": stop, "max_failures": max_failures, "max_concurrent_trials": max_concurrent_trials, "time_budget_s": time_budget_s}
        on_ray.search(run_or_experiment, config or {}, num_samples, searcher, scheduler, reporter, analysis, asked, options, more)
    else:
        _here(run_or_experiment, searcher, scheduler, reporter, analysis, asked, options, stop, max_failures, max_concurrent_trials, time_budget_s)
    if raise_on_failed_trial:
        _require_success(analysis.trials)
    return analysis


def _here(
    function: Callable[..., Any], searcher: Any, scheduler: Any, reporter: Any, analysis: ExperimentAnalysis, asked: dict[str, float],
    options: dict[str, Any], stop: dict[str, float] | None, max_failures: int, most: int | None, budget: float | None,
) -> None:  # fmt: skip
    """Run a search in forks of this process."""
    if not hasattr(os, "fork"):
        raise DeviceError("[tune.run] expected a system that can fork processes, got one that cannot; run it on Linux or macOS, or with runner='ray'")
    kinds = (("scheduler", scheduler, FIFOScheduler), ("search_alg", searcher, RandomSearch), ("progress_reporter", reporter, CLIReporter | None))
    for name, given, kind in kinds:
        if not isinstance(given, kind):
            raise ArgumentError(f"[tune.run] expected a {name} of calque.tune, got {type_name(given)}; Ray's run with runner='ray'")
    room, threads = _room(asked, most)
    if options["memory"] is None and options["rehearse"] is not None:
        options["memory"] = child.available() // room
    runner = _Runner(function, room, threads, scheduler, max_failures, {**options, "stop": dict(stop or {}), "searcher": searcher})
    try:
        _search(runner, analysis, reporter, budget)
    finally:
        runner.end()


def _require_success(trials: list[Trial]) -> None:
    failed = [t for t in trials if t.status == ERROR]
    if failed:
        rows = "\n".join(f"{t.trial_id} with {shown(t.config)}: {t.error}" for t in failed[:3])
        raise WorkerError(f"[tune.run] expected all trials to end well, got {len(failed)} of {len(trials)} that failed:\n{rows}")


def _search(runner: _Runner, analysis: ExperimentAnalysis, reporter: Any, budget: float | None) -> None:
    """Start trials where there is room, until there are none."""
    trials, more = analysis.trials, True
    synchronize()  # nothing is computed here while processes are forked
    np.random.get_state()  # else every process would load the module
    gc.collect()
    gc.freeze()
    until = math.inf if budget is None else time.monotonic() + budget
    try:
        while (more or runner.running or runner.again) and time.monotonic() < until:
            while len(runner.running) < runner.room and (runner.again or more):
                if runner.again:
                    trial = runner.again.pop(0)
                    runner.start(trial, trials.index(trial))
                    continue
                label = f"{len(trials):05d}"
                config = runner.searcher.suggest(label)
                if config is None:
                    more = False
                    break
                trials.append(Trial(label, config, child.folder_of(analysis.path, label)))
                runner.start(trials[-1], len(trials) - 1)
            if runner.running:
                runner.hear(min(LONGEST_WAIT, until - time.monotonic()))
            if reporter is not None:
                reporter.look(trials, runner.where)
    finally:
        gc.unfreeze()
        runner.end()
    if reporter is not None:
        reporter.look(trials, runner.where, end=True)
