"""A training step while other processes compute: PyTorch and Calque with two threads, and Calque with one, in turn, each in a process of its own.

Run: python bench/crowded.py [--busy 2] [--seconds 2] [--tree FOLDER]

Prints the mean milliseconds of a step of a perceptron (128 samples) and of LeNet (16 and 128 images) for 0, 1, ... `busy` processes that never wait.
`--tree`: Calque of another tree takes turns, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import installed

HERE = Path(__file__).resolve().parent
CASES = {"perceptron, 128": (False, 128), "LeNet, 16": (True, 16), "LeNet, 128": (True, 128)}


def step_of(T: Any, images: bool, count: int) -> Any:
    """A training step that reads its loss."""
    nn = T.nn
    T.manual_seed(0)
    if images:
        model = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip
    else:
        model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = T.optim.Adam(model.parameters())
    x = T.randn(count, 1, 28, 28) if images else T.randn(count, 128)
    y = T.randint(0, 10, (count,))

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def worker(framework: str, name: str, threads: int, root: str) -> None:
    """For each number on standard input, steps for so many seconds; prints their mean."""
    sys.path.insert(0, root)
    if framework == "torch":
        import torch as T
    else:
        import calque as T  # type: ignore[no-redef]
    T.set_num_threads(threads)
    step = step_of(T, *CASES[name])
    for _ in range(30):
        step()
    for line in sys.stdin:
        start, count = time.perf_counter(), 0
        while time.perf_counter() < start + float(line):
            step()
            count += 1
        print((time.perf_counter() - start) / count * 1e3, flush=True)


class Contender:
    """A worker process."""

    def __init__(self, framework: str, name: str, threads: int, root: str) -> None:
        command = [sys.executable, __file__, "--worker", framework, "--case", name, "--threads", str(threads), "--root", root]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=installed.environment())

    def ask(self, seconds: float) -> float:
        """Mean milliseconds of a step."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--tree", default="")
    for hidden in ("worker", "case", "root"):
        parser.add_argument(f"--{hidden}", default=str(HERE.parent) if hidden == "root" else "", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.case, options.threads, options.root)
        return
    columns = {"PyTorch": ("torch", 2, options.root), "Calque": ("calque", 2, options.root), "one thread": ("calque", 1, options.root)}
    if options.tree:
        columns["other tree"] = ("calque", 2, options.tree)
    print(f"| step | busy | {' | '.join(columns)} |\n|---|---:|{'---:|' * len(columns)}")
    for name in CASES:
        contenders = [Contender(framework, name, threads, root) for framework, threads, root in columns.values()]
        for busy in range(options.busy + 1):
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
            try:
                found = [contender.ask(options.seconds) for contender in contenders]
            finally:
                for other in others:
                    other.kill()
                    other.wait()
            print(f"| {name} | {busy} | {' | '.join(f'{ms:.2f}' for ms in found)} |", flush=True)
        for contender in contenders:
            contender.close()


if __name__ == "__main__":
    main()
