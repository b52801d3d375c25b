"""The CPU backend behind the contract of `backend/base.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.backend.base import Array, Backend, Executable, MemoryStats
from calque.backend.cpu import contract, limits, tune
from calque.backend.cpu.executable import compile_schedule
from calque.backend.cpu.memory import POOL
from calque.backend.cpu.processes import COUNTERS
from calque.backend.cpu.target import current, expect
from calque.base.dtypes import DType
from calque.kernel.schedule import Schedule

ALONE = 1 << 20  # bytes below which waiting for other threads may take longer than copying alone


class CpuBackend(Backend):
    """All cores of this machine as one device."""

    name = "cpu"

    def compile(self, schedule: Schedule) -> Executable:
        """Machine code for a schedule."""
        return compile_schedule(schedule)

    def expect(self, nodes: int) -> None:
        """Start compilers if the kernel cache is empty."""
        expect(nodes // 4 + 1)

    def compile_counts(self) -> dict[str, Any]:
        """See `processes.Counters`."""
        return {
            "processes": COUNTERS.processes,
            "at_once": COUNTERS.at_once,
            "modules": COUNTERS.modules,
            "in_process": COUNTERS.alone,
            "reasons": dict(COUNTERS.reasons),
            "peak_mib": COUNTERS.peak_mib,
        }

    def workspace_bytes(self, kind: str, spec: Any, dtype: DType) -> int:
        """Packed operands and transformed tiles of a native contraction."""
        if not contract.is_native(kind, dtype.name):
            return 0
        return tune.contraction(kind, spec, dtype.name).workspace_bytes(dtype.name, current())

    def peak_flops(self, dtype: str) -> float:
        """Multiply-adds from registers."""
        return limits.peak_flops(dtype)

    def copy_bandwidth(self, nbytes: int) -> float:
        """The faster of cached and streamed copies."""
        return limits.copy_bandwidth(nbytes, alone=nbytes <= ALONE)

    def empty(self, nbytes: int) -> Array:
        """Uninitialised bytes, aligned to 64."""
        return POOL.empty(nbytes, np.dtype(np.uint8))

    def memory(self) -> MemoryStats:
        """Accounting of the pool."""
        return POOL.stats()

    def reset_peak(self) -> None:
        """Start the peak anew."""
        POOL.reset_peak()

    def release_cached(self) -> int:
        """Give freed blocks back to the system."""
        return POOL.release_cached()
