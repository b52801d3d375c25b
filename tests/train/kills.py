"""Programs that the tests of killed saves run: `python -m tests.train.kills WHAT FOLDER`.

write: saves step after step, awaited or not (--aside), until it is killed. once: waits for a line, saves step 2 and ends.
many SEED COUNT: forks `count` children that save without an end, kills each at a random moment, and looks at what is there: prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from calque.train import Checkpoints

FILES = 3000  # bytes: the state below goes into three files and their index


def state(step: int) -> dict[str, Any]:
    """Numbers that all say which step they are of."""
    return {"step": step, **{name: np.full(300, step, np.float64) for name in "abc"}}


def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder, keep=1, metric="loss", shard_size=FILES)


def step_of(folder: Path) -> int:
    """The step that is there, every number of which is its own; -1: none. Nothing damaged may be named."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = checkpoints(folder)
        if found.last is None:
            return -1
        value = found.load()
    step = int(value["step"])
    assert all((np.asarray(value[name]) == step).all() and len(value[name]) == 300 for name in "abc"), value
    return step


def write(folder: Path, first: int, aside: bool, done: Any) -> None:
    """Save without an end; each step that is safe is told."""
    found = checkpoints(folder)
    for step in range(first, 1 << 30):
        found.save(state(step), 0, step, float(-step if step % 3 else step), wait=not aside)
        done(step - aside)  # the one before is on the disk when the next one begins


def many(folder: Path, seed: int, count: int) -> None:
    draw, last, landed, kills = random.Random(seed), 0, 0, {"awaited": 0, "aside": 0}
    write_once(folder, 0)
    began = time.monotonic()
    write_once(folder, 0)
    long = time.monotonic() - began
    for _ in range(count):
        aside, (reading, writing) = draw.random() < 0.5, os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            write(folder, last + 1, aside, lambda step, pipe=writing: os.write(pipe, step.to_bytes(8, "little", signed=True)))
            os._exit(1)
        os.close(writing)
        time.sleep(draw.uniform(0, 4) * long)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        kills["aside" if aside else "awaited"] += 1
        with os.fdopen(reading, "rb") as told:
            safe = np.frombuffer(told.read(), "<i8").tolist()
        found = step_of(folder)
        assert found >= max([last, *safe]), (found, last, safe)
        landed += found > last
        last = found
    write_once(folder, last + 1)
    print(json.dumps({"kills": kills, "landed": landed, "last": last, "files": sorted(os.listdir(folder))}))


def write_once(folder: Path, step: int) -> None:
    checkpoints(folder).save(state(step), 0, step, float(step))


if __name__ == "__main__":
    where = Path(sys.argv[2])
    if sys.argv[1] == "once":
        found = checkpoints(where)
        print("ready", flush=True)
        sys.stdin.readline()
        found.save(state(2), 0, 2, 2.0)
        os._exit(0)
    many(where, int(sys.argv[3]), int(sys.argv[4]))
