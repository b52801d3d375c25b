"""One contraction without a program around it: a launch on the calling thread, on arrays as they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calque.backend.base import Array
from calque.backend.cpu import contract
from calque.backend.cpu.code import library
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.team.memory import ALIGNMENT
from calque.backend.cpu.team.runtime import RUNTIME
from calque.base.cache import Cache
from calque.ops.routines import Spec

_records = Cache("contractions called directly", 300, 1 / 1024)  # (kind, dtype, ways, target) -> record of the launch


def direct(kind: str, spec: Spec, dtype: str) -> Callable[[Sequence[Array], Sequence[Array]], None] | None:
    """A function of operands, as the spec sees them, and dense results; None if the library does not have the contraction."""
    if dtype not in ("float32", "float64") or not contract.is_native(kind, dtype):
        return None
    target, native = current(), contract.contraction(kind, spec, dtype)
    ways = contract.ways_of(kind, native, dtype, target)
    place = (kind, dtype, ways, target.key)
    record = _records.get(place)
    if record is None:
        address = library.functions([library.Contraction(kind, dtype, ways)])[0]
        record = _records.keep(place, np.array([[address, 0, 1]], np.int64))
    words, size = native.words(), native.workspace_bytes(dtype, target)

    def call(operands: Sequence[Array], results: Sequence[Array]) -> None:
        memory = np.empty(size + ALIGNMENT, np.uint8)
        space = memory.ctypes.data
        places = [x.ctypes.data for x in (*operands, *results)]
        arguments = np.array([*places, space + -space % ALIGNMENT, *words], np.int64)
        RUNTIME.run(record.ctypes.data, 1, arguments.ctypes.data, alone=True)

    return call
