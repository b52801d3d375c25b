"""What a training job reads: folders of images with a folder for each class, and tables, each in parts for training, validation and test."""

from __future__ import annotations

import csv
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError, DataError
from calque.base.extras import need
from calque.base.text import nearest, shown
from calque.data import Dataset, TensorDataset
from calque.data.files import TableDataset, text_of
from calque.functional import from_numpy, tensor
from calque.train.recipe import Recipe
from calque.vision import transforms as T
from calque.vision.datasets import IMG_EXTENSIONS
from calque.vision.transforms.functional import pillow

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's images, which public weights are trained with
PARTS = ("train", "validation", "test")
_FOLDERS = {"train": ("train", "training"), "validation": ("val", "valid", "validation", "dev"), "test": ("test", "testing")}
_LISTED = 5


@dataclass
class Source:
    """The samples of a job. `parts`: a data set for each part; `classes`: names, none for numbers; `about`: one line."""

    parts: dict[str, Any]
    classes: list[str]
    about: str
    digest: str  # of which samples are in which part
    features: list[str] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    middle: float = 0.0  # of numbers to predict
    spread: float = 1.0


class Images(Dataset[Any]):
    """Images in files. samples: (path, label); size: how large an image is needed, so that large JPEG files are read faster."""

    def __init__(self, samples: Sequence[tuple[str, int]], transform: Any, size: int) -> None:
        self.samples, self.transform, self.size = list(samples), transform, size

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(load_image(path, self.size)), label


def load_image(path: str, size: int = 0) -> Any:
    """An image of Pillow's in RGB, upright as its camera says, on white where it is transparent. Raises DataError that names the file."""
    image_class = pillow("train")
    try:
        with open(path, "rb") as file:
            image = image_class.open(file)
            if size:
                image.draft("RGB", (2 * size, 2 * size))
            image.load()
        image = need("PIL.ImageOps", "pillow", "vision", "train").exif_transpose(image)
        if image.mode.startswith("I"):  # 16 bits a pixel, of which Pillow would keep what is below 255
            image = image_class.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            ground = image_class.new("RGBA", image.size, "white")
            ground.alpha_composite(image)
            image = ground
        return image.convert("RGB")
    except Exception as error:  # Pillow raises many classes for files that are damaged
        if isinstance(error, FileNotFoundError | MemoryError):
            raise
        raise DataError(f"[train] expected an image in {path!r}, got one that cannot be read ({error}); repair or remove it") from error


# The augmentations that choose among many, by their name in a recipe.
_POLICIES = {"trivial": T.TrivialAugmentWide, "rand": T.RandAugment, "auto": T.AutoAugment, "augmix": T.AugMix}


def plain(size: int) -> Any:
    """What an image becomes where nothing is left to chance: its middle, bytes `(3, size, size)`. The rest of the way goes in whole batches."""
    return T.Compose([T.Resize(round(size * 8 / 7)), T.CenterCrop(size), T.PILToTensor()])


def augmented(images: dict[str, Any]) -> Any:
    """What an image becomes in training, bytes `(3, size, size)`."""
    size = images["size"]
    steps: list[Any] = [T.RandomResizedCrop(size, (images["crop"], 1.0)), T.RandomHorizontalFlip(images["flip"])]
    if images["rotation"]:
        steps.append(T.RandomRotation(images["rotation"], T.InterpolationMode.BILINEAR))
    if images["policy"]:
        if images["policy"] not in _POLICIES:
            raise ArgumentError(f"[recipe] expected images.policy to be one of {', '.join(_POLICIES)}, or \"\", got {shown(images['policy'])}")
        steps.append(_POLICIES[images["policy"]]())
    steps += [T.RandomLighting(p=images["lighting"])] if images["lighting"] else []
    steps += [T.RandomReflection(p=images["reflection"])] if images["reflection"] else []
    if any(images[name] for name in ("brightness", "contrast", "saturation", "hue")):
        steps.append(T.ColorJitter(images["brightness"], images["contrast"], images["saturation"], images["hue"]))
    return T.Compose([*steps, T.PILToTensor(), *([T.RandomErasing(images["erasing"])] if images["erasing"] else [])])


