"""Exports that somebody has changed: `python -m tests.fuzz.exports --count 10000`. Whatever is in a file, loading it raises CheckpointError, or
gives a program that runs or raises as programs do; no mutant may end the process, take long, or get another exception out."""

from __future__ import annotations

import copy
import io
import random
import re
import time
import warnings
from typing import Any

import calque
from calque.base.errors import CheckpointError
from calque.exported import tree
from tests.exported.models import CASES
from tests.fuzz.command import main

WORDS = [
    "0", "1", "-1", "2", "9999999", "4611686018427387904", "18446744073709551616", "nan", "inf", "1e400", "None", "True", "'x'", "()", "(0,)",
    "(1, 2, 3)",
    "float32", "int64", "bool", "float16", "complex64", "%0", "%5", "%99", "batch", "time", "(batch * 7)", "(batch // 0)", "(batch % -3)", "(-1, -1)",
    "1000000000000", "((batch * batch) * batch)", "view", "matmul", "conv2d", "index_select", "gather", "scatter_add", "random_bits", "cat", "update",
    "sum", "argsort", "fft_c2c", "ranked", "cumsum", "attention", "lstm", "exp", "full", "iota", "shift_left", "outside", "pow", "where", "hosted",
    "__import__('os')", "scalar", "(((((((((1)))))))))", "lambda: 0", "[0 for _ in ()]", "batch.numerator",
]  # fmt: skip
VALUES: list[Any] = [None, 0, -1, 1, 10**9, 2**62, 1.5, "x", "", [], {}, True, ["tensor", 0], ["tensor", 7], "batch", [["a"], True, True, 1]]


def examples() -> list[dict[str, Any]]:
    """What is in the files of some exports."""
    found = []
    for case in CASES[:6]:
        calque.manual_seed(0)
        file = io.BytesIO()
        calque.export(case.make().train(case.train), case.inputs(*case.example), case.dynamic).save(file)
        file.seek(0)
        found.append(calque.load(file))
    return found


def changed_text(rng: random.Random, text: str) -> str:
    """A text with a word, a line or an end that is another."""
    lines = text.split("\n")
    at, kind = rng.randrange(len(lines)), rng.random()
    if kind < 0.08:
        del lines[at]
    elif kind < 0.16:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif kind < 0.22:
        lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    else:
        words = re.findall(r"\w+|\W", lines[at]) or [""]
        for _ in range(rng.choice([1, 1, 1, 2])):
            words[rng.randrange(len(words))] = rng.choice(WORDS) if rng.random() < 0.7 else str(rng.randint(-3, 70))
        lines[at] = "".join(words)
    return "\n".join(lines)


def changed(rng: random.Random, value: Any) -> Any:
    """A structure with one thing in it that is another."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        value[key] = changed(rng, value[key])
        return value
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        if rng.random() < 0.1:
            del value[at]
        else:
            value[at] = changed(rng, value[at])
        return value
    return copy.deepcopy(rng.choice(VALUES))


def mutant(seed: int, data: dict[str, Any]) -> bytes:
    """The bytes of a file that is not what it was."""
    rng = random.Random(seed)
    found = {key: copy.deepcopy(value) if key != "values" else [list(item) for item in value] for key, value in data.items()}
    variant = rng.choice(rng.choice(found["entries"])["variants"])
    kind = rng.random()
    if kind < 0.6:
        variant["program"] = changed_text(rng, variant["program"])
    elif kind < 0.75 and variant["guards"]:
        at = rng.randrange(len(variant["guards"]))
        variant["guards"][at] = changed_text(rng, variant["guards"][at])
    elif kind < 0.9:
        found = changed(rng, found)
    file = io.BytesIO()
    calque.save(found, file)
    raw = bytearray(file.getvalue())
    if kind >= 0.9:
        for _ in range(rng.choice([1, 1, 3])):
            raw[rng.randrange(min(len(raw), 40_000))] = rng.randrange(256)
        del raw[rng.choice([len(raw), rng.randrange(len(raw))]) :]
    return bytes(raw)


def wrong(seed: int, data: dict[str, Any]) -> str:
    """What is wrong with how this mutant is taken; "" if nothing is."""
    raw, start = mutant(seed, data), time.process_time()
    try:
        exported = calque.load_exported(io.BytesIO(raw))
    except CheckpointError as error:
        text = str(error)
        return "" if text.startswith("[load") and time.process_time() - start < 5 else f"{time.process_time() - start:.1f} s: {text}"
    for name in exported.entries:
        entry = exported.__dict__["_entries"][name]
        dims = {d.name: d for d in entry.dims}
        given = []
        for spec in entry.inputs:
            shape = [s if isinstance(s, int) else min(max(dims[s].min, 3 * dims[s].multiple), dims[s].max or 99) for s in spec.shape]
            if calque.Size(shape).numel() > 1 << 20:
                return ""
            given.append(calque.ones(shape).to(spec.dtype))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exported.entry(name)(**tree.build(entry.arguments, given))
                calque.waitall()
        except (RuntimeError, ValueError, TypeError, IndexError, MemoryError):  # as any program
            continue
    return ""


if __name__ == "__main__":
    files = examples()
    raise SystemExit(main("tests.fuzz.exports", __doc__, lambda seed: wrong(seed, files[seed % len(files)])))
