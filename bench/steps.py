"""The six training steps beside PyTorch eager: one warm worker process per contender, taking turns, several slices each.

    python bench/steps.py [--only mlp,gpt] [--slices 7] [--markdown]

Prints the median step time of both and the median ratio of neighbouring slices (less depends on what else the machine does).
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import installed

SECONDS = {"mlp": 0.3, "lenet": 0.5, "resnet18-32": 1.5, "resnet18-224": 2.5, "lstm": 0.6, "gpt": 2.5}  # of one slice


def worker(framework: str) -> None:
    """Read workload names from standard input, answer with seconds per step."""
    sys.path.insert(0, str(Path(__file__).parent))
    import numpy as np
    from models import JOBS

    if framework == "torch":
        import torch as module

        module.set_num_threads(2)
    else:
        sys.path.insert(0, str(Path(__file__).parent.parent))
        import calque as module  # type: ignore[no-redef]
    steps: dict[str, Any] = {}
    for line in sys.stdin:
        name = line.strip()
        first = 0.0
        if name not in steps:
            started = time.perf_counter()
            module.manual_seed(0)
            job = JOBS[name]
            model = job.model(module)
            x, y = (module.tensor(a) for a in job.batch(np.random.default_rng(0), job.batch_size))
            steps[name] = functools.partial(job.step, module, model, job.optimizer(module, model), x, y)
            steps[name]().item()
            first = time.perf_counter() - started
            for _ in range(3):
                steps[name]().item()
        count, started = 0, time.perf_counter()
        while count < 2 or time.perf_counter() - started < SECONDS[name]:
            steps[name]().item()
            count += 1
        took = (time.perf_counter() - started) / count
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"step": took, "first": first, "peak_mib": peak}), flush=True)


class Contender:
    """A worker process of one framework."""

    def __init__(self, framework: str) -> None:
        environment = installed.environment(OMP_NUM_THREADS="2", CALQUE_NUM_THREADS="2", KMP_BLOCKTIME="0")
        command = [sys.executable, __file__, "--worker", framework]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def run(self, name: str) -> dict[str, float]:
        """One slice of a workload."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        answer: dict[str, float] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the worker."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(name: str, slices: int) -> tuple[float, float, float, float, float]:
    """(ours, theirs, ratio theirs/ours, our first step, their first step) in seconds."""
    contenders = {"calque": Contender("calque"), "torch": Contender("torch")}
    times: dict[str, list[float]] = {"calque": [], "torch": []}
    first = {}
    for k in range(slices):
        for framework in ("calque", "torch") if k % 2 else ("torch", "calque"):
            answer = contenders[framework].run(name)
            times[framework].append(answer["step"])
            first.setdefault(framework, answer["first"])
    for contender in contenders.values():
        contender.close()
    ratio = statistics.median(t / c for t, c in zip(times["torch"], times["calque"], strict=True))
    return statistics.median(times["calque"]), statistics.median(times["torch"]), ratio, first["calque"], first["torch"]


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker")
    parser.add_argument("--only", default="")
    parser.add_argument("--slices", type=int, default=7)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    print("| step | Calque ms | PyTorch eager ms | PyTorch / Calque | first step s (Calque, PyTorch) |")
    print("|---|---:|---:|---:|---:|")
    for name in options.only.split(",") if options.only else SECONDS:
        ours, theirs, ratio, first, their_first = measure(name, options.slices)
        print(f"| {name} | {ours * 1e3:.2f} | {theirs * 1e3:.2f} | {ratio:.2f} | {first:.2f}, {their_first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
