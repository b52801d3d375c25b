"""Programs that never repeat, beside caches that are soon full: nothing that lives as long as the process goes on growing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.soak import KINDS, MOST, apart

AT_REST = ("failing", "indexing", "lines", "programs", "small", "threads", "training")
"""So soon; the heap of the others goes on settling for thousands of programs (decision 0057)."""
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell the size of a process")


@pytest.mark.parametrize("kind", ["lines", "small", "threads"])
def test_no_container_grows(kind: str, seed: int) -> None:
    found = apart(kind, seed, 1_000)
    assert not found["grown"] and not found["full"], found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_flat_once_the_caches_are_full(kind: str, seed: int) -> None:
    found = apart(kind, seed, 6_000)
    assert not found["grown"] and not found["full"], found
    assert found["slope"] < (MOST if kind in AT_REST else 20 * MOST), found
