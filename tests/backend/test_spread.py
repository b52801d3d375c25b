"""What all lanes share is spread over a register in front of the loops; beside it the plain number stays for what is computed once for all lanes."""

from __future__ import annotations

import numpy as np
import pytest

from calque.backend.cpu.program import link
from calque.base import config
from calque.base.dtypes import float32
from calque.kernel.interpret import interpret
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.schedule import Buffer, Loop, Schedule


def _load(access: int) -> Instr:
    return Instr("load", float32, (), access)


def _columns() -> LoopKernel:
    """out[p] = sum over r of (c w[r]) (c x[r, p]) + c, with a run-time number c."""
    inner = (_load(0), _load(1), Instr("scalar", float32, (), 0), Instr("mul", float32, (2, 0)), Instr("mul", float32, (2, 1)),
             Instr("mul", float32, (3, 4)), Instr("reduce", float32, (5,), "sum"))  # fmt: skip
    stages = (Stage("reduce", 0, inner), Stage("point", 7, (Instr("add", float32, (6, 2)), Instr("store", float32, (7,), 2))))
    accesses = (Access(0, ("0", "1")), Access(1, ("1", "s")), Access(2, ("1", "0")))
    operands = (Operand(float32), Operand(float32), Operand(float32, True))
    return LoopKernel(1, 1, operands, accesses, stages, "p", (float32,))


@pytest.mark.parametrize("target", ["", "avx2", "sse2"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 15), (20, 16), (7, 131)])
def test_numbers_in_both_forms(rows: int, columns: int, target: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(config.settings, "cpu_target", target)
    buffers = (Buffer("input", 0, float32, rows), Buffer("input", 1, float32, rows * columns), Buffer("output", 0, float32, columns))
    params = (columns, rows, 0, 0, columns, 0)
    schedule = Schedule(buffers, (Loop(_columns(), (0, 1, 2), params, (0,)),), (2,), 0, (float32,))
    inputs = [rng.standard_normal(n).astype(np.float32) for n in (rows, rows * columns)]
    (got,) = link.compile_schedule(schedule).run(inputs, [0.5])
    (wanted,) = interpret(schedule, inputs, (0.5,), check=False)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
