"""The same search on a cluster: Ray Tune starts the trials, and starts anew those that die. Ray is imported where it is needed."""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from calque.base.errors import ArgumentError, DeviceError
from calque.base.extras import need
from calque.base.text import type_name
from calque.tune import child
from calque.tune.reporter import CLIReporter
from calque.tune.schedulers import ASHAScheduler, FIFOScheduler
from calque.tune.search import RandomSearch
from calque.tune.session import Session
from calque.tune.space import Domain, leaves_of, put
from calque.tune.trial import ERROR, REFUSED, ExperimentAnalysis, Trial

_NOT_REPORTED = {"done", "trial_id", "experiment_tag", "should_checkpoint"}  # entries of results that Ray adds, beside those that it lists


def is_joined() -> bool:
    """Whether the program has joined a cluster, or started one, by `ray.init()`. Does not load Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


class _RaySession(Session):
    """A trial whose results go to Ray, seen from its process."""

    def __init__(self, tune: Any, folder: Path, checkpoint: str | None, metric: str | None) -> None:
        super().__init__(tune.get_context().get_trial_name(), folder, None, 0, checkpoint, 0.0)
        self._tune, self._metric = tune, metric

    def send(self, metrics: dict[str, Any], kept: str | None) -> None:
        """See `Session`. Ray ends the thread of a trial that is not to go on."""
        self._tune.report(metrics, checkpoint=None if kept is None else self._tune.Checkpoint.from_directory(kept))
        if kept is not None and self.checkpoint is not None and Path(self.checkpoint).parent == self.folder:
            shutil.rmtree(self.checkpoint)  # Ray has a newer one

    def end(self, refused: str = "") -> None:
        """See `Session`."""
        if refused:
            self._tune.report({"refused": refused, **({} if self._metric is None else {self._metric: math.nan})})


def remote(config: dict[str, Any], *, function: Callable[..., Any], options: dict[str, Any], metric: str | None, share: float, cwd: str) -> None:
    """What Ray calls in the process of a trial. cwd: the folder that the program works in, so that names of files mean the same there."""
    tune = need("ray.tune", "ray[tune]", "ray", "tune.run")
    with contextlib.suppress(OSError):  # on another machine there may be no such folder
        os.chdir(cwd)
    folder = Path(mkdtemp(prefix="calque-trial-"))
    try:
        with contextlib.ExitStack() as stack:
            found = tune.get_checkpoint()
            session = _RaySession(tune, folder, stack.enter_context(found.as_directory()) if found else None, metric)
            seed = random.Random(f"{options['seed']} {int(session.trial)}").randrange(1 << 63)
            memory = options["memory"]
            if memory is None and options["rehearse"] is not None:
                memory = int(child.available() * min(1.0, share / (os.cpu_count() or 1)))
            child.trial(function, config, session, seed, max(1, int(share)), options["rehearse"], memory)
    finally:
        Session.current = None
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _cluster() -> Iterator[tuple[Any, Any]]:
    """Ray and its Tune, in a cluster: that of the program, or one that ends with the search."""
    ray, tune = need("ray", "ray[tune]", "ray", "tune.run"), need("ray.tune", "ray[tune]", "ray", "tune.run")
    if ray.is_initialized():
        yield ray, tune
        return
    ray.init(include_dashboard=False, logging_level="WARNING")
    try:
        yield ray, tune
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ray ends a search at Ctrl-C as if it were done, and keeps the signal when it is: raise here, and give it back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    try:
        yield
        if signal.getsignal(signal.SIGINT) is before[signal.SIGINT]:  # it has been given back, which an interrupt does
            raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _resources(ray: Any, asked: dict[str, float], memory: int | None) -> dict[str, float]:
    """What Ray gives a trial. Ray would wait for ever where no machine has it."""
    wanted = {"CPU": asked["cpu"], "GPU": asked.get("gpu", 0), **({} if memory is None else {"memory": memory})}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= n for name, n in wanted.items()) for node in nodes):
        has = "; ".join(", ".join(f"{name} {node.get(name, 0):,.0f}" for name in wanted) for node in nodes)
        raise DeviceError(
            f"[tune.run] expected a machine of the cluster with {', '.join(f'{k} {v:g}' for k, v in wanted.items())} for a trial, got {has}; "
            f"ask for less in resources_per_trial"
        )
    return {name: n for name, n in wanted.items() if n}


def _scheduler(tune: Any, given: Any) -> Any:
    """Ray's scheduler for ours; its own stay as they are."""
    made = need("ray.tune.schedulers", "ray[tune]", "ray", "tune.run")
    if type(given) is ASHAScheduler:
        return made.AsyncHyperBandScheduler(
            time_attr=given.time_attr, max_t=given.max_t, grace_period=given.grace_period,
            reduction_factor=given.factor, brackets=1, stop_last_trials=given.stop_last_trials,
        )  # fmt: skip
    if type(given) is FIFOScheduler:
        return made.FIFOScheduler()
    if isinstance(given, made.TrialScheduler):
        return given
    raise ArgumentError(f"[tune.run] expected a scheduler of calque.tune.schedulers or ray.tune.schedulers, got {type_name(given)}")


