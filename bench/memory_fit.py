"""What a training step is predicted to hold beside what it holds, and what `calque.memory.fit` does with less: how long it takes to choose, what the
fitted loss holds, how much slower its step is, and how far its gradients are from those of the whole batch.

    python bench/memory_fit.py [--only mlp,gpt2] [--shares 0.75 0.5 0.35] [--of added|peak] [--batch 64] [--statistics whole]
        [--small] [--threads 2] [--rounds 5]

Each model in a process of its own, so that nothing of another one is in use. "held" is the largest number of bytes in use in three steps behind
`reset_peak_memory_stats`. A share is the part of what loss and backward pass add to what is in use before them and to the gradients, which no cut
makes smaller; with `--of peak` of all that is in use at the peak. `--batch` is that of one of the six steps. Rows say "nothing fits" where
`fit` refuses. Gradients are compared where no batch norm sees other samples than before.
"time" is the fitted step's, of the whole one's: medians of rounds that take turns: the whole batch, then the fitted one.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from models import JOBS

import calque
from calque.base.errors import MemoryPlanError

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A model, its optimizer, one batch, and the loss of a batch; `norms`: whether batch norms may see micro-batches."""

    model: Any
    optimizer: Any
    inputs: tuple[Any, ...]
    loss: Callable[..., Any]
    norms: str = "whole"


def scored(model: Any) -> Callable[..., Any]:
    """Cross entropy of class scores (N, C) or (N, L, C)."""

    def loss(x: Any, y: Any) -> Any:
        scores = model(x)
        return calque.nn.functional.cross_entropy(scores.reshape(-1, scores.size(-1)), y.reshape(-1))

    return loss


def job(name: str, small: bool, batch: int = 0) -> Case:
    """One of the six steps of `bench/`."""
    found = JOBS[name]
    model = found.model(calque)
    x, y = (calque.from_numpy(a) for a in found.batch(np.random.default_rng(0), batch or (found.small if small else found.batch_size)))
    norms = any(isinstance(module, calque.nn.BatchNorm2d) for module in model.modules())
    loss = scored(model)
    if name == "lstm":  # its texts stand in columns, and `fit` cuts rows
        x, y = x.t().contiguous(), y.t().contiguous()
        return Case(model, found.optimizer(calque, model), (x, y), lambda x, y: loss(x.t(), y.t()))
    return Case(model, found.optimizer(calque, model), (x, y), loss, "micro" if norms else "whole")


def image_model(name: str, small: bool) -> Case:
    """A model of `calque.vision` on images of 224 pixels."""
    model: Any = getattr(calque.vision.models, name)()
    batch = 2 if small else 16
    x, y = calque.randn(batch, 3, 64 if small else 224, 64 if small else 224), calque.randint(0, 1000, (batch,))
    return Case(model, calque.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), (x, y), scored(model), "micro" if "resnet" in name else "whole")


