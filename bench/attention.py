"""Attention beside PyTorch: scaled_dot_product_attention forward, and forward with backward, taking turns in one process.

    python bench/attention.py [--one] [--slices 9] [substring ...]

Prints the median times of one call, the median ratio of neighbouring slices, and the share of the rate of multiply-adds that both cores reach
right before (a causal mask counts half of every product). `--one`: one thread and processor time, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KMP_BLOCKTIME", "0")  # PyTorch's idle workers would spin and occupy a core of the next call
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import torch

import calque
from calque.record import recorder

SHAPES = {  # batch, heads, queries, keys, features, causal
    "gpt 8x6x256x64 causal": (8, 6, 256, 256, 64, True),
    "8x6x256x64": (8, 6, 256, 256, 64, False),
    "2x8x1024x64": (2, 8, 1024, 1024, 64, False),
    "2x8x1024x64 causal": (2, 8, 1024, 1024, 64, True),
    "1x1x2048x64 causal": (1, 1, 2048, 2048, 64, True),
    "4x8x512x128": (4, 8, 512, 512, 128, False),
    "16x12x128x64": (16, 12, 128, 128, 64, False),
    "4x4x77x80": (4, 4, 77, 77, 80, False),
    "2x4x300x256 causal": (2, 4, 300, 300, 256, True),
    "64x4x32x16": (64, 4, 32, 32, 16, False),
    "8x6x1x256x64 (one query)": (8, 6, 1, 256, 64, False),
}


def runs(T: Any, shape: tuple[int, int, int, int, int, bool]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward without history, and forward with the gradients of query, key and value."""
    batch, heads, queries, keys, width, causal = shape
    rng = np.random.default_rng(0)
    sizes = ((batch, heads, n, width) for n in (queries, keys, keys, queries))
    q, k, v, g = (T.tensor(rng.standard_normal(size, dtype=np.float32)) for size in sizes)
    inputs = [q.clone().requires_grad_(), k.clone().requires_grad_(), v.clone().requires_grad_()]
    attend = T.nn.functional.scaled_dot_product_attention

    def forward() -> Any:
        with T.no_grad():
            return attend(q, k, v, is_causal=causal)

    def both() -> Any:
        return T.autograd.grad(attend(*inputs, is_causal=causal), inputs, g)

    return forward, both


def complete(run: Callable[[], Any]) -> Callable[[], Any]:
    """Run what Calque recorded and wait, while the results are alive."""

    def finished() -> Any:
        results = run()
        recorder.flush("bench")
        calque.synchronize()
        return results

    return finished


def timed(run: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    """Seconds per call."""
    count, started = 0, clock()
    while count < 3 or clock() - started < seconds:
        run()
        count += 1
    return (clock() - started) / count


def peak(clock: Callable[[], float]) -> float:
    """Multiplications and additions per second of a product that fits into the caches, by the better of the two frameworks."""
    a, b = (torch.randn(768, 768) for _ in range(2))
    x, y = calque.tensor(a.numpy()), calque.tensor(b.numpy())
    best = min(timed(run, 0.05, clock) for run in (lambda: a @ b, complete(lambda: x @ y)) for _ in range(3))
    return 2 * 768**3 / best


def main() -> None:
    """One line per shape and direction."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--slices", type=int, default=9)
    options = parser.parse_args()
    threads = 1 if options.one else 2
    torch.set_num_threads(threads)
    calque.set_num_threads(threads)
    clock = time.process_time if options.one else time.perf_counter
    print("| attention | direction | Calque ms | PyTorch ms | PyTorch / Calque | GFLOP/s | % of a large product |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name, shape in SHAPES.items():
        if options.names and not any(part in name for part in options.names):
            continue
        batch, heads, queries, keys, width, causal = shape
        products = batch * heads * queries * keys * width * 2 / (2 if causal else 1)
        ours, theirs = runs(calque, shape), runs(torch, shape)
        for direction, count, mine, other in zip(("forward", "both"), (2, 7), ours, theirs, strict=True):
            mine = complete(mine)
            for run in (mine, other) * 2:
                timed(run, 0.0, clock)
            slices = []
            for k in range(options.slices):
                pair = {run: timed(run, 0.03, clock) for run in ((mine, other) if k % 2 else (other, mine))}
                slices.append((pair[mine], pair[other]))
            best, limit = min(a for a, _ in slices), peak(clock)
            ratio = statistics.median(b / a for a, b in slices)
            a, b = (statistics.median(column) for column in zip(*slices, strict=True))
            rate = count * products / best
            print(f"| {name} | {direction} | {a * 1e3:.3f} | {b * 1e3:.3f} | {ratio:.2f} | {rate / 1e9:.0f} | {100 * rate / limit:.0f} |",
                  flush=True)


if __name__ == "__main__":
    main()
