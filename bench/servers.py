"""What a parameter server on Ray costs beside bare actors: push and pull of two workers and two servers, which hold half of an array each.

    python bench/servers.py [--slices 5]

The bare actors add what they are sent to an array and give it back: no rounds, no order, nothing that survives. All take turns;
medians of wall-clock time by step, as wide as the slower worker. On a busy machine only their ratio means something.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from typing import Any

import numpy as np
import ray

import calque

SIZES = {"4 KB": (1024, 60), "1 MB": (1 << 18, 20), "16.8 MB": (1 << 22, 5)}  # float32 numbers of each server, steps of a slice


@ray.remote(num_cpus=0)
class Bare:
    """A server without anything."""

    def __init__(self, size: int) -> None:
        self.held = np.zeros(size, np.float32)

    def push_pull(self, gradient: Any) -> Any:
        """Add, and give what is held."""
        self.held += gradient
        return self.held


@ray.remote(num_cpus=0)
class Worker:
    """One of the two workers; it knows both kinds of servers."""

    def __init__(self, rank: int, size: int, bare: list[Any], kinds: dict[str, str]) -> None:
        self.bare, self.parts = bare, [np.ones(size, np.float32) for _ in bare]
        self.gradient, self.out = calque.ones(2 * size), calque.zeros(2 * size)
        self.stores = {job: calque.kvstore.create(kind, rank=rank, job=job) for job, kind in kinds.items()}
        for store in self.stores.values():
            store.init("w", self.out)
            store.pull("w", self.out)

    def step(self, name: str, count: int) -> float:
        """Seconds of a step."""
        began = time.perf_counter()
        for _ in range(count):
            if name == "bare actors":
                got = ray.get([server.push_pull.remote(part) for server, part in zip(self.bare, self.parts, strict=True)])
                np.concatenate(got, out=self.out.numpy())
            else:
                self.stores[name].pushpull("w", self.gradient, out=self.out)
        return (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=5)
    slices = parser.parse_args().slices
    ray.init(num_cpus=4, object_store_memory=600_000_000, include_dashboard=False, logging_level="error")
    for label, (size, count) in SIZES.items():
        bare = [Bare.remote(size) for _ in range(2)]
        kinds = {"sync": ("dist_sync", 16), "async": ("dist_async", 16), "sync, nothing kept": ("dist_sync", 0)}
        stores = []
        for job, (kind, snapshot) in kinds.items():
            stores.append(calque.kvstore.create(kind, num_workers=2, servers=2, split=1, snapshot=snapshot, job=job))
            stores[-1].init("w", calque.zeros(2 * size))
            stores[-1].set_optimizer(functools.partial(calque.optim.SGD, lr=1.0))
        workers = [Worker.remote(rank, size, bare, {job: kind for job, (kind, _) in kinds.items()}) for rank in range(2)]
        times: dict[str, list[float]] = {name: [] for name in ("bare actors", *kinds)}
        for turn in range(slices + 1):
            for name, found in times.items():
                took = max(ray.get([worker.step.remote(name, count) for worker in workers]))
                found.extend([took] * bool(turn))
        base = statistics.median(times["bare actors"])
        medians = {name: statistics.median(found) for name, found in times.items()}
        print(f"{label:>8}", "; ".join(f"{name} {m * 1e3:.2f} ms ({base / m:.2f}x)" for name, m in medians.items()), flush=True)
        for handle in [*workers, *bare]:
            ray.kill(handle)
        for store in stores:
            store.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
