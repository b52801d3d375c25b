"""The commands around a recipe: init, train, finetune, evaluate, predict, export, show-augment, doctor RECIPE."""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque.base.errors import ArgumentError, CheckpointError, DataError
from calque.base.extras import need
from calque.base.text import human
from calque.data.files import separator_hint
from calque.memory.fit import free_bytes
from calque.train.job import Job, in_colours, run
from calque.train.product import PROGRAM, figures_of, figures_text, images_in, read_product
from calque.train.recipe import RECIPE_NAME, TABLES, Recipe, read_recipe, write_recipe
from calque.train.sources import augmented, check_images, classes_of, load_image, plain, read_header, read_source, read_table, split_folders
from calque.vision.transforms.functional import pillow

_LOOKED_AT = 200  # images that `init` measures
_TIMED = 8  # batches that `doctor` times


def init(options: argparse.Namespace) -> int:
    """`calque init`: look at data, write a recipe for it."""
    data, target = options.data, options.recipe
    tabular = data.suffix.lower() in TABLES
    sections, title = _of_table(data, options.target) if tabular else _of_images(data)
    if target.exists() and not options.force:
        raise ArgumentError(f"[init] expected a name that is free, got {str(target)!r}; name another one with --recipe, or overwrite it with --force")
    base = target.parent if str(target.parent) else Path(".")
    if not base.is_dir():
        raise ArgumentError(f"[init] expected a folder that is there for the recipe, got {str(base)!r}; make it first")
    sections["data"]["path"] = os.path.relpath(data, base) if not data.is_absolute() else str(data)
    sections["output"] = {"folder": f"runs/{data.resolve().stem}"}
    target.write_text(write_recipe(sections, tabular, f"Written by `calque init {data}`: {title}"), encoding="utf-8")
    print(title)
    print(f"wrote {target}; look at it, then: calque train {shlex.quote(str(target))}")
    return 0


