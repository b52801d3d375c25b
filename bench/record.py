"""Cost of recording one operation (no execution), beside PyTorch eager's cost of dispatching one on tiny tensors. Both take turns.

Run: python bench/record.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import calque
from calque.record import recorder

OPERATIONS = 1000
ROUNDS = 31


def calque_chain(step: Callable[[Any, Any], Any], grad: bool) -> float:
    """Seconds per recorded operation, warm."""
    a = calque.ones(3, 4, requires_grad=grad)
    b = calque.ones(3, 4)
    calque.synchronize()
    x = a
    start = time.perf_counter()
    for _ in range(OPERATIONS):
        x = step(x, b)
    took = time.perf_counter() - start
    del x
    recorder.flush("bench")  # nothing is live: nothing runs
    return took / OPERATIONS


def torch_chain(torch: Any, step: Callable[[Any, Any], Any], grad: bool) -> float:
    """Seconds per eager operation on tensors so small that dispatch is all."""
    a = torch.ones(3, 4, requires_grad=grad)
    b = torch.ones(3, 4)
    x = a
    start = time.perf_counter()
    for _ in range(OPERATIONS):
        x = step(x, b)
    return (time.perf_counter() - start) / OPERATIONS


CASES: list[tuple[str, Callable[[Any, Any], Any], bool]] = [
    ("x + b", lambda x, b: x + b, False),
    ("x * b", lambda x, b: x * b, False),
    ("x * 0.3", lambda x, b: x * 0.3, False),
    ("x.exp()", lambda x, b: x.exp(), False),
    ("x + b, gradient", lambda x, b: x + b, True),
    ("x * b, gradient", lambda x, b: x * b, True),
    ("x.exp(), gradient", lambda x, b: x.exp(), True),
]


def main() -> None:
    """Print microseconds per operation, median over interleaved rounds."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        torch.set_num_threads(1)
    print(f"{'operation':22} {'calque us':>10} {'torch us':>10}")
    for name, step, grad in CASES:
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(calque_chain(step, grad))
            if torch is not None:
                theirs.append(torch_chain(torch, step, grad))
        peer = f"{statistics.median(theirs) * 1e6:10.2f}" if theirs else "         -"
        print(f"{name:22} {statistics.median(ours) * 1e6:10.2f} {peer}")


if __name__ == "__main__":
    main()
