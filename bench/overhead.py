"""Cost of everything but the arithmetic: programs of a few tiny operations beside PyTorch eager, taking turns in one process.

    python bench/overhead.py [--rounds 15]

Each line is the median over rounds of the mean time of one call; the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import calque
from calque.run import recorder

CALLS = 300


def settle(T: Any) -> None:
    """Start the program now (PyTorch's work is done already)."""
    if T is calque:
        recorder.flush("bench")


def read_a_sum(T: Any) -> Callable[[], Any]:
    """x.sum().item() of 64 numbers."""
    x = T.ones(64)
    return lambda: x.sum().item()


def read_three(T: Any) -> Callable[[], Any]:
    """(x * y + 1.5).sum().item()."""
    x, y = T.ones(64), T.ones(64)
    return lambda: (x * y + 1.5).sum().item()


def start_three(T: Any) -> Callable[[], Any]:
    """The same, started but not read."""
    x, y = T.ones(64), T.ones(64)

    def call() -> Any:
        z = (x * y + 1.5).sum()
        settle(T)
        return z

    return call


def unrolled(T: Any) -> Callable[[], Any]:
    """A recurrence of 50 steps on 8 numbers, read at the end."""
    x, w = T.ones(8), T.full((8,), 0.5)

    def call() -> Any:
        h = x
        for _ in range(50):
            h = (h * w + 0.25).tanh()
        return h.sum().item()

    return call


def count_up(T: Any) -> Callable[[], Any]:
    """20 reads in a loop whose condition is a tensor."""
    step, end = T.ones(()), T.full((), 20.0)

    def call() -> Any:
        n = T.zeros(())
        while n < end:
            n = n + step
        return n.item()

    return call


CASES = [read_a_sum, read_three, start_three, unrolled, count_up]


def slice_of(call: Callable[[], Any], calls: int = CALLS) -> float:
    """Mean seconds per call."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def compare(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds per call of each contender in each round, all warm, in changing order."""
    names = list(contenders)
    for call in contenders.values():
        slice_of(call, 20)
    found: dict[str, list[float]] = {name: [] for name in names}
    for k in range(rounds):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            found[name].append(slice_of(contenders[name]))
    return found


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    try:
        import torch
    except ImportError:
        torch = None
    print(f"{'case':16} {'calque us':>10} {'torch us':>10} {'ratio':>7}")
    for case in CASES:
        contenders = {"calque": case(calque)} | ({"torch": case(torch)} if torch is not None else {})
        times = compare(contenders, rounds)
        ours = statistics.median(times["calque"]) * 1e6
        if torch is None:
            print(f"{case.__name__:16} {ours:10.1f}")
            continue
        ratio = statistics.median(c / t for c, t in zip(times["calque"], times["torch"], strict=True))
        print(f"{case.__name__:16} {ours:10.1f} {statistics.median(times['torch']) * 1e6:10.1f} {ratio:7.2f}", flush=True)


if __name__ == "__main__":
    main()
