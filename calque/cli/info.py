"""`calque info`: what a file or folder is."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import calque
from calque.base.errors import ArgumentError, CheckpointNotFoundError
from calque.base.text import human, shown
from calque.exported import load_exported
from calque.train.checkpoints import Checkpoints
from calque.train.product import ABOUT, PROGRAM, figures_text
from calque.train.recipe import TABLES, read_recipe
from calque.train.sources import classes_of, read_header, split_folders
from calque.vision.datasets import IMG_EXTENSIONS

_MOST = 12  # lines of tensors


def info(path: Path) -> int:
    """Print what is there."""
    if not path.exists():
        raise CheckpointNotFoundError(f"[info] expected a file or folder, got {str(path)!r}, which is not there")
    if path.is_dir():
        _folder(path)
    elif path.suffix == ".toml":
        _recipe(path)
    elif path.suffix.lower() in TABLES:
        _table(path)
    elif path.suffix.lower() in IMG_EXTENSIONS:
        raise ArgumentError(f"[info] expected weights, a recipe, a table or a folder, got the image {str(path)!r}; see calque predict")
    else:
        _tensors(path)
    return 0


def _folder(path: Path) -> None:
    if (path / "index.json").exists():
        found = Checkpoints(path)
        print(f"{path}: the folder of a run, {len({e['file'] for kind in found.entries.values() for e in kind})} checkpoints")
        if found.last is not None:
            state = found.load()
            for entry in state.get("history", [])[-3:] if isinstance(state, dict) else []:
                print("  " + "  ".join(f"{name} {value:.4g}" for name, value in entry.items()))
            print(f"  newest {found.last.name}" + (f", best {found.best.name}" if found.entries["best"] else ""))
        if (path / ABOUT).exists():
            about = json.loads((path / ABOUT).read_text())
            figures = about.get("figures")
            print(f"  trained: {path / PROGRAM}, {about['kind']}, {', '.join(about['classes']) or 'numbers'}")
            if figures:
                print("  " + figures_text(figures, about["classes"], f"{figures['samples']} {figures['part']} samples").replace("\n", "\n  "))
        return
    parts = split_folders(path)
    for part, root in parts.items() or [("all", path)]:
        classes, files, others = classes_of(root)
        print(f"{root}: {'a folder of images' if part == 'all' else part}: {sum(map(len, files.values()))} images of {len(classes)} classes")
        print("  " + ", ".join(f"{name} {len(files[name])}" for name in classes[:20]) + (", .." if len(classes) > 20 else ""))
        if others:
            print(f"  left out: {', '.join(f'{n} files {ending}' for ending, n in others.most_common(5))}")


def _recipe(path: Path) -> None:
    recipe = read_recipe(path)
    print(f"{path}: a recipe of `calque train` for {recipe['data']['path']} ({'a table' if recipe.tabular else 'images'}), writes to {recipe.folder}")
    for section, values in recipe.sections.items():
        print(f"  {section}: " + ", ".join(f"{name} {shown(value, 40)}" for name, value in values.items() if value not in ("", [])))


def _table(path: Path) -> None:
    names = read_header(path)
    print(f"{path}: a table of {len(names)} columns: {', '.join(names[:20])}{', ..' if len(names) > 20 else ''}")
    print(f"  calque init {path} --target COLUMN writes a recipe for it")


def _tensors(path: Path) -> None:
    """A file of tensors, or an export."""
    size = human(os.path.getsize(path))
    state = calque.load(path)
    if isinstance(state, dict) and "calque.export" in state:
        exported = load_exported(path)
        print(f"{path}: an exported program, {size}, entries: {', '.join(exported.entries)}; takes {', '.join(exported.call_signature.parameters)}")
        _state(exported.state_dict())
        return
    if not isinstance(state, dict):
        print(f"{path}: {size}, holds {shown(state)}")
        return
    facts = [f"{key} {shown(state[key], 40)}" for key in ("epoch", "step", "updates") if key in state]
    print(f"{path}: {size}" + (f", a checkpoint: {', '.join(facts)}" if facts else ", a file of tensors"))
    print(f"  keys: {', '.join(shown(key, 40) for key in list(state)[:20])}{', ..' if len(state) > 20 else ''}")
    inner = next((state[key] for key in ("model_state_dict", "state_dict", "model") if isinstance(state.get(key), dict)), state)
    _state(inner)


def _state(state: dict[str, Any]) -> None:
    tensors = {name: value for name, value in state.items() if isinstance(value, calque.Tensor)}
    kinds = Counter(str(value.dtype) for value in tensors.values())
    total = sum(value.numel() for value in tensors.values())
    print(f"  {len(tensors)} tensors, {total:,} numbers ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())})")
    for name, value in list(tensors.items())[:_MOST]:
        print(f"    {name} {tuple(value.shape)}")
    if len(tensors) > _MOST:
        print(f"    .. and {len(tensors) - _MOST} more")
