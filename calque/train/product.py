"""What a training job leaves behind, and how it is used: the exported program, what its outputs mean, predictions and figures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque.base.errors import CheckpointError, CheckpointNotFoundError, DataError
from calque.data import DataLoader
from calque.train.recipe import RECIPE_NAME, read_recipe
from calque.train.sources import Images, check_images, labelled, plain, read_source, read_table, split_folders
from calque.vision.datasets import IMG_EXTENSIONS

PROGRAM, ABOUT = "model.calque", "model.json"
_BATCH = 64


class Product:
    """The trained model in a folder: `model.calque` and what its outputs mean (`model.json`)."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.program = calque.load_exported(folder / PROGRAM)

    @property
    def classes(self) -> list[str]:
        """Names of the classes; none where it gives numbers."""
        return list(self.about["classes"])

    def outputs_of(self, loader: Any) -> tuple[Any, Any]:
        """(outputs, targets) of all samples as arrays. Images are bytes."""
        outputs, targets = [], []
        with calque.no_grad():
            for inputs, labels in loader:
                outputs.append(self.program(inputs / 255 if self.about["kind"] == "images" else inputs).numpy())
                targets.append(labels.numpy())
        return np.concatenate(outputs), np.concatenate(targets)

    def of_images(self, paths: Sequence[str]) -> Any:
        """Probabilities (N, classes) of the classes of some images."""
        check_images(paths)
        size = self.about["size"]
        data = Images([(path, 0) for path in paths], plain(size), size)
        return self.outputs_of(DataLoader(data, batch_size=_BATCH))[0]

    def of_table(self, path: Path) -> Any:
        """Probabilities (N, classes), or numbers (N,), for the rows of a table, in which the column to predict may be missing."""
        values, _, _, _ = read_table(path, self.about["features"], "", self.about["missing"])
        rows = calque.from_numpy(np.ascontiguousarray(values))
        with calque.no_grad():
            return np.concatenate([self.program(rows[k : k + _BATCH]).numpy() for k in range(0, len(rows), _BATCH)])

    def labelled(self, path: Path | None) -> tuple[Any, Any]:
        """(outputs, targets) of labelled data: of a folder or table, or of the samples for the test that the run kept."""
        about, size = self.about, self.about["size"]
        if path is None:
            recipe = read_recipe(self.folder / RECIPE_NAME)
            source = read_source(recipe)
            if source.digest != about["data"]:
                text = f"[evaluate] expected the data of the training in {recipe['data']['path']}, got other samples: some for the test may have been"
                raise DataError(f"{text} learned from; name a folder or table whose samples were not: calque evaluate {self.folder} DATA")
            part = "test" if len(source.parts["test"]) else "validation"
            data: Any = source.parts[part]
        elif about["kind"] == "images":
            folders = split_folders(path) if path.is_dir() else {}
            samples = labelled(folders.get("test", path), self.classes)
            check_images([file for file, _ in samples])
            data = Images(samples, plain(size), size)
        else:
            values, targets, _, _ = read_table(path, about["features"], about["target"], about["missing"], about["classes"])
            data = calque.data.TensorDataset(calque.from_numpy(np.ascontiguousarray(values)), calque.from_numpy(np.ascontiguousarray(targets)))
        return self.outputs_of(DataLoader(data, batch_size=_BATCH))


def read_product(folder: Path) -> Product:
    """The product in the folder of a run. Raises CheckpointError, with what to do, for anything else."""
    if folder.name == PROGRAM and folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise CheckpointNotFoundError(f"[run] expected the folder of a run, such as runs/photos, got {str(folder)!r}, which is not there")
    path = folder / ABOUT
    if not path.exists() or not (folder / PROGRAM).exists():
        begun = (folder / "index.json").exists()
        hint = "its training has not come to its end: go on with calque train RECIPE --resume" if begun else "calque train RECIPE makes one"
        raise CheckpointNotFoundError(f"[run] expected a trained model ({PROGRAM} and {ABOUT}) in {str(folder)!r}, got none; {hint}")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        whole = about["version"] == 1 and about["kind"] in ("images", "table") and isinstance(about["size"], int) and isinstance(about["target"], str)
        lists = [about["classes"], about["features"]]
        named = all(isinstance(x, list) and all(isinstance(item, str) for item in x) for x in lists)
        if not whole or not named or not {"missing", "data"} <= about.keys():
            raise ValueError("other values than a run writes")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"[run] expected what a run has written in {str(path)!r}, got {error}; train again") from error
    return Product(folder, about)


def images_in(paths: Sequence[str]) -> list[str]:
    """The images that some words name: files, and all images in folders."""
    found = []
    for path in paths:
        if os.path.isdir(path):
            inside = sorted(os.path.join(place, f) for place, _, files in os.walk(path) for f in files if f.lower().endswith(IMG_EXTENSIONS))
            if not inside:
                raise DataError(f"[predict] expected images in {path!r}, got none ({', '.join(IMG_EXTENSIONS)} are looked for)")
            found += inside
        elif not os.path.exists(path):
            raise CheckpointNotFoundError(f"[predict] expected an image or a folder of images, got {path!r}, which is not there")
        else:
            found.append(path)
    return found


def figures_of(outputs: Any, targets: Any, classes: Sequence[str]) -> dict[str, Any]:
    """How good outputs are: accuracy, log loss and a confusion matrix [true, predicted]; of numbers the errors and the explained share."""
    if not classes:
        distance = outputs.astype(np.float64) - targets
        spread = float(((targets - targets.mean()) ** 2).mean())
        share = 1 - float((distance**2).mean()) / spread if spread > 0 else float("nan")
        return {"mae": float(np.abs(distance).mean()), "rmse": float(np.sqrt((distance**2).mean())), "r2": share}
    predicted, counts = outputs.argmax(1), np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (targets, predicted), 1)
    right = np.take_along_axis(outputs.astype(np.float64), targets[:, None], 1)
    return {
        "accuracy": float((predicted == targets).mean()), "log_loss": float(-np.log(right.clip(1e-12)).mean()), "confusion": counts.tolist()
    }  # fmt: skip


def figures_text(figures: dict[str, Any], classes: Sequence[str], what: str) -> str:
    """The figures as lines for people."""
    if not classes:
        return f"{what}: mean error {figures['mae']:.4g}, root mean square {figures['rmse']:.4g}, explained share (R2) {figures['r2']:.3f}"
    counts = np.asarray(figures["confusion"])
    lines = [f"{what}: accuracy {figures['accuracy']:.1%}, log loss {figures['log_loss']:.3f}"]
    if len(classes) > 30:
        return lines[0]
    wide = max(9, *(len(name) for name in classes)) + 1
    lines.append(f"{'true class':{wide}} {'samples':>8} {'found':>7} {'right when said':>16}   mistaken for")
    for k, name in enumerate(classes):
        said, there = counts[:, k].sum(), counts[k].sum()
        found = f"{counts[k, k] / there:.0%}" if there else "-"
        trusted = f"{counts[k, k] / said:.0%}" if said else "-"
        wrong = sorted(((int(n), classes[j]) for j, n in enumerate(counts[k]) if n and j != k), reverse=True)[:3]
        lines.append(f"{name:{wide}} {there:>8} {found:>7} {trusted:>16}   {', '.join(f'{other} {n}' for n, other in wrong)}".rstrip())
    return "\n".join(lines)

