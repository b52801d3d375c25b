"""What lowering hands to a backend: buffers and an ordered list of launches. Plain data; a backend turns it into an executable.

Launches run in list order; a backend may run neighbours without a barrier only if they touch no common written memory (arena
buffers with different ids may overlap: compare their byte ranges; an output with a donor is the memory of that input).
"""

from __future__ import annotations

from typing import Any, Literal

from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.base.shapes import Shape
from calque.kernel.loops import LoopKernel


@dataclass(frozen=True, slots=True)
class Buffer:
    """A block of memory. `index`: input number, output number, or byte offset into the arena. An output with `donor` >= 0 reuses
    the memory of that (donated) input in place. `constant` buffers are made once at load time from `data` (a NumPy array)."""

    kind: Literal["input", "output", "arena", "constant"]
    index: int
    dtype: DType
    numel: int
    donor: int = -1
    data: Any = None

    @property
    def nbytes(self) -> int:
        total: int = self.numel * self.dtype.itemsize
        return total


@dataclass(frozen=True, slots=True)
class Loop:
    """Launch of a loop kernel. `operands` are buffer ids; `params` the integer words in the order of `kernel/loops.py`; `scalars`
    the scalar leaf indices; `dynamic` = (position in params, scalar leaf index, factor): that parameter is params[position] +
    factor * scalar at run time."""

    kernel: LoopKernel
    operands: tuple[int, ...]
    params: tuple[int, ...]
    scalars: tuple[int, ...] = ()
    dynamic: tuple[tuple[int, int, int], ...] = ()
    nodes: tuple[int, ...] = ()  # program positions computed here, for explanations


@dataclass(frozen=True, slots=True)
class Contract:
    """Launch of a library contraction: kind (the name of the primitive), `dtype` of what it computes with, `operands` buffer ids (as
    many inputs as `spec` has views, then the outputs, -1 for one that nobody needs), `offsets` element offsets added to the operand
    addresses, `spec` the backend-neutral parameters."""

    kind: str
    dtype: DType
    operands: tuple[int, ...]
    offsets: tuple[int, ...]
    spec: Any
    workspace: int = -1  # buffer id
    dynamic: tuple[tuple[int, int, int], ...] = ()  # (operand position, scalar leaf index, factor) added to offsets
    nodes: tuple[int, ...] = ()

    @property
    def inputs(self) -> int:
        """How many of the operands are read."""
        return len(self.spec.operand_views())


@dataclass(frozen=True, slots=True)
class Host:
    """A step computed by the reference function of an opaque primitive (sort, for instance) on whole values."""

    op: Any
    attrs: tuple[Any, ...]
    operands: tuple[int, ...]
    shapes: tuple[Shape, ...]
    output: int
    shape: Shape
    scalars: tuple[tuple[int, int], ...] = ()  # (operand position, scalar leaf index): operands that are run-time scalars
    nodes: tuple[int, ...] = ()


Step = Loop | Contract | Host


@dataclass(frozen=True, slots=True)
class Schedule:
    """A lowered program. The first `check_steps` steps compute the checks; they write no donated input. `outputs[i]` is the
    buffer id of output i and may be an input's buffer when the output is that input unchanged. `scalars` are the dtypes of the
    scalar leaves. `sized`: it follows from schedules of other sizes, so most of the code that it needs is there."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    arena_bytes: int
    scalars: tuple[DType, ...]
    check_steps: int = 0
    checks: tuple[int, ...] = ()  # buffer ids of the check values (int64, one element)
    sized: bool = False
