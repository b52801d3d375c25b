"""The process of one contender: reads one request per line from standard input, answers with one line of JSON.

A request is {"kind": "step" | "infer" | "kernel" | "limit" | "memory", "name": ..., "seconds": ...}. What was asked for stays warm until another
workload is asked for. An exception is an answer ({"error": ...}); whatever frameworks print goes to standard error.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import numpy as np  # noqa: E402
from kernels import cases  # noqa: E402
from models import JOBS, Job, resnet18  # noqa: E402

Run = Callable[[], Any]


def resident(field: str = "VmRSS") -> float:
    """Resident memory of this process in MiB: `VmRSS` now, `VmHWM` its highest value."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return float("nan")


class Framework:
    """What differs between contenders: how a model, a step and a function are made, and when results are there."""

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads = name, threads
        self.T = self.load()

    def load(self) -> Any:
        """The module with PyTorch's interface."""
        torch = importlib.import_module("torch")
        torch.set_num_threads(self.threads)
        return torch

    def version(self) -> str:
        """For the report."""
        return f"{self.T.__name__} {self.T.__version__}"

    def step(self, job: Job) -> Run:
        """One training step with its loss read as a number."""
        T = self.T
        T.manual_seed(0)
        model = job.model(T)
        x, y = (T.tensor(a) for a in job.batch(np.random.default_rng(0), job.batch_size))
        return self.wrap_step(job, model, job.optimizer(T, model), x, y)

    def wrap_step(self, job: Job, model: Any, optimizer: Any, x: Any, y: Any) -> Run:
        """The step as this contender runs it."""
        return lambda: job.step(self.T, model, optimizer, x, y).item()

    def infer(self, batch: int) -> Run:
        """Inference of ResNet-18 on 224x224 images."""
        T = self.T
        T.manual_seed(0)
        model = self.wrap_model(resnet18(T).eval())
        x = T.tensor(np.random.default_rng(0).standard_normal((batch, 3, 224, 224), dtype=np.float32))

        def run() -> None:
            with T.no_grad():
                model(x).sum().item()

        return run

    def wrap_model(self, model: Any) -> Any:
        """The model as this contender runs it."""
        return model

    def check(self) -> None:
        """Raise if what was warmed up is not what this contender stands for."""

    def settle(self) -> None:
        """Wait for what a last call may have left running, so that it takes no time from others."""

    def kernel(self, name: str) -> Run:
        """A kernel; the function returns when its results are there."""
        case = cases()[name]
        runs = [case.make(self.T, np.random.default_rng(k)) for k in range(case.copies)]
        return self.finished(lambda: [run() for run in runs])

    def finished(self, run: Run) -> Run:
        """`run`, and wait."""
        return run

    def compilers(self) -> float:
        """MiB that processes beside this one held at most, together."""
        return 0.0


class Compiled(Framework):
    """torch.compile."""

    def wrap_step(self, job: Job, model: Any, optimizer: Any, x: Any, y: Any) -> Run:
        """Forward and backward compiled; the optimizer runs as PyTorch has it."""
        model = self.T.compile(model)
        return lambda: job.step(self.T, model, optimizer, x, y).item()

    def wrap_model(self, model: Any) -> Any:
        """The compiled model."""
        return self.T.compile(model)

    def kernel(self, name: str) -> Run:
        """The compiled function, where that can change anything."""
        if not cases()[name].compiled:
            raise NotImplementedError("only an eager kernel")
        run: Run = self.T.compile(cases()[name].make(self.T, np.random.default_rng(0)))
        return run


class Calque(Framework):
    """Calque as the user writes it: recorded at every call."""

    def load(self) -> Any:
        """Calque with its threads set."""
        calque = importlib.import_module("calque")
        calque.set_num_threads(self.threads)
        self.recorder = importlib.import_module("calque.record.recorder")
        return calque

    def settle(self) -> None:
        """Wait for the rest of the last step: its loss is there before it has ended."""
        self.T.synchronize()

    def finished(self, run: Run) -> Run:
        """Run what was recorded and wait, while the results are alive."""

        def complete() -> Any:
            results = run()
            self.recorder.flush("bench")
            self.T.synchronize()
            return results

        return complete

    def compilers(self) -> float:
        """The processes that compile missing kernels, as if each held its most at the same time."""
        told = self.T.stats()["compiler"]
        return float(told["at_once"] * told["peak_mib"])


