"""Random hybridized functions that several threads call at once: they add to shared values, train shared weights and branch on what they read.

Whatever is recorded, replayed or taken over by Python, no call comes in between another one. All numbers are small integers and all updates may come
in any order, so every result and what is left behind are known to the bit: they are those of one thread.

`python -m tests.fuzz.threads --count 10000 --seed 0` prints every mismatch.
"""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

import numpy as np

import calque
from tests.fuzz.check import forget
from tests.fuzz.command import drawn, main

THREADS = 3
CALLS = 12  # of every thread
COUNTS = 3  # shared values
REPEATS = 4  # of the threads of a program: an accident of timing that one run in a hundred shows is found by running it again, not by other programs


class Text:
    """The lines of a random function `f(x)`; `s` holds what all threads share."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.locals = ["x"]
        self.trains = False
        self.body = [line for _ in range(self.rng.randint(2, 6)) for line in self._statement(2)]
        self.result = ", ".join(self.rng.choice(self.locals) for _ in range(self.rng.randint(1, 2)))
        self.pending = self.rng.random() < 0.5  # arguments are only recorded when the call comes
        self.kinds = self.rng.randint(1, 4)  # of arguments: so many ways through the branches
        self.interval = self.rng.choice((1e-6, 1e-6, 1e-5, 1e-4))

    def _number(self) -> str:
        name = self.rng.choice(self.locals)
        return self.rng.choice((f"{name}.sum()", f"{name}.max()", f"{name}[0]", f"({name} * {name}).sum()"))

    def _statement(self, depth: int) -> list[str]:
        pick = self.rng.randrange(9 if depth else 6)
        if pick == 0:
            name = f"y{len(self.locals)}"
            line = f"{name} = {self.rng.choice(self.locals)} {self.rng.choice(('* 2', '+ 1', '- x'))}"
            if depth == 2:
                self.locals.append(name)
            return [line]
        if pick <= 2:
            return [f"s.counts[{self.rng.randrange(COUNTS)}].add_({self._number()})"]
        if pick == 3:
            return [f"s.counts[{self.rng.randrange(COUNTS)}].add_({self._number()}.item())"]
        if pick <= 5:
            self.trains = True
            name = self.rng.choice(self.locals)
            loss = f"(s.w * {name}).sum()"
            if self.rng.random() < 0.5:
                return ["s.optimizer.zero_grad()", f"{loss}.backward()", "s.optimizer.step()"]
            return ["s.w.grad = None", f"{loss}.backward()", "with T.no_grad(): s.w.sub_(s.w.grad)"]
        inner = [f" {line}" for line in self._statement(depth - 1)]
        if pick == 6:
            return [f"for _ in range(int({self._number()}.item()) % 3):", *inner]
        other = ["else:", *[f" {line}" for line in self._statement(depth - 1)]] if self.rng.random() < 0.5 else []
        return [f"if {self._number()} > {self.rng.randint(-2, 4)}:", *inner, *other]

    def source(self) -> str:
        """The function as a program."""
        return "def f(x):\n" + "".join(f" {line}\n" for line in self.body) + f" return ({self.result}, x * 1)\n"


class Shared:
    """What all threads have."""

    def __init__(self) -> None:
        self.counts = [calque.zeros((), dtype=calque.float64) for _ in range(COUNTS)]
        self.w = calque.zeros(3, dtype=calque.float64, requires_grad=True)
        self.optimizer = calque.optim.SGD([self.w], lr=1.0)

    def values(self) -> list[Any]:
        """What the calls have left behind."""
        return [*(c.tolist() for c in self.counts), self.w.tolist()]


def arguments(text: Text, thread: int) -> list[Any]:
    """The arguments of a thread's calls."""
    made = []
    for k in range(CALLS):
        values = np.array([(3 * (k % text.kinds) + i + thread) % 5 - 1 for i in range(3)], np.float64)
        x = calque.tensor(values)
        made.append(x * 1 if text.pending else x)
    return made


def run(text: Text, hybrid: bool) -> list[Any]:
    """Results of every thread's calls and the shared values at the end; one thread after the other unless it is `hybrid`."""
    shared = Shared()
    names = {"T": calque, "s": shared}
    exec(compile(text.source(), "<fuzz>", "exec"), names)  # noqa: S102 - our own text
    function: Any = calque.compile(names["f"]) if hybrid else names["f"]
    function(calque.tensor(np.zeros(3)))  # lazy state is made here, and this one runs as written
    calque.synchronize()
    results: list[list[Any]] = [[] for _ in range(THREADS)]
    errors: list[BaseException] = []
    begin = threading.Barrier(THREADS)

    def work(thread: int) -> None:
        try:
            if hybrid:
                begin.wait(60)
            for x in arguments(text, thread):
                results[thread].append([t.tolist() for t in function(x)])
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(text.interval if hybrid else before)
    try:
        threads = [threading.Thread(target=work, args=(thread,), daemon=True) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
            if not hybrid:
                thread.join()
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                raise TimeoutError("a thread hangs")
    finally:
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]
    return [*results, shared.values()]


def mismatch(seed: int) -> str:
    """"" if the threads leave and get what one thread does."""
    text = Text(seed)
    with drawn(seed, eager=False):
        try:
            wanted = run(text, False)
            for _ in range(REPEATS):
                forget()
                if (found := run(text, True)) != wanted:
                    return f"{found}\n  instead of\n  {wanted}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def report(seed: int) -> str:
    """"" or the mismatch of a seed with its program."""
    found = mismatch(seed)
    lines = "  ".join(Text(seed).source().splitlines(True))
    return found and f"seed {seed}: {found}\n  {lines}  repeat: python -m tests.fuzz.threads --seed {seed} --count 1"


def counted() -> str:
    """How many calls were replayed, and how many of these Python took over."""
    counts = calque.stats()["hybridize"]
    return f"{counts['replays']} replays, {counts['continued']} taken over by Python"


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.threads", __doc__, report, also=counted))