def normalized(colours: Any) -> Any:
    """Colours from 0 to 1, `(N, 3, H, W)`, as the model wants them."""
    mean, std = (tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    return (colours - mean) / std


# ------------------------------------------------------------------------------------------------------------------ folders of images


def split_folders(root: Path) -> dict[str, Path]:
    """The folders of parts, where a folder has some instead of classes: {"train": .., "validation": ..}."""
    names = {entry.name.lower(): Path(entry.path) for entry in os.scandir(root) if entry.is_dir()}
    found = {part: next((names[n] for n in known if n in names), None) for part, known in _FOLDERS.items()}
    chosen = {part: path for part, path in found.items() if path is not None}
    return chosen if "train" in chosen and len(chosen) > 1 else {}


def _holds(link: str, place: str) -> bool:
    """Whether a link leads to a folder that the link itself lies in: nobody who follows it comes to an end."""
    return os.path.islink(link) and f"{os.path.realpath(place)}{os.sep}".startswith(f"{os.path.realpath(link)}{os.sep}")


def classes_of(root: Path) -> tuple[list[str], dict[str, list[str]], Counter[str]]:
    """(classes, the images of each, endings of other files) of a folder that has a folder for each class."""
    if not root.is_dir():
        kinds = "a folder with a folder of images for each class, or a .csv, .tsv or .parquet file"
        near = nearest(root.name, [p.name for p in root.parent.iterdir()] if root.parent.is_dir() else [], 0.6)
        what = "which is a file" if root.exists() else "which is not there" + (f"; did you mean {str(root.parent / near)!r}?" if near else "")
        raise DataError(f"[data] expected {kinds}, got {str(root)!r}, {what}")
    found: dict[str, list[str]] = {}
    others: Counter[str] = Counter()
    for name in sorted(e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith((".", "__"))):
        found[name] = []
        for place, folders, files in os.walk(root / name, followlinks=True):
            folders[:] = sorted(f for f in folders if not f.startswith((".", "__")) and not _holds(os.path.join(place, f), place))
            for file in sorted(files):
                ending = os.path.splitext(file)[1].lower()
                if ending in IMG_EXTENSIONS and not file.startswith("."):
                    found[name].append(os.path.join(place, file))
                elif not file.startswith("."):
                    others[ending or file] += 1
    empty = [name for name, files in found.items() if not files]
    layout = f"{root}/cat/1.jpg, {root}/dog/1.jpg"
    if len(found) - len(empty) < 2:
        direct = sum(os.path.splitext(e.name)[1].lower() in IMG_EXTENSIONS for e in os.scandir(root))
        got = f"{direct} images without such folders" if direct else f"{len(found) - len(empty)} folders with images"
        hint = f" ({', '.join(f'{n} files {e}' for e, n in others.most_common(3))} are of other kinds)" if others else ""
        raise DataError(f"[data] expected a folder of images for each of two or more classes in {str(root)!r}, got {got}{hint}; write {layout}")
    if empty:
        raise DataError(f"[data] expected images in each folder of {str(root)!r}, got none in {', '.join(empty[:_LISTED])}; remove such folders")
    return list(found), found, others


def check_images(paths: Sequence[str]) -> None:
    """Raise DataError that lists files which are no images, before anything is trained. Looks at their beginnings."""
    opened, bad = pillow("train").open, []
    for path in paths:
        try:
            with opened(path):
                pass
        except Exception as error:
            missing, empty = not os.path.exists(path), os.path.exists(path) and os.path.getsize(path) == 0
            bad.append(f"{path} ({'a link to nothing' if missing else 'empty' if empty else type(error).__name__})")
    if bad:
        more = f" and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
        count = "1 file that is none" if len(bad) == 1 else f"{len(bad)} files that are none"
        raise DataError(f"[data] expected images, got {count}: {', '.join(bad[:_LISTED])}{more}; repair or remove them")


def _images(recipe: Recipe) -> Source:
    root, images = recipe.path(recipe["data"]["path"]), recipe["images"]
    folders = split_folders(root) if root.is_dir() else {}
    classes, files, _ = classes_of(folders.get("train", root))
    samples = [(path, k) for k, name in enumerate(classes) for path in files[name]]
    given: dict[str, list[tuple[str, int]]] = {}
    for part in PARTS[1:]:
        place = recipe["data"][part]
        if isinstance(place, str) or part in folders:
            where = recipe.path(place) if isinstance(place, str) else folders[part]
            given[part] = labelled(where, classes)
    chosen = _split([label for _, label in samples], recipe, [part for part in PARTS[1:] if part not in given])
    parts = {part: [samples[k] for k in chosen[part]] for part in PARTS} | given
    check_images([path for part in PARTS for path, _ in parts[part]])
    size = images["size"]
    sets = {part: Images(found, augmented(images) if part == "train" else plain(size), size) for part, found in parts.items()}
    names = [f"{part} {os.path.relpath(path, root)} {label}" for part in PARTS for path, label in parts[part]]
    return Source(sets, classes, _about(recipe, parts, classes), _digest("\n".join(names).encode()))


def labelled(root: Path, classes: Sequence[str]) -> list[tuple[str, int]]:
    """The images of a folder with labels of known classes."""
    found, files, _ = classes_of(root)
    strange = [name for name in found if name not in classes]
    if strange:
        raise DataError(f"[data] expected the classes {', '.join(classes[:_LISTED])} in {str(root)!r}, got {', '.join(strange[:_LISTED])} as well")
    return [(path, classes.index(name)) for name in found for path in files[name]]


def _about(recipe: Recipe, parts: dict[str, Any], classes: Sequence[str]) -> str:
    counts = ", ".join(f"{len(parts[part])} {'for training' if part == 'train' else part}" for part in PARTS if len(parts[part]))
    kinds = f", {len(classes)} classes ({', '.join(classes[:8])}{', ..' if len(classes) > 8 else ''})" if classes else ""
    return f"{recipe['data']['path']}: {sum(len(p) for p in parts.values())} samples{kinds}: {counts}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _split(labels: Sequence[Any], recipe: Recipe, parts: Sequence[str]) -> dict[str, list[int]]:
    """Samples for each part, drawn class by class from the seed."""
    random = np.random.default_rng(recipe["training"]["seed"])
    found: dict[str, list[int]] = {part: [] for part in PARTS}
    kinds = np.asarray(labels)
    for kind in np.unique(kinds):
        order = random.permutation(np.flatnonzero(kinds == kind)).tolist()
        total = len(order)
        for part in reversed(parts):
            share = recipe["data"][part]
            count = min(max(round(share * total), 1) if share and total > 2 else 0, len(order) - 1)
            found[part] += order[:count]
            order = order[count:]
        found["train"] += order
    if "validation" in parts and not found["validation"]:
        raise DataError(
            f"[data] expected samples for validation, got none of {len(labels)} with data.validation = {recipe['data']['validation']}; they tell "
            "which epoch is best: raise it, or add samples (three of a class at least)"
        )
    return {part: sorted(chosen) for part, chosen in found.items()}


# ------------------------------------------------------------------------------------------------------------------ tables


def read_table(
    path: Path, features: Sequence[str], target: str, missing: Any, classes: Sequence[str] | None = None
) -> tuple[Any, Any, list[str], list[str]]:
    """(values (N, F), targets (N,) or None, features, classes). classes: those that are known already; None: find them; empty: numbers."""
    table = TableDataset(
        path, features=list(features) or None, target=target or None, missing=None if missing == "" else float(missing)
    )
    if not len(table):
        raise DataError(f"[data] expected rows in {str(path)!r}, got none below its names of columns")
    row, column = next(zip(*np.nonzero(~np.isfinite(table.values))), (-1, -1))
    if row >= 0:
        place = f"row {row} (counted from 0) of column {table.features[column]!r} of {str(path)!r}"
        raise DataError(f"[data] expected finite numbers in {place}, got {table.values[row, column]}; nothing can be learned from it")
    if table.targets is None or classes is not None and not classes:
        numbers = None if table.targets is None else np.asarray(table.targets, np.float32)
        if numbers is not None and table.classes:
            raise DataError(f"[data] expected numbers in the column {target} of {str(path)!r}, got texts such as {shown(table.classes[0])}")
        return table.values, numbers, table.features, []
    names = [table.classes[k] if table.classes else f"{k:g}" for k in table.targets.tolist()]
    if classes is None:
        few = len(set(names)) <= max(20, len(names) // 20) and np.issubdtype(table.targets.dtype, np.integer)
        if not table.classes and not few:
            return table.values, np.asarray(table.targets, np.float32), table.features, []
        order = table.classes or [f"{k:g}" for k in sorted(set(table.targets.tolist()))]
    else:
        order = list(classes)
        strange = sorted(set(names) - set(order))
        if strange:
            raise DataError(f"[data] expected {target} to be one of {', '.join(order[:_LISTED])} in {str(path)!r}, got {shown(strange[0])}")
    places = {name: k for k, name in enumerate(order)}
    return table.values, np.array([places[name] for name in names], np.int64), table.features, order


def read_header(path: Path) -> list[str]:
    """The names of the columns of a table."""
    if path.suffix.lower() == ".parquet":
        return list(need("pyarrow.parquet", "pyarrow", "data", "train").read_schema(path).names)
    with text_of(path) as file:
        return next(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True), [])


def _table(recipe: Recipe) -> Source:
    data = recipe["data"]
    path = recipe.path(data["path"])
    if not path.is_file():
        raise DataError(f"[data] expected a table, got {str(path)!r}, which is not there")
    if not data["target"]:
        raise ArgumentError(f"[recipe] expected data.target in {recipe.place}, got none; write the name of the column that is to be predicted")
    values, targets, features, classes = read_table(path, data["features"], data["target"], data["missing"])
    if len(classes) == 1:
        raise DataError(f"[data] expected two or more classes in the column {data['target']}, got {classes[0]} in each row")
    given = {}
    for part in PARTS[1:]:
        if isinstance(data[part], str):
            x, y, _, _ = read_table(recipe.path(data[part]), features, data["target"], data["missing"], classes)
            given[part] = (x, y)
    chosen = _split(targets if classes else [0] * len(targets), recipe, [part for part in PARTS[1:] if part not in given])
    arrays = {part: (values[chosen[part]], targets[chosen[part]]) for part in PARTS} | given
    inner = arrays["train"][0].astype(np.float64)
    spread = inner.std(0)
    parts = {part: TensorDataset(from_numpy(np.ascontiguousarray(x)), from_numpy(np.ascontiguousarray(y))) for part, (x, y) in arrays.items()}
    about = _about(recipe, {part: y for part, (_, y) in arrays.items()}, classes)
    digest = _digest(b"".join(np.ascontiguousarray(array).tobytes() for pair in arrays.values() for array in pair))
    numbers = arrays["train"][1].astype(np.float64)
    middle, wide = (0.0, 1.0) if classes else (float(numbers.mean()), float(numbers.std()) or 1.0)
    return Source(parts, classes, about, digest, features, inner.mean(0).tolist(), np.where(spread > 0, spread, 1.0).tolist(), middle, wide)


def read_source(recipe: Recipe) -> Source:
    """The samples that a recipe names."""
    return _table(recipe) if recipe.tabular else _images(recipe)