class Hybrid(Calque):
    """Calque with whole calls cached."""

    def compiler(self) -> Any:
        """`calque.compile`, or a clear error."""
        found = getattr(self.T, "compile", None)
        if found is None:
            raise NotImplementedError("this tree has no calque.compile")
        return found

    def wrap_step(self, job: Job, model: Any, optimizer: Any, x: Any, y: Any) -> Run:
        """The whole step as one cached call."""
        T, as_written = self.T, job.step  # the job itself can make batches from random numbers: what reaches those is not replayed
        step = self.compiler()(lambda x, y: as_written(T, model, optimizer, x, y))
        return lambda: step(x, y).item()

    def wrap_model(self, model: Any) -> Any:
        """The hybridized model."""
        return self.compiler()(model)

    def check(self) -> None:
        """Calls must be replays: measuring the imperative path twice says nothing."""
        found = self.T.stats()["hybridize"]
        before, self.replays = getattr(self, "replays", 0), found["replays"]
        if found["replays"] <= before:
            raise RuntimeError(f"no call was replayed: {', '.join(found['reasons'])}")

    def kernel(self, name: str) -> Run:
        """Kernels are measured imperatively: they are the same."""
        raise NotImplementedError("the same kernels as calque")


class Jax(Framework):
    """JAX: `jit` of the function."""

    def load(self) -> Any:
        """JAX on the CPU."""
        return importlib.import_module("jax")

    def step(self, job: Job) -> Run:
        """The step of `jax_steps.py` from Calque's initial weights."""
        calque = importlib.import_module("calque")
        calque.manual_seed(0)
        state = {name: np.array(value.detach().numpy()) for name, value in job.model(calque).state_dict().items()}
        run: Run = importlib.import_module("jax_steps").training_step(job.name, state, job.batch(np.random.default_rng(0), job.batch_size))
        return run

    def infer(self, batch: int) -> Run:
        """Not written."""
        raise NotImplementedError("not written in JAX")

    def kernel(self, name: str) -> Run:
        """The jitted function on device arrays."""
        case = cases()[name]
        if case.jax is None:
            raise NotImplementedError("not written in JAX")
        made = [case.jax(self.T, np.random.default_rng(k)) for k in range(case.copies)]
        jitted = self.T.jit(made[0][0])
        sets = [tuple(self.T.numpy.asarray(o) for o in operands) for _, operands in made]
        return lambda: self.T.block_until_ready([jitted(*operands) for operands in sets])


class Limits(Calque):
    """What the machine can do: asked for by the floating-point operations and the bytes of a kernel, whichever take longer."""

    def limit(self, name: str) -> float:
        """Seconds that the kernel takes at least."""
        limits = importlib.import_module("calque.backend.cpu.program.limits")
        case = cases()[name]
        moved = case.nbytes / limits.copy_bandwidth(int(min(case.copies * case.nbytes, 512 << 20)))
        return float(max(moved, case.flops / limits.peak_flops()) if case.flops else moved)


CONTENDERS: dict[str, type[Framework]] = {
    "torch": Framework, "torch.compile": Compiled, "jax": Jax, "calque": Calque, "calque hybrid": Hybrid, "limit": Limits,
}  # fmt: skip


def build(framework: Framework, kind: str, name: str) -> Run:
    """The function to be timed."""
    if kind == "step":
        return framework.step(JOBS[name])
    if kind == "infer":
        return framework.infer(int(name))
    return framework.kernel(name)


def timed(run: Run, seconds: float) -> float:
    """Median seconds of one call within a slice."""
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < 2 or (time.perf_counter() < stop and len(times) < 10_000):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def memory(framework: Framework, name: str) -> dict[str, float]:
    """Peak resident memory of a few steps above what the import left, in MiB. Only in a fresh process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the highest value starts anew
    before = resident()
    run = framework.step(JOBS[name])
    for _ in range(5):
        run()
    return {"mib": resident("VmHWM") - before, "import_mib": before, "compilers_mib": framework.compilers()}


class Server:
    """Answers requests; keeps the last workload warm."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self.key: tuple[str, str] | None = None
        self.run: Run | None = None

    def answer(self, kind: str, name: str, seconds: float) -> dict[str, Any]:
        """One slice."""
        if kind == "version":
            return {"version": self.framework.version()}
        if kind == "memory":
            return memory(self.framework, name)
        if isinstance(self.framework, Limits):
            return {"seconds": self.framework.limit(name)}
        first = 0.0
        if self.key != (kind, name) or self.run is None:
            self.run = None
            gc.collect()
            start = time.perf_counter()
            self.run = build(self.framework, kind, name)
            self.run()
            first = time.perf_counter() - start
            for _ in range(4):  # some programs are compiled only when they come back
                self.run()
            self.framework.check()
            self.key = (kind, name)
        copies = cases()[name].copies if kind == "kernel" and not isinstance(self.framework, Compiled) else 1
        took = timed(self.run, seconds) / copies
        self.framework.settle()
        return {"seconds": took, "first": first}


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, threads = sys.argv[1], int(sys.argv[2])
    server: Server | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if server is None:
                server = Server(CONTENDERS[name](name, threads))
            reply = server.answer(**request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
