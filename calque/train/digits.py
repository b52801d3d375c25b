"""`calque train digits`: a small convolutional network on the 1,797 real handwritten digits of scikit-learn.

Everything random is a function of (seed, epoch, step or sample), so one seed gives bit-equal losses, also across a kill and `--resume`.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque import nn, optim
from calque.base.errors import ArgumentError, NonFiniteError
from calque.base.extras import need
from calque.data import DataLoader
from calque.monitor import ProgressBar, SummaryWriter, table_row
from calque.nn import functional as F
from calque.train.digits_data import Digits, load_digits, split
from calque.train.report import draw_report
from calque.train.run import Progress, RunFolder


@dataclass(frozen=True, slots=True)
class Config:
    """Options of the job; the command line has one flag for each."""

    epochs: int = 30
    batch_size: int = 64
    lr: float = 4e-3  # peak of the one-cycle schedule
    weight_decay: float = 1e-3
    seed: int = 0
    patience: int = 12  # epochs without a better validation accuracy before stopping

    def check(self) -> None:
        """Raise `ArgumentError` naming the first option out of range."""
        for name, low in (("epochs", 1), ("batch_size", 2), ("patience", 1), ("seed", 0)):
            if getattr(self, name) < low:
                raise ArgumentError(f"[train digits] expected {name} >= {low}, got {getattr(self, name)}")
        for name in ("lr", "weight_decay"):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise ArgumentError(f"[train digits] expected a finite {name} >= 0, got {getattr(self, name)}")


class DigitsNet(nn.Module):
    """Images (N, 1, 8, 8) -> logits (N, 10): three 3x3 convolutions, two poolings, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(2),  # 8x8 -> 4x4
            nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
            nn.MaxPool2d(2),  # 4x4 -> 2x2
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))

    def forward(self, x: Any) -> Any:
        return self.classifier(self.features(x))


