"""What looking at values costs a hybridized call: a model with an early exit, a `while` decoder and `if self.training`.

    python bench/tree.py [--inputs 1000] [--rounds 7] [--threads 1]

Every input goes through the model as written, hybridized, and branch-free: the same arithmetic in a hybridized function per path, which is told
the path and looks at nothing. All three read their result. The three take turns slice by slice; a line gives the fastest and the median slice in
microseconds per call (processor time with one thread), and the ratio to branch-free. Results of all inputs are compared bit for bit first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import calque
from calque import nn

WIDTH, ROWS, SLICE = 256, 64, 50
LONGEST = 6


class Decoder(nn.Module):
    """Leaves early where the first layer is sure; else decodes until the state has settled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def sure(self, x: Any) -> Any:
        """The first layer."""
        return self.first(x).tanh()

    def turn(self, h: Any) -> Any:
        """One turn of the decoder."""
        return self.inner(h).tanh() * 0.75

    def end(self, h: Any) -> Any:
        """The last layer."""
        if self.training:
            return self.last(h) * 0.5
        return self.last(h).relu()

    def forward(self, x: Any) -> Any:
        h = self.sure(x)
        if h.abs().mean().item() < 0.04:
            return h
        turns = 0
        while turns < LONGEST and h.abs().max() > 0.3:
            h = self.turn(h)
            turns += 1
        return self.end(h)

    def path(self, x: Any) -> int:
        """-1 for the early exit, else the number of turns."""
        h = self.sure(x)
        if h.abs().mean().item() < 0.04:
            return -1
        turns = 0
        while turns < LONGEST and h.abs().max() > 0.3:
            h, turns = self.turn(h), turns + 1
        return turns


def branch_free(model: Decoder, turns: int) -> Callable[[Any], Any]:
    """The same arithmetic for a path that is known."""

    def run(x: Any) -> Any:
        h = model.sure(x)
        if turns < 0:
            return h
        for _ in range(turns):
            h = model.turn(h)
        return model.end(h)

    return calque.compile(run)  # type: ignore[no-any-return]


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    calque.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    calque.manual_seed(0)
    plain = Decoder().eval()
    hybrid = Decoder().eval()
    hybrid.load_state_dict(plain.state_dict())
    hybrid.hybridize()
    rng = np.random.default_rng(0)
    inputs = [calque.tensor(rng.standard_normal((ROWS, WIDTH), dtype=np.float32) * 10.0 ** rng.uniform(-1.7, 0.7)) for _ in range(options.inputs)]
    with calque.no_grad():
        paths = [plain.path(x) for x in inputs]
        functions = {p: branch_free(plain, p) for p in set(paths)}
        agree = 0
        for training in (False, True):
            for net in (plain, hybrid):
                net.train(training)
            agree += sum(np.array_equal(plain(x).numpy(), hybrid(x).numpy()) for x in inputs)
        print(f"{agree} of {2 * len(inputs)} results are equal to the bit; paths: " + ", ".join(f"{p}: {paths.count(p)}" for p in sorted(set(paths))))
        for net in (plain, hybrid):
            net.eval()
        contenders: dict[str, Callable[[int], Any]] = {
            "as written": lambda k: plain(inputs[k]), "hybridized": lambda k: hybrid(inputs[k]),
            "branch-free": lambda k: functions[paths[k]](inputs[k]),
        }  # fmt: skip
        for k in range(len(inputs)):  # everything is recorded and compiled
            for call in contenders.values():
                call(k).numpy()
        before = calque.stats()["hybridize"]
        times: dict[str, list[list[float]]] = {name: [] for name in contenders}
        for first in range(0, len(inputs), SLICE):
            chosen = range(first, min(first + SLICE, len(inputs)))
            found: dict[str, list[float]] = {name: [] for name in contenders}
            for round_ in range(options.rounds):
                names = list(contenders)
                for name in names[round_ % 3 :] + names[: round_ % 3]:
                    call = contenders[name]
                    start = clock()
                    for k in chosen:
                        call(k).numpy()
                    found[name].append((clock() - start) / len(chosen))
            for name, slices in found.items():
                times[name].append(slices)
        after = calque.stats()["hybridize"]
    calls = 2 * options.rounds * len(inputs)
    replayed, continued = (after[name] - before[name] for name in ("replays", "continued"))
    print(f"{replayed} of {calls} hybridized calls replayed, {continued} taken over by Python")
    print(f"{'':12} {'fastest us':>11} {'median us':>10} {'ratio':>6}")
    least = {name: sum(min(s) for s in slices) / len(slices) for name, slices in times.items()}
    for name, slices in times.items():
        middle = statistics.mean(statistics.median(s) for s in slices)
        print(f"{name:12} {least[name] * 1e6:11.1f} {middle * 1e6:10.1f} {least[name] / least['branch-free']:6.2f}")


if __name__ == "__main__":
    main()