def gpt2(small: bool) -> Case:
    """GPT-2, the smallest published size, or two narrow blocks of it; without dropout, whose masks micro-batches draw otherwise."""
    sizes = {"vocab_size": 500, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64} if small else {}
    model = calque.text.models.GPT(**sizes, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    words = calque.randint(0, sizes.get("vocab_size", 50257), (4, 33 if small else 257))
    return Case(model, calque.optim.AdamW(model.parameters(), lr=1e-4), (words[:, :-1].contiguous(), words[:, 1:].contiguous()), scored(model))


CASES: dict[str, Callable[[bool], Case]] = {
    **{name: lambda small, name=name: job(name, small) for name in JOBS},
    "vgg16": lambda small: image_model("vgg16", small),
    "resnet50": lambda small: image_model("resnet50", small),
    "gpt2": gpt2,
}


def stepped(case: Case, backward: Callable[..., Any]) -> Callable[[], Any]:
    """A whole training step."""

    def step() -> Any:
        case.optimizer.zero_grad()
        loss = backward(*case.inputs)
        case.optimizer.step()
        return loss

    return step


def held(step: Callable[[], Any]) -> int:
    """The most bytes in use over three steps, the first of which is over."""
    step().item()
    calque.synchronize()
    calque.memory.reset_peak_memory_stats()
    for _ in range(3):
        step().item()
    calque.synchronize()
    return int(calque.memory.max_memory_allocated())


def seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step().item()
    calque.synchronize()
    return time.perf_counter() - start


def gradients(case: Case, backward: Callable[..., Any]) -> list[np.ndarray[Any, Any]]:
    case.optimizer.zero_grad()
    backward(*case.inputs)
    found = [p.grad.numpy().copy() for p in case.model.parameters() if p.grad is not None]
    case.optimizer.zero_grad()
    return found


def distance(a: list[np.ndarray[Any, Any]], b: list[np.ndarray[Any, Any]]) -> float:
    """The largest difference of a gradient, in units of the largest value in it."""
    return max(float(np.abs(x - y).max() / max(float(np.abs(y).max()), 1e-30)) for x, y in zip(a, b, strict=True))


def measure(name: str, options: argparse.Namespace) -> None:
    """Print the rows of a model."""
    calque.manual_seed(0)
    calque.set_num_threads(options.threads)
    case = job(name, options.small, options.batch) if options.batch else CASES[name](options.small)
    norms = options.statistics or case.norms
    calque.synchronize()

    def whole(*inputs: Any) -> Any:
        loss = case.loss(*inputs)
        loss.backward()
        return loss.detach()

    step = stepped(case, whole)
    start = time.perf_counter()
    plan = calque.memory.plan(step)
    took = time.perf_counter() - start
    measured = held(step)
    head = f"| {name} | {plan.peak / MIB:.1f} | {measured / MIB:.1f} | {100 * (plan.peak / measured - 1):+.1f} % | {took:.2f}"
    case.optimizer.zero_grad()
    wanted = gradients(case, whole)
    alone = calque.memory.plan(whole, *case.inputs)
    kept = sum(gradient.nbytes for gradient in wanted)
    for share in options.shares:
        budget = round(share * alone.peak) if options.of == "peak" else alone.before + kept + round(share * (alone.peak - alone.before - kept))
        start = time.perf_counter()
        try:
            fitted = calque.memory.fit(case.loss, *case.inputs, budget=budget, batch_statistics=norms)
        except MemoryPlanError as error:
            print(f"{head} | {share} | {time.perf_counter() - start:.2f} | nothing fits: {error} | | | | |", flush=True)
            continue
        chosen = time.perf_counter() - start
        error = distance(gradients(case, fitted), wanted) if norms == "whole" else float("nan")
        again = stepped(case, fitted)
        for warm in (step, again):
            seconds(warm)
        times = [(seconds(step), seconds(again)) for _ in range(options.rounds)]
        ratio = statistics.median(b / a for a, b in times)
        case.optimizer.zero_grad()
        calque.synchronize()
        calque.memory.reset_peak_memory_stats()
        fitted(*case.inputs).item()
        calque.synchronize()
        most = int(calque.memory.max_memory_allocated())
        how = f"{fitted.micro_batch} at a time, {len(fitted.blocks)} blocks again"
        parts = f"{budget / MIB:.1f} | {fitted.plan.peak / MIB:.1f} | {most / MIB:.1f} | {ratio:.2f} | {error:.0e}"
        print(f"{head} | {share} | {chosen:.2f} | {how} | {parts} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.75, 0.5, 0.35])
    parser.add_argument("--of", choices=["added", "peak"], default="added", help="what the shares are parts of")
    parser.add_argument("--batch", type=int, default=0, help="another size of the batch, for the six steps of bench/")
    parser.add_argument("--statistics", choices=["whole", "micro"], help="what batch norms see (default: micro-batches where there are any)")
    parser.add_argument("--small", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--here", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.here, options)
        return
    chosen = [name for name in CASES if not options.only or name in options.only.split(",")]
    if not chosen:
        parser.error(f"--only names none of {', '.join(CASES)}")
    names = "model | predicted MiB | held MiB | difference | plan s | share | fit s | chosen | budget MiB | predicted | held | time | gradients"
    print(f"| {names} |")
    print("|---|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|", flush=True)
    for name in chosen:
        done = subprocess.run([sys.executable, __file__, "--here", name, *sys.argv[1:]], check=False)
        if done.returncode:
            print(f"| {name} | failed with exit code {done.returncode} |", flush=True)


if __name__ == "__main__":
    main()
