"""Cost of everything but the arithmetic: programs of a few tiny operations beside PyTorch eager, taking turns in one process.

    python bench/overhead.py [--rounds 15] [--compile] [--only read,one]

Each line is the median over rounds of the mean time of one call; the ratio is the median of the rounds' ratios. Of hybridized calls also the time
of their launches alone (`kernels`: on one thread, the least of many runs) and what the fastest round took over that: run them with
CALQUE_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import calque
from calque.backend.cpu.program.executable import CpuExecutable
from calque.backend.cpu.team.runtime import control_alone, native
from calque.hybrid.repeat import MISSED, Repeat
from calque.record import recorder

CALLS = 300


def settle(T: Any) -> None:
    """Start the program now (PyTorch's work is done already)."""
    if T is calque:
        recorder.flush("bench")


def read_a_sum(T: Any) -> Callable[[], Any]:
    """x.sum().item() of 64 numbers."""
    x = T.ones(64)
    return lambda: x.sum().item()


def read_three(T: Any) -> Callable[[], Any]:
    """(x * y + 1.5).sum().item()."""
    x, y = T.ones(64), T.ones(64)
    return lambda: (x * y + 1.5).sum().item()


def read_array(rows: int, T: Any) -> Callable[[], Any]:
    """(x + 1).numpy() of (rows, 256)."""
    x = T.ones(rows, 256)
    return lambda: (x + 1).numpy()


def start_three(T: Any) -> Callable[[], Any]:
    """The same, started but not read."""
    x, y = T.ones(64), T.ones(64)

    def call() -> Any:
        z = (x * y + 1.5).sum()
        settle(T)
        return z

    return call


def unrolled(T: Any) -> Callable[[], Any]:
    """A recurrence of 50 steps on 8 numbers, read at the end."""
    x, w = T.ones(8), T.full((8,), 0.5)

    def call() -> Any:
        h = x
        for _ in range(50):
            h = (h * w + 0.25).tanh()
        return h.sum().item()

    return call


def count_up(T: Any) -> Callable[[], Any]:
    """20 reads in a loop whose condition is a tensor."""
    step, end = T.ones(()), T.full((), 20.0)

    def call() -> Any:
        n = T.zeros(())
        while n < end:
            n = n + step
        return n.item()

    return call


def perceptron(T: Any) -> Any:
    """Three layers of 64."""
    T.manual_seed(0)
    nn = T.nn
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def one_sample(T: Any, wrap: Callable[[Any], Any] = lambda f: f) -> Callable[[], Any]:
    """The perceptron on one sample without gradients; not read."""
    model, x = wrap(perceptron(T)), T.ones(1, 64)

    def call() -> Any:
        with T.no_grad():
            y = model(x)
        settle(T)
        return y

    return call


def train_step(T: Any, wrap: Callable[[Any], Any] = lambda f: f) -> Callable[[], Any]:
    """A whole training step of the perceptron with SGD on a batch of 8; the loss is not read."""
    model, x = perceptron(T), T.ones(8, 64)
    optimizer = T.optim.SGD(model.parameters(), lr=1e-6)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    return lambda: run(x)


def lstm_step(T: Any, wrap: Callable[[Any], Any] = lambda f: f) -> Callable[[], Any]:
    """A training step of a language model (50 words, an LSTM of 16) with SGD on 2 rows of 8 words; the loss is not read."""
    T.manual_seed(0)
    nn = T.nn
    table, layer, head = nn.Embedding(50, 16), nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 50)
    optimizer = T.optim.SGD([*table.parameters(), *layer.parameters(), *head.parameters()], lr=1e-6)
    words, following = T.arange(16).reshape(2, 8) * 3, T.arange(16).reshape(2, 8) * 3 + 1

    def step(words: Any, following: Any) -> Any:
        optimizer.zero_grad()
        scores = head(layer(table(words))[0])
        loss = nn.functional.cross_entropy(scores.reshape(-1, 50), following.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    return lambda: run(words, following)


def kernels(call: Callable[[], Any]) -> float:
    """Seconds that the launches of one call take: all those of a program in one native call, as in the call itself, on one thread."""
    ran: list[tuple[CpuExecutable, Any, Any]] = []
    started = CpuExecutable._started

    def seen(self: CpuExecutable, words: Any, arrays: Any, scalars: Any, progress: Any) -> bool:
        ran.append((self, words, arrays))  # the arrays stay where the words say
        return started(self, words, arrays, scalars, progress)

    repeated = Repeat.__call__
    Repeat.__call__ = lambda self, args: MISSED  # type: ignore[method-assign]
    CpuExecutable._started = seen  # type: ignore[method-assign]
    try:
        call()
        calque.synchronize()
    finally:
        CpuExecutable._started, Repeat.__call__ = started, repeated  # type: ignore[method-assign]
    run, control, total = native().run, control_alone(), 0.0
    for executable, words, _ in ran:
        launches, count = executable._records, executable.linked.stretches[0].count
        times = []
        for number in (count, 0):  # without launches: what the native call costs
            least = float("inf")
            for _ in range(2000):
                start = time.perf_counter()
                run(control, launches, number, words.address, 1)
                least = min(least, time.perf_counter() - start)
            times.append(least)
        total += times[0] - times[1]
    return total


CASES: dict[str, Callable[[Any], Callable[[], Any]]] = {
    **{case.__name__: case for case in (read_a_sum, read_three, start_three, unrolled, count_up)},
    **{f"read_array {rows}": partial(read_array, rows) for rows in (1, 16, 64, 256, 1024, 2048)},
}
WRAPPED = [one_sample, train_step, lstm_step]


def slice_of(call: Callable[[], Any], calls: int = CALLS) -> float:
    """Mean seconds per call; of processor time where there is one thread, which other processes disturb less."""
    clock = time.process_time if calque.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def compare(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds per call of each contender in each round, all warm, in changing order."""
    names = list(contenders)
    for call in contenders.values():
        slice_of(call, 20)
    found: dict[str, list[float]] = {name: [] for name in names}
    for k in range(rounds):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            found[name].append(slice_of(contenders[name]))
    return found


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="also torch.compile (needs a C++ compiler)")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    options = parser.parse_args()
    rounds, compiler = options.rounds, options.compile
    try:
        import torch

        if calque.get_num_threads() == 1:
            torch.set_num_threads(1)
    except ImportError:
        torch = None
    print(f"{'case':16} {'calque us':>10} {'torch us':>10} {'ratio':>7}")
    for name, case in CASES.items():
        if options.only and not any(word in name for word in options.only.split(",")):
            continue
        contenders = {"calque": case(calque)} | ({"torch": case(torch)} if torch is not None else {})
        times = compare(contenders, rounds)
        ours = statistics.median(times["calque"]) * 1e6
        if torch is None:
            print(f"{name:16} {ours:10.1f}")
            continue
        ratio = statistics.median(c / t for c, t in zip(times["calque"], times["torch"], strict=True))
        print(f"{name:16} {ours:10.1f} {statistics.median(times['torch']) * 1e6:10.1f} {ratio:7.2f}", flush=True)
    print(f"\n{'case':16} {'calque':>10} {'hybridized':>10} {'torch':>10} {'compile':>10} {'kernels':>10} {'over':>7}   us")
    for wrapped in WRAPPED:
        if options.only and not any(word in wrapped.__name__ for word in options.only.split(",")):
            continue
        contenders = {"calque": wrapped(calque), "hybridized": wrapped(calque, calque.compile)}
        if torch is not None:
            contenders["torch"] = wrapped(torch)
            if compiler:
                contenders["compile"] = wrapped(torch, torch.compile)
        times = compare(contenders, rounds)
        found = {name: f"{statistics.median(slices) * 1e6:.1f}" for name, slices in times.items()}
        alone = kernels(contenders["hybridized"]) * 1e6
        columns = [f"{found.get(name, '-'):>10}" for name in ("calque", "hybridized", "torch", "compile")]
        columns += [f"{alone:10.1f}", f"{min(times['hybridized']) * 1e6 - alone:7.1f}"]
        print(f"{wrapped.__name__:16} {' '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
