"""Kernels as text: a change of the generated code shows up as a reviewed diff. Rewrite with `pytest --update-golden`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calque.ir.program import Program
from calque.kernel.schedule import Loop, Schedule
from calque.run.pipeline import compile_program
from tests.kernel.golden_programs import GOLDEN

FOLDER = Path(__file__).parent / "golden"


def text(schedule: Schedule) -> str:
    """Buffers and steps; equal kernels are printed once."""
    lines = [f"buffer {k}: {b.kind} {b.index} {b.dtype.name}[{b.numel}]{f' in input {b.donor}' if b.donor >= 0 else ''}"
             for k, b in enumerate(schedule.buffers)]  # fmt: skip
    for step in schedule.steps:
        assert isinstance(step, Loop)
        words = f"params {list(step.params)} scalars {list(step.scalars)} dynamic {list(step.dynamic)}"
        lines.append(f"run on {list(step.operands)} {words}")
        lines.append(str(step.kernel))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("make", GOLDEN, ids=lambda f: f.__name__)
def test_kernel_text(make: Callable[[], Program], request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{make.__name__}.txt"
    found = text(compile_program(make()))
    if request.config.getoption("--update-golden"):
        path.write_text(found)
    assert path.read_text() == found
