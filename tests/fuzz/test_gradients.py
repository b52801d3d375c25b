"""Gradients of every differentiable public function are PyTorch's: values, ties, kinks, what is None and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import calque
from tests.fuzz.gradients import ALL, WITHOUT, Outcome, Sample, difference

SAMPLES = 400


@pytest.mark.oracle
def test_samples_agree_with_pytorch(seed: int) -> None:
    """`python -m tests.fuzz.gradients` does the same with progress."""
    pytest.importorskip("torch")
    from tests.fuzz.gradients import mismatch

    wrong = []
    for number in range(seed, seed + SAMPLES):
        sample, text = mismatch(number)
        if text:
            wrong.append(f"seed {number}: {sample}\n    {text}")
    assert not wrong, "\n".join(wrong[:5])


def public(owner: object) -> set[str]:
    """Names of the functions of a namespace."""
    return {n for n in dir(owner) if not n.startswith("_") and callable(getattr(owner, n)) and not isinstance(getattr(owner, n), type)}


@pytest.mark.oracle
def test_the_table_has_every_function() -> None:
    """What is public in both libraries has a row, or a reason why not; the forms that write share the rows of the others."""
    torch = pytest.importorskip("torch")
    names = {case.name for case in ALL}
    known, missing = names | set(WITHOUT), set()
    for path in ("", "nn.functional", "linalg", "Tensor"):
        ours, theirs = calque, torch
        for part in filter(None, path.split(".")):
            ours, theirs = getattr(ours, part), getattr(theirs, part)
        missing |= {n for n in public(ours) & public(theirs) if not {n, n.removesuffix("_")} & known}
    assert not missing
    assert not set(WITHOUT) & names


def test_the_comparison_can_fail(seed: int) -> None:
    """A wrong gradient, a missing one and a missing error are noticed."""
    sample = next(s for s in (Sample(k, "mul") for k in range(seed, seed + 50)) if all(leaf.array.size for leaf in s.leaves()))
    right, other = Outcome(calque, sample), Outcome(calque, sample)
    assert difference(right, other, False) == ""
    place = [stage for stage, _ in other.stages].index("first gradients")
    gradients = other.stages[place][1]
    for wrong in ([g if g is None else g + 1e-3 for g in gradients], [None for _ in gradients]):
        other.stages[place] = ("first gradients", wrong)
        assert difference(right, other, False).startswith("first gradients: ")
    other.stages[place:] = [("error", None)]
    other.error = ValueError("refused")
    assert difference(right, other, False).startswith("PyTorch refuses")


def test_samples_repeat() -> None:
    """A seed names one sample, on any machine."""
    first, again = Sample(3), Sample(3)
    assert str(first) == str(again)
    for a, b in zip(first.leaves(), again.leaves(), strict=True):
        np.testing.assert_array_equal(a.array, b.array)
