"""What laying out a schedule has to know of the native contractions in it: numbers, and by which functions they are computed."""

from __future__ import annotations

from calque.backend.cpu import contract
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.program import follow
from calque.base.dataclass import dataclass
from calque.kernel.epilogue import Grid
from calque.ops.opdef import get
from calque.ops.routines import Spec, flops


@dataclass(frozen=True, slots=True)
class CallFacts:
    """`words` behind the addresses of a call, bytes of its `workspace`, its work in `flops`, the `grid` as which loops may follow its result part by
    part (None: they may not), and the `ways` that it takes (see `contract/claims.py`). `takes_workspace`: whether calls of its
    kind want one, if not for these sizes then for others. `packed`: bytes of its weights if it can find them packed, else 0."""

    words: tuple[int, ...]
    workspace: int
    flops: int
    grid: Grid | None
    ways: frozenset[str]
    takes_workspace: bool
    packed: int = 0


def call_of(kind: str, spec: Spec, dtype: str, native: contract.Contraction) -> CallFacts:
    """Of a contraction that is computed by `native`."""
    target = current()
    grid = follow.grid(native) if dtype in ("float32", "float64") else None
    ways = contract.ways_of(kind, native, dtype, target)
    workspace = native.workspace_bytes(dtype, target)
    wants = workspace > 0 or bool(contract.all_ways(kind))
    return CallFacts(native.words(), workspace, flops(get(kind), spec), grid, ways, wants, contract.packed_bytes(native, dtype, target))
