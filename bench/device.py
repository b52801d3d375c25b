"""Training steps on an accelerator beside PyTorch on the same one, in one process, taking turns.

    python bench/device.py [--only mlp,gpt] [--modes float32,tf32,bf16] [--slices 5] [--scale 1] [--seconds 0.5] [--json FILE]

Runs on `cuda:0`; without a GPU on `xla:0` beside PyTorch's CPU, which tries the program out and says nothing about speed. Prints losses of the
same steps from the same parameters, medians of the slices (steps that are queued and waited for at the end of a slice; steps whose loss is read
each time), what the host needs to record and start a step, the first step with all compiling, and the peak of memory. Without PyTorch its columns
stay empty.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch wants some of the memory, too
sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

import numpy as np  # noqa: E402 (the memory of the device is asked for when JAX loads)
from models import JOBS, copy_parameters  # noqa: E402

import calque  # noqa: E402
from calque.run import plans  # noqa: E402

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

LAUNCHED = [0.0]  # seconds that starting programs took, of the host's
CHECKED = 4  # steps whose losses are compared


def watch_launches() -> None:
    """Count the time in which JAX starts programs."""
    from calque.backend.xla.backend import XlaProgram

    run = XlaProgram.run

    def timed(self: Any, inputs: Any, scalars: Any) -> Any:
        start = time.perf_counter()
        try:
            return run(self, inputs, scalars)
        finally:
            LAUNCHED[0] += time.perf_counter() - start

    XlaProgram.run = timed  # type: ignore[method-assign]


class Contender:
    """One framework's model and optimizer of a job."""

    def __init__(self, framework: Any, device: str, job: Any, scale: int, mode: str) -> None:
        self.framework, self.device, self.job, self.mode = framework, device, job, mode
        framework.manual_seed(0)
        self.model = job.model(framework)
        x, y = job.batch(np.random.default_rng(0), job.batch_size * scale)
        self.batch = [framework.tensor(a).to(device) for a in (x, y)]

    def begin(self) -> None:
        """To the device."""
        self.model = self.model.to(self.device)
        self.optimizer = self.job.optimizer(self.framework, self.model)
        self.step = self._step

    def hybridize(self) -> None:
        """From now on the whole step is replayed without Python (`calque.compile`)."""
        again = calque.compile(lambda x, y: self.job.step(calque, self.model, self.optimizer, x, y).detach())
        self.step = lambda: again(*self.batch)

    def _step(self) -> Any:
        """The loss, on the device."""
        framework = self.framework
        narrow = framework.autocast(self.device.partition(":")[0], dtype=framework.bfloat16) if self.mode == "bf16" else contextlib.nullcontext()
        with narrow:
            return self.job.step(framework, self.model, self.optimizer, *self.batch).detach()

    def wait(self) -> None:
        """Until everything has run."""
        if self.framework is calque:
            calque.synchronize()
        elif self.device.startswith("cuda"):
            self.framework.cuda.synchronize()

    def queued(self, seconds: float) -> tuple[float, float, int]:
        """Seconds of a step, and of the host for it; how many steps."""
        count, start = 0, time.perf_counter()
        self.step()
        self.wait()
        planned = max(4, min(200, int(seconds / (time.perf_counter() - start))))
        start, host = time.perf_counter(), 0.0
        for _ in range(planned):
            begun = time.perf_counter()
            self.step()
            host += time.perf_counter() - begun
            count += 1
        self.wait()
        return (time.perf_counter() - start) / count, host / count, count

    def read(self, seconds: float) -> float:
        """Seconds of a step whose loss is read."""
        count, start = 0, time.perf_counter()
        while count < 3 or time.perf_counter() - start < seconds:
            self.step().item()
            count += 1
        return (time.perf_counter() - start) / count


def choose(mode: str) -> None:
    """What float32 products are."""
    calque.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    if torch is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode == "tf32"
        torch.backends.cudnn.benchmark = True


