"""Some random modules, and all ways out of Python, on every run; more with --slow."""

from __future__ import annotations

import shutil

import pytest

from calque.exported.native.build import host_target
from tests.fuzz.leaving import mismatch


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_whatever_leaves_python_computes_what_it_computed_there(count: int, seed: int) -> None:
    linked = shutil.which("cc") is not None and bool(host_target())
    found = {k: text for k in range(seed, seed + count) if (text := mismatch(k, native=linked and k % 5 == 0))}
    assert not found
