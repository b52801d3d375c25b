"""Lowering remembered: equal groups give what lowering them again would give, and repeated structure is lowered once."""

from __future__ import annotations

import numpy as np
import pytest

from calque.base.cache import LEAST, TABLES, Cache
from calque.base.config import settings
from calque.base.dtypes import float32
from calque.ir.program import Program
from calque.kernel import memo
from calque.kernel.interpret import interpret
from calque.kernel.schedule import Loop
from calque.run.pipeline import compile_program
from tests.kernel.programs import Build
from tests.kernel.random_programs import random_program


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> memo.Templates:
    """A memory of its own, and every answer compared with the twin."""
    monkeypatch.setattr(settings, "verify", True)
    monkeypatch.delitem(TABLES, "lowered groups")
    memory = memo.Templates(Cache("lowered groups", 10_000, 1 / 16))
    monkeypatch.setattr("calque.kernel.assemble.MEMORY", memory)
    return memory


def cell(length: int) -> Program:
    """A recurrence over slices of one input, each step with a run-time scalar, writing slices of one result."""
    b = Build()
    x, h = b.input((length, 3, 4)), b.input((3, 4))
    result = b.input((length, 3, 4))
    for t in range(length):
        part = b.add("view", x, attrs=((3, 4), (4, 1), 12 * t))
        scaled = b.add("mul", part, b.scalar())
        h = b.add("sum", b.add("tanh", b.add("add", h, scaled)), attrs=((1,), True))
        h = b.add("mul", b.add("exp", part), h)
        result = b.add("update", result, h, attrs=((3, 4), (4, 1), 12 * t))
    return Program(tuple(b.nodes), (h, result))


def test_longer_recurrences_lower_no_more_groups(fresh: memo.Templates) -> None:
    """Steps differ in node numbers, offsets and scalars only."""
    counts = []
    for length in (6, 12, 24):
        compile_program(cell(length))
        counts.append(fresh.misses)
    assert fresh.hits > 10
    assert counts[1] - counts[0] <= 4 and counts[2] - counts[1] <= 4
    kernels = {step.kernel for step in compile_program(cell(24)).steps if isinstance(step, Loop)}
    assert len(kernels) <= 8


def test_remembered_launches_compute_their_own_slices() -> None:
    rng = np.random.default_rng(0)
    for length in (3, 7, 5):
        program = cell(length)
        x, h, out = rng.standard_normal((length, 3, 4)), rng.standard_normal((3, 4)), rng.standard_normal((length, 3, 4))
        arrays = [a.astype(np.float32) for a in (x, h, out)]
        scalars = rng.standard_normal(length).astype(np.float32).tolist()
        found = interpret(compile_program(program), [a.reshape(-1).copy() for a in arrays], scalars)
        state, wanted = arrays[1], arrays[2].copy()
        for t in range(length):
            state = np.tanh(state + arrays[0][t] * np.float32(scalars[t])).sum(1, keepdims=True)
            state = np.exp(arrays[0][t]) * state
            wanted[t] = state
        np.testing.assert_allclose(found[1].reshape(wanted.shape), wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("pair", [(0.0, -0.0), (1.0, 1), (2.0, 3.0)])
def test_different_numbers_are_different_groups(pair: tuple[float, float], fresh: memo.Templates) -> None:
    kernels = []
    for value in pair:
        b = Build()
        x = b.input((5,))
        y = b.add("exp", b.add("add", x, b.constant(value)))
        (step,) = compile_program(Program(tuple(b.nodes), (y,))).steps
        kernels.append(step.kernel)
    same = repr(pair[0]) == repr(pair[1]) or pair == (1.0, 1)
    assert (kernels[0] == kernels[1]) is same
    assert fresh.misses == 2


def test_what_is_stored_is_part_of_the_structure() -> None:
    """The same nodes, with one result and with two."""
    x = np.linspace(-1, 1, 6, dtype=np.float32)
    for count in (1, 2, 1):
        b = Build()
        y = b.add("exp", b.input((6,)))
        z = b.add("mul", y, b.constant(3.0))
        found = interpret(compile_program(Program(tuple(b.nodes), (z, y)[:count])), [x.copy()], [])
        assert len(found) == count
        for value, wanted in zip(found, (np.exp(x) * np.float32(3), np.exp(x)), strict=False):
            np.testing.assert_allclose(value, wanted, rtol=1e-6)


def test_two_views_of_one_value_keep_their_places(fresh: memo.Templates) -> None:
    """x[0] - x[1] and x[1] - x[0] and x[1] - x[1]: equal structure up to which offset is which."""
    x = np.arange(8, dtype=np.float32) ** 2
    for left, right in ((0, 4), (4, 0), (4, 4), (1, 3)):
        b = Build()
        source = b.input((8,))
        y = b.add("sub", b.add("view", source, attrs=((4,), (1,), left)), b.add("view", source, attrs=((4,), (1,), right)))
        z = b.add("mul", y, b.constant(2.0, float32))
        (found,) = interpret(compile_program(Program(tuple(b.nodes), (z,))), [x], [])
        np.testing.assert_array_equal(found, 2 * (x[left : left + 4] - x[right : right + 4]))


def test_random_programs_twice(fresh: memo.Templates, seed: int) -> None:
    for k in range(40):
        program, _, _ = random_program(seed + k, 20, (float32, float32))
        first = compile_program(program)
        assert compile_program(program) == first
    assert fresh.hits >= fresh.misses > 0


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, fresh: memo.Templates) -> None:
    monkeypatch.setattr(settings, "memo_bytes", 1 << 16)
    for k in range(30):
        b = Build()
        y = b.add("exp", b.input((k + 2,)))
        compile_program(Program(tuple(b.nodes), (y,)))
    assert fresh.misses == 30 and fresh.templates.measured()[0] <= 2 * LEAST + 1


def test_results_that_are_numbers_themselves() -> None:
    """A run-time scalar or a constant as a result needs a launch that stores it, whatever its position among the scalars."""
    for unused in (0, 1, 2):
        b = Build()
        x = b.input((3,))
        for _ in range(unused):
            x = b.add("mul", x, b.scalar())
        results = (x, b.scalar(), b.add("constant", attrs=(2.5, float32)))
        program = Program(tuple(b.nodes), results)
        scalars = [3.0] * unused + [7.0]
        found = interpret(compile_program(program), [np.ones(3, np.float32)], scalars)
        assert [np.asarray(f).reshape(-1)[0] for f in found] == [3.0**unused, 7.0, 2.5]
