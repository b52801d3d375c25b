"""Random calls beside PyTorch: element types, in-place writes before backward passes, shapes at the edge, strides. Each generator runs any number of
cases from the command line and prints the line that repeats a failure."""

from __future__ import annotations

import importlib

import pytest

from tests.fuzz import beside

pytest.importorskip("torch")

GENERATORS = {"promotion": 400, "inplace": 60, "edges": 400, "strides": 150}


@pytest.mark.parametrize("name", GENERATORS)
def test_calls_do_what_pytorch_does(name: str, seed: int) -> None:
    """The seed of a failure is printed with the line that repeats it."""
    check = importlib.import_module(f"tests.fuzz.{name}").check
    for number in range(seed, seed + GENERATORS[name]):
        text = check(number)
        assert not text, text


def test_every_function_saves_for_its_gradient_what_pytorch_does() -> None:
    """What may be written between a function and its backward pass: operands that are leaves, operands that are not, results."""
    import torch

    from tests.fuzz import inplace

    found = [f"{one.describe()}\n{text}" for one in inplace.each() if (text := beside.mismatch(one, torch, inplace.kept))]
    assert not found, "\n".join(found[:5])
