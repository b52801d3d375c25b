"""A recorded program as the function that XLA compiles: state that is written in front, so that its memory may be given away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.backend.xla.translate import Translation, pack
from calque.base.config import settings
from calque.ir.program import Program

Value = Any


class ProgramFunction:
    """`whole(written, read, numbers)` gives the outputs, and what the checks found beside whether all are fine. `given`, `kept`: which inputs are
    written and read; `shaped`: outputs have their shape, else they are flat. `indexed`: views of the last trace that needed an index."""

    def __init__(self, jax: Any, program: Program, gpu: bool, shaped: bool = False) -> None:
        self.jax, self.program, self.gpu, self.shaped = jax, program, gpu, shaped
        self.precise = not settings.tf32
        self.leaves = [program.nodes[i] for i in program.inputs]
        donated = {number for _, number in program.updates}
        self.kept = [k for k in range(len(self.leaves)) if k not in donated]
        self.given = [k for k in range(len(self.leaves)) if k in donated]
        self.pack = pack(program)
        self.count = len(self.pack([0] * (1 + max((n.attrs[0] for n in program.nodes if n.op.role == "scalar"), default=-1))))
        self.indexed = 0

    def whole(self, written: Sequence[Value], read: Sequence[Value], numbers: Value) -> Any:
        """What is traced."""
        jax, inputs = self.jax, list[Value]([None] * len(self.leaves))
        translation = Translation(jax, self.program, self.precise, self.gpu, self.shaped)
        for k, x in zip([*self.given, *self.kept], [*written, *read], strict=True):
            inputs[k] = x
        outputs, checks = translation.run(inputs, jax.lax.bitcast_convert_type(numbers, np.int64))
        checks = jax.numpy.zeros((0,), np.int64) if checks is None else checks
        self.indexed = translation.windows.indexed
        return outputs, (checks, jax.numpy.all(checks == -1).reshape(1))


class Numbers:
    """The scalars of a program on its device: those of the last run if they are the same."""

    def __init__(self, jax: Any, function: ProgramFunction, where: Any) -> None:
        self.jax, self.pack, self.where = jax, function.pack, where
        self.value, self.known = None, b""

    def __call__(self, scalars: Sequence[Any]) -> Value:
        made = self.pack(scalars)
        known = made.tobytes()
        value, before = self.value, self.known
        if value is None or known != before:  # as halves of words, which need no types that JAX has to be asked for
            value = self.jax.device_put(made.view(np.uint32).reshape(-1, 2), self.where)
            self.known, self.value = known, value
        return value


def failed_check(jax: Any, report: Any) -> tuple[int, int]:
    """`DeviceProgram.checked`: reads the checks' values."""
    values = jax.device_get(report[0])
    failed = np.flatnonzero(values != -1)
    return (int(failed[0]), int(values[failed[0]])) if failed.size else (-1, -1)
