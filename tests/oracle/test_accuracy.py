"""No result and no gradient is farther from float64 than a small multiple of what PyTorch's is (see `accuracy.py`, `bench/accuracy.py`)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from tests.oracle.accuracy import Case, cases, measure

pytestmark = pytest.mark.oracle

SEEDS = 6
ONE_ROUNDING = 2e-8  # half of float32's epsilon, as a root mean square: below twice that the two differ by chance


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_no_farther_from_float64_than_pytorch(case: Case) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = measure(case, torch, SEEDS)
    finally:
        torch.set_num_threads(threads)
    for position, (ours, theirs) in enumerate(found):
        bound = case.bound if position == 0 else case.gradient
        what = "the result" if position == 0 else f"gradient {position - 1}"
        assert ours <= max(bound * theirs, 2 * ONE_ROUNDING), f"{case.name}: {what} is {ours:.2e} from float64, PyTorch's {theirs:.2e}"
