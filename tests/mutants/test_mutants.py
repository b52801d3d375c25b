"""The table of mutants applies to the present sources; with --slow, the tests notice the mutants (about 40 minutes)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.run import REQUIRED, applied, killed
from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_mutant_applies_and_is_a_program(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    mutated = applied(mutant, text)
    assert mutated != text
    ast.parse(mutated)
    assert mutant.tests and all((ROOT / path).exists() for path in mutant.tests)


def test_there_are_at_least_fifty() -> None:
    assert len(MUTANTS) >= 50 and len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.slow
def test_the_tests_notice_bugs() -> None:
    """Reliability row R9: at least 95 % are killed."""
    survivors = [mutant.name for mutant in MUTANTS if not killed(mutant)[0]]
    assert len(survivors) <= (1 - REQUIRED) * len(MUTANTS), survivors
