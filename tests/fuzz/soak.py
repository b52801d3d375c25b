"""Programs that never repeat: new shapes, indices, failures, operations, layers, lines, threads for ever. Memory must stop growing.

    python -m tests.fuzz.soak --count 20000 [--seed 0] [--only training] [--memo 4194304]

Every kind runs in a process of its own, whose caches are small (`--memo`, bytes), so that they are soon full. From then on the resident memory is
measured at equal distances, and the slope of the line through these points is printed in bytes per program: of what is alive (after a collection,
and after the C library has given back what it holds), and of all there is just before. Beside it, what has grown among the containers that modules
of Calque hold (`containers`), and the caches that hold more than they may (`calque.stats().caches`).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque import nn
from calque.base.cache import TABLES
from tests.fuzz.holders import containers

F = nn.functional
POINTS = 40  # measurements, of which the second half counts
LOOKS = (POINTS // 4, 3 * POINTS // 8, POINTS // 2, 3 * POINTS // 4, 7 * POINTS // 8, POINTS - 1)  # when containers are looked at
MOST = 100.0  # bytes per program
MEMO = 4 << 20
STATM = Path("/proc/self/statm")


def shape(k: int) -> tuple[int, int]:
    """The k-th of 22,500 shapes, small and large ones by turns: what grows is then no longer what a larger tensor takes."""
    number = k * 7919 % 22_500
    return 1 + number % 150, 1 + number // 150


def training(rng: random.Random) -> Callable[[int], None]:
    """A step of training on a batch of a new shape."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = calque.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(k: int) -> None:
        loss = model(calque.ones(*shape(k), 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def indexing(rng: random.Random) -> Callable[[int], None]:
    """Reads and writes of other parts."""
    x = calque.arange(400 * 400).reshape(400, 400).float()

    def step(k: int) -> None:
        rows, columns = shape(k)
        a, b, c, s = rng.randrange(400), rng.randrange(400), rng.randrange(400), rng.randrange(1, 9)
        part = x[a : a + rows, b : b + columns : s]
        part += 1.0
        y = x[c, b:].unsqueeze(0).expand(1 + k % 7, 400 - b).narrow(1, 0, 1 + (399 - b) // 2)
        assert y.sum().item() == y.sum().item() and x[..., a].chunk(1 + c)[0].numel() > 0
        x[a] = 0.0

    return step


def small(rng: random.Random) -> Callable[[int], None]:
    """A few operations on a new shape."""

    def step(k: int) -> None:
        x = calque.ones(*shape(k))
        assert ((x + 1.0) * rng.random()).sum().item() >= 0.0
        assert calque.cat([x, x]).argmax(0).shape == x.shape[1:] and x.softmax(-1).T.contiguous().tolist()

    return step


def failing(rng: random.Random) -> Callable[[int], None]:
    """Operations that refuse a new pair of shapes, with nothing read between them."""

    def step(k: int) -> None:
        rows, columns = shape(k)
        x, y = calque.ones(rows + 1, columns + 1), calque.ones(rows + 2, columns + 2)
        wrong: list[Callable[[], Any]] = [
            lambda: x + y, lambda: x @ x.T @ y, lambda: x.view(7919), lambda: calque.cat([x, y, x]), lambda: x[k + 1 :, 9999],
            lambda: F.linear(x, y), lambda: F.conv2d(x, y), lambda: x.sum(7), lambda: x.copy_(y), lambda: x[1:].add_(y),
        ]  # fmt: skip
        for call in wrong:
            try:
                call()
            except (ValueError, IndexError, TypeError, RuntimeError):
                continue
            raise AssertionError("expected an error")

    return step


def hybrid(rng: random.Random) -> Callable[[int], None]:
    """Calls of hybridized functions with new shapes, some three times, with gradients."""
    weight = calque.ones(4, 4, requires_grad=True)

    @calque.compile
    def call(x: Any) -> Any:
        return (x @ weight).relu().sum()

    def step(k: int) -> None:
        x = calque.ones(*shape(k), 4)
        for _ in range(rng.choice((1, 1, 1, 4))):
            call(x).backward()
            weight.grad = None

    return step


def programs(rng: random.Random) -> Callable[[int], None]:
    """Programs of new structure."""
    unary = [calque.exp, calque.tanh, calque.neg, calque.abs, calque.square, calque.sigmoid, calque.relu, calque.cos]
    binary = [calque.add, calque.sub, calque.mul, calque.maximum, calque.minimum]

    def step(k: int) -> None:
        values = [calque.ones(3, 5), calque.zeros(3, 5)]
        for _ in range(rng.randrange(4, 12)):
            values.append(rng.choice(unary)(rng.choice(values)))
            values.append(rng.choice(binary)(rng.choice(values), rng.choice(values)))
            if rng.random() < 0.3:
                values.append(values[-1].sum(rng.randrange(2), keepdim=True) + values[0])
        values[-1].sum().item()

    return step


def images(rng: random.Random) -> Callable[[int], None]:
    """A step of a convolutional network on images of a new size."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(2))

    def step(k: int) -> None:
        rows, columns = shape(k)
        model(calque.ones(1, 1, rows + 1, columns + 1)).mean().backward()
        for p in model.parameters():
            p.grad = None

    return step


def layers(rng: random.Random) -> Callable[[int], None]:
    """A model with its optimizer and its hybridized call that are thrown away."""

    def step(k: int) -> None:
        rows, columns = shape(k)
        model = nn.Sequential(nn.Linear(rows, columns), nn.Tanh())
        if k % 3 == 0:
            model.hybridize()
        optimizer = calque.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(calque.ones(3, rows)).sum().backward()
            optimizer.step()

    return step


def lines(rng: random.Random) -> Callable[[int], None]:
    """Code that was never run before, as of a notebook's cells."""
    text = "x = calque.ones(3, requires_grad=True)\nloss = (x * 2.0).sum()\nloss.backward()\nassert loss.item() == 6.0 and x[k % 3].item() == 1.0\n"

    def step(k: int) -> None:
        exec(compile(text, f"<cell {k}>", "exec"), {"calque": calque, "k": k})  # noqa: S102 - what a notebook does

    return step


def threads(rng: random.Random) -> Callable[[int], None]:
    """A thread that records and ends."""

    def work(k: int) -> None:
        x = calque.ones(*shape(k), requires_grad=True)
        (x * x).sum().backward()
        assert x.grad is not None and x.grad[0, 0].item() == 2.0

    def step(k: int) -> None:
        thread = threading.Thread(target=work, args=(k,))
        thread.start()
        thread.join()

    return step


def losses(rng: random.Random) -> Callable[[int], None]:
    """Layers and losses with rules of their own, forward and backward, on new shapes."""

    def step(k: int) -> None:
        n, classes = shape(k)
        x = calque.ones(n, classes, requires_grad=True)
        labels = calque.zeros(n, dtype=calque.int64)
        y = F.cross_entropy(F.layer_norm(x, (classes,)), labels) + F.gelu(x).mean() + F.mse_loss(x, calque.zeros(n, classes))
        (g,) = calque.autograd.grad(y, [x])
        assert g.shape == x.shape and calque.gather(x, 1, labels[:, None]).sum().item() == n

    return step


KINDS: dict[str, Callable[[random.Random], Callable[[int], None]]] = {
    f.__name__: f for f in (training, indexing, small, failing, hybrid, programs, images, layers, lines, threads, losses)
}


def resident() -> int:
    """Bytes of this process in memory."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def slope(points: list[tuple[int, int]]) -> float:
    """Of the line through the points."""
    found: float = np.polyfit(*np.array(points, float).T, 1)[0]
    return found


def grown(looks: list[dict[str, int]]) -> dict[str, int]:
    """How much larger every container was at all looks of the second half than at any of the first: what is filled and emptied by turns has not
    grown. Some come into being with the first use."""
    early, late = looks[: len(looks) // 2], looks[len(looks) // 2 :]
    least = {name: min(look.get(name, 0) for look in late) for name in late[-1]}
    return {name: size - max(look.get(name, size // 2) for look in early) for name, size in least.items()}


def run(kind: str, seed: int, count: int, first: int = 0) -> dict[str, Any]:
    """Run so many programs, and describe what has become of memory."""
    step, points = KINDS[kind](random.Random(seed)), []
    untouched: list[tuple[int, int]] = []
    trim = getattr(ctypes.CDLL(None), "malloc_trim", int)
    each = max(1, count // POINTS)
    looks: list[dict[str, int]] = []
    kinds: Counter[str] = Counter()
    for k in range(count):
        step(first + k)
        if k % each == each - 1:
            untouched.append((k, resident()))
            gc.collect()
            trim(0)
            if len(points) in LOOKS:
                looks.append(containers())
            if len(points) in (POINTS // 2, POINTS - 1):
                alive = Counter(type(x).__name__ for x in gc.get_objects())
                more, kinds = alive - kinds, alive
            points.append((k, resident()))
    half = count // 2
    return {
        "kind": kind, "seed": seed, "count": count, "slope": slope(points[POINTS // 2 :]),
        "untouched": slope(untouched[POINTS // 2 :]), "resident": untouched[-1][1],
        "grown": {name: size for name, size in grown(looks).items() if size > half // 10 + 8},
        "objects": {name: size for name, size in more.items() if size > half // 10 + 64},
        "full": {name: table for name, table in calque.stats().caches.items() if table["bytes"] > table["limit"]},
        "caches": len(TABLES), "evictions": calque.stats().evictions,
    }  # fmt: skip


def apart(kind: str, seed: int, count: int, memo: int = MEMO, first: int = 0) -> dict[str, Any]:
    """The same in a process of its own."""
    environment = os.environ | {"CALQUE_MEMO_BYTES": str(memo), "CALQUE_MAX_PENDING_OPS": "512"}
    command = [sys.executable, "-m", "tests.fuzz.soak", "--here", kind, "--seed", str(seed), "--count", str(count), "--first", str(first)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Every kind, one after the other; 1 if memory grows in one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first shape")
    parser.add_argument("--memo", type=int, default=MEMO)
    parser.add_argument("--only", choices=sorted(KINDS), action="append")
    parser.add_argument("--here", choices=sorted(KINDS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(run(asked.here, asked.seed, asked.count, asked.first)))
        return 0
    bad = 0
    for kind in asked.only or KINDS:
        found = apart(kind, asked.seed, asked.count, asked.memo, asked.first)
        ok = found["slope"] < MOST and not found["grown"] and not found["full"]
        bad += not ok
        print(
            f"{kind:10s} seed {asked.seed}, {asked.count} programs: {found['slope']:8.1f} bytes per program ({found['untouched']:.1f} before "
            f"collections), {found['resident'] >> 20} MiB, {found['evictions']} evictions{'' if ok else '  GROWS'}",
            *(f"  {name}: {found[name]}" for name in ("grown", "objects", "full") if found[name]), sep="\n", flush=True,
        )  # fmt: skip
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
