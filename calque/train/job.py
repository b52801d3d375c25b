"""A training job from a recipe: data, model, `Trainer`, and what comes out: a program that needs no source, its test figures, a table of them."""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

import calque
from calque import nn
from calque.base.errors import ArgumentError, CheckpointError, CheckpointNotFoundError, StateDictError
from calque.base.text import nearest, shown
from calque.data import DataLoader
from calque.data.pace import UNSAID
from calque.io.write import write_whole
from calque.nn import functional as F
from calque.train.checkpoints import Checkpoints
from calque.train.product import ABOUT, PROGRAM, Product, figures_of, figures_text
from calque.train.ranks import require_one_process
from calque.train.recipe import IMAGE_MODELS, RECIPE_NAME, TABLE_MODELS, Recipe, write_recipe
from calque.train.sources import PARTS, Source, normalized, read_source
from calque.train.trainer import Trainer
from calque.train.transfer import freeze, load_partial, parameter_groups
from calque.vision import models
from calque.vision.transforms.v2 import MixUp

_FLOOR = 0.01  # of the largest rate, at the end


class SmallNet(nn.Module):
    """Images (N, 3, H, W) of any size from 16 pixels -> (N, classes): four stages of convolutions; learns from fewer images than a ResNet."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential()
        inner = 3
        for width in (32, 64, 128, 256):
            stage = [nn.Conv2d(inner, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
            self.features.append(nn.Sequential(*stage))
            inner = width
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inner, classes))

    def forward(self, x: Any) -> Any:
        return self.head(self.features(x))


class Scaled(nn.Module):
    """Tables: columns with mean 0 and spread 1, then `net`; numbers that it predicts come back to the mean and spread that they have in the data."""

    def __init__(self, net: Any, source: Source) -> None:
        super().__init__()
        self.net = net
        for name, values in (("mean", source.mean), ("std", source.std), ("middle", source.middle), ("spread", source.spread)):
            self.register_buffer(name, calque.tensor(values, dtype=calque.float32))

    def forward(self, x: Any) -> Any:
        return self.net((x - self.mean) / self.std) * self.spread + self.middle


def build_model(recipe: Recipe, source: Source) -> Any:
    """The model that a recipe names, for the classes (or numbers) of its data."""
    name, width, outputs = recipe["model"]["name"], recipe["model"]["width"], len(source.classes) or 1
    known = TABLE_MODELS if recipe.tabular else IMAGE_MODELS
    if name not in known:
        near = nearest(name, known, 0.5)
        hint = f"; did you mean {near!r}?" if near else ""
        kind = "a table" if recipe.tabular else "images"
        raise ArgumentError(f"[recipe] expected model.name in {recipe.place} to be one of {', '.join(known)} for {kind}, got {shown(name)}{hint}")
    if not recipe.tabular:
        return SmallNet(outputs) if name == "cnn" else getattr(models, name)(num_classes=outputs)
    count = len(source.features)
    if name == "linear":
        return Scaled(nn.Linear(count, outputs), source)
    inner = [nn.Linear(count, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, outputs)]
    return Scaled(nn.Sequential(*inner), source)


def read_weights(path: Path) -> dict[str, Any]:
    """A state dict from a file of weights, a checkpoint, or the best checkpoint of a run's folder."""
    if path.is_dir():
        found = Checkpoints(path) if (path / "index.json").exists() else None
        if found is None or not found.entries["best"]:
            raise CheckpointNotFoundError(f"[weights] expected a file of weights or the folder of a run, got {str(path)!r} without a best checkpoint")
        path = found.best
    state = calque.load(path)
    for key in ("model_state_dict", "state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not any(isinstance(value, calque.Tensor) for value in state.values()):
        raise StateDictError(f"[weights] expected named tensors in {str(path)!r}, got {shown(state)}; pass a file that holds a state dict")
    return state


def in_colours(images: Any) -> Any:
    """Bytes as the model wants them."""
    return normalized(images / 255)


class ImageTrainer(Trainer):
    """Batches of images come as bytes. mixed: mixes those that are learned from."""

    mixed: Any = None

    def forward(self, batch: Any) -> Any:
        images, labels = batch
        colours = in_colours(images)
        if self.mixed is not None and self.model.training:
            colours, labels = self.mixed(colours, labels)
        return super().forward((colours, labels))


class Job:
    """One run of a recipe. say: where lines for people go; quiet: nowhere."""

    def __init__(self, recipe: Recipe, quiet: bool = False) -> None:
        self.recipe, self.quiet = recipe, quiet
        options = recipe["training"]
        self.source = read_source(recipe)
        self.say(self.source.about)
        calque.manual_seed(options["seed"])
        self.model = build_model(recipe, self.source)
        self._begin_with_weights()
        train = self.source.parts["train"]
        size = min(options["batch_size"], len(train))
        workers = recipe["data"]["workers"] if not recipe.tabular else 0
        self.loader = DataLoader(train, batch_size=size, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers != 0)
        self.validation = self._ordered(self.source.parts["validation"])
        learning = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        whole = sum(p.numel() for p in self.model.parameters())
        self.say(f"model {recipe['model']['name']}: {whole:,} parameters" + (f", of which {learning:,} learn" if learning < whole else ""))
        groups = parameter_groups(self.model, options["lr"], options["layer_decay"], options["weight_decay"])
        self.optimizer = calque.optim.AdamW(groups, lr=options["lr"])
        steps = options["epochs"] * len(self.loader)
        warm = max(1, steps // 20)

        def rate(k: int) -> float:
            turn = min(max(k - warm, 0) / max(steps - warm, 1), 1.0)
            return min((k + 1) / warm, _FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * turn)))

        self.scheduler = calque.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.trainer = self._trainer()
        if isinstance(self.trainer, ImageTrainer) and recipe["images"]["mixup"]:
            self.trainer.mixed = MixUp(alpha=recipe["images"]["mixup"], num_classes=len(self.source.classes))

    def say(self, text: str) -> None:
        """A line for people."""
        if not self.quiet:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def _ordered(self, data: Any) -> Any:
        workers = 0 if self.recipe.tabular or self.recipe["data"]["workers"] in ("auto", 0) else self.recipe["data"]["workers"]
        return DataLoader(data, batch_size=max(self.recipe["training"]["batch_size"], 64), num_workers=workers)

    def _begin_with_weights(self) -> None:
        name, until = self.recipe["model"]["weights"], self.recipe["model"]["freeze_until"]
        if name:
            report = load_partial(self.model, read_weights(self.recipe.path(name)))
            if not report.copied:
                raise StateDictError(f"[weights] expected weights of a {self.recipe['model']['name']} in {name}, got none that fit; {report}")
            self.say(f"weights from {name}: {report}")
        if until:
            self.say(f"{len(freeze(self.model, until))} tensors before {until} stay as they are")

    def _trainer(self) -> Trainer:
        recipe, classes = self.recipe, self.source.classes
        kept = {"classes": classes, "data": self.source.digest, "features": self.source.features}
        for section in ("model", "images", "training"):
            kept |= {f"{section}.{k}": v for k, v in recipe[section].items() if k not in ("epochs", "patience", "save_every", "weights")}
        metrics: dict[str, Any] = {"accuracy": accuracy} if classes else {"mae": absolute_error}
        training = recipe["training"]
        return (Trainer if recipe.tabular else ImageTrainer)(
            self.model, self.optimizer, self.loss, folder=recipe.folder, scheduler=self.scheduler, schedule="step", max_norm=1.0, metrics=metrics,
            patience=training["patience"], save_every=training["save_every"], keep=1, quiet=self.quiet, config=kept, wait=False,
            monitor="val_loss",  # of few samples many epochs have the same accuracy, and the first of them is hardly the best
        )  # fmt: skip

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Cross entropy, with smoothed labels while the model learns; the squared error of numbers, in units of their variance."""
        if self.source.classes:
            smoothing = self.recipe["training"]["label_smoothing"] if self.model.training else 0.0
            return F.cross_entropy(outputs, targets, label_smoothing=smoothing)
        return F.mse_loss(outputs.squeeze(1), targets) / self.source.spread**2

    def _keep_recipe(self) -> None:
        """Write the recipe, with paths that do not depend on where it lies, beside the checkpoints."""
        sections = {name: dict(values) for name, values in self.recipe.sections.items()}
        for key in ("path", *(p for p in PARTS[1:] if isinstance(sections["data"][p], str))):
            sections["data"][key] = str(self.recipe.path(sections["data"][key]).resolve())
        sections["output"]["folder"] = str(self.recipe.folder.resolve())
        if sections["model"]["weights"]:
            sections["model"]["weights"] = str(self.recipe.path(sections["model"]["weights"]).resolve())
        write_text(self.recipe.folder / RECIPE_NAME, write_recipe(sections, self.recipe.tabular, "What this run was made with."))

    def train(self) -> None:
        """Run to the end."""
        self._keep_recipe()
        self.trainer.fit(self.loader, self.validation, self.recipe["training"]["epochs"])

    def finish(self) -> Product:
        """Write the best model as a program, test it, write the figures."""
        folder, checkpoints = self.recipe.folder, self.trainer.checkpoints
        if not checkpoints.entries["best"]:
            raise CheckpointError(f"[train] expected a checkpoint of an epoch in {folder}, got none that could be written; make room, then: --resume")
        self.model.load_state_dict(calque.load(checkpoints.best)["model_state_dict"])
        self.model.eval()
        about: dict[str, Any] = {
            "version": 1, "kind": "table" if self.recipe.tabular else "images", "classes": self.source.classes, "model": self.recipe["model"]["name"],
            "size": self.recipe["images"]["size"], "features": self.source.features, "target": self.recipe["data"]["target"],
            "missing": self.recipe["data"]["missing"], "data": self.source.digest,
        }  # fmt: skip
        export_model(self.model, about).save(folder / PROGRAM)
        part = "test" if len(self.source.parts["test"]) else "validation"
        product = Product(folder, about)
        outputs, targets = product.outputs_of(self._ordered(self.source.parts[part]))
        found = figures_of(outputs, targets, self.source.classes)
        about["figures"] = {"part": part, "samples": len(targets), **found}
        write_text(folder / ABOUT, json.dumps(about, indent=2) + "\n")
        self.say("\n" + figures_text(found, self.source.classes, f"{len(targets)} {part} samples"))
        return product


def export_model(model: Any, about: dict[str, Any]) -> Any:
    """The model as a program: images `(N, 3, size, size)` of colours from 0 to 1, or rows of a table, to probabilities of the classes, or numbers."""

    def images(image: Any) -> Any:
        return model(normalized(image)).softmax(1)

    def rows(row: Any) -> Any:
        return model(row).softmax(1) if about["classes"] else model(row).squeeze(1)

    if about["kind"] == "table":
        return calque.export(rows, calque.zeros(2, len(about["features"])), {"row": {0: "batch"}})
    return calque.export(images, calque.zeros(2, 3, about["size"], about["size"]), {"image": {0: "batch"}})


def accuracy(outputs: Any, targets: Any) -> Any:
    """The share of right predictions; of images that were mixed, of their larger parts."""
    targets = targets if targets.ndim == 1 else targets.argmax(1)
    return (outputs.argmax(1) == targets).float().mean()


def absolute_error(outputs: Any, targets: Any) -> Any:
    """The mean distance."""
    return (outputs.squeeze(1) - targets).abs().mean()


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    content = text.encode()

    def write(file: Any) -> None:
        file.write(content)

    write_whole(str(path), len(content), write)


def run(recipe: Recipe, resume: bool = False, restart: bool = False, quiet: bool = False, again: str = "") -> int:
    """Train, test, export; exit code 0, or 130 after Ctrl-C. again: the command that goes on with it."""
    require_one_process()
    folder = recipe.folder
    if not resume and not restart and (folder / "index.json").exists():
        raise CheckpointError(f"[train] expected a folder without a run, got {folder}; --resume goes on with it, --restart begins anew")
    if resume and not (folder / "index.json").exists():
        raise CheckpointNotFoundError(f"[train] expected a run to go on with in {folder}, got none; train without --resume first")
    job = Job(recipe, quiet)
    if restart:
        job.trainer.clear()
    if resume:
        job.trainer.resume()
        job.say(f"resumed at epoch {job.trainer.epoch + 1}, step {job.trainer.step}")
    try:
        job.train()
    except KeyboardInterrupt:
        again = again or f"calque train {shlex.quote(str(recipe.place))} --resume"
        sys.stderr.write(f"\ninterrupted; saved {job.trainer.checkpoints.last}. Go on with: {again}\n")
        return 130
    job.finish()
    for what, path in (("program", folder / PROGRAM), ("best checkpoint", job.trainer.checkpoints.best), ("losses", job.trainer.losses)):
        job.say(f"{what:16} {path}")
    if not recipe.tabular:
        limits = job.loader.limits()
        if limits != UNSAID:  # a pass of few batches
            job.say(limits)
    example = "some.csv" if recipe.tabular else "image.jpg"
    job.say(f"use it: calque predict {shlex.quote(str(folder))} {example}")
    return 0
