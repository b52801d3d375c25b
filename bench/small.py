"""Small calls of all kinds, beside PyTorch: what a loop over elements, rows or samples is made of. Both take turns; the best of each.

Run: python bench/small.py
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 7


def calls(T: Any) -> dict[str, tuple[Callable[[], Any], int]]:
    """Name -> what is measured, and how often in a round."""
    x, rows, mask = T.rand(100, 4), [T.rand(3) for _ in range(10)], T.rand(100, 4) > 0.5
    total, many, points = x.sum(), T.rand(10_000), T.rand(50, 3)
    long, some, counter = T.rand(6000, 2), T.rand(16, 64) + 0.5, itertools.count()

    def new() -> int:
        """A size that no call of this process had before."""
        return 500 + next(counter) % 5400

    def write() -> None:
        x[3, 1] = 0.5

    index, some_rows, normal, keys = T.tensor([3, 50, 7]), T.rand(3, 4), T.nn.LayerNorm(64), T.rand(1, 4, 1, 37)
    codes, w = T.tensor([3, 1, 2], dtype=T.int32), T.rand(8, requires_grad=True)
    picked, wide, one_row = x[mask], T.rand(16, 64), T.rand(1, 1, 64)

    def put_mask() -> None:
        x[mask] = picked

    def put_rows() -> None:
        x[index] = some_rows

    def put_slice() -> None:
        x[1:3] = some_rows[:2]

    def without_gradient(function: Callable[[Any], Any], value: Any) -> Callable[[], Any]:
        def call() -> Any:
            with T.no_grad():
                return function(value)

        return call

    def walk() -> None:
        for k in range(10_000):
            many[k].item()

    return {
        "tensor(1.0)": (lambda: T.tensor(1.0), 3000),
        "tensor([1.0, 2.0, 3.0])": (lambda: T.tensor([1.0, 2.0, 3.0]), 3000),
        "zeros(3)": (lambda: T.zeros(3), 3000),
        "rand(3)": (lambda: T.rand(3), 3000),
        "randn(3)": (lambda: T.randn(3), 3000),
        "randint(0, 8, (32,))": (lambda: T.randint(0, 8, (32,)), 3000),
        "stack of 10": (lambda: T.stack(rows), 3000),
        "cat of 10": (lambda: T.cat(rows), 3000),
        "x[2, 1]": (lambda: x[2, 1], 3000),
        "x[1:3]": (lambda: x[1:3], 3000),
        "x[mask]": (lambda: x[mask], 3000),
        "x[3, 1] = 0.5": (write, 3000),
        "x[mask] = y": (put_mask, 3000),
        "x[[3, 50, 7]] = y": (put_rows, 3000),
        "softmax of 1 x 4 x 1 x 37": (lambda: keys.softmax(-1), 3000),
        "layer_norm of 64": (without_gradient(normal, one_row), 3000),
        "layer_norm of 16 x 64, gradient": (lambda: normal(wide), 3000),
        "gelu of 64": (lambda: T.nn.functional.gelu(one_row), 3000),
        "softplus of 64": (lambda: T.nn.functional.softplus(one_row), 3000),
        "x.add_(0.0)": (lambda: x.add_(0.0), 3000),
        "x.fill_(0.5)": (lambda: x.fill_(0.5), 3000),
        "x[1:3] = y": (put_slice, 3000),
        "index + 1": (lambda: index + 1, 3000),
        "int32 == 3": (lambda: codes == 3, 3000),
        "grad of (w * w).sum()": (lambda: T.autograd.grad((w * w).sum(), w), 2000),
        "x > 0.5": (lambda: x > 0.5, 3000),
        "points[None] - points[:, None]": (lambda: points[None] - points[:, None], 1000),
        "x.max(1)": (lambda: x.max(1), 3000),
        "x.T @ x": (lambda: x.T @ x, 3000),
        "total.item()": (lambda: total.item(), 3000),
        "x.sum().item()": (lambda: x.sum().item(), 3000),
        "bool(x[0, 0] > 0.5)": (lambda: bool(x[0, 0] > 0.5), 3000),
        "x[k:k + 9], k new": (lambda: long[(k := new()) : k + 9], 300),
        "y + y, size new": (lambda: (y := long[: new()]) + y, 100),
        "y.clamp(min=0), size new": (lambda: long[: new()].clamp(min=0.0), 100),
        "y.softmax(1), size new": (lambda: long[: new()].softmax(1), 100),
        "lgamma of 1,024": (lambda: T.lgamma(some).tolist(), 100),
        "digamma of 1,024": (lambda: T.digamma(some).tolist(), 100),
        "erfinv of 1,024": (lambda: T.erfinv(some - 0.5).tolist(), 100),
        "igamma of 1,024": (lambda: T.igamma(some, some).tolist(), 20),
        "10,000 times many[k].item()": (walk, 1),
    }


def seconds(call: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def main() -> None:
    import torch

    import calque

    torch.set_num_threads(1)
    ours, theirs = calls(calque), calls(torch)
    print("| call | Calque us | PyTorch us | PyTorch / Calque |\n|---|---:|---:|---:|")
    for name, (call, times) in ours.items():
        found: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            found.append((seconds(call, times), seconds(theirs[name][0], times)))
        mine, other = (min(pair[k] for pair in found) * 1e6 for k in (0, 1))
        print(f"| `{name}` | {mine:.2f} | {other:.2f} | {other / mine:.2f} |", flush=True)


if __name__ == "__main__":
    main()
