"""A training loop that can be killed: what a plain loop needs around its five lines, and nothing that a plain loop could not do."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque import nn
from calque.base.config import settings
from calque.base.errors import ArgumentError, CheckpointError, DTypeError, NonFiniteError
from calque.base.text import described, shown, type_name
from calque.monitor import AverageMeter, Logger, ProgressBar
from calque.observe.source import warn_user
from calque.train.checkpoints import Checkpoints
from calque.train.losses import LossLog
from calque.train.ranks import Ranks
from calque.train.streams import set_streams, streams

MOST_REPLAYED = 2000  # steps that are done again to find where a NaN came from


Follower = Callable[["Trainer", dict[str, float]], None]  # what is called with the figures of an epoch


def _listed(followers: Any) -> Sequence[Any]:
    """What is called after every epoch."""
    return followers if isinstance(followers, list | tuple) else [] if followers is None else [followers]


class Stopped(SystemExit):
    """The process was asked to end (SIGTERM); a checkpoint has been written. The exit code is the one a shell gives such a process."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class _Signals:
    """SIGTERM and Ctrl-C ask the loop to end after the step that it is at; a second one ends it at once."""

    def __init__(self) -> None:
        self.asked = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        with contextlib.suppress(ValueError):  # not in the main thread: signals keep their meaning
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: object) -> None:
        if self.asked:
            raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)
        self.asked = number


def _require_parts(optimizer: Any, scheduler: Any, schedule: str, metrics: Any) -> None:
    """Raise for parts that no update can work with, and for figures that would take the place of others."""
    if isinstance(optimizer, calque.optim.LBFGS):
        raise DTypeError("[Trainer] expected an optimizer whose step() takes no function, got LBFGS; write the loop, or take another one")
    if schedule == "step" and isinstance(scheduler, calque.optim.lr_scheduler.ReduceLROnPlateau):
        raise ArgumentError("[Trainer] expected schedule='epoch' for ReduceLROnPlateau, which looks at the figures of an epoch, got 'step'")
    for name in metrics or {}:
        if name in ("epoch", "loss") or str(name).startswith("val_"):
            raise ArgumentError(f"[Trainer] expected names of metrics other than epoch, loss and val_..., got {name!r}: figures have these")


