"""What a launch costs at least: floating-point operations and bytes of memory, from its parameters alone.

Operations are counted as written (an exponential is one). Bytes are what an ideal cache would move: every element that is read counts once
per launch, and every element that is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from calque.base.dataclass import dataclass
from calque.ir.program import Node
from calque.ir.scalar import BINARY, UNARY
from calque.kernel.loops import JOINING, LoopKernel
from calque.kernel.schedule import Buffer, Contract, Host, Loop
from calque.ops import opdef
from calque.ops.routines import flops

_ARITHMETIC = {**dict.fromkeys((*UNARY, *BINARY, "reduce", *JOINING), 1), "fma": 2}
Step = Loop | Contract | Host


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations, and bytes read and written."""

    flops: int
    nbytes: int


def cost(step: Step, buffers: Sequence[Buffer]) -> Cost:
    """Cost of one launch of a schedule with these buffers."""
    if isinstance(step, Loop):
        return Cost(_loop_flops(step), _loop_bytes(step, buffers))
    if isinstance(step, Host):
        return Cost(0, sum(buffers[k].nbytes for k in (*step.operands, step.output)))
    read = 0
    for k, (shape, strides) in zip(step.operands, step.spec.operand_views(), strict=False):
        touched = prod(e for e, s in zip(shape, strides, strict=True) if s != 0)
        read += min(touched, buffers[k].numel) * buffers[k].dtype.itemsize
    views = len(step.spec.operand_views())
    return Cost(routine_flops(step), int(read + sum(buffers[k].nbytes for k in {*step.operands[views:]} if k >= 0)))


def routine_flops(step: Contract) -> int:
    """Multiplications and additions of a routine, as the record of its primitive counts them."""
    return flops(opdef.get(step.kind), step.spec)


def _extents(step: Loop) -> tuple[int, ...]:
    return step.params[: step.kernel.rank_p + step.kernel.rank_r]


def _loop_flops(step: Loop) -> int:
    kernel = step.kernel
    extents = _extents(step)
    total = 0
    for stage in kernel.stages:
        points = prod(extents[: kernel.rank_p] if stage.kind == "point" else extents)
        total += points * sum(_ARITHMETIC.get(i.op, 0) for i in stage.instrs if i.dtype.is_floating_point)
    return int(total)


def _loop_bytes(step: Loop, buffers: Sequence[Buffer]) -> int:
    """Distinct accesses to one operand add up, but never to more than the operand has."""
    kernel, extents = step.kernel, _extents(step)
    touched: dict[int, int] = {}
    for operand, where, indirect in _accesses(kernel, step.params):
        strides = where[1:]
        count = prod(e for e, s in zip(extents, strides, strict=True) if s != 0 or indirect)
        touched[operand] = touched.get(operand, 0) + int(count)
    total = 0
    for operand, count in touched.items():
        buffer = buffers[step.operands[operand]]
        total += min(count, buffer.numel) * buffer.dtype.itemsize
    return total


def _accesses(kernel: LoopKernel, params: Sequence[int]) -> set[tuple[int, tuple[int, ...], bool]]:
    """(operand, (offset, *strides), indirect) of every distinct access."""
    found = set()
    at = kernel.rank_p + kernel.rank_r
    for access in kernel.accesses:
        where = [params[at]]
        at += 1
        for stride in access.strides:
            if stride == "s":
                where.append(params[at])
                at += 1
            else:
                where.append(int(stride))
        at += 2 if access.indirect else 0
        found.add((access.operand, tuple(where), access.indirect))
    return found


def describe(step: Step, nodes: Sequence[Node]) -> str:
    """A short name: the primitives computed here, or the contraction with its shapes."""
    if isinstance(step, Contract):
        return f"{step.kind} {' x '.join(str(list(shape)) for shape, _ in step.spec.operand_views()[:2])}"
    names = [nodes[n].op.name for n in step.nodes]
    if not names:
        return "copy"
    parts: list[str] = []
    for name in names:
        if parts and parts[-1].split(" x")[0] == name:
            count = int(parts[-1].split(" x")[1]) + 1 if " x" in parts[-1] else 2
            parts[-1] = f"{name} x{count}"
        else:
            parts.append(name)
    shape = max((nodes[n].shape for n in step.nodes), key=prod)
    return f"{', '.join(parts)} {list(shape)}"


def lines(step: Step, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Source lines of what is computed here, in program order, each once."""
    return tuple(dict.fromkeys(nodes[n].line for n in step.nodes if nodes[n].line))