def case(name: str, mode: str, options: Any, device: str) -> dict[str, Any]:
    """Everything about a job."""
    choose(mode)
    job, there = JOBS[name], "cuda:0" if device.startswith("cuda") else "cpu"
    ours = Contender(calque, device, job, options.scale, mode)
    theirs = Contender(torch, there, job, options.scale, mode) if torch is not None else None
    if theirs is not None:
        copy_parameters(theirs.model, ours.model, calque.tensor)
    before = len(plans._forms)
    start = time.perf_counter()
    ours.begin()
    losses = [float(ours.step()) for _ in range(1)]
    found: dict[str, Any] = {"job": name, "mode": mode, "first_s": time.perf_counter() - start}
    losses += [float(ours.step()) for _ in range(CHECKED - 1)]
    found |= {"warm_s": time.perf_counter() - start, "programs": len(plans._forms) - before, "losses": losses}
    if theirs is not None:
        theirs.begin()
        found["torch_losses"] = [float(theirs.step()) for _ in range(CHECKED)]
        found["difference"] = max(abs(a - b) / abs(b) for a, b in zip(losses, found["torch_losses"], strict=True))
    for contender in (ours, theirs):
        if contender is not None:
            contender.queued(0.1)
    compiled = plans.DispatchCounters.compiled
    slices: dict[str, list[float]] = {"ours": [], "host": [], "launch": [], "read": [], "torch": [], "torch_host": [], "torch_read": []}
    for _ in range(options.slices):
        LAUNCHED[0] = 0.0
        whole, host, count = ours.queued(options.seconds)
        slices["ours"].append(whole)
        slices["host"].append(host)
        slices["launch"].append(LAUNCHED[0] / (count + 1))
        slices["read"].append(ours.read(options.seconds / 2))
        if theirs is not None:
            whole, host, count = theirs.queued(options.seconds)
            slices["torch"].append(whole)
            slices["torch_host"].append(host)
            slices["torch_read"].append(theirs.read(options.seconds / 2))
    if mode != "bf16":
        ours.hybridize()
        ours.queued(0.3)
        slices["hybrid"] = []
        slices["hybrid_host"] = []
        for _ in range(options.slices):
            whole, host, count = ours.queued(options.seconds)
            slices["hybrid"].append(whole)
            slices["hybrid_host"].append(host)
    found |= {key: statistics.median(values) for key, values in slices.items() if values}
    found["spread"] = {key: [min(values), max(values)] for key, values in slices.items() if values}
    found["compiled_later"] = plans.DispatchCounters.compiled - compiled
    found["peak_mib"] = calque.memory_stats(device)["peak"] / 2**20
    if theirs is not None and there != "cpu":
        found["torch_peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
    found["kernels"] = max((kernels(form) for form in plans._forms.values()), default=0)
    return found


def kernels(form: Any) -> int:
    """Operations of the compiled program that are launched: fusions and calls of libraries."""
    text = form.call.as_text()
    entry = text[text.find("\nENTRY") :]
    return entry.count(" fusion(") + entry.count(" custom-call(")


COLUMNS = (
    ("Calque ms", "ours", 1e3, ".3f"), ("compiled step ms", "hybrid", 1e3, ".3f"), ("PyTorch ms", "torch", 1e3, ".3f"),
    ("read: Calque ms", "read", 1e3, ".3f"),
    ("PyTorch ms", "torch_read", 1e3, ".3f"), ("host: Calque us", "host", 1e6, ".0f"), ("of it JAX's start", "launch", 1e6, ".0f"),
    ("compiled step us", "hybrid_host", 1e6, ".0f"), ("PyTorch us", "torch_host", 1e6, ".0f"), ("first s", "first_s", 1, ".1f"),
    ("loss difference", "difference", 1, ".1e"),
)  # fmt: skip


def table(rows: list[dict[str, Any]]) -> None:
    """One line for each case."""
    titles = " | ".join(title for title, *_ in COLUMNS)
    print(f"| job | mode | {titles} |")
    print("|---|---|" + "---:|" * len(COLUMNS))
    for r in rows:
        cells = " | ".join(format(r.get(key, math.nan) * by, form) for _, key, by, form in COLUMNS)
        print(f"| {r['job']} | {r['mode']} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="mlp,gpt,resnet18-32")
    parser.add_argument("--modes", default="float32,tf32")
    parser.add_argument("--slices", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--scale", type=int, default=1, help="times the batch of the benchmark")
    parser.add_argument("--json")
    options = parser.parse_args()
    watch_launches()
    device = "cuda:0" if calque.cuda.is_available() else "xla:0"
    backend = calque.zeros(0, device=device).device.backend
    print(f"device: {backend.name(0)}; JAX {backend.jax.__version__}; PyTorch {getattr(torch, '__version__', 'not installed')}")
    rows = []
    for mode in options.modes.split(","):
        for name in options.only.split(","):
            start = time.perf_counter()
            rows.append(case(name, mode, options, device))
            r = rows[-1]
            memory = f"peak {r['peak_mib']:.0f} MiB (so far) and {r.get('torch_peak_mib', 0):.0f}"
            print(f"{name} {mode}: losses {r['losses']} and {r.get('torch_losses')}; {r['programs']} programs, {r['compiled_later']} compiled later; "
                  f"{r['kernels']} kernels; {memory}; {time.perf_counter() - start:.1f} s", flush=True)  # fmt: skip
            if options.json:
                Path(options.json).write_text(json.dumps(rows, indent=1))
    table(rows)


if __name__ == "__main__":
    main()
