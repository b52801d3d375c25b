"""Pointwise loops that follow a contraction part by part: its epilogue.

A loop whose points are the elements of a contraction's result, each read where it stands, may run on every part of the result as soon as that is
complete, while it lies in a cache: bias, activation, normalisation with known statistics. It stays a step of its own in the schedule, right
behind the contraction, so what is computed does not change; here it is decided whether it pays (decision 0046) and whether it can be cut along
the (batch, rows, columns) of the result, and written so that it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from calque.base.dataclass import dataclass
from calque.kernel.loops import INDEXED, Access
from calque.kernel.schedule import Buffer, Contract, Loop

LEAST_COLUMNS = 16  # shorter rows would leave most lanes of a vector empty
LEAST_BYTES = 128 << 10  # a smaller result stays in the cache between two launches
MOST_DEPTH = 256  # multiply-adds per element, beside which one more pass over the result is nothing
MOST_OTHERS = 0.25  # of the result: parts of further large operands arrive from memory slower than the whole
MOST_WORDS = 192  # arguments that are copied for every block
ORDERED = ("index", "load_at", *INDEXED)  # need the whole: a position, or an address that is known only at run time
NOT_READ = "it does not read the result"
Grid = tuple[int, int, int]
Steps = tuple[int, ...]  # of every access along one dim


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The loop over exactly (batch, rows, columns), and the steps of every access along these three dims."""

    loop: Loop
    steps: tuple[Steps, Steps, Steps]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a loop is none: a text with places for numbers, which say it once somebody reads it."""

    text: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text.format(*self.numbers)


def follow(contract: Contract, loop: Loop, buffers: Sequence[Buffer], grid: Grid, flops: int) -> Epilogue | Refusal:
    """The loop as an epilogue of the contraction of so many `flops` before it, whose dense result is seen as `grid`; or why it is none."""
    result = contract.operands[contract.inputs]
    if len(contract.operands) != contract.inputs + 1 or result not in _read(loop):
        return Refusal(NOT_READ)
    kernel = loop.kernel
    if kernel.rank_r or any(i.op == "reduce" for i in kernel.instructions()):
        return Refusal("it reduces")
    if loop.dynamic or any(i.op in ORDERED for i in kernel.instructions()):
        return Refusal("it needs positions or addresses that are known at run time only")
    if not (where := _written_over(loop, result, buffers)):
        return Refusal("its result lies elsewhere")
    others = sum(buffers[k].nbytes for k in {*loop.operands} - where)
    if others > MOST_OTHERS * buffers[result].nbytes:
        return Refusal("it reads or writes {} bytes beside the result of {}", (others, buffers[result].nbytes))
    if flops > 2 * MOST_DEPTH * buffers[result].numel:
        return Refusal("the contraction takes much longer than one pass over its result")
    if prod(grid) != prod(loop.params[: kernel.rank_p]) or grid[2] < LEAST_COLUMNS:
        return Refusal("it has {} points over a result of {} x {} x {}", (prod(loop.params[: kernel.rank_p]), *grid))
    if buffers[result].nbytes < LEAST_BYTES:
        return Refusal("the result ({} bytes) stays in the cache anyway", (buffers[result].nbytes,))
    if len(loop.operands) + len(loop.params) + len(loop.scalars) > MOST_WORDS:
        return Refusal("it has too many operands")
    return _on_grid(loop, result, grid) or Refusal("it walks through the result in another order")


def _read(loop: Loop) -> set[int]:
    return {b for b, o in zip(loop.operands, loop.kernel.operands, strict=True) if not o.out}


def _written_over(loop: Loop, result: int, buffers: Sequence[Buffer]) -> set[int]:
    """The operands in the memory of the result, if one of them is written."""
    place = buffers[result].kind, buffers[result].index
    same = {b for b in loop.operands if b == result or (buffers[b].kind, buffers[b].index) == place}
    written = {b for b, o in zip(loop.operands, loop.kernel.operands, strict=True) if o.out}
    return same if same & written else set()


def _decoded(loop: Loop) -> list[tuple[int, Steps]]:
    """(offset, stride per dim) of every access."""
    kernel, found = loop.kernel, []
    at = kernel.rank_p
    for access in kernel.accesses:
        offset, at = loop.params[at], at + 1
        strides = []
        for stride in access.strides:
            strides.append(loop.params[at] if stride == "s" else int(stride))
            at += stride == "s"
        found.append((offset, tuple(strides)))
    return found


def _on_grid(loop: Loop, result: int, grid: Grid) -> Epilogue | None:
    """The same loop with one dim for each of the grid, if all accesses walk through these evenly."""
    kernel, accesses = loop.kernel, _decoded(loop)
    read = [loop.operands[a.operand] == result and not kernel.operands[a.operand].out for a in kernel.accesses]
    whole = {found for found, here in zip(accesses, read, strict=True) if here}
    if len(whole) != 1:
        return None
    offset, lead = next(iter(whole))
    pieces, inner = [], 1  # (stride in the result, extent, steps), from the innermost dim out
    for d in sorted((d for d in range(kernel.rank_p) if loop.params[d] != 1), key=lambda d: lead[d]):
        if lead[d] != inner:
            return None
        pieces.append((inner, loop.params[d], tuple(strides[d] for _, strides in accesses)))
        inner *= loop.params[d]
    bounds = (1, grid[2], grid[1] * grid[2], prod(grid))
    dims = [_between(pieces, bounds[k], bounds[k + 1], len(accesses)) for k in (2, 1, 0)]
    if offset or any(d is None for d in dims):
        return None
    steps = (dims[0], dims[1], dims[2])
    return Epilogue(_rewritten(loop, grid, [offset for offset, _ in accesses], steps), steps)  # type: ignore[arg-type]


def _between(pieces: list[tuple[int, int, Steps]], low: int, high: int, accesses: int) -> Steps | None:
    """Steps of the one dim that counts positions low, 2 low, ... below high of the result, if there is one."""
    merged, extent = (0,) * accesses, 1
    for start, size, steps in pieces:
        first, end = max(start, low), min(start * size, high)
        if first >= end:
            continue
        if first % start or end % first or start * size % end:
            return None
        here = tuple(s * (first // start) for s in steps)
        if extent > 1 and here != tuple(s * extent for s in merged):
            return None
        merged, extent = (here if extent == 1 else merged), extent * (end // first)
    return merged


def _rewritten(loop: Loop, grid: Grid, offsets: Sequence[int], steps: tuple[Steps, Steps, Steps]) -> Loop:
    params: list[int] = list(grid)
    accesses = []
    for k, access in enumerate(loop.kernel.accesses):
        params.append(offsets[k])
        strides = []
        for d in range(3):
            step = steps[d][k]
            strides.append(str(step) if step == 0 or (d == 2 and step in (1, 2)) else "s")
            if strides[-1] == "s":
                params.append(step)
        accesses.append(Access(access.operand, tuple(strides)))
    kernel = replace(loop.kernel, rank_p=3, accesses=tuple(accesses), vector="p").known()
    return replace(loop, kernel=kernel, params=tuple(params))
