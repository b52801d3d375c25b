"""What two ranks cost: small and large all-reduces beside bare mpi4py, and a DDP step beside half the batch alone.

    calque launch -n 2 --no-prefix bench/ranks.py [--slices 9] [--only calls|mlp|resnet18-32|gpt|tiny]

Loops take turns; rank 0 prints medians: wall-clock time, and processor time of the process, in which waiting actively for the other rank is included
(MPICH spins). On a machine where something else runs only processor time means anything, and of a rank that waits not even that.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from models import JOBS

import calque
import calque.distributed as dist
from calque import nn

Times = tuple[float, float]
STEPS = ("mlp", "resnet18-32", "gpt", "tiny")


def measured(loop: Callable[[], Any], count: int) -> Times:
    """Seconds of wall and processor per turn."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        loop()
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


def turns(loops: dict[str, Callable[[], Any]], count: int, slices: int) -> dict[str, Times]:
    """Medians of loops that take turns."""
    found: dict[str, list[Times]] = {name: [] for name in loops}
    for k in range(slices + 1):
        for name, loop in loops.items():
            dist.barrier()
            times = measured(loop, count)
            if k:
                found[name].append(times)
    return {name: (statistics.median(w for w, _ in times), statistics.median(c for _, c in times)) for name, times in found.items()}


def show(title: str, found: dict[str, Times], base: str) -> None:
    """A table of microseconds, on rank 0."""
    if dist.get_rank() == 0:
        print(title)
        for name, (wall, cpu) in found.items():
            ratios = f"{wall / found[base][0]:6.2f} ({cpu / found[base][1]:.2f}) of {base}"
            print(f"  {name:28} {wall * 1e6:12.1f} us, processor {cpu * 1e6:12.1f} us, {ratios}")


def all_reduces(nbytes: int, count: int, slices: int) -> None:
    """Ours beside bare mpi4py."""
    from mpi4py import MPI

    t = calque.zeros(nbytes // 4)
    a, b = np.zeros(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)

    def ours() -> None:
        dist.all_reduce(t, async_op=True).wait()

    show(f"all-reduce of {nbytes:,} bytes", turns({"mpi4py": lambda: MPI.COMM_WORLD.Allreduce(a, b), "calque": ours}, count, slices), "mpi4py")


def tiny() -> tuple[Any, Any, Any]:
    """200 parameters of 8 numbers each: nothing but what a parameter costs."""
    return nn.Sequential(*[nn.LayerNorm(8) for _ in range(100)]), calque.randn(32, 8), None


def mlp() -> tuple[Any, Any, Any]:
    """1.9 million parameters, 256 samples: much to send for little computation."""
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return net, calque.randn(256, 784), calque.randint(0, 10, (256,))


def job(name: str) -> tuple[Any, Any, Any]:
    """A model of `models.py` with half of its batch."""
    found = JOBS[name]
    x, y = found.batch(np.random.default_rng(0), found.batch_size // 2)
    return found.model(calque), calque.tensor(x), calque.tensor(y)


def steps(name: str, slices: int) -> None:
    """Half a batch alone, and with another rank."""

    def trainer(wrap: bool) -> tuple[Callable[[], None], Any]:
        calque.manual_seed(0)
        net, x, y = {"mlp": mlp, "tiny": tiny}.get(name, lambda: job(name))()
        net = dist.DistributedDataParallel(net) if wrap else net
        optimizer = JOBS[name].optimizer(calque, net) if name in JOBS and name != "mlp" else calque.optim.SGD(net.parameters(), lr=1e-3)

        def step() -> None:
            scores = net(x)
            loss = scores.square().mean() if y is None else nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            calque.synchronize()

        return step, net

    alone, (together, net) = trainer(False)[0], trainer(True)
    gradients = [calque.zeros(sum(net._params[k].numel() for k in bucket)) for bucket in net._buckets]

    def messages() -> None:
        for work in [dist.all_reduce(g, async_op=True) for g in gradients]:
            work.wait()

    loops = {"alone": alone, "two ranks": together, "its messages alone": messages}
    show(f"step of {name}, {len(net._buckets)} buckets", turns(loops, 2 if name in JOBS and name != "mlp" else 10, slices), "alone")


def main() -> None:
    """All of it."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--slices", type=int, default=9)
    words.add_argument("--only", choices=["calls", *STEPS])
    options = words.parse_args()
    slices = options.slices
    dist.init_process_group("mpi")
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.only in (None, "calls"):
        all_reduces(1 << 12, 500, slices)
        all_reduces(1 << 26, 3, slices)
    for name in STEPS:
        if options.only in (None, name):
            steps(name, slices)


main()
