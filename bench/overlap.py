"""Whether Python and loading overlap with computation: a training step of about 20 ms beside 5 ms of Python work or of a data loader.

    python bench/overlap.py [--threads 2 1] [--slices 7]

The loops take turns: the step alone, and with work before every step: Python that computes, the interpreter's lock held without computing (what
the lock alone costs), sleeping (what a disk looks like), in the loop or in the worker of a DataLoader (a thread; there are no worker processes);
without reading losses, reading each at once, and reading each one step later.
The batch grows or shrinks until the step takes 18 to 22 ms on that many threads. Prints medians per step, the ratio to the step alone, the longer
of both (1.0 is complete overlap, 1.25 none), and the ratio that no division of work can beat: Python that computes needs a core, so on two
cores 40 ms of two threads and its 5 ms are 22.5 ms, 1.125.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import calque
from calque import nn
from calque.data import DataLoader, Dataset

STEPS = 12
WORK = 5e-3  # seconds of Python or loading per step
WANTED = (18e-3, 22e-3)  # seconds of a step


def trainer() -> Callable[[Any, Any], Any]:
    """Forward, backward, SGD with momentum on an MLP."""
    model = nn.Sequential(nn.Linear(1024, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10))
    optimizer = calque.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def busy(seconds: float) -> None:
    """Python that holds the interpreter's lock."""
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += 1


def holding(seconds: float) -> None:
    """Holds the interpreter's lock without using a core, in pieces as long as a Python function: what the lock alone costs."""
    for _ in range(max(1, int(seconds / 5e-4))):
        _C.usleep(500)


_C = ctypes.PyDLL(None)  # its calls keep the lock


class Samples(Dataset[Any]):
    """Batches that take some work each."""

    def __init__(self, x: Any, y: Any, work: Callable[[], None]) -> None:
        self.x, self.y, self.work = x, y, work

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        self.work()
        return self.x, self.y


Loop = Callable[[], None]
Step = Callable[[Any, Any], Any]


def alone(step: Step, x: Any, y: Any) -> Loop:
    """Nothing but steps. Every loop runs STEPS of them and ends when all is computed."""

    def loop() -> None:
        for _ in range(STEPS):
            loss = step(x, y)
        loss.item()

    return loop


def beside(step: Step, x: Any, y: Any, work: Callable[[], None], read: int) -> Loop:
    """Work before every step. `read`: 0, no loss is read before the end; 1, each at once; 2, each after the next step was recorded."""

    def loop() -> None:
        before = None
        for _ in range(STEPS):
            work()
            loss = step(x, y)
            if read == 1:
                loss.item()
            elif read == 2 and before is not None:
                before.item()
            before = loss
        loss.item()

    return loop


def loaded(step: Step, x: Any, y: Any, work: Callable[[], None], workers: int) -> Loop:
    """Work in the dataset."""
    loader: Any = DataLoader(Samples(x, y, work), batch_size=None, num_workers=workers)

    def loop() -> None:
        for inputs, labels in loader:
            loss = step(inputs, labels)
        loss.item()

    return loop


def loops(seconds: float, step: Step, x: Any, y: Any) -> dict[str, Loop]:
    """The contenders."""
    python, sleep = functools.partial(busy, seconds), functools.partial(time.sleep, seconds)
    return {
        ALONE: alone(step, x, y),
        "Python beside it": beside(step, x, y, python, 0),
        "Python, loss of the step before read": beside(step, x, y, python, 2),
        "Python, loss read at once": beside(step, x, y, python, 1),
        "the lock held beside it": beside(step, x, y, functools.partial(holding, seconds), 0),
        "sleep beside it": beside(step, x, y, sleep, 0),
        "loader in the loop, Python": loaded(step, x, y, python, 0),
        "loader in the loop, sleep": loaded(step, x, y, sleep, 0),
        "loader with a worker, Python": loaded(step, x, y, python, 1),
        "loader with a worker, sleep": loaded(step, x, y, sleep, 1),
    }


ALONE = "step alone"


def least(name: str, threads: int, seconds: float) -> float:
    """The ratio to the step alone below which no loop can get: all that computes, on all cores."""
    computes = "Python" in name
    return max(1.0, (threads * seconds + WORK * computes) / (seconds * len(os.sched_getaffinity(0))))


def seconds_of(step: Step, x: Any, y: Any) -> float:
    """Median time of a step that is waited for."""
    times = []
    for k in range(12):
        start = time.perf_counter()
        step(x, y).item()
        if k > 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def sized(step: Step) -> tuple[Any, Any, float]:
    """A batch whose step takes as long as wanted, and how long that is."""
    rows = 192
    for _ in range(8):
        x, y = calque.randn(rows, 1024), calque.randint(0, 10, (rows,))
        once = seconds_of(step, x, y)
        if WANTED[0] <= once <= WANTED[1]:
            break
        rows = max(16, round(rows * statistics.mean(WANTED) / once / 16) * 16)
    return x, y, once


def table(threads: int, slices: int) -> None:
    """Measure and print with so many kernel threads."""
    calque.set_num_threads(threads)
    step = trainer()
    x, y, _ = sized(step)
    contenders = loops(WORK, step, x, y)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(slices):
        for name, loop in contenders.items():
            start = time.perf_counter()
            loop()
            found[name].append((time.perf_counter() - start) / STEPS)
    base = found[ALONE]
    print(f"{threads} kernel threads, batch of {x.shape[0]}, work {WORK * 1e3:.1f} ms")
    print(f"{'ms per step':>12} {'/ step alone':>13} {'least':>7}")
    for name, mine in found.items():
        ratio = statistics.median(a / b for a, b in zip(mine, base, strict=True))
        print(f"{statistics.median(mine) * 1e3:12.2f} {ratio:13.3f} {least(name, threads, statistics.median(base)):7.3f}  {name}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--slices", type=int, default=7)
    arguments = parser.parse_args()
    calque.manual_seed(0)
    for threads in arguments.threads:
        table(threads, arguments.slices)


if __name__ == "__main__":
    main()
