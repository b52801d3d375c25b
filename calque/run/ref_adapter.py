"""The reference interpreter behind the run layer's backend interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.ir.program import Program


def aligned(numel: int, np_dtype: Any) -> np.ndarray[Any, Any]:
    """An uninitialised 1-D array on a 64-byte boundary."""
    size = np.dtype(np_dtype).itemsize * numel
    block = np.empty(size + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + size].view(np_dtype)


class RefBackend:
    """Interprets every program."""

    name = "ref"

    def allocate(self, numel: int, np_dtype: Any) -> np.ndarray[Any, Any]:
        """Uninitialised aligned memory."""
        return aligned(numel, np_dtype)

    def compile(self, program: Program) -> Any:
        """An object whose `run(inputs, scalars)` interprets the program."""
        return _Interpreted(program)


class _Interpreted:
    def __init__(self, program: Program) -> None:
        self.program = program

    def run(self, inputs: list[np.ndarray[Any, Any]], scalars: Sequence[Any]) -> tuple[list[np.ndarray[Any, Any]], int, int]:
        from calque.run.dispatch import interpret_plan

        return interpret_plan(self.program, inputs, scalars)


def create() -> RefBackend:
    """The backend instance."""
    return RefBackend()
