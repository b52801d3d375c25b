"""What limits a loop over batches: loading them, or what is done with them; and how many workers `num_workers="auto"` takes."""

from __future__ import annotations

import math
import time
from typing import Any

from calque.base.config import available_cores

WARM_UP = 2  # batches that say nothing: imports, first programs, caches
MEASURED = 4  # batches that are loaded in the calling thread before a number of workers is chosen
ENOUGH = 8  # batches with workers, after which something can be said
UNSAID = f"[DataLoader] nothing can be said before {WARM_UP + 1} batches of a pass"
_FREE = 0.05  # share of the time that loading may take in the calling thread


class Pace:
    """Seconds of a pass, batch by batch: spent by the loop while it waits for the loader, and with the batches."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.batches = 0
        self.waiting = self.computing = self.loading = 0.0
        self.before = (0.0, 0)  # what a pool had done before these batches
        self.left = 0.0  # when the loop got its last batch

    def loaded(self, start: float) -> None:
        """A batch has been loaded here, from `start` on."""
        now = time.perf_counter()
        self._count(start, now, now - start)

    def waited(self, start: float, pool: Any) -> None:
        """A batch has come from a worker, which the loop asked for at `start`."""
        done, loaded = getattr(pool, "busy", 0.0), getattr(pool, "loaded", 0)
        if self.batches <= WARM_UP:
            self.before = done, loaded
        each = (done - self.before[0]) / max(loaded - self.before[1], 1)
        self._count(start, time.perf_counter(), each)

    def _count(self, start: float, now: float, loading: float) -> None:
        self.batches += 1
        if self.batches > WARM_UP:
            self.waiting += now - start
            self.computing += start - self.left
            self.loading += loading
        self.left = now

    @property
    def counted(self) -> int:
        """Batches after the warm-up."""
        return max(self.batches - WARM_UP, 0)

    def choice(self) -> int:
        """How many workers a loop needs that has loaded its batches itself: as many as load them in the time it computes, if there are so many
        cores."""
        load, compute = self.loading / self.counted, self.computing / self.counted
        if load < _FREE * (load + compute):
            return 0
        return max(1, min(math.ceil(load / max(compute, 1e-9)), available_cores()))

    def text(self) -> str:
        """One line that says what limits, and what other numbers of workers would change."""
        count = self.counted
        if count == 0:
            return UNSAID
        wait, compute, load = self.waiting / count, self.computing / count, self.loading / count
        share = wait / max(wait + compute, 1e-12)
        by = f"{self.workers} worker{'s' * (self.workers != 1)}" if self.workers else "the loop itself"
        cores = available_cores()
        facts = f"{share:.0%} of the time is spent waiting for batches; one is loaded in {load * 1e3:.1f} ms by {by} and used {compute * 1e3:.1f} ms"
        if share < 2 * _FREE:
            return f"[DataLoader] compute limits: {facts}; more workers would not help"
        wanted = max(1, min(math.ceil(load / max(compute, 1e-9)), cores))
        if wanted <= self.workers:
            return f"[DataLoader] data limits: {facts}; more workers than the {cores} cores would not help: make loading cheaper, or load less"
        gain = (wait + compute) / max(compute, load / wanted)
        return f"[DataLoader] data limits: {facts}; with num_workers={wanted} the loop would be about {max(gain, 1.0):.1f} times as fast"
