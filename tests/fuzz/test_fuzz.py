"""Random user programs: the CPU backend agrees with the reference interpreter, with and without fusion and memory reuse, on any number of
threads, and with PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

import calque
from calque.backend.cpu.program import linked
from tests.fuzz.check import Outcome, compare, execute, mismatch, mode, report
from tests.fuzz.pool import array_of
from tests.fuzz.programs import Machine

STEPS = 16
FAST = 80
PARTS = 4


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads."""
    before = calque.get_num_threads()
    yield
    calque.set_num_threads(before)


@pytest.mark.parametrize("part", range(PARTS))
def test_backend_agrees_with_the_reference(part: int, seed: int) -> None:
    """The seed of a failure is printed with the line that repeats it."""
    size = FAST // PARTS
    for number in range(seed + part * size, seed + (part + 1) * size):
        if mismatch(number, STEPS):
            pytest.fail(report(number, STEPS))


@pytest.mark.slow
def test_ten_thousand_programs(seed: int) -> None:
    """`python -m tests.fuzz.run` does the same with progress."""
    wrong = [number for number in range(seed, seed + 10_000) if mismatch(number, STEPS)]
    assert not wrong, report(wrong[0], STEPS)


def test_the_number_of_threads_changes_no_bit(seed: int, threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked, "SMALL_WORK", 0)
    for number in range(seed, seed + 12):
        results = []
        for count in (1, 2, 4):
            calque.set_num_threads(count)
            with mode("cpu"):
                results.append(execute(number, STEPS, big=True))
        for other in results[1:]:
            for (v, a), (_, b) in zip(results[0].arrays + results[0].gradients, other.arrays + other.gradients, strict=True):
                assert (a is None) == (b is None)
                assert a is None or a.tobytes() == b.tobytes(), f"seed {number}, {v.name}: the bits depend on the number of threads"


@pytest.mark.oracle
def test_programs_agree_with_pytorch(seed: int) -> None:
    import torch

    wrong = []
    for number in range(seed, seed + 60):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = Outcome(Machine(number, torch, torch.nn.functional, lambda: None, track=True, overlap=False).run(STEPS))
        if any("modified by an inplace operation" in line for line in theirs.machine.log):
            continue  # PyTorch saves results that our gradients do not need, and refuses more
        text = compare(execute(number, STEPS, overlap=False), theirs)
        if text:
            log = "\n  ".join(theirs.machine.log)
            wrong.append(f"seed {number}: {text}\n  {log}")
    assert not wrong, wrong[0] + f"\n({len(wrong)} of 60)"


def test_the_comparison_can_fail(seed: int) -> None:
    """A wrong value in a run is noticed, in exact and in rounded values."""
    with mode("ref"):
        wanted = execute(seed, STEPS, track=True)
    for v, array in wanted.arrays:
        if array.size and array.dtype.kind in "fi":
            found = Outcome(wanted.machine)
            place = [k for k, (x, _) in enumerate(found.arrays) if x is v][0]
            changed = array_of(v.tensor)
            changed.reshape(-1)[0] += np.asarray(1).astype(array.dtype)
            found.arrays[place] = (v, changed)
            assert compare(found, wanted).startswith(f"{v.name}: ")
