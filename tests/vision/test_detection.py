"""Detectors and what they are made of: torchvision's numbers, names and shapes; learning; what is said when something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.vision import ops, utils
from calque.vision.models import detection
from tests.vision import detection_cases as cases
from tests.vision.cases import summary
from tests.vision.model_cases import layout

EXPECTED = json.loads(cases.FILE.read_text())


def same(found: Any, wanted: Any, where: str, tolerance: float = 2e-3) -> None:
    """Structures of equal numbers, but for rounding."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted), where
        for key, value in wanted.items():
            same(found[key], value, f"{where} {key}", tolerance)
    else:
        np.testing.assert_allclose(np.array(found, np.float64), np.array(wanted, np.float64), tolerance, tolerance, err_msg=where)


def same_results(found: Any, wanted: Any, where: str) -> None:
    same(found["losses"], wanted["losses"], where)
    for k, (one, other) in enumerate(zip(found["found"], wanted["found"], strict=True)):
        same(one, other, f"{where} {k}", 1e-2)


FUNCTIONS: dict[str, Callable[[], Any]] = dict(cases.functions(calque, ops, utils))


def test_every_function_is_compared() -> None:
    assert {f"ops {name}" for name in FUNCTIONS} == {name for name in EXPECTED if name.startswith("ops ")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_the_numbers_of_torchvision(name: str) -> None:
    found, wanted = summary(FUNCTIONS[name]()), EXPECTED[f"ops {name}"]
    assert found[0] == wanted[0]
    np.testing.assert_allclose(found[1:], wanted[1:], rtol=1e-4, atol=2e-3)


SMALL = dict(cases.small(calque, detection))


@pytest.mark.parametrize("name", SMALL)
def test_small_detectors_give_the_numbers_of_torchvision(name: str) -> None:
    same_results(cases.results(calque, cases.filled(calque, SMALL[name]())), EXPECTED[f"small {name}"], name)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.NAMED)
def test_detectors_are_those_of_torchvision(name: str) -> None:
    count, digest, wanted = EXPECTED[f"model {name}"]
    model = cases.named(detection, name)
    assert layout(model) == [count, digest]
    same_results(cases.results(calque, cases.filled(calque, model)), wanted, name)