def _searcher(source: RandomSearch) -> Any:
    """What Ray asks for configurations, from ours."""
    base: Any = need("ray.tune.search", "ray[tune]", "ray", "tune.run").Searcher

    class Suggested(base):  # type: ignore[misc]
        """Passes questions on."""

        def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
            return True

        def suggest(self, trial_id: str) -> Any:
            config = source.suggest(trial_id)
            return base.FINISHED if config is None else config

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            source.complete(trial_id, None if error else result)

        def save(self, checkpoint_path: str) -> None:
            """A search does not go on after its program has ended."""

        restore = save

    return Suggested()


def _space(tune: Any, space: dict[str, Any]) -> dict[str, Any]:
    """A space in Ray's objects, for its own searchers."""
    found: dict[str, Any] = {}
    for path, value in leaves_of(space):
        put(found, path, getattr(tune, value.name)(*value.given) if isinstance(value, Domain) else value)
    return found


class _Book:
    """Our trials, kept up with Ray's."""

    def __init__(self, tune: Any, analysis: ExperimentAnalysis, reporter: Any, where: str) -> None:
        self.known: dict[str, Trial] = {}
        self._auto = {*need("ray.tune.result", "ray[tune]", "ray", "tune.run").AUTO_RESULT_KEYS, *_NOT_REPORTED}
        self._analysis, self._reporter, self._where = analysis, reporter, where
        book = self

        class Follow(tune.Callback):  # type: ignore[misc, name-defined]
            """Ray calls it."""

            def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
                book.result(trial, result)

            def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
                book.look(trials)

        self.callback = Follow()

    def name(self, trial: Any) -> str:
        """The name of a trial; it gets one when Ray makes it."""
        if trial.trial_id not in self.known:
            label = f"{len(self.known):05d}"
            ours = self.known[trial.trial_id] = Trial(label, trial.config, self._analysis.path / label)
            self._analysis.trials.append(ours)
        return self.known[trial.trial_id].trial_id

    def result(self, trial: Any, result: dict[str, Any]) -> None:
        """Add a result."""
        ours = self.known[trial.trial_id]
        if "refused" in result:
            ours.error = result["refused"]
            return
        reported = {name: value for name, value in result.items() if name not in self._auto}
        if reported:
            at = result["training_iteration"]
            ours.results = [r for r in ours.results if r["training_iteration"] < at]  # what came after the checkpoint comes again
            ours.results.append({"training_iteration": at, "time_total_s": result["time_total_s"], "trial_id": ours.trial_id, **reported})

    def look(self, trials: Any, end: bool = False) -> None:
        """See how all are doing."""
        for trial in trials:
            ours = self.known[trial.trial_id]
            ours.status = REFUSED if ours.error and trial.status != ERROR else trial.status
            ours.failures = trial.num_failures
            if trial.checkpoint is not None:
                ours.latest = trial.checkpoint.path
            if trial.status == ERROR:
                ours.error = str(trial.get_error() or trial.get_pickled_error() or "it has failed")
        if self._reporter is not None:
            self._reporter.look(self._analysis.trials, where=self._where, end=end)


def search(
    function: Callable[..., Any], space: dict[str, Any], num_samples: int, searcher: Any, scheduler: Any, reporter: Any, analysis: ExperimentAnalysis,
    asked: dict[str, float], options: dict[str, Any], more: dict[str, Any],
) -> None:  # fmt: skip
    """Run a search by Ray Tune; the analysis has what it finds."""
    metric, mode = analysis.metric, analysis.mode
    with _cluster() as (ray, tune):
        resources = _resources(ray, asked, options["memory"])
        ours = isinstance(searcher, RandomSearch)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        cpus = sum(node["Resources"].get("CPU", 0) for node in nodes)
        where = f"on Ray, {len(nodes)} machine{'s' if len(nodes) > 1 else ''}, {cpus:g} CPUs"
        own = reporter is not None and isinstance(reporter, CLIReporter)
        book = _Book(tune, analysis, reporter if own else None, where)
        strict = not ours or type(scheduler) is not FIFOScheduler  # Ray then wants the metric in every result
        work = partial(remote, function=function, options=options, metric=metric, share=asked["cpu"], cwd=os.getcwd())
        placed = tune.PlacementGroupFactory([resources])

        def name(trial: Any) -> str:  # Ray copies what it gets, but for functions
            return book.name(trial)

        with _interruptible():
            found = tune.run(
                work, name=analysis.path.name, storage_path=str(analysis.path.parent.absolute()), config={} if ours else _space(tune, space),
                num_samples=searcher.total if ours else num_samples, search_alg=_searcher(searcher) if ours else searcher,
                scheduler=_scheduler(tune, scheduler), metric=metric if strict else None, mode=mode if strict else None,
                resources_per_trial=placed, callbacks=[book.callback], trial_name_creator=name, trial_dirname_creator=name,
                raise_on_failed_trial=False, progress_reporter=None if own else reporter, verbose=0 if own or reporter is None else 1, **more,
            )  # fmt: skip
        book.look(found.trials, end=True)
