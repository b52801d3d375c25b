"""Random values, random limits: whatever `save` writes, `load` gives back equal; what it refuses leaves the previous file as it was.

    python -m tests.fuzz.checkpoints --count 10000 --seed 1

The limits of the reader are lowered for each value to about what that value needs, so that small values stand at and around them. A second
check compares what JSON texts really take with what the limits count for them.
"""

from __future__ import annotations

import json
import random
import tempfile
import tracemalloc
from argparse import Namespace
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque.base.errors import CheckpointError
from calque.io import bounds, layout
from calque.io.structure import parse_json
from tests.fuzz.command import main

TEXTS = ("", "a", "é", "\U0001f600", "\ud800", '"', "\\", '\\"', "\\\\u1234", ",[{:", "__metadata__", "dict", "tensor", "x" * 40, "\u1234" * 30)
INTS = (0, 1, -1, 255, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30)
NUMBERS = (*INTS, 0.0, -0.0, 0.1, 1e300, 5e-324, float("inf"), -float("inf"), float("nan"))
DTYPES = ("float32", "float64", "int64", "int8", "uint8", "bool", "float16")


def text(rng: random.Random) -> str:
    """A few pieces that are awkward in JSON."""
    return "".join(rng.choice(TEXTS) for _ in range(rng.randint(0, 4)))


def leaf(rng: random.Random) -> Any:
    """A value without parts."""
    kind = rng.randint(0, 8)
    shape = tuple(rng.randint(0, 3) for _ in range(rng.randint(0, 3)))
    array = np.array(rng.choices(range(2), k=int(np.prod(shape)))).reshape(shape).astype(rng.choice(DTYPES))
    if kind == 0:
        return calque.from_numpy(array)
    if kind == 1:
        return array
    if kind == 2:
        return np.float32(rng.random())
    if kind == 8:
        number = rng.randint(0, 9)
        return rng.choice((1j, calque.Size((2, 3)), calque.float32, Namespace(lr=rng.random(), name=text(rng)), {number}, Path(f"a/{number}")))
    if kind == 3:
        return rng.randbytes(rng.randint(0, 20))
    return text(rng) if kind == 4 else rng.choice((None, True, False)) if kind == 5 else rng.choice(NUMBERS) if kind == 6 else rng.uniform(-1e9, 1e9)


def key(rng: random.Random) -> Any:
    """A key of a dict."""
    kind = rng.randint(0, 5)
    if kind < 3:
        return text(rng)
    return rng.choice(NUMBERS[:-1]) if kind == 3 else rng.choice((None, True)) if kind == 4 else (text(rng), rng.randint(0, 9))


def value(rng: random.Random, depth: int = 0) -> Any:
    """A nested value; now and then a long one, or a very deep one."""
    kind = rng.randint(0, 9) if depth < 5 else 9
    if kind == 0 and depth < 2:
        return [rng.choice((leaf(rng), rng.choice(NUMBERS), text(rng)))] * rng.randint(0, 300)
    if kind == 1 and depth == 0:
        found: Any = leaf(rng)
        for _ in range(rng.choice((1, 50, 98, 99, 100, 101, 120))):
            found = rng.choice(([found], (found,), {"k": found}, {3: found}))
        return found
    count = rng.randint(0, 4 if depth else 12)
    if kind < 4:
        return [value(rng, depth + 1) for _ in range(count)]
    if kind < 6:
        return tuple(value(rng, depth + 1) for _ in range(count))
    if kind < 9:
        return (dict if kind < 8 else OrderedDict)((key(rng), value(rng, depth + 1)) for _ in range(count))
    return leaf(rng)


def same(a: Any, b: Any) -> bool:
    """Equality of type, structure and bits."""
    if isinstance(a, calque.Tensor):
        return isinstance(b, calque.Tensor) and a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if isinstance(a, list | tuple) and type(a) is not calque.Size:
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return repr(a) == repr(b)


@contextmanager
def limits(allowance: int, header: int) -> Any:
    """Other limits, for writing and reading alike."""
    before = layout.MEMORY_ALLOWANCE, layout.MAX_HEADER
    layout.MEMORY_ALLOWANCE, layout.MAX_HEADER = allowance, header  # type: ignore[misc]
    try:
        yield
    finally:
        layout.MEMORY_ALLOWANCE, layout.MAX_HEADER = before  # type: ignore[misc]


def check_saving(seed: int, folder: Path) -> str | None:
    """What is wrong with saving the value of a seed, if anything."""
    rng = random.Random(seed)
    thing, path = value(rng), folder / "checkpoint"
    calque.save({"old": calque.arange(3)}, path)
    old = path.read_bytes()
    with limits(rng.choice((0, 500, 2000, 8000, 30_000, 1 << 20)), rng.choice((10**8, 10**8, 300, 1000, 5000))):
        try:
            calque.save(thing, path)
        except (CheckpointError, ValueError) as error:
            kept = path.read_bytes() == old and str(error).startswith("[save]")
            return None if kept else f"{error}; the previous file changed or the text is wrong"
        except Exception as error:
            return f"save: {error!r}"
        try:
            found = calque.load(path)
        except Exception as error:
            return f"saved, but load: {error!r}"
    return None if same(thing, found) else f"saved {thing!r:.300}, loaded {found!r:.300}"


def json_value(rng: random.Random, depth: int = 0) -> Any:
    """A JSON value of a few thousand parts, with a preference for one kind."""
    kind, count = rng.randint(0, 9), rng.choice((1, 3, 1000, 3000)) if depth == 0 else rng.randint(0, 6)
    if depth > 3 or kind < 3:
        return [rng.random(), rng.randint(0, 10**18), rng.randint(0, 200), text(rng), None, str(rng.random()), 10**60][rng.randint(0, 6)]
    if kind < 7:
        return [json_value(rng, depth + 1 + rng.randint(0, 3)) for _ in range(count)]
    return {f"{rng.random() if kind < 9 else n}": json_value(rng, depth + 1 + rng.randint(0, 3)) for n in range(count)}


def check_counting(seed: int) -> str | None:
    """Whether a JSON text takes more memory than the limits count for it."""
    rng = random.Random(seed)
    written = json.dumps(json_value(rng), ensure_ascii=rng.random() < 0.8, indent=rng.choice((None, None, 1)))
    cut = written[: rng.randint(0, len(written))] if rng.random() < 0.2 else written  # damaged: what comes before the fault is made, too
    size = bounds.parsed_size(cut.encode("utf-8", "surrogatepass"))
    tracemalloc.start()
    try:
        kept = parse_json(cut)
    except ValueError:
        kept = None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    return None if peak <= size + 4096 else f"{len(cut)} characters take {peak} bytes, counted as {size}: {cut[:200]!r}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        raise SystemExit(main("tests.fuzz.checkpoints", __doc__, lambda seed: check_saving(seed, Path(folder)) or check_counting(seed) or "", 1000))
