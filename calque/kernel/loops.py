"""The loop IR: one kernel is a loop nest over parallel dims P, and for each point of P a sequence of stages over inner dims R.

Grammar (all sizes are run-time parameters, so a kernel is keyed by structure alone):

    kernel  ::= rank_p, rank_r, operands, accesses, stages, vector, fixed, panels, streams, peeled
    operand ::= dtype, "in" | "out"                             one buffer argument
    access  ::= operand, strides (one class per dim: P dims then R dims), indirect
    stride  ::= "0" | "1" | "2" | "s"                           "s": taken from the parameters; "1", "2": only of innermost dims
    fixed   ::= one extent per R dim                            short R dims (pooling windows): known in the kernel, else ()
    panels  ::= bool                                            advice: many columns (the "p" axis), best walked row by row
    streams ::= accesses                                        advice of a backend to itself: stores past the caches ...
    peeled  ::= bool                                            ... whose rows may begin anywhere in a line
    stage   ::= "point"  instr*                                 once per p; its values are visible to later stages; may store
              | "reduce" instr*                                 over R; values of its `reduce` instrs are visible to later stages
              | "map"    instr*                                 over R (R may be empty: then once per p); stores; nothing visible
              later
    instr   ::= op, dtype, args (value ids), imm                id = position in the kernel-wide numbering

Instructions: the closed scalar set of `ir/scalar.py` (`const` imm=number, `index` imm=dim of P+R, `cast`, ...) and
    extent    imm=dim of P+R             how many turns the loop over it makes
    load      imm=access                 value at the access (affine)
    load_at   args=(i,)    imm=access    indirect access: index i is clamped to 0..limit-1 and adds i * index_stride
    store     args=(v,)    imm=access
    store_at  args=(v, i)  imm=access    indirect store; iterations over R run in order, different p never collide
    add_at    args=(v, i)  imm=access    indirect accumulate, same rules; mul_at, max_at and min_at likewise
    scalar    imm=k                      k-th run-time scalar argument, converted to the instr's dtype
    reduce    args=(v,)    imm="sum" | "prod" | "max" | "min"   (any/all are max/min on bool)
    reduce    args=(v, i)  imm="argmax" | "argmin"  result of i's type: index i of the first extreme v (NaN counts as extreme)

A store to the operand that a later stage loads is allowed only at the same index. Two operands may be the same buffer (an
in-place update): then every iteration reads only the element that it writes itself. `vector` names the axis to vectorise: "p"
(innermost P dim, all accesses stride 0/1 there preferred), "r" (innermost R dim) or "" (scalar code).

Argument words of the native kernel, in order:
    operand addresses; extents of P, extents of R; for each access: offset, its "s" strides in dim order, and for indirect ones
    index_stride and limit; then the scalar arguments (float64 bits for floating ones, int64 otherwise). Strides and offsets count
    elements.

Values of float16/bfloat16 are computed in float32 and rounded after every instruction, so fused equals unfused. Work is split
over P only (static, by flattened p in blocks independent of the thread count). Floating sums over "r" may use several partial
accumulators in a fixed order that depends on extents only.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from calque.base.cache import Cache
from calque.base.dataclass import dataclass
from calque.base.dtypes import DType

JOINING = {"add_at": "add", "mul_at": "mul", "max_at": "max", "min_at": "min"}
"""Instructions that join a value to what is there, and the scalar one that makes one of both; extremes keep what is there if both are equal."""
AT = {"": "store_at", "sum": "add_at", "prod": "mul_at", "max": "max_at", "min": "min_at"}
"""By how values at one place are combined: the instruction."""
INDEXED = tuple(AT.values())
STORES = ("store", *INDEXED)


def in_order(op: str, old: Any, new: Any) -> list[Any]:
    """The operands of the scalar instruction: of two equal extremes it takes the second."""
    return [new, old] if op in ("max_at", "min_at") else [old, new]


@dataclass(frozen=True, slots=True)
class Operand:
    """One buffer argument."""

    dtype: DType
    out: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """An affine (or, if `indirect`, affine plus one run-time index) address into an operand."""

    operand: int
    strides: tuple[str, ...]
    indirect: bool = False


@dataclass(frozen=True, slots=True)
class Instr:
    """One scalar instruction; `args` are ids of earlier values."""

    op: str
    dtype: DType
    args: tuple[int, ...] = ()
    imm: Any = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of instructions in one loop context. `first` is the kernel-wide id of `instrs[0]`."""

    kind: str
    first: int
    instrs: tuple[Instr, ...]


@dataclass(frozen=True, slots=True)
class LoopKernel:
    """The structure of a fused kernel; hashable, the key of the code cache."""

    rank_p: int
    rank_r: int
    operands: tuple[Operand, ...]
    accesses: tuple[Access, ...]
    stages: tuple[Stage, ...]
    vector: str = ""
    scalars: tuple[DType, ...] = ()
    fixed: tuple[int, ...] = ()
    panels: bool = False
    streams: tuple[int, ...] = ()
    peeled: bool = False
    _hash: int = field(default=0, init=False, compare=False, repr=False)  # it is asked for at every launch of every program that is linked

    def __hash__(self) -> int:
        found = self._hash
        if not found:
            found = hash((self.rank_p, self.rank_r, self.operands, self.accesses, self.stages, self.vector, self.scalars, self.fixed,
                          self.panels, self.streams, self.peeled)) or 1  # fmt: skip
            object.__setattr__(self, "_hash", found)
        return found

    def instructions(self) -> list[Instr]:
        """All instructions in id order."""
        return [i for stage in self.stages for i in stage.instrs]

    def __str__(self) -> str:
        fixed = f" fixed={'x'.join(map(str, self.fixed))}" if self.fixed else ""
        lines = [f"kernel P={self.rank_p} R={self.rank_r} vector={self.vector or '-'}{fixed}{' panels' if self.panels else ''}"]
        if self.streams:
            lines[0] += f" streams={','.join(map(str, self.streams))}{' peeled' if self.peeled else ''}"
        for k, o in enumerate(self.operands):
            lines.append(f"  operand {k}: {o.dtype.name}{' out' if o.out else ''}")
        for k, a in enumerate(self.accesses):
            lines.append(f"  access {k}: operand {a.operand} [{','.join(a.strides)}]{' indirect' if a.indirect else ''}")
        for stage in self.stages:
            lines.append(f"  {stage.kind}:")
            for j, i in enumerate(stage.instrs):
                args = [f"v{a}" for a in i.args] + ([] if i.imm is None else [repr(i.imm)])
                lines.append(f"    v{stage.first + j} = {i.op}({', '.join(args)}) : {i.dtype.name}")
        return "\n".join(lines)

    def known(self) -> LoopKernel:
        """The first kernel that was equal to this one: programs of many sizes have the same kernels, and one object compares at once."""
        found: LoopKernel = _KNOWN.get(self) or _KNOWN.keep(self, self)
        return found


_KNOWN = Cache("loop kernels", 3_000, 1 / 256)
