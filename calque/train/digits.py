"""`calque train digits`: a small convolutional network on the 1,797 real handwritten digits of scikit-learn.

Everything random is a function of (seed, epoch, step or sample), so one seed gives bit-equal losses, also across a kill and `--resume`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque import nn, optim
from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError, CheckpointError, NonFiniteError
from calque.base.extras import need
from calque.data import DataLoader
from calque.monitor import SummaryWriter
from calque.nn import functional as F
from calque.train.digits_data import PIXEL_MEAN, PIXEL_STD, Digits, load_digits, split
from calque.train.ranks import require_one_process
from calque.train.report import draw_report
from calque.train.trainer import Trainer


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


class OneCycle(optim.lr_scheduler.OneCycleLR):
    """The one-cycle schedule; epochs beyond those that it was made for keep its last rate."""

    def step(self, epoch: int | None = None) -> None:
        if self.last_epoch + 1 < self.total_steps:
            super().step(epoch)


class Job:
    """One run: data, model, optimizer and the trainer."""

    def __init__(self, config: Config, out: Path, quiet: bool = False) -> None:
        config.check()
        self.config, self.quiet, self.out = config, quiet, out
        for module, package in (("sklearn", "scikit-learn"), ("matplotlib", "matplotlib"), ("tensorboardX", "tensorboardX")):
            need(module, package, "demo", "train digits")  # told now, not after half an hour of training
        images, labels = load_digits()
        train, validation, test = split(labels, config.seed)
        self.test_images = images[test]
        self.train_set = Digits(images[train], labels[train], augment=True)
        self.validation_set, self.test_set = Digits(images[validation], labels[validation]), Digits(images[test], labels[test])
        calque.manual_seed(config.seed)
        self.model = DigitsNet()
        self.loader = DataLoader(self.train_set, batch_size=config.batch_size, shuffle=True, drop_last=True)
        self.steps = len(self.loader)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.scheduler = OneCycle(self.optimizer, config.lr, total_steps=config.epochs * self.steps + 1)
        self.trainer = self._trainer()

    def _trainer(self) -> Trainer:
        config = {name: value for name, value in asdict(self.config).items() if name != "epochs"}
        try:
            return Trainer(
                self.model, self.optimizer, self.loss, folder=self.out, scheduler=self.scheduler, schedule="step", metrics={"accuracy": accuracy},
                monitor="val_accuracy", mode="max", patience=self.config.patience, keep=1, on_epoch=self._write, quiet=self.quiet, config=config,
            )  # fmt: skip
        except CheckpointError as error:
            raise CheckpointError(f"{error}; another one is given with --out") from error

    def loss(self, logits: Any, labels: Any) -> Any:
        """Cross entropy; labels are smoothed while the model learns."""
        return F.cross_entropy(logits, labels, label_smoothing=0.05 if self.model.training else 0.0)

    def resume(self, path: str) -> None:
        """Continue from a checkpoint, or from the last one in the folder."""
        if not self.trainer.resume(path or None):
            raise CheckpointError(f"[resume] expected a checkpoint in {self.out}, got none; train without --resume first")
        trainer = self.trainer
        self._print(f"resumed from {path or trainer.checkpoints.last}: epoch {trainer.epoch + 1}, step {trainer.step}")
        planned = (self.scheduler.total_steps - 1) // self.steps
        if self.config.epochs > planned:
            self._print(f"the learning rate was planned for {planned} epochs: the others keep its last value")

    def _print(self, text: str) -> None:
        if not self.quiet:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def _write(self, trainer: Trainer, figures: dict[str, float]) -> None:
        """The figures of an epoch, for TensorBoard."""
        with SummaryWriter(str(self.out / "tensorboard")) as writer:
            writer(trainer, figures)

    def train(self) -> None:
        """Run to the end."""
        try:
            self.trainer.fit(self.loader, DataLoader(self.validation_set, batch_size=256), self.config.epochs)
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}; the rate is given with --lr") from error

    def predict(self, dataset: Digits) -> tuple[Any, Any]:
        """(labels, predictions) over a data set, in eval mode."""
        self.model.eval()
        labels, predictions = [], []
        with calque.no_grad():
            for images, target in DataLoader(dataset, batch_size=256):
                predictions.append(self.model(images).argmax(1).numpy())
                labels.append(target.numpy())
        return np.concatenate(labels), np.concatenate(predictions)

    def export(self) -> Path:
        """Write the best model as a program that takes images of pixels from 0 to 1 and gives the probability of each digit."""
        self.model.eval()

        def digits(image: Any) -> Any:
            return self.model((image - PIXEL_MEAN) / PIXEL_STD).softmax(1)

        path = self.out / "digits.calque"
        calque.export(digits, calque.zeros(1, 1, 8, 8), {"image": {0: "batch"}}).save(path)
        return path

    def finish(self) -> float:
        """Test the best model, draw the report, say where everything is. Returns the test accuracy."""
        checkpoints = self.trainer.checkpoints
        self.model.load_state_dict(calque.load(checkpoints.best)["model_state_dict"])
        labels, predictions = self.predict(self.test_set)
        right = float((labels == predictions).mean())
        picture = self.out / "report.png"
        draw_report(picture, self.trainer.history, labels, predictions, self.test_images, right)
        self._print(f"\ntest accuracy {right:.2%} ({int((labels == predictions).sum())} of {len(labels)} images)\n")
        for what, path in (
            ("best checkpoint", checkpoints.best), ("last checkpoint", checkpoints.last), ("program", self.export()), ("report", picture),
            ("loss log", self.trainer.losses), ("TensorBoard", self.out / "tensorboard"),
        ):  # fmt: skip
            self._print(f"{what:16} {path}")
        return right


def accuracy(logits: Any, labels: Any) -> Any:
    """The share of right predictions."""
    return (logits.argmax(1) == labels).float().mean()


def main(config: Config, out: Path, resume: str | None, quiet: bool = False) -> int:
    """Run the job; exit code 0, or 130 after Ctrl-C."""
    require_one_process()
    job = Job(config, out, quiet)
    if resume is not None:
        job.resume(resume)
    else:
        job.trainer.clear()
    try:
        job.train()
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; saved {job.trainer.checkpoints.last}. Continue with: calque train digits --resume --out {out}\n")
        return 130
    job.finish()
    return 0
