"""Seconds until the first value of a program of many turns is there, planned and compiled. Each in a process and with a cache of its own.

Run: python bench/planning.py [TREE]   (of another tree: the folder that holds its `calque`)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def additions(T: Any, n: int) -> Any:
    y = T.zeros(200_000)
    for _ in range(n):
        y = y + 1.0
    return y.sum()


def squares(T: Any, n: int) -> Any:
    y, at = T.rand(300, 300), T.randint(0, 300, (300, 1))
    T.synchronize()
    for _ in range(n):
        y = y * y + y * 0.5
    return y.gather(1, at).sum()


def maxima(T: Any, n: int) -> Any:
    x = T.rand(400, 400)
    for _ in range(n):
        x = x - x.max(1, keepdim=True).values + x.mean(0)
    return x.sum()


def rows(T: Any, n: int) -> Any:
    return T.cat([row.relu() for row in (T.rand(n, 400) * 2 + 1).split(1)]).sum()


CASES = ((additions, 4000), (additions, 9226), (squares, 12), (maxima, 120), (maxima, 180), (rows, 400))


def main() -> None:
    if len(sys.argv) > 2:
        import calque

        program, n = CASES[int(sys.argv[2])]
        program(calque, 5).item()
        start = time.perf_counter()
        program(calque, n).item()
        print(f"| {program.__name__} | {n} | {time.perf_counter() - start:.2f} |", flush=True)
        return
    tree = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).resolve().parents[1])
    for number in range(len(CASES)):
        with tempfile.TemporaryDirectory() as cache:
            subprocess.run([sys.executable, __file__, tree, str(number)], env={**os.environ, "PYTHONPATH": tree, "CALQUE_CACHE": cache}, check=True)


if __name__ == "__main__":
    main()
