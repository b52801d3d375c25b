"""The recipe of a training job: a TOML file whose every line has a default, a check and a comment, all in one table."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError, CheckpointNotFoundError
from calque.base.text import nearest, shown, type_name
from calque.vision import models

# Those that take images of any size and give one row of scores.
_OTHERS = ("googlenet", "inception_v3", "maxvit_t", "unet")
_NAMES = [n for n in models.list_models(module=models) if n not in _OTHERS and not n.startswith("vit_")]
IMAGE_MODELS = ("cnn", *sorted(_NAMES, key=lambda n: (not n.startswith("mobilenet"), n)))
TABLE_MODELS = ("mlp", "linear")
TABLES = (".csv", ".tsv", ".parquet")
RECIPE_NAME = "recipe.toml"  # in the folder of a run


@dataclass(frozen=True, slots=True)
class Field:
    """One line of a recipe. `kind`: what its value is; `low`, `high`: the limits of a number; `only`: "images" or "table" where it is for one."""

    name: str
    default: Any
    comment: str
    kind: str = "number"
    low: float = -math.inf
    high: float = math.inf
    only: str = ""


def _share(name: str, default: float, comment: str) -> Field:
    return Field(name, default, comment, "share")


FIELDS: dict[str, tuple[Field, ...]] = {
    "data": (
        Field("path", "", "a folder with a folder of images for each class, or a table: .csv, .tsv, .parquet", "text"),
        _share("validation", 0.15, "the share that tells which epoch is best; or a path as above"),
        _share("test", 0.15, "the share that is looked at once, at the end; or a path; 0: none"),
        Field("target", "", "the column to predict", "text", only="table"),
        Field("features", [], "columns to predict it from, all numbers; none: all others", "texts", only="table"),
        Field("missing", "", 'a number that stands for empty cells; "": they are errors', "number or text", only="table"),
        Field("workers", "auto", 'processes that load and change images; "auto": as many as are of use', "count or auto", 0, 256, "images"),
    ),
    "model": (
        Field("name", "cnn", f"one of {', '.join(IMAGE_MODELS[:4])}, ..; or of {', '.join(TABLE_MODELS)} for a table", "text"),
        Field("width", 256, "of the inner layers of mlp", "count", 1, 65536, "table"),
        Field("weights", "", "trained weights to begin with: a .safetensors, .pt or .calque file, or the folder of another run", "text"),
        Field("freeze_until", "", "the layers before this one stay as they are, such as layer4", "text"),
    ),
    "images": (
        Field("size", 64, "pixels of the square that the model sees", "count", 8, 2048, "images"),
        Field("crop", 0.5, "training sees random parts of at least this share of an image; 1: all of it", low=0.01, high=1.0, only="images"),
        Field("flip", 0.5, "how often left and right are exchanged; 0 where that changes the class", low=0.0, high=1.0, only="images"),
        Field("rotation", 10.0, "degrees, at most", low=0.0, high=180.0, only="images"),
        Field("brightness", 0.2, "by how much it changes, at most", low=0.0, high=1.0, only="images"),
        Field("contrast", 0.2, "the same", low=0.0, high=1.0, only="images"),
        Field("saturation", 0.2, "the same", low=0.0, high=1.0, only="images"),
        Field("hue", 0.02, "the same", low=0.0, high=0.5, only="images"),
        Field("policy", "", 'changes drawn from many: "trivial", "rand", "auto" or "augmix"; "": none', "text", only="images"),
        Field("lighting", 0.0, "how often another lamp lights it: other colour, brightness, side", low=0.0, high=1.0, only="images"),
        Field("reflection", 0.0, "how often glare lies on it, as on a polished table", low=0.0, high=1.0, only="images"),
        Field("mixup", 0.0, "mixes pairs of images and their classes; 0: not, 0.2: a little, 1: evenly", low=0.0, high=100.0, only="images"),
        Field("erasing", 0.0, "how often a part is blackened", low=0.0, high=1.0, only="images"),
    ),
    "training": (
        Field("epochs", 20, "passes over the training samples", "count", 1, 1_000_000),
        Field("batch_size", 32, "samples for one update", "count", 1, 1_000_000),
        Field("lr", 0.002, "the largest learning rate of a warm-up and a cosine", low=0.0),
        Field("layer_decay", 1.0, "each block before the last one learns so many times as fast", low=0.01, high=1.0),
        Field("weight_decay", 0.05, "of weights, not of biases and norms", low=0.0),
        Field("label_smoothing", 0.1, "for classes", low=0.0, high=0.99),
        Field("patience", 10, "epochs without a better one before it stops", "count", 1, 1_000_000),
        Field("save_every", 100, "updates between checkpoints inside an epoch", "count", 1, 1_000_000_000),
        Field("seed", 0, "of everything random", "count", 0, 2**31 - 1),
    ),
    "output": (Field("folder", "", "for checkpoints, losses, the model; made if it is not there", "text"),),
}


def _is_count(value: Any, field: Field) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and field.low <= value <= field.high


def _is_number(value: Any, field: Field) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and field.low <= value <= field.high


def _is_text(value: Any, _: Field) -> bool:
    return isinstance(value, str) and "\0" not in value


_KINDS: dict[str, tuple[Callable[[Any, Field], bool], str]] = {
    "text": (_is_text, "a text"),
    "texts": (lambda v, _: isinstance(v, list) and all(isinstance(item, str) for item in v), "a list of texts"),
    "count": (_is_count, "a whole number"),
    "number": (_is_number, "a number"),
    "share": (lambda v, f: (isinstance(v, str) and v != "") or (_is_number(v, f) and 0 <= v < 1), "a share from 0 to below 1, or a path"),
    "count or auto": (lambda v, f: v == "auto" or _is_count(v, f), 'a whole number or "auto"'),
    "number or text": (lambda v, f: v == "" or _is_number(v, f), 'a number or ""'),
}


class Recipe:
    """The checked values of a recipe: `recipe["training"]["lr"]`. `base`: the folder that its paths start from; `place`: what errors call it."""

    def __init__(self, sections: dict[str, dict[str, Any]], base: Path, place: str) -> None:
        self.base, self.place = base, place
        self.sections: dict[str, dict[str, Any]] = {
            name: {field.name: field.default for field in fields} for name, fields in FIELDS.items()
        }
        for name, values in sections.items():
            self._take(name, values)
        if not self["data"]["path"]:
            raise ArgumentError(f"[recipe] expected data.path in {place}, got none; write the folder of images, or the table, under [data]")

    def _take(self, name: str, values: Any) -> None:
        if name not in FIELDS:
            raise ArgumentError(f"[recipe] expected sections {', '.join(FIELDS)} in {self.place}, got {_near(name, FIELDS)}")
        if not isinstance(values, dict):
            raise ArgumentError(f"[recipe] expected [{name}] to be a section in {self.place}, got {shown(values)}")
        known = {field.name: field for field in FIELDS[name]}
        for key, value in values.items():
            if key not in known:
                elsewhere = next((section for section, fields in FIELDS.items() if key in [f.name for f in fields]), "")
                hint = f"; it belongs under [{elsewhere}]" if elsewhere else ""
                raise ArgumentError(f"[recipe] expected one of {', '.join(known)} under [{name}] in {self.place}, got {_near(key, known)}{hint}")
            fits, what = _KINDS[known[key].kind]
            if not fits(value, known[key]):
                limits = [f"{word} {limit:g}" for word, limit in (("at least", known[key].low), ("at most", known[key].high)) if math.isfinite(limit)]
                text = " ".join([what, *limits[:1]]) + (f" and {limits[1]}" if len(limits) > 1 else "")
                raise ArgumentError(f"[recipe] expected {name}.{key} to be {text} in {self.place}, got {shown(value)}")
            self.sections[name][key] = value

    def __getitem__(self, section: str) -> dict[str, Any]:
        return self.sections[section]

    def path(self, text: str) -> Path:
        """A path of the recipe, which may be relative to the file that it stands in."""
        return self.base / Path(text).expanduser()

    @property
    def tabular(self) -> bool:
        """Whether the data is a table."""
        return Path(self["data"]["path"]).suffix.lower() in TABLES

    @property
    def folder(self) -> Path:
        """Where everything goes that a run writes."""
        name = self["output"]["folder"]
        return self.path(name) if name else self.base / "runs" / Path(self["data"]["path"]).stem


def _near(name: str, known: Any) -> str:
    near = nearest(name, known, 0.6)
    return f"{shown(name)}; did you mean {near!r}?" if near else shown(name)


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        others = sorted(p.name for p in path.parent.glob("*.toml"))[:3] if path.parent.is_dir() else []
        hint = f"there are {', '.join(others)}" if others else "make one with: calque init FOLDER"
        raise CheckpointNotFoundError(f"[recipe] expected a recipe, got {str(path)!r}, which is not there; {hint}") from None
    except IsADirectoryError:
        raise ArgumentError(f"[recipe] expected a recipe, got the folder {str(path)!r}; make a recipe for it with: calque init {path}") from None
    except (OSError, ValueError) as error:
        raise ArgumentError(f"[recipe] expected a recipe, a text file, got {str(path)!r}: {error}; make one with: calque init FOLDER") from error
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f'[recipe] expected TOML in {str(path)!r}, got {error}; texts stand in quotes, such as path = "photos"') from error
    except RecursionError:
        raise ArgumentError(f"[recipe] expected TOML in {str(path)!r}, got text that is nested too deeply") from None
    return Recipe(found, path.parent, str(path))


def write_recipe(sections: dict[str, dict[str, Any]], tabular: bool, title: str) -> str:
    """The text of a recipe with all its lines; those that are not in `sections` have their defaults.

    >>> print(write_recipe({"data": {"path": "photos"}}, False, "Photos.").splitlines()[3])
    path = "photos"           # a folder with a folder of images for each class, or a table: .csv, .tsv, .parquet
    """
    lines = ["# " + " ".join(title.split())]
    for section, fields in FIELDS.items():
        shown_fields = [field for field in fields if field.only in ("", "table" if tabular else "images")]
        if shown_fields:
            lines += ["", f"[{section}]"]
        for field in shown_fields:
            value = sections.get(section, {}).get(field.name, field.default)
            lines.append(f"{field.name + ' = ' + _toml(value):25} # {field.comment}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        escaped = "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else f"\\{c}" if c in '"\\' else c for c in value)
        return f'"{escaped}"'
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"no {type_name(value)} stands in a recipe")
