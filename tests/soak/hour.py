"""Trains again and again for some seconds while workers are killed and stopped, the disk fails and the run is cut off; prints what it found as JSON.

python -m tests.soak.hour SECONDS FOLDER SEED EPOCHS

A run that nobody disturbs comes first. Every later one must have its losses and its weights, to the last bit. Memory, open files, processes and
shared memory are noted behind each.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque import nn
from calque.base.errors import CheckpointError, WorkerError
from calque.data import DataLoader, Dataset, processes
from calque.train import Trainer
from tests.train.test_crashes import Faults

BATCH = 8


class Noisy(Dataset[Any]):
    """Samples that are another each time, and take a worker a while."""

    def __init__(self, count: int) -> None:
        self.values = np.random.default_rng(0).normal(size=(count, 20)).astype(np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.0005)
        return self.values[index] + np.float32(random.gauss(0, 0.1)), index % 3


class CutOff(BaseException):
    """As if the process ended here."""


def trained(folder: Path, epochs: int, workers: int, kill_at: int) -> tuple[bytes, dict[str, bytes]]:
    """Losses and weights of a run, which ends at its update `kill_at` as if killed (-1: never)."""
    calque.manual_seed(4)
    random.seed(4)
    np.random.seed(4)
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3))
    optimizer = calque.optim.AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(model, optimizer, nn.functional.cross_entropy, folder=folder, save_every=4, accumulate=2, wait=False, quiet=True)
    trainer.resume()
    update, count = trainer._update, [0]

    def counted(group: Any) -> Any:
        count[0] += 1
        if count[0] == kill_at:
            raise CutOff
        return update(group)

    trainer._update = counted  # type: ignore[method-assign]
    loader = DataLoader(Noisy(130), BATCH, shuffle=True, num_workers=workers, timeout=1.0 if workers else 0)
    try:
        trainer.fit(loader, DataLoader(Noisy(20), BATCH), epochs=epochs)
    finally:
        trainer.checkpoints.wait()  # the thread of a dead process would not write, either
    return (folder / "losses.jsonl").read_bytes(), {name: t.numpy().tobytes() for name, t in model.state_dict().items()}


def difference(a: bytes, b: bytes) -> list[bytes]:
    """Lines that only one of two has."""
    return sorted({*a.splitlines()} ^ {*b.splitlines()})


class Disturber(threading.Thread):
    """Kills or stops a worker now and then. `done`: how many of each."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.rng, self.over, self.done = rng, threading.Event(), {"SIGKILL": 0, "SIGSTOP": 0}

    def run(self) -> None:
        while not self.over.wait(self.rng.uniform(0.2, 1.2)):
            template = processes._template.pid
            try:
                files = [Path(f"/proc/{template}/task/{t}/children") for t in os.listdir(f"/proc/{template}/task")]
                workers = [int(p) for file in files for p in file.read_text().split()]
                if template and workers:
                    name = "SIGSTOP" if self.rng.random() < 0.06 else "SIGKILL"
                    os.kill(self.rng.choice(workers), getattr(signal, name))
                    self.done[name] += 1
            except OSError:
                continue  # it has just ended


def held() -> dict[str, int]:
    """What this process holds now."""
    gc.collect()
    calque.synchronize()
    return {
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"), "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")), "shm": len(os.listdir("/dev/shm")), "bytes": calque.stats()["memory"]["in_use"],
        "children": sum(len(Path(f"/proc/self/task/{t}/children").read_text().split()) for t in os.listdir("/proc/self/task")),
    }  # fmt: skip


def main(seconds: float, folder: Path, seed: int, epochs: int) -> None:
    rng = random.Random(seed)
    warnings.simplefilter("ignore")  # every fault is told
    whole = trained(folder / "whole", epochs, 0, -1)
    faults, samples, runs, cuts, told = {"SIGKILL": 0, "SIGSTOP": 0, "disk": 0}, [], 0, 0, 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        place = folder / f"run{runs}"
        disturber = Disturber(rng)
        disturber.start()
        found = None
        while found is None:
            disk = Faults(place, rng.randrange(400), rng.randrange(1, 12), rng.choice([errno.ENOSPC, errno.EIO, errno.EDQUOT]))
            try:
                with disk:
                    found = trained(place, epochs, rng.randrange(4), rng.randrange(1, 10 * epochs) if rng.random() < 0.7 else -1)
            except CutOff:
                cuts += 1
            except (CheckpointError, WorkerError) as error:  # its last save failed, or a worker was killed three times: the user starts it again
                assert str(error).startswith("["), error
                told += 1
            faults["disk"] += max(0, min(disk.calls - disk.first, disk.count))
        found = trained(place, epochs, 0, -1)  # it is over; what the disk did not take at the end is there now
        disturber.over.set()
        disturber.join()
        for name, count in disturber.done.items():
            faults[name] += count
        assert found[0] == whole[0], (runs, "losses", *difference(found[0], whole[0]))
        assert found[1] == whole[1], (runs, "weights")
        runs += 1
        shutil.rmtree(place)
        samples.append({"seconds": time.monotonic() - began, **held()})
        if runs % 20 == 0:
            print(json.dumps({"runs": runs, **samples[-1]}), file=sys.stderr, flush=True)
    print(json.dumps({"runs": runs, "cuts": cuts, "told": told, "faults": faults, "samples": samples}))


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