def _of_images(root: Path) -> tuple[dict[str, dict[str, Any]], str]:
    folders = split_folders(root) if root.is_dir() else {}
    classes, files, others = classes_of(folders.get("train", root))
    paths = [path for name in classes for path in files[name]]
    check_images(paths)
    opened = pillow("calque init").open
    sides = []
    for path in paths[:: max(1, len(paths) // _LOOKED_AT)]:
        with opened(path) as image:
            sides.append(min(image.size))
    side = int(np.median(sides))
    size = next((s for s in (32, 64, 96, 128) if side <= s * 1.5), 128)
    counts = ", ".join(f"{name} {len(files[name])}" for name in classes[:8]) + (", .." if len(classes) > 8 else "")
    title = f"{len(paths)} images of {len(classes)} classes ({counts}), in the middle {side} pixels wide or high"
    if folders:
        title += f"; parts: {', '.join(f'{part} in {path.name}' for part, path in folders.items())}"
    if others:
        print(f"note: left out: {', '.join(f'{ending} ({n})' for ending, n in others.most_common(5))}", file=sys.stderr)
    least = min(len(files[name]) for name in classes)
    if least < 10:
        print(f"note: the smallest class has {least} images: expect little of it", file=sys.stderr)
    data = {"workers": min(os.cpu_count() or 1, 8) if len(paths) > 300 else 0}
    return {"data": data, "model": {"name": "cnn"}, "images": {"size": size}, "training": {"epochs": 20 if len(paths) > 500 else 40}}, title


def _of_table(path: Path, target: str) -> tuple[dict[str, dict[str, Any]], str]:
    if not path.is_file():
        raise DataError(f"[init] expected a table, got {str(path)!r}, which is not there")
    if not target:
        raise ArgumentError(f"[init] expected --target with the name of the column to predict, got none; write: calque init {path} --target COLUMN")
    features = _numeric(path, target)
    values, targets, features, classes = read_table(path, features, target, 0.0)
    missing: Any = ""
    try:
        read_table(path, features, target, "")
    except DataError:
        missing = 0.0
        print("note: some cells are empty; they are taken as 0 (data.missing)", file=sys.stderr)
    kinds = f"classes {', '.join(classes[:8])}" if classes else f"numbers from {targets.min():g} to {targets.max():g}"
    title = f"{len(values)} rows, {len(features)} column{'s' * (len(features) > 1)} of numbers to predict {target} from ({kinds})"
    data = {"target": target, "features": features, "missing": missing}
    return {"data": data, "model": {"name": "mlp"}, "training": {"epochs": 60}}, title


def _numeric(path: Path, target: str) -> list[str]:
    """The columns of numbers but the target; what is left out is said."""
    names = read_header(path)
    if not names:
        raise DataError(f"[init] expected names of columns in the first line of {str(path)!r}, got an empty file or line")
    if target not in names:
        raise ArgumentError(f"[init] expected --target to be one of {', '.join(names[:12])}, got {target!r}{separator_hint(names)}")
    found, texts, why = [], [], {}
    for name in names:
        if name != target:
            try:
                read_table(path, [name], "", 0.0)
                found.append(name)
            except DataError as error:
                texts.append(name)
                why[name] = str(error)
    if not found:
        reason = next(iter(why.values()), "there is no other column")
        raise DataError(f"[init] expected columns of numbers beside {target} in {str(path)!r}, got none: {reason}")
    if texts:
        print(f"note: left out are columns of texts: {', '.join(name + _first_text(why[name]) for name in texts[:8])}", file=sys.stderr)
    return found


def _first_text(error: str) -> str:
    """Where a column that begins with numbers has its first text: a slip, perhaps, that one may want to repair."""
    found = re.search(r"in row (\d+) .* got (.*)$", error)
    return f" ({found[2]} in row {found[1]}, counted from 0)" if found and int(found[1]) else ""


def train(options: argparse.Namespace) -> int:
    """`calque train RECIPE` and `calque finetune RECIPE`."""
    recipe = read_recipe(options.recipe)
    if options.command == "finetune":
        _for_finetuning(recipe, options)
    if options.epochs is not None:
        if options.epochs < 1:
            raise ArgumentError(f"[train] expected --epochs of at least 1, got {options.epochs}")
        recipe["training"]["epochs"] = options.epochs
    if options.out is not None:
        recipe["output"]["folder"] = str(options.out.resolve())
    words = ["calque", options.command, str(options.recipe), *(["--out", str(options.out)] if options.out is not None else [])]
    if options.command == "finetune":
        words += [word for name in ("weights", "freeze_until") if getattr(options, name) is not None for word in _given(options, name)]
    if options.epochs is not None:
        words += ["--epochs", str(options.epochs)]
    return run(recipe, options.resume, options.restart, options.quiet, shlex.join([*words, "--resume"]))


def _given(options: argparse.Namespace, name: str) -> list[str]:
    return ["--" + name.replace("_", "-"), str(getattr(options, name))]


def _for_finetuning(recipe: Recipe, options: argparse.Namespace) -> None:
    model, training = recipe["model"], recipe["training"]
    if options.weights is not None:
        model["weights"] = str(options.weights.resolve())
    if options.freeze_until is not None:
        model["freeze_until"] = options.freeze_until
    if not model["weights"]:
        raise ArgumentError(f"[finetune] expected trained weights to begin with, got none; pass --weights, or set model.weights in {recipe.place}")
    if training["layer_decay"] == 1.0:
        training["layer_decay"] = 0.8
    if not recipe["output"]["folder"] or options.out is None:
        recipe["output"]["folder"] = f"{recipe.folder}-finetuned"


def evaluate(options: argparse.Namespace) -> int:
    """`calque evaluate RUN`."""
    product = read_product(options.run)
    outputs, targets = product.labelled(options.data)
    found = figures_of(outputs, targets, product.classes)
    if options.json:
        print(json.dumps({"samples": len(targets), "classes": product.classes, **found}))
    else:
        print(figures_text(found, product.classes, f"{len(targets)} samples"))
    return 0


def predict(options: argparse.Namespace) -> int:
    """`calque predict RUN FILES`: comma-separated lines."""
    product = read_product(options.run)
    if options.top < 1:
        raise ArgumentError(f"[predict] expected --top of at least 1, got {options.top}")
    if product.about["kind"] == "images":
        names = images_in(options.inputs)
        outputs = product.of_images(names)
    else:
        if len(options.inputs) != 1 or Path(options.inputs[0]).suffix.lower() not in TABLES:
            raise ArgumentError(f"[predict] expected one table ({', '.join(TABLES)}) for this run, got {' '.join(options.inputs)}")
        if not Path(options.inputs[0]).is_file():
            raise DataError(f"[predict] expected a table, got {options.inputs[0]!r}, which is not there")
        outputs = product.of_table(Path(options.inputs[0]))
        names = [str(k + 1) for k in range(len(outputs))]
    top = min(options.top, len(product.classes))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    what = "file" if product.about["kind"] == "images" else "row"
    if not product.classes:
        writer.writerow([what, product.about["target"]])
        writer.writerows([name, f"{value:.6g}"] for name, value in zip(names, outputs))
        return 0
    ranks = [""] if top == 1 else [str(k + 1) for k in range(top)]
    writer.writerow([what, *(f"{word}{rank}" for rank in ranks for word in ("class", "probability"))])
    for name, row in zip(names, outputs):
        best = np.argsort(-row, kind="stable")[:top]
        writer.writerow([name, *(cell for k in best for cell in (product.classes[k], f"{row[k]:.4f}"))])
    return 0


def export(options: argparse.Namespace) -> int:
    """`calque export RUN`: the best model of a run as a program, also of one that was stopped; `--onnx`: for other tools."""
    folder = options.run
    if not (folder / RECIPE_NAME).exists():
        raise CheckpointError(f"[export] expected the folder of a run, got {str(folder)!r} without {RECIPE_NAME}; calque train RECIPE makes one")
    if options.onnx is not None:
        product = read_product(folder)
        product.program.onnx(options.onnx)
        print(options.onnx)
        return 0
    job = Job(read_recipe(folder / RECIPE_NAME))
    job.trainer.resume()
    job.finish()
    print(folder / PROGRAM)
    return 0


def show_augment(options: argparse.Namespace) -> int:
    """`calque show-augment RECIPE`: a picture in which each row is an image and what training makes of it."""
    recipe = read_recipe(options.recipe)
    if recipe.tabular:
        raise ArgumentError(f"[show-augment] expected a recipe for images, got one for the table {recipe['data']['path']}")
    for name, value in (("--rows", options.rows), ("--columns", options.columns)):
        if not 1 <= value <= 100:
            raise ArgumentError(f"[show-augment] expected {name} from 1 to 100, got {value}")
    source = read_source(recipe)
    calque.manual_seed(recipe["training"]["seed"])
    images, size, gap = recipe["images"], recipe["images"]["size"], 4
    samples = source.parts["train"].samples
    chosen = [samples[k * len(samples) // min(options.rows, len(samples))] for k in range(min(options.rows, len(samples)))]
    head = 14
    sheet = pillow("show-augment").new("RGB", ((size + gap) * (options.columns + 1) + gap, (size + gap + head) * len(chosen) + gap), "white")
    drawn = need("PIL.ImageDraw", "pillow", "vision", "show-augment").Draw(sheet)
    fixed, changed = plain(size), augmented(images)
    for row, (path, label) in enumerate(chosen):
        top = row * (size + gap + head) + gap
        drawn.text((gap, top), f"{source.classes[label]}: {os.path.basename(path)}", fill="black")
        image = load_image(path, size)
        for column in range(options.columns + 1):
            found = (fixed if column == 0 else changed)(image)
            pixels = np.ascontiguousarray(found.permute(1, 2, 0).numpy())
            sheet.paste(pillow("show-augment").fromarray(pixels), (gap + column * (size + gap), top + head))
    try:
        sheet.save(options.out)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"[show-augment] expected a picture to write, got {str(options.out)!r}: {error}; name one with --out") from error
    print(f"{options.out}: the first column is what validation sees, the others what training may see")
    return 0


def examine(recipe_path: Path) -> int:
    """`calque doctor RECIPE`: what limits a run: loading, computing or memory."""
    recipe = read_recipe(recipe_path)
    recipe["data"]["workers"] = 0
    folder = recipe.folder
    recipe["output"]["folder"] = str((folder.parent / f".doctor-{os.getpid()}").resolve())
    try:
        return _examined(recipe)
    finally:
        made = recipe.folder
        if made.is_dir():
            for file in made.iterdir():
                file.unlink()
            made.rmdir()


def _examined(recipe: Recipe) -> int:
    job = Job(recipe)
    began, batches = time.perf_counter(), []
    for batch in job.loader:
        batches.append(batch)
        if len(batches) == _TIMED:
            break
    loading = (time.perf_counter() - began) / len(batches)
    job.model.train()

    model, optimizer, prepare, criterion = job.model, job.optimizer, (lambda x: x) if recipe.tabular else in_colours, job.loss

    def step(inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = criterion(model(prepare(inputs)), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    plan = calque.memory.plan(step, *batches[0])
    for batch in batches[:3]:
        step(*batch).item()
    began = time.perf_counter()
    for batch in batches:
        step(*batch).item()
    computing = (time.perf_counter() - began) / len(batches)
    free = free_bytes()
    much = ": too much; lower training.batch_size" if plan.peak > free else ""
    print(f"memory: a step holds {human(plan.peak)} at its peak, {human(free)} are free{much}")
    print(f"a batch of {len(batches[0][-1])}: {loading * 1e3:.1f} ms to load in one process, {computing * 1e3:.1f} ms to compute")
    if recipe.tabular or loading < 0.1 * computing:
        print("limit: computing")
    else:
        workers = max(1, round(loading / computing + 0.5))
        cores = os.cpu_count() or 1
        words = f"{workers} workers keep up" if workers <= cores else f"{workers} workers would keep up, this machine has {cores} cores"
        print(f"limit: {'loading' if loading > computing else 'computing, if loading has workers'}; {words} (data.workers)")
    kinds = Counter(type(m).__name__ for m in job.model.modules())
    print(f"layers: {', '.join(f'{n} {name}' for name, n in kinds.most_common(4))}")
    return 0
