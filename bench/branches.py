"""Would the branches of an inception block run better side by side, one core each, than one launch after the other on both cores?

Every launch of every branch is timed on one pinned core with the thread's own clock: as a whole, and as each of the two parts that two threads
do. Launches on both cores take the longer part (and a barrier); branches side by side take what the best assignment of branches to cores
takes. Nothing can be faster than half of the work of one thread, which is the bound that is printed as well.

Source of the block: Szegedy et al., "Going Deeper with Convolutions" (2014), table 1, as torchvision builds it.

Run: python bench/branches.py
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from typing import Any

import numpy as np

import calque
from calque import nn
from calque.backend.cpu.program import executable
from calque.backend.cpu.team.runtime import RUNTIME
from calque.run import dispatch

REPEATS = 40
BARRIER_SECONDS = 80e-9
BLOCKS = {  # channels in, 1x1, 3x3 after its reduction, "5x5" (3x3 in torchvision) after its reduction, after the pool; height and width
    "3a": (192, 64, 96, 128, 16, 32, 32, 28), "4a": (480, 192, 96, 208, 16, 48, 64, 14), "5b": (832, 384, 192, 384, 48, 128, 128, 7),
}  # fmt: skip
_CALL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)


def conv(inputs: int, outputs: int, size: int) -> Any:
    """Convolution, batch norm, ReLU."""
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs, eps=0.001), nn.ReLU())


def branches(block: str) -> list[Any]:
    """The four branches."""
    c, one, reduced, three, small, five, pooled, _ = BLOCKS[block]
    return [
        conv(c, one, 1), nn.Sequential(conv(c, reduced, 1), conv(reduced, three, 3)), nn.Sequential(conv(c, small, 1), conv(small, five, 3)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(c, pooled, 1)),
    ]  # fmt: skip


class Parts(executable.CpuExecutable):
    """A schedule whose launches are timed part by part instead of being run once. `found`: seconds of each launch alone, of its two parts."""

    def __init__(self, schedule: Any, linked: Any) -> None:
        super().__init__(schedule, linked)
        self._single = False
        self.found: list[tuple[float, float]] = []
        self._barrier, self._scratch = np.zeros(64, np.int32), np.zeros(64 << 20, np.uint8)

    def _step(self, stretch: Any, words: int, arrays: Any, scalars: Any, progress: Any = None) -> None:
        if stretch.host is not None:
            super()._step(stretch, words, arrays, scalars)
            return
        records = np.asarray(self.linked.records).reshape(-1, 3)
        for k in range(stretch.first, stretch.first + stretch.count):
            kernel, args = _CALL(int(records[k, 0])), words + int(records[k, 1])
            alone = self._seconds(kernel, 0, 1, args)
            both = max(self._seconds(kernel, number, 2, args) for number in (0, 1))
            self.found.append((alone, both))

    def _seconds(self, kernel: Any, number: int, threads: int, args: int) -> float:
        """The shortest of many calls. Another thread stands at the kernel's barrier already, so nobody waits."""
        best = 1.0
        scratch = self._scratch.ctypes.data + -self._scratch.ctypes.data % 64
        for _ in range(REPEATS):
            self._barrier[0] = threads - 1
            start = time.thread_time()
            kernel(number, threads, self._barrier.ctypes.data, scratch, args)
            best = min(best, time.thread_time() - start)
        return best


def launches(work: Any) -> list[tuple[float, float]]:
    """What the launches of `work()` take."""
    for _ in range(4):  # compiled, tuned
        held = work()
        calque.waitall()
    found: list[tuple[float, float]] = []
    plain = executable.CpuExecutable.run

    def run(self: Any, inputs: Any, scalars: Any = (), *_: Any) -> Any:
        timed = Parts(self.schedule, self.linked)
        results = plain(timed, inputs, scalars)
        found.extend(timed.found)
        return results

    executable.CpuExecutable.run = run  # type: ignore[method-assign]
    try:
        held = work()
        calque.waitall()
    finally:
        executable.CpuExecutable.run = plain  # type: ignore[method-assign]
    del held
    return found


def side_by_side(seconds: list[float]) -> float:
    """The best assignment to two cores."""
    return min(
        max(sum(s for s, c in zip(seconds, cores, strict=True) if c == core) for core in (0, 1))
        for cores in itertools.product((0, 1), repeat=len(seconds))
    )


def report(block: str, batch: int, training: bool) -> None:
    """One line."""
    size = BLOCKS[block][-1]
    parts = branches(block)
    x = calque.randn(batch, BLOCKS[block][0], size, size)

    def work(part: Any) -> Any:
        if not training:
            with calque.no_grad():
                return part.eval()(x)
        part.zero_grad()
        out = part.train()(x)
        out.square().sum().backward()
        return out, [p.grad for p in part.parameters()]

    times = [launches(lambda part=part: work(part)) for part in parts]
    alone = [sum(a for a, _ in found) for found in times]
    now = sum(b + BARRIER_SECONDS for found in times for _, b in found)
    apart, bound = side_by_side(alone), sum(alone) / 2
    what, each = "training" if training else "inference", ", ".join(f"{a * 1e3:.3f}" for a in alone)
    print(
        f"{block} batch {batch:2d} {what:9s}  branches on one core {each} ms; both cores, one launch after the other {now * 1e3:.3f} ms; "
        f"side by side {apart * 1e3:.3f} ms ({1 - apart / now:+.1%}); bound {bound * 1e3:.3f} ms ({1 - bound / now:+.1%}); "
        f"launches {sum(map(len, times))}"
    )


def main() -> None:
    """All blocks."""
    dispatch.INTERPRET_WORK = 0
    calque.set_num_threads(2)  # kernels are cut for two
    RUNTIME.threads()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    calque.manual_seed(0)
    for training in (False, True):
        for block in BLOCKS:
            for batch in (1, 16):
                report(block, batch, training)


if __name__ == "__main__":
    main()
