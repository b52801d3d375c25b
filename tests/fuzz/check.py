"""Run a random program in several ways and compare: every operation at once by the reference interpreter, and lazily by the CPU backend with
fusion and memory reuse on and off, and with all programs or every other one interpreted (`backend/ref/quick.py`)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import count, cycle, repeat
from typing import Any

import numpy as np

import calque
import calque.nn.functional
from calque.base.config import settings
from calque.record import at_once, recorder, trie
from calque.run import pipeline
from calque.run.dispatch import Plan
from tests.fuzz.pool import EPS, Value, array_of
from tests.fuzz.programs import Machine


def forget() -> None:
    """Flush, and drop every recorded path with its compiled programs, so that the next run starts from nothing."""
    recorder.flush("test")
    recorder.record_from_here(recorder.local.state, "test")
    calque.synchronize()
    trie.forget()


@contextlib.contextmanager
def mode(backend: str = "cpu", *, fusion: bool = True, reuse: bool = True, interpreted: str = "", computed: str = "") -> Iterator[None]:
    """Run on a backend, compiling every program at once (nothing is interpreted because it is small), or with programs `interpreted`: "all", or
    "every other" one; or with operations `computed` where they are written: "all" that may be, or those behind every third "one"."""
    original = pipeline.compile_program
    saved = settings.backend, original, Plan.patience
    turns = {"": repeat(0), "all": repeat(1 << 30), "every other": cycle((1 << 30, 0))}[interpreted]
    Plan.patience = lambda plan: next(turns)  # type: ignore[method-assign]
    forget()
    before, begin, fresh = settings.eager, at_once.begin, recorder.fresh
    settings.eager = at_once.ALL if computed else 0
    number = count()
    if computed == "one":
        at_once.begin = lambda *state: None if next(number) % 3 else begin(*state)  # what was recorded until then runs before it
        recorder.fresh = lambda state, trace, goes_on: trace  # a flush has what follows recorded
    settings.backend = backend
    pipeline.compile_program = partial(original, fusion=fusion, reuse=reuse)  # type: ignore[assignment]
    try:
        yield
    finally:
        forget()
        settings.eager, at_once.begin, recorder.fresh = before, begin, fresh
        settings.backend, pipeline.compile_program, Plan.patience = saved  # type: ignore[assignment,method-assign]


def flush() -> None:
    recorder.flush("fuzz")


class Outcome:
    """Everything a program left behind: arrays of the pool and of the leaves' gradients, and what went wrong on the way."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.arrays = [(v, array_of(v.tensor)) for v in machine.pool]
        self.gradients = [(v, None if v.tensor.grad is None else array_of(v.tensor.grad)) for v in machine.leaves]
        self.events = machine.events
        self.facts = [(v.name, v.shape, v.dtype, v.tensor.requires_grad) for v in machine.pool]


def execute(seed: int, steps: int, skip: frozenset[int] = frozenset(), track: bool = False, **options: bool) -> Outcome:
    """The outcome on Calque."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machine = Machine(seed, calque, calque.nn.functional, flush, track, track, **options)
        return Outcome(machine.run(steps, skip))


def compare(found: Outcome, wanted: Outcome) -> str:
    """"" if the outcomes agree within the error bounds that `wanted` carries, else what differs."""
    if found.events != wanted.events:
        return f"errors differ: {found.events} but {wanted.events}"
    if found.facts != wanted.facts:
        return f"shapes or types differ: {found.facts} but {wanted.facts}"
    scale = max([wanted.machine.scale, *(float(np.abs(g).max(initial=0.0)) for _, g in wanted.gradients if g is not None)])
    for (v, a), (w, b) in zip(found.arrays, wanted.arrays, strict=True):
        if text := difference(a, b, w.root.err + w.root.err, w.root.exact):
            return f"{v.name}: {text}"
    for (v, a), (_, b) in zip(found.gradients, wanted.gradients, strict=True):
        if (a is None) != (b is None):
            return f"gradient of {v.name}: {a} but {b}"
        allowed = 4096 * max(wanted.machine.coarsest, EPS[v.dtype]) * scale
        if a is not None and not wanted.machine.vague and (text := difference(a, b, allowed, False)):
            return f"gradient of {v.name}: {text}"
    return ""


def difference(a: Any, b: Any, allowed: float, exact: bool) -> str:
    """"" if equal, or within `allowed` for inexact values."""
    if a.dtype.kind != "f":
        return "" if np.array_equal(a, b) else f"{a.tolist()} but {b.tolist()}"
    a, b = a.astype(np.float64), b.astype(np.float64)
    if exact:
        return "" if np.array_equal(a, b, equal_nan=True) else f"{a.tolist()} but {b.tolist()} (exact)"
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(a - b) <= allowed) | (np.isnan(a) & np.isnan(b)) | (a == b))
    if not wrong.any():
        return ""
    worst = float(np.nanmax(np.abs(a - b)))
    return f"off by {worst:g}, allowed {allowed:g}: {a.tolist()} but {b.tolist()}"


WAYS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "cpu without fusion and reuse": {"fusion": False, "reuse": False},
    "interpreted": {"interpreted": "all"},
    "every other program interpreted": {"interpreted": "every other"},
    "computed at once": {"computed": "all"},
    "some computed at once": {"computed": "one"},
}


def mismatch(seed: int, steps: int = 14, skip: frozenset[int] = frozenset(), ways: Any = tuple(WAYS)) -> str:
    """"" if all ways agree on the program, else which way differs and how."""
    with mode("ref"):
        wanted = execute(seed, steps, skip, track=True)
    for name in ways:
        with mode(**WAYS[name]):
            text = compare(execute(seed, steps, skip), wanted)
        if text:
            return f"[{name}] {text}"
    return ""


def shrink(seed: int, steps: int, ways: Any = tuple(WAYS)) -> tuple[int, frozenset[int]]:
    """A smaller program of the same seed that still fails: fewer steps, then steps left out."""
    while steps > 1 and mismatch(seed, steps - 1, ways=ways):
        steps -= 1
    skip: frozenset[int] = frozenset()
    for step in range(steps):
        if mismatch(seed, steps, skip | {step}, ways):
            skip |= {step}
    return steps, skip


def report(seed: int, steps: int, ways: Any = tuple(WAYS)) -> str:
    """The failure of a seed, shrunk, with the program in words."""
    steps, skip = shrink(seed, steps, ways)
    with mode("ref"):
        log = execute(seed, steps, skip, track=True).machine.log
    program = "\n  ".join(log)
    repeat = f"python -m tests.fuzz.run --seed {seed} --count 1 --steps {steps}" + (f" --skip {','.join(map(str, sorted(skip)))}" if skip else "")
    return f"seed {seed}: {mismatch(seed, steps, skip, ways)}\n  {program}\n  repeat: {repeat}"


__all__ = ["Value", "compare", "execute", "forget", "mismatch", "mode", "report", "shrink"]
