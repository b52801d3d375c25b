"""Programs are values: no pass changes a node in place, although Python would let it (constructing frozen ones takes four times as long)."""

from __future__ import annotations

import copy

import pytest

from calque.backend.ref.interpret import interpret as define
from calque.ir.program import Program
from calque.ir.text import format_program
from calque.kernel.interpret import interpret
from calque.run.pipeline import compile_program, explain_cuts, simplified
from tests.kernel.random_programs import random_program


def snapshot(program: Program) -> tuple[int, str, list[tuple[int, int]]]:
    """What changes when a node does."""
    return hash(program.nodes), format_program(program), [(id(n), id(n.attrs)) for n in program.nodes]


@pytest.mark.parametrize("seed", range(20))
def test_nobody_changes_a_node(seed: int) -> None:
    program, arrays, scalars = random_program(seed, 20)
    before, passed = snapshot(program), simplified(program)
    after = snapshot(passed)
    schedule = compile_program(program)
    explain_cuts(program)
    define(program, [a.copy() for a in arrays], list(scalars))
    interpret(schedule, arrays, scalars)
    compile_program(passed)
    assert snapshot(program) == before and snapshot(passed) == after


def test_nodes_compare_and_hash_by_value() -> None:
    program, *_ = random_program(0, 20)
    twin = copy.copy(program.nodes[-1])
    assert twin == program.nodes[-1] and hash(twin) == hash(program.nodes[-1])
    assert not hasattr(twin, "__dict__")
