"""Two logical devices of one core each against one: independent branches, data parallel steps and a pipeline. All take turns in short slices;
the ratio of the minima is printed.

Run: CALQUE_NUM_THREADS=2 python bench/devices.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import calque
from calque import nn
from calque.backend.cpu.team import place
from calque.run import dispatch, engine

ROUNDS = 15
SHORT_ROUNDS = 60  # of slices of a few milliseconds, which a neighbour on the machine disturbs as a whole
ROWS, WIDTH = 256, 512


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of one slice."""
    calque.waitall()
    start = time.perf_counter()
    held = work()
    calque.waitall()
    took = time.perf_counter() - start
    del held
    return took


def branches(first: str, second: str, width: int) -> Callable[[], Any]:
    """A = ones * 2; B and C from A on two devices, each four products with matrices of this width; D = B * C."""
    weights = {d: calque.randn(width, width, device=d) * 0.01 for d in {first, second}}
    start = calque.ones(ROWS, width, device=first)
    calque.waitall()

    def branch(x: Any, device: str, offset: float) -> Any:
        x = x.to(device) + offset
        for _ in range(4):
            x = (x @ weights[device]).tanh()
        return x

    def run() -> Any:
        a = start * 2.0
        b, c = branch(a, first, 1.0), branch(a, second, 2.0)
        return b * c.to(first)

    return run


class Watch:
    """Processor time of every task, and what it waits for: how long the work would take on cores that nobody else uses."""

    def __init__(self) -> None:
        self.ran: dict[Any, float] = {}  # task -> seconds of its thread
        self.sent: list[tuple[Any, str, float, set[Any]]] = []  # task, queue, processor time of the sender by then, tasks before it
        self.writers: dict[int, Any] = {}
        self.readers: dict[int, set[Any]] = {}
        self.kept: list[Any] = []  # buffers, so that no address is used twice

    def __enter__(self) -> "Watch":
        self._run, self._submit, self._habitual = engine.Task.run, engine.Queue.submit, dispatch.Plan.habitual
        watch, run, submit = self, engine.Task.run, engine.Queue.submit
        start = time.thread_time()

        def timed(task: Any) -> None:
            before = time.thread_time()
            run(task)
            watch.ran[task] = time.thread_time() - before

        def sent(queue: Any, task: Any, reads: Any = (), writes: Any = ()) -> None:
            watch.note(task, queue.name, time.thread_time() - start, list(reads), list(writes))
            submit(queue, task, reads, writes)

        engine.Task.run, engine.Queue.submit = timed, sent  # type: ignore[method-assign]
        dispatch.Plan.habitual = lambda plan: False  # type: ignore[method-assign]  # all of it through the queues, where it is seen
        return self

    def __exit__(self, *exc: object) -> None:
        engine.Task.run, engine.Queue.submit = self._run, self._submit  # type: ignore[method-assign]
        dispatch.Plan.habitual = self._habitual  # type: ignore[method-assign]

    def note(self, task: Any, queue: str, now: float, reads: list[Any], writes: list[Any]) -> None:
        """A task that was sent, and those before it by its buffers."""
        before = {self.writers[id(b)] for b in (*reads, *writes) if id(b) in self.writers}
        for b in writes:
            before |= self.readers.pop(id(b), set())
            self.writers[id(b)] = task
        for b in reads:
            self.readers.setdefault(id(b), set()).add(task)
        self.kept += [*reads, *writes]
        self.sent.append((task, queue, now, before - {task}))

    def alone(self) -> tuple[float, dict[str, float]]:
        """Seconds until the last task ends if every queue has a core of its own, and the seconds that each queue works."""
        free: dict[str, float] = {}
        busy: dict[str, float] = {}
        ends: dict[Any, float] = {}
        for task, queue, now, before in self.sent:
            begin = max([now, free.get(queue, 0.0), *(ends[t] for t in before)])
            ends[task] = free[queue] = begin + self.ran[task]
            busy[queue] = busy.get(queue, 0.0) + self.ran[task]
        return max(ends.values(), default=0.0), busy


def on_free_cores(work: Callable[[], Any]) -> tuple[float, dict[str, float]]:
    """The least such time of several runs."""
    found = []
    for _ in range(9):
        calque.waitall()
        with Watch() as watch:
            held = work()
            calque.waitall()
            del held
        found.append(watch.alone())
    return min(found, key=lambda item: item[0])


class Halves(nn.Module):
    """A stack of layers in two halves of equal work."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        half = lambda: nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])  # noqa: E731
        self.first, self.second, self.device = half().to(first), half().to(second), second

    def forward(self, x: Any) -> Any:
        """(N, WIDTH) -> (N, WIDTH)."""
        return self.second(self.first(x).to(self.device))


def training(model: Any, x: Any) -> Callable[[], Any]:
    """Forward and backward."""

    def run() -> Any:
        for p in model.parameters():
            p.grad = None
        model(x).square().mean().backward()

    return run


def compare(name: str, one: Callable[[], Any], two: Callable[[], Any], rounds: int = ROUNDS) -> None:
    """Print the times of both and their ratio: as measured, and from processor times as on cores that nobody else uses."""
    for work in (one, two, one, two):
        seconds(work)
    pairs = [(seconds(one), seconds(two)) for _ in range(rounds)]
    a, b = min(p[0] for p in pairs), min(p[1] for p in pairs)
    middle = statistics.median(p[0] / p[1] for p in pairs)
    (c, _), (d, busy) = on_free_cores(one), on_free_cores(two)
    shares = ", ".join(f"{queue} {100 * spent / d:.0f} %" for queue, spent in sorted(busy.items()))
    print(f"{name}: one {a * 1e3:.2f} ms, two {b * 1e3:.2f} ms, ratio of minima {a / b:.2f}, median ratio {middle:.2f}")
    print(f"    on free cores: one {c * 1e3:.2f} ms, two {d * 1e3:.2f} ms, ratio {c / d:.2f}; busy {shares}")


def main() -> None:
    """Print one line per case."""
    calque.set_logical_devices(2)
    print(f"threads per device: {place.share(0)} and {place.share(1)}")
    for width, rounds in ((WIDTH, SHORT_ROUNDS), (2 * WIDTH, SHORT_ROUNDS // 2)):
        name = f"two branches (A, B, C, D) of {8e-6 * ROWS * width * width:.0f} million operations each"
        compare(name, branches("cpu:0", "cpu:0", width), branches("cpu:0", "cpu:1", width), rounds)
    x = calque.randn(8 * ROWS, WIDTH, device="cpu:0")
    whole, split = Halves("cpu:0", "cpu:0"), Halves("cpu:0", "cpu:1")
    compare("pipeline of 8 micro-batches", training(whole, x), training(calque.parallel.pipeline(split, 8), x))
    stack = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]).to("cpu:0")
    compare("data parallel step", training(stack, x), training(nn.DataParallel(stack, ["cpu:0", "cpu:1"]), x))


if __name__ == "__main__":
    main()