class Interrupt:
    """Ctrl-C asks the loop to stop after the current step; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Interrupt:
        try:
            self._before = signal.signal(signal.SIGINT, self._ask)
        except ValueError:  # not in the main thread: Ctrl-C keeps its usual meaning
            self._before = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


class Job:
    """One run: data, model, optimizer and the loop."""

    def __init__(self, config: Config, out: Path, quiet: bool = False) -> None:
        config.check()
        self.config, self.quiet = config, quiet
        for module, package in (("sklearn", "scikit-learn"), ("matplotlib", "matplotlib"), ("tensorboardX", "tensorboardX")):
            need(module, package, "demo", "train digits")  # told now, not after half an hour of training
        self.folder = RunFolder(out)
        images, labels = load_digits()
        train, validation, test = split(labels, config.seed)
        self.test_images = images[test]
        self.train_set = Digits(images[train], labels[train], config.seed, augment=True)
        self.validation_set, self.test_set = Digits(images[validation], labels[validation]), Digits(images[test], labels[test])
        calque.manual_seed(config.seed)
        self.model = DigitsNet()
        self.steps = len(self._loader(0))
        self.optimizer = optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.scheduler = optim.lr_scheduler.OneCycleLR(self.optimizer, config.lr, total_steps=config.epochs * self.steps + 1)
        self.progress = Progress()

    def _loader(self, epoch: int) -> Any:
        self.train_set.epoch = epoch
        generator = calque.Generator().manual_seed(self.config.seed * 1_000_003 + epoch)
        return DataLoader(self.train_set, batch_size=self.config.batch_size, shuffle=True, drop_last=True, generator=generator)

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint."""
        self.progress = self.folder.load(path, self.model, self.optimizer, self.scheduler, asdict(self.config))
        self.folder.trim_losses(self.progress.epoch, self.progress.step)
        self._print(f"resumed from {path}: epoch {self.progress.epoch + 1}, step {self.progress.step}")
        planned = (self.scheduler.total_steps - 1) // self.steps
        if self.config.epochs > planned:
            self._print(f"the learning rate was planned for {planned} epochs: the others keep its last value")
        if self.config.epochs > self.progress.epoch and not self._stopped_improving():
            self.progress.finished = False

    def _print(self, text: str) -> None:
        if not self.quiet:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def save(self) -> None:
        """Write `last.calque`."""
        self.folder.save(self.progress, self.model, self.optimizer, self.scheduler, asdict(self.config))

    def train(self) -> bool:
        """Run to the end (True) or until Ctrl-C (False)."""
        progress, config = self.progress, self.config
        self._print(table_row("epoch", "train loss", "val loss", "val acc", "lr", "seconds"))
        with Interrupt() as interrupt, SummaryWriter(str(self.folder.path / "tensorboard")) as writer:
            while not progress.finished and progress.epoch < config.epochs:
                started = time.perf_counter()
                if not self._epoch(interrupt):
                    self.save()
                    return False
                entry = self._validate(writer)
                self._print(
                    table_row(
                        progress.epoch, f"{entry['train_loss']:.4f}", f"{entry['validation_loss']:.4f}", f"{entry['validation_accuracy']:.2%}",
                        f"{self.optimizer.param_groups[0]['lr']:.2e}", f"{time.perf_counter() - started:.1f}",
                    )
                )  # fmt: skip
                if self._stopped_improving():
                    self._print(f"early stop: no better validation accuracy for {config.patience} epochs")
                    progress.finished = True
                self.save()
            progress.finished = True
            self.save()
        return True

    def _stopped_improving(self) -> bool:
        return self.progress.epoch - self.progress.best_epoch >= self.config.patience

    def _epoch(self, interrupt: Interrupt) -> bool:
        """One pass over the training data; False if Ctrl-C was pressed (progress then names the next step)."""
        progress, config = self.progress, self.config
        self.model.train()
        with (
            open(self.folder.path / "losses.jsonl", "a") as log,
            ProgressBar(self.steps, f"epoch {progress.epoch + 1}/{config.epochs}", initial=progress.step, disable=self.quiet) as bar,
        ):
            for step, (images, labels) in enumerate(self._loader(progress.epoch)):
                if step < progress.step:
                    continue
                loss = self._step(images, labels, step)
                progress.losses.append(loss)
                log.write(json.dumps({"epoch": progress.epoch, "step": step, "loss": loss}) + "\n")
                progress.step = step + 1
                bar.update(1, f"loss {loss:.4f}")
                if interrupt.asked:
                    return False
        return True

    def _step(self, images: Any, labels: Any, step: int) -> float:
        config, epoch = self.config, self.progress.epoch
        calque.manual_seed((config.seed * 1_000_003 + epoch) * 100_003 + step)  # dropout: a function of (seed, epoch, step)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(images), labels, label_smoothing=0.05)
        loss.backward()
        self.optimizer.step()
        if self.scheduler.last_epoch + 1 < self.scheduler.total_steps:  # a resumed run may have more epochs than its schedule was made for
            self.scheduler.step()
        value = float(loss.item())
        if not math.isfinite(value):
            raise NonFiniteError(
                f"[train digits] the loss became {value} in epoch {epoch + 1}, step {step}; the last good checkpoint is {self.folder.last}; "
                "try a smaller --lr"
            )
        return value

    def predict(self, dataset: Digits) -> tuple[Any, Any, float]:
        """(labels, predictions, mean loss) over a data set, in eval mode."""
        self.model.eval()
        labels, predictions, total = [], [], 0.0
        with calque.no_grad():
            for images, target in DataLoader(dataset, batch_size=256):
                logits = self.model(images)
                total += float(F.cross_entropy(logits, target, reduction="sum").item())
                predictions.append(logits.argmax(1).numpy())
                labels.append(target.numpy())
        return np.concatenate(labels), np.concatenate(predictions), total / len(dataset)

    def _validate(self, writer: Any) -> dict[str, float]:
        """Close the epoch: validation figures, history, TensorBoard, best checkpoint."""
        progress = self.progress
        labels, predictions, loss = self.predict(self.validation_set)
        accuracy = float((labels == predictions).mean())
        entry = {"train_loss": float(np.mean(progress.losses)), "validation_loss": loss, "validation_accuracy": accuracy}
        progress.history.append(entry)
        progress.epoch, progress.step, progress.losses = progress.epoch + 1, 0, []
        for name, value in entry.items():
            writer.add_scalar(name, value, progress.epoch)
        writer.add_scalar("lr", self.optimizer.param_groups[0]["lr"], progress.epoch)
        if accuracy > progress.best:
            self.folder.save_best(progress, self.model, accuracy, asdict(self.config))
        return entry

    def finish(self) -> float:
        """Test the best model, draw the report, say where everything is. Returns the test accuracy."""
        best = self.folder.path / self.progress.best_file
        self.model.load_state_dict(calque.load(best)["model_state_dict"])
        labels, predictions, _ = self.predict(self.test_set)
        accuracy = float((labels == predictions).mean())
        picture = self.folder.path / "report.png"
        draw_report(picture, self.progress.history, labels, predictions, self.test_images, accuracy)
        self._print(f"\ntest accuracy {accuracy:.2%} ({int((labels == predictions).sum())} of {len(labels)} images)\n")
        for what, path in (
            ("best checkpoint", best), ("last checkpoint", self.folder.last), ("report", picture),
            ("loss log", self.folder.path / "losses.jsonl"), ("TensorBoard", self.folder.path / "tensorboard"),
        ):  # fmt: skip
            self._print(f"{what:16} {path}")
        return accuracy


def main(config: Config, out: Path, resume: str | None, quiet: bool = False) -> int:
    """Run the job; exit code 0, or 130 after Ctrl-C."""
    job = Job(config, out, quiet)
    if resume is not None:
        job.resume(Path(resume) if resume else job.folder.last)
    elif job.folder.last.exists():
        job.folder.trim_losses(0, 0)
    if not job.train():
        sys.stderr.write(f"\ninterrupted; saved {job.folder.last}. Continue with: calque train digits --resume --out {out}\n")
        return 130
    job.finish()
    return 0
