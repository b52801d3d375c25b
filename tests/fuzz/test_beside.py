"""Random calls beside PyTorch: element types, in-place writes before backward passes, shapes at the edge, strides. Each generator runs any number of
cases from the command line and prints the line that repeats a failure."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("torch")

GENERATORS = {"promotion": 400, "inplace": 60, "edges": 400, "strides": 150}


@pytest.mark.parametrize("name", GENERATORS)
def test_calls_do_what_pytorch_does(name: str, seed: int) -> None:
    """The seed of a failure is printed with the line that repeats it."""
    check = importlib.import_module(f"tests.fuzz.{name}").check
    for number in range(seed, seed + GENERATORS[name]):
        text = check(number)
        assert not text, text