class Trainer:
    """Trains a model, epoch by epoch, so that nothing is lost when it is stopped, and goes on bit for bit as if it had not been.

    model, optimizer: as in a plain loop. loss_fn(outputs, targets): the mean over a batch. A batch is (inputs, targets), or (inputs, ..., targets)
    for a model of several inputs; override `forward` for anything else.

    folder: checkpoints, `losses.jsonl` (the loss of every step) and `index.json`. scheduler: steps once an epoch, or with schedule="step" after every
    update. accumulate: batches for one update, which is the update of one batch that is as large as they are together. max_norm: clips gradients.
    amp: "bfloat16" or "float16" for forward and loss under autocast (float16 with a GradScaler). metrics: functions (outputs, targets) -> the mean
    over a batch. monitor: which of the figures of an epoch decides about the best checkpoints and early stopping, and mode: "min" or "max" is better.
    patience: epochs without a better one before it stops. keep: how many of the best checkpoints stay. save_every: updates between checkpoints inside
    an epoch; default: at its end only. on_epoch(trainer, figures): called after every epoch; a function, a logger
    of `calque.monitor` (they are such functions), or a list of them. quiet: prints nothing. wait: False writes checkpoints in another thread while
    training goes on. config: options of yours, kept in checkpoints; one with others is refused.

    In a job (`calque launch -n 2`) every rank computes its samples of each batch, `model` becomes a DistributedDataParallel (the module itself is its
    `.module`), and the run is that of one process; the first rank writes the files and calls the loggers, all ranks call other functions.

    A loss that is NaN or infinite ends training with NonFiniteError, which names the operation and its line: the step is done once more in checked
    mode, from the last checkpoint. A checkpoint that cannot be written (a full disk) is a warning; training goes on.

    >>> from calque.train import Trainer
    >>> data = calque.data.TensorDataset(calque.randn(64, 4), calque.arange(64) % 3)
    >>> model = calque.nn.Linear(4, 3)
    >>> trainer = Trainer(model, calque.optim.SGD(model.parameters(), lr=0.1), calque.nn.functional.cross_entropy, folder="trained", quiet=True)
    >>> history = trainer.fit(calque.data.DataLoader(data, 16, shuffle=True), epochs=2)
    >>> [figures["epoch"] for figures in history], trainer.checkpoints.last.name
    ([1, 2], 'epoch002-step000008-loss...calque')
    """

    def __init__(
        self, model: Any, optimizer: Any, loss_fn: Callable[[Any, Any], Any], *, folder: str | os.PathLike[str], scheduler: Any = None,
        schedule: str = "epoch", accumulate: int = 1, max_norm: float | None = None, amp: str | None = None,
        metrics: dict[str, Callable[[Any, Any], Any]] | None = None, monitor: str = "", mode: str = "min", patience: int | None = None, keep: int = 3,
        save_every: int | None = None, on_epoch: Follower | Sequence[Follower] | None = None, quiet: bool = False,
        config: dict[str, Any] | None = None, wait: bool = True,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module) or not callable(loss_fn):
            raise DTypeError(f"[Trainer] expected a Module and a loss function, got {type_name(model)} and {type_name(loss_fn)}")
        for name, value, methods in (("optimizer", optimizer, ("step", "zero_grad", "state_dict")), ("scheduler", scheduler, ("step", "state_dict"))):
            if value is not None and not all(callable(getattr(value, method, None)) for method in methods):
                raise DTypeError(f"[Trainer] expected {name} with {', '.join(methods)}, got {type_name(value)}")
        for name, value in (("accumulate", accumulate), ("patience", patience), ("save_every", save_every)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ArgumentError(f"[Trainer] expected {name} to be an integer >= 1, got {shown(value)}")
        if not all(map(callable, _listed(on_epoch))):
            raise DTypeError(f"[Trainer] expected on_epoch as a function, a logger or a list of them, got {shown(on_epoch)}")
        for name, word, words in (("schedule", schedule, ("epoch", "step")), ("amp", amp, (None, "bfloat16", "float16"))):
            if word not in words:
                raise ArgumentError(f"[Trainer] expected {name} to be one of {words}, got {shown(word)}")
        _require_parts(optimizer, scheduler, schedule, metrics)
        self.ranks = Ranks()
        self.model, self.optimizer, self.loss_fn, self.scheduler, self.schedule = self.ranks.wrapped(model), optimizer, loss_fn, scheduler, schedule
        self.accumulate, self.max_norm, self.amp, self.metrics = accumulate, max_norm, amp, dict(metrics or {})
        self.monitor, self.mode, self.patience, self.save_every, self.on_epoch = monitor, mode, patience, save_every, on_epoch
        self.quiet = quiet or not self.ranks.first
        self.scaler = calque.amp.GradScaler("cpu") if amp == "float16" else None
        self.checkpoints = Checkpoints(folder, keep, monitor or "loss", mode)
        self.config, self.wait = dict(config or {}), wait
        self.losses = Path(folder) / "losses.jsonl"
        self._log = LossLog(self.losses if self.ranks.first else None)
        self.epoch = self.step = self.updates = 0  # whole epochs; updates in this one; updates in all
        self.history: list[dict[str, float]] = []
        self.stopped = ""  # why training is over before its last epoch
        self.meters = {name: AverageMeter(name) for name in ("loss", *self.metrics)}
        self._fresh, self._epochs = True, 0
        self._loader_state: Any = None
        self._loaded = False  # whether this state came from a checkpoint
        self._drained = False  # whether this epoch has no more batches: a loader whose pass is over would begin another one
        self._unread: tuple[int, Any] | None = None
        self._signals, self._asked = _Signals(), 0  # of this process, and the one that asks any of the ranks to end
        self._loader: Any = None  # of the epoch that runs
        self._passes = 0  # backward passes of this object
        self._kept = False  # whether gradients that stay were told of

    # -------------------------------------------------------------------------------------------------------------- one step

    def forward(self, batch: Any) -> tuple[Any, Any, Any]:
        """(loss, outputs, targets) of a batch; the loss is its mean over the batch, whose size is `len(targets)`."""
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise DTypeError(f"[Trainer] expected batches (inputs, targets), got {type_name(batch)}; override Trainer.forward for others")
        *inputs, targets = batch
        with calque.autocast("cpu", dtype=getattr(calque, self.amp)) if self.amp else contextlib.nullcontext():
            outputs = self.model(*inputs)
            loss = self.loss_fn(outputs, targets)
        if not isinstance(loss, calque.Tensor) or loss.numel() != 1:
            raise DTypeError(f"[Trainer] expected loss_fn(outputs, targets) to give the mean loss, one number as a Tensor, got {described(loss)}")
        return loss, outputs, targets

    def _update(self, group: list[Any]) -> Any:
        """One update with some batches, and what `_look` reads of it: the mean loss of their samples. Each weighs as much as it has samples: together
        they are one batch."""
        sizes = self.ranks.sizes(self._loader, self.step * self.accumulate, group)
        total, mean = sum(sizes), None
        self.optimizer.zero_grad()
        if self.ranks.size > 1:
            self.model.set_weight(total)
        if self._passes and self.step < 2:  # once an epoch: parameters may be thawed between two
            self._look_for_kept()
        self._passes += len(group)
        for number, (batch, size) in enumerate(zip(group, sizes), 1):
            with self.ranks.apart(self.model, number == len(group)):
                loss, outputs, targets = self.forward(batch)
                part = loss if len(group) == 1 else loss * (size / max(total, 1))
                (self.scaler.scale(part) if self.scaler is not None else part).backward()
            mean = part.detach() if mean is None else mean + part.detach()
            if not size:
                continue
            with calque.no_grad():
                for name, metric in self.metrics.items():
                    self.meters[name].update(metric(outputs.detach(), targets), n=size)
        if self.max_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler is not None and self.schedule == "step":
            self.scheduler.step()
        if total:
            self.meters["loss"].update(mean, n=total)
        self.step += 1
        self.updates += 1
        return self.ranks.told(mean, total, self._signals.asked)

    def _look_for_kept(self) -> None:
        """Warn once of gradients that `zero_grad` has left: each update would add to those of the updates before.

        Values are read, because zeros may be left as well, of gradients that are there; in most runs there are none.
        """
        left = [] if self._kept else [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        names = [name for name, grad in left if bool(((grad.to_dense() if grad.is_sparse else grad) != 0).any())]
        if names:
            self._kept = True
            some = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            warn_user(
                f"[Trainer] expected no gradients before the backward passes of an update (accumulate={self.accumulate}), got those of "
                f"{self._passes} earlier ones in {len(names)} parameters ({some}), which optimizer.zero_grad() does not forget; hand them to the "
                "optimizer, or freeze them with calque.train.freeze"
            )

    # -------------------------------------------------------------------------------------------------------------- the loop

    def fit(self, loader: Iterable[Any], validation: Iterable[Any] | None = None, epochs: int = 1) -> list[dict[str, float]]:
        """Train until `epochs` epochs are done in all, also counting those of a run that was resumed. The figures of every epoch.

        SIGTERM and Ctrl-C end it after the step it is at, with a checkpoint: the first as `SystemExit`, the second as `KeyboardInterrupt`. `fit` of
        the same arguments after `resume()` goes on there.
        """
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
            raise ArgumentError(f"[Trainer] expected epochs to be an integer >= 0, got {shown(epochs)}")
        self.monitor = self.monitor or ("val_loss" if validation is not None else "loss")
        self.checkpoints.metric, self._epochs = self.monitor, epochs
        self._stop_early()
        loader, validation = self.ranks.share(loader), None if validation is None else self.ranks.share(validation)
        if not self.ranks.agreed(self.checkpoints.last is not None):
            self.save()
        elif self._fresh:
            raise CheckpointError(
                f"[Trainer] expected resume() before fit, because {self.checkpoints.folder} has checkpoints of an earlier run, got none; call it, "
                f"or clear(), or "
                "choose another folder"
            )
        self._fresh = False
        try:
            with _Signals() as self._signals:
                while self.epoch < epochs and not self.stopped:
                    started = time.perf_counter()
                    self._epoch(loader, epochs)
                    figures = self._figures(validation)
                    self._print(figures, time.perf_counter() - started)
                    if self.ranks.size == 1:
                        self._asked = self._signals.asked
                    self._end()
        except BaseException:
            with contextlib.suppress(CheckpointError):  # whoever goes on from the folder, in this process too, finds nobody who still writes there
                self.checkpoints.wait()
            raise
        self.checkpoints.entries = self.ranks.agreed(self.checkpoints.entries)
        return self.history

    def _end(self) -> None:
        """End if a signal has asked for it."""
        asked, self._asked = self._asked, 0
        if asked:
            raise KeyboardInterrupt if asked == signal.SIGINT else Stopped(asked)

    def _epoch(self, loader: Any, epochs: int) -> None:
        self._loader = loader
        self.model.train()
        total = -(-len(loader) // self.accumulate) if hasattr(loader, "__len__") else None
        batches = self._batches(loader)
        with ProgressBar(total, f"epoch {self.epoch + 1}/{epochs}", initial=self.step, disable=self.quiet) as bar:
            while group := list(islice(batches, self.accumulate)):
                told = self._update(group)
                self._look(loader)
                self._unread = (self.step - 1, told)
                bar.update(1)
                self._drained = len(group) < self.accumulate
                due = self.save_every is not None and self.updates % self.save_every == 0
                if due or self._asked:
                    self._look(loader)
                    self._loader_state = loader.state_dict() if hasattr(loader, "state_dict") else None
                    self.save(last=bool(self._asked))
                self._end()
        self._look(loader)
        self._loader_state = loader.state_dict() if hasattr(loader, "state_dict") else None  # its own generator goes on from there
        self._drained = False

    def _batches(self, loader: Any) -> Iterator[Any]:
        """The batches of this epoch that are left."""
        if self.step == 0:
            sampler: Any = self.ranks.sampler(loader)
            if hasattr(sampler, "set_epoch") and not hasattr(sampler, "state_dict"):
                sampler.set_epoch(self.epoch)
            if self._loader_state is not None and self._loaded:
                loader.load_state_dict(self._loader_state)
            self._loaded = False
            return self.ranks.begin(loader)
        if self._loader_state is not None:
            loader.load_state_dict(self._loader_state)  # of one that is drained: where its generators stand for the next epoch
        if self._drained:
            return iter(())
        if self._loader_state is not None:
            return iter(loader)
        before = streams()
        batches = iter(loader)
        for _ in islice(batches, self.step * self.accumulate):
            pass
        set_streams(before)
        return batches

    def _look(self, loader: Any) -> None:
        """Read what is told of the update before: it is there by now, so nobody waits."""
        if self.ranks.size == 1:
            self._asked = self._signals.asked
        if self._unread is None:
            return
        (step, told), self._unread = self._unread, None
        value, others = self.ranks.read(told)
        self._asked = self._asked or others
        if not math.isfinite(value):
            self._not_finite(step, value, loader)
        self._log.append(self.epoch, step, value)

    def _figures(self, validation: Iterable[Any] | None) -> dict[str, float]:
        """Close an epoch: its figures, the scheduler, the checkpoint, and whether it goes on."""
        figures: dict[str, float] = {"epoch": self.epoch + 1, **self._averages(self.meters)}
        if validation is not None:
            figures |= {f"val_{name}": value for name, value in self.evaluate(validation).items()}
        if self.monitor not in figures:
            raise ArgumentError(f"[Trainer] expected monitor to be one of {list(figures)}, got {self.monitor!r}")
        if self.scheduler is not None and self.schedule == "epoch":
            self.scheduler.step(*([figures[self.monitor]] if isinstance(self.scheduler, calque.optim.lr_scheduler.ReduceLROnPlateau) else []))
        self.history.append(figures)
        self.epoch, self.step = self.epoch + 1, 0
        for meter in self.meters.values():
            meter.reset()
        self._stop_early()
        for follow in _listed(self.on_epoch):
            if self.ranks.first or not isinstance(follow, Logger):
                follow(self, figures)
        self.save(figures[self.monitor], last=bool(self.stopped) or self.epoch >= self._epochs)
        return figures

    def _averages(self, meters: dict[str, AverageMeter]) -> dict[str, float]:
        """Over the samples of all ranks. Raises where there were none: an average of nothing would be the best of all."""
        sums = self.ranks.total([number for meter in meters.values() for number in (meter.sum, meter.count)])
        if not sums[1]:
            what = f"for epoch {self.epoch + 1}" if meters is self.meters else "to evaluate"
            raise ArgumentError(
                f"[Trainer] expected batches with samples {what}, got none; a generator can be walked through once, and drop_last=True may drop all: "
                "pass a DataLoader or a list"
            )
        return {name: total / count if count else 0.0 for name, total, count in zip(meters, sums[::2], sums[1::2], strict=True)}

    def _stop_early(self) -> None:
        """Training is over if the last epochs were none better."""
        sign = 1.0 if self.mode == "min" else -1.0
        values = [sign * entry[self.monitor] if math.isfinite(entry[self.monitor]) else math.inf for entry in self.history]
        stop = self.patience is not None and bool(values) and len(values) - 1 - int(np.argmin(values)) >= self.patience
        self.stopped = f"{self.monitor} has not become better for {self.patience} epochs" if stop else ""

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """The mean loss and metrics over a loader, in evaluation mode. The model is in the mode it was in afterwards."""
        meters = {name: AverageMeter(name) for name in self.meters}
        before, loader = self.model.training, self.ranks.share(loader)
        self.model.eval()
        try:
            with calque.no_grad():
                for number, batch in enumerate(self.ranks.begin(loader)):
                    if self.ranks.size > 1 and not self.ranks.sizes(loader, number, [batch])[0]:
                        continue
                    loss, outputs, targets = self.forward(batch)
                    meters["loss"].update(loss, n=len(targets))
                    for name, metric in self.metrics.items():
                        meters[name].update(metric(outputs, targets), n=len(targets))
        finally:
            self.model.train(before)
        return self._averages(meters)

    def _print(self, figures: dict[str, float], seconds: float) -> None:
        if not self.quiet:
            text = "  ".join(f"{name} {value:.4g}" for name, value in figures.items() if name != "epoch")
            sys.stdout.write(f"epoch {int(figures['epoch'])}  {text}  {seconds:.1f} s\n" + (f"stopped: {self.stopped}\n" if self.stopped else ""))
            sys.stdout.flush()

    # -------------------------------------------------------------------------------------------------------------- stopping and going on

    def state_dict(self) -> dict[str, Any]:
        """Everything that training depends on, as data; in a job all ranks have to call it."""
        meters = {name: meter.state_dict() for name, meter in self.meters.items()}
        if self.ranks.size > 1:
            sums = self.ranks.total([number for meter in meters.values() for number in (meter["sum"], meter["count"])])
            meters = {n: {**m, "sum": s, "count": int(c)} for (n, m), s, c in zip(meters.items(), sums[::2], sums[1::2], strict=True)}
        parts = {"scheduler": self.scheduler, "scaler": self.scaler}
        return {
            "version": 1, "epoch": self.epoch, "step": self.step, "updates": self.updates, "history": self.history, "stopped": self.stopped,
            "config": self.config, "accumulate": self.accumulate, "optimizer": type_name(self.optimizer), "drained": self._drained,
            "losses": self._log.unsafe(),
            "model_state_dict": Ranks.inside(self.model).state_dict(), "optimizer_state_dict": self.optimizer.state_dict(),
            "loader": self._loader_state, "meters": meters, "streams": streams() if self.ranks.size == 1 else self.ranks.all(streams()),
            **{f"{name}_state_dict": None if part is None else part.state_dict() for name, part in parts.items()},
        }  # fmt: skip

    def load_state_dict(self, state: Any) -> None:
        """Take up what `state_dict` gave. Raises CheckpointError for anything else, and what the parts raise for a state that does not fit them."""
        if not isinstance(state, dict) or state.get("version") != 1 or "streams" not in state:
            raise CheckpointError(f"[Trainer] expected a checkpoint of a Trainer, got {shown(state)}; use Trainer.resume for its own")
        saved = state["config"]
        different = [f"{k}: saved {saved.get(k)!r}, now {v!r}" for k, v in self.config.items() if saved.get(k) != v]
        if different:
            raise CheckpointError(f"[Trainer] expected a checkpoint of the same configuration, got another ({', '.join(different)}); pass the same "
            f"options")
        for name, part in (("scheduler", self.scheduler), ("scaler", self.scaler)):
            if (part is None) != (state[f"{name}_state_dict"] is None):
                raise CheckpointError(f"[Trainer] expected a checkpoint {'with' if part is not None else 'without'} a {name}, as this Trainer; make "
                f"it equal")
        for name, here in (("accumulate", self.accumulate), ("optimizer", type_name(self.optimizer))):
            found = state.get(name, here)  # files of older versions do not say it
            if found != here and (name == "optimizer" or state["step"]):
                raise CheckpointError(f"[Trainer] expected a checkpoint of a run with the {name} {here}, got one with {found}; make it equal")
        Ranks.inside(self.model).load_state_dict(state["model_state_dict"])
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler_state_dict"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler_state_dict"])
        self.epoch, self.step, self.updates = state["epoch"], state["step"], state["updates"]
        self.history, self.stopped, self._loader_state = list(state["history"]), "", state["loader"]
        for name, meter in self.meters.items():
            meter.load_state_dict(state["meters"].get(name, {}) if self.ranks.first else {})
        self.ranks.take_up(state["streams"])
        self._drained, self._loaded = state["drained"], True
        self._unread, self._fresh = None, False

    def save(self, value: float | None = None, last: bool = False) -> None:
        """Write a checkpoint (`last`: and wait until it is written). One that cannot be written is a warning: those before it are there, and training
        goes on."""
        keep = self.checkpoints
        self._log.write(durable=True)
        state = self.state_dict()
        if not self.ranks.first:
            return
        for act in (keep.wait, lambda: keep.save(state, self.epoch, self.updates, value, self.wait), *([keep.wait] if last else [])):
            try:
                act()
            except CheckpointError as error:
                warn_user(f"{error}; training goes on, the last checkpoint is {keep.last}")

    def resume(self, path: str | os.PathLike[str] | None = None) -> bool:
        """Go on from the newest checkpoint of the folder that is whole, or from the one at `path`. False if the folder has none: the run begins anew,
        and the losses of one that has left no checkpoint (a full disk) are dropped."""
        if path is None and not self.ranks.agreed(self.checkpoints.last is not None):
            self._log.trim(self.epoch, self.step)
            return False
        state = self._found(path)
        self.load_state_dict(state)
        self._log.trim(self.epoch, self.step, state.get("losses", []))
        return True

    def _found(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The checkpoint to go on from, which the first rank reads."""
        return self.ranks.agreed((self.checkpoints.load() if path is None else calque.load(path)) if self.ranks.first else None)

    def clear(self) -> None:
        """Remove the checkpoints and the losses of an earlier run from the folder."""
        if self.ranks.first:
            self.checkpoints.clear()
            self._log.clear()

    # -------------------------------------------------------------------------------------------------------------- a loss that is no number

    def _not_finite(self, step: int, value: float, loader: Any) -> None:
        """Say where a loss that is no number came from: from the last checkpoint on the steps are done again, the last one in checked mode."""
        epoch, last = self.epoch, self.checkpoints.last
        text = f"[Trainer] expected a finite loss, got {value} in epoch {epoch + 1}, step {step}; "
        cause: BaseException | None = None
        try:
            self.load_state_dict(self._found())
            if self.epoch != epoch or step - self.step > MOST_REPLAYED:
                raise CheckpointError("the last checkpoint is too far away to do the steps again; save_every= brings it nearer")
            batches = self._batches(loader)
            while self.step < step:
                self._update(list(islice(batches, self.accumulate)))
            settings.checked = True
            self.ranks.read(self._update(list(islice(batches, self.accumulate))))
            text += "done again it was finite: something in it is not reproducible; "
        except NonFiniteError as error:
            text += f"it comes from: {error}; "
            cause = error
        except CheckpointError as error:
            text += f"{error}; "
        finally:
            settings.checked = False
        raise NonFiniteError(f"{text}the last good checkpoint is {last}; try a smaller learning rate, or look at the data of that step") from cause

