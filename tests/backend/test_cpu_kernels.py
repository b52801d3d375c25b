"""Compiled loop kernels against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calque.backend.cpu.program.link import compile_schedule
from calque.base import config
from calque.kernel.interpret import interpret
from tests.backend.cpu_cases import Case, random_case

TARGETS = ("", "avx2", "sse2")


@pytest.fixture(autouse=True)
def settings(tmp_path_factory, monkeypatch):
    """A private cache and default settings."""
    monkeypatch.setattr(config.settings, "cache_dir", tmp_path_factory.getbasetemp() / "cache")
    monkeypatch.setattr(config.settings, "threads", 2)
    monkeypatch.setattr(config.settings, "cpu_target", "")


def bits(array):
    """Comparable form: NaNs are one value, the sign of zero counts only where it is defined."""
    wide = array.astype(np.float64) if array.dtype.kind not in "biu" else array
    return wide + 0 if wide.dtype.kind == "f" else wide


def assert_equal(found, wanted, case: Case):
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(bits(f), bits(w), err_msg=f"output {k} of\n{case.kernel}\n{case.schedule.steps[0]}")


def run(case: Case):
    return compile_schedule(case.schedule).run([a.copy() for a in case.inputs], case.scalars)


@given(st.integers(0, 2**32 - 1))
def test_random_kernels_equal_the_interpreter(seed):
    case = random_case(seed)
    assert_equal(run(case), interpret(case.schedule, case.inputs, case.scalars, check=False), case)


@pytest.mark.parametrize("target", TARGETS[1:])
@given(seed=st.integers(0, 2**32 - 1))
def test_smaller_targets_equal_the_interpreter(target, seed):
    case = random_case(seed)
    config.settings.cpu_target = target
    assert_equal(run(case), interpret(case.schedule, case.inputs, case.scalars, check=False), case)


@given(st.integers(0, 2**32 - 1))
def test_the_number_of_threads_does_not_matter(seed):
    case = random_case(seed)
    results = []
    for threads in (1, 2, 4):
        config.settings.threads = threads
        results.append([a.tobytes() for a in run(case)])
    assert results[0] == results[1] == results[2]
