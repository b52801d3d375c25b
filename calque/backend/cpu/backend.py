"""The CPU backend behind the contract of `backend/base.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calque.backend.base import Array, Backend, Executable
from calque.backend.cpu import contract, program
from calque.backend.cpu.code.gates import GATES
from calque.backend.cpu.compile.processes import COUNTERS
from calque.backend.cpu.compile.target import current, expect
from calque.backend.cpu.program import plans, tune
from calque.backend.cpu.program.executable import CpuExecutable
from calque.backend.cpu.team.place import CpuMemory
from calque.base.dtypes import DType
from calque.base.shapes import Shape, contiguous_strides
from calque.kernel.schedule import Schedule
from calque.kernel.sizes import FAMILIES, SizedResult
from calque.ops.routines import ContractSpec, Spec

ALONE = 1 << 20  # bytes below which waiting for other threads may take longer than copying alone


class CpuBackend(CpuMemory, Backend):
    """The cores of this machine, as one device or shared out among logical ones."""

    name = "cpu"

    def compile(self, schedule: Schedule) -> Executable:
        """Machine code for a schedule."""
        return program.link.compile_schedule(schedule)

    def compile_sized(self, launches: SizedResult) -> Executable:
        """Arguments by arithmetic, and machine code."""
        return program.sized.compile_sized(launches)

    def recall(self, program: bytes) -> Executable | None:
        """From the disk."""
        return plans.recall(program)

    def keep(self, program: bytes, executable: Executable) -> None:
        """On the disk."""
        if isinstance(executable, CpuExecutable):
            plans.keep(program, executable)

    def read(self, name: bytes) -> bytes | None:
        """From the disk."""
        return plans.read(name)

    def write(self, name: bytes, data: bytes) -> None:
        """On the disk."""
        plans.write(name, data)

    def expect(self, nodes: int) -> None:
        """Start compilers if the kernel cache is empty."""
        expect(nodes // 4 + 1)

    def compile_counts(self) -> dict[str, Any]:
        """See `processes.Counters`; `late`: functions that a run had to wait for (see `gates.py`); `refused`: plans for all sizes that could not be
        made, so that their programs are planned one by one."""
        return {
            "processes": COUNTERS.processes,
            "at_once": COUNTERS.at_once,
            "modules": COUNTERS.modules,
            "in_process": COUNTERS.alone,
            "reasons": dict(COUNTERS.reasons),
            "peak_mib": COUNTERS.peak_mib,
            "late": GATES.opened,
            "refused": FAMILIES.refused + (program.sized.SIZED_PROGRAMS.refused if "sized" in vars(program) else 0),
        }

    def workspace_bytes(self, kind: str, spec: Spec, dtype: DType) -> int:
        """Packed operands and transformed tiles of a native contraction."""
        if not contract.is_native(kind, dtype.name):
            return 0
        return tune.contraction(kind, spec, dtype.name).workspace_bytes(dtype.name, current())

    def direct(self, kind: str, spec: Spec, dtype: DType) -> Callable[[Sequence[Array], Sequence[Array]], None] | None:
        """Of the library, compiled or loaded on first use."""
        return program.direct.direct(kind, spec, dtype.name)

    def narrow(self, kind: str, shapes: tuple[Shape, ...], attrs: tuple[Any, ...]) -> bool:
        """Where the processor multiplies pairs."""
        a, b, *_, out = shapes
        spec = ContractSpec(a, contiguous_strides(a), b, contiguous_strides(b), out, *attrs[-4:])
        return contract.is_narrow(kind, spec, current())

    def notes(self, schedule: Schedule) -> Mapping[int, str]:
        """Loops behind contractions."""
        return program.link.notes(schedule)

    def peak_flops(self, dtype: str) -> float:
        """Multiply-adds from registers."""
        return program.limits.peak_flops(dtype)

    def copy_bandwidth(self, nbytes: int) -> float:
        """The faster of cached and streamed copies."""
        return program.limits.copy_bandwidth(nbytes, alone=nbytes <= ALONE)
