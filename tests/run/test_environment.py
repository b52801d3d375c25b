"""Variables of the environment: what cannot be used is said, and the default taken."""

from __future__ import annotations

import subprocess
import sys

import pytest

from calque.base.config import whole_environment


def imported(**variables: str) -> "subprocess.CompletedProcess[str]":
    """A process that imports Calque with these variables and prints what it made of them."""
    show = "from calque.base.config import settings as s; import calque; print(s.logical_devices, s.threads, s.memory_limit)"
    given = {k: v for k, v in whole_environment().items() if k not in ("CALQUE_LOGICAL_DEVICES", "CALQUE_NUM_THREADS", "CALQUE_MEMORY_LIMIT")}
    return subprocess.run([sys.executable, "-c", show], env=given | variables, capture_output=True, text=True, timeout=60, check=True)


def test_variables_are_read() -> None:
    done = imported(CALQUE_LOGICAL_DEVICES="3", CALQUE_NUM_THREADS="2", CALQUE_MEMORY_LIMIT=" 1000 ")
    assert done.stdout.split() == ["3", "2", "1000"]
    assert not done.stderr


def test_a_list_of_thread_numbers_counts_by_its_first() -> None:
    done = imported(OMP_NUM_THREADS="3,1")
    assert done.stdout.split()[1] == "3"
    assert not done.stderr


@pytest.mark.parametrize(
    ("name", "value", "range"),
    [
        ("CALQUE_LOGICAL_DEVICES", "100000", "1 to 256"),
        ("CALQUE_LOGICAL_DEVICES", "0", "1 to 256"),
        ("CALQUE_LOGICAL_DEVICES", "two", "1 to 256"),
        ("CALQUE_MEMORY_LIMIT", "-5", "0 or more"),
        ("CALQUE_NUM_THREADS", "1.5", "0 or more"),
    ],
)
def test_what_cannot_be_used_is_said(name: str, value: str, range: str) -> None:
    done = imported(**{name: value})
    assert f"[{name}] expected a whole number, {range}, got '{value}'" in done.stderr
    devices, threads, limit = (int(x) for x in done.stdout.split())
    assert devices == 1 and threads >= 1 and limit == 0
