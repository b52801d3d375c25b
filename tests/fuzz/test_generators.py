"""Some programs of every generator that has no tests of its own, on every run, and many more with --slow. `python -m tests.fuzz.<name>` runs any
number of them; a failure is told with its seed and, where it can be made smaller, the line that repeats it."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calque.exported.native.build import host_target

pytestmark = pytest.mark.filterwarnings("ignore::calque.base.errors.RepetitionWarning")

COUNTS = {  # seeds on every run, and with --slow
    "checkpoints": (80, 1000), "exports": (100, 5000), "exported": (25, 1000), "leaving": (25, 1000), "nested": (60, 600), "pt_files": (300, 3000),
}  # fmt: skip
BESIDE_PYTORCH = {"accuracy": 12, "edges": 400, "inplace": 60, "mutations": 20, "promotion": 400, "sharing": 40, "strides": 150}
MANY = [pytest.param(name, 100_000, many, marks=pytest.mark.slow) for name, (_, many) in COUNTS.items()]


def check_of(name: str, folder: Path) -> Callable[[int], Any]:
    """What says for a seed what is wrong, if anything is."""
    module = importlib.import_module(f"tests.fuzz.{name}")
    if name == "checkpoints":
        return lambda number: module.check_saving(number, folder) or module.check_counting(number)
    if name == "exports":
        exports = module.examples()
        return lambda number: module.wrong(number, exports[number % len(exports)])
    if name == "pt_files":
        pickles = module.good_pickles()
        files = module.good_files(pickles)
        return lambda number: module.check(module.content_of(number, pickles, files), number % 10 == 0)
    if name == "leaving":
        linked = shutil.which("cc") is not None and bool(host_target())
        return lambda number: module.mismatch(number, native=linked and number % 5 == 0)
    return module.mismatch if name == "exported" else module.check  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "first", "count"), [(name, 0, few) for name, (few, _) in COUNTS.items()] + MANY)
def test_nothing_is_found(name: str, first: int, count: int, seed: int, tmp_path: Path) -> None:
    check = check_of(name, tmp_path)
    found = {number: wrong for number in range(seed + first, seed + first + count) if (wrong := check(number))}
    assert not found


@pytest.mark.oracle
@pytest.mark.parametrize("name", BESIDE_PYTORCH)
def test_calls_do_what_pytorch_does(name: str, seed: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    test_nothing_is_found(name, 0, BESIDE_PYTORCH[name], seed, tmp_path)


@pytest.mark.oracle
def test_every_function_saves_for_its_gradient_what_pytorch_does() -> None:
    """What may be written between a function and its backward pass: operands that are leaves, operands that are not, results."""
    torch = pytest.importorskip("torch")
    from tests.fuzz import beside, inplace

    found = [f"{one.describe()}\n{text}" for one in inplace.each() if (text := beside.mismatch(one, torch, inplace.kept))]
    assert not found, "\n".join(found[:5])
