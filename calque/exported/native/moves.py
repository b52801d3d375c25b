"""Views of memory as another type, and writes through them: steps on the host in Python, copies of integers of the same size in a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from calque.base.dtypes import DType, int16, int32, int64, uint8
from calque.base.shapes import contiguous_strides
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.memory import copy_kernel
from calque.kernel.schedule import Host, Loop, Schedule, Step

_WORDS = {1: uint8, 2: int16, 4: int32, 8: int64}


def with_moves(schedule: Schedule) -> Schedule:
    """The schedule whose `view_as` and `update_as` are loops."""
    steps: list[Step] = []
    check_steps = schedule.check_steps
    for number, step in enumerate(schedule.steps):
        made = _loops(step, schedule) if isinstance(step, Host) else [step]
        steps += made
        check_steps += (len(made) - 1) if number < schedule.check_steps else 0
    return replace(schedule, steps=tuple(steps), check_steps=check_steps)


def _loops(step: Host, schedule: Schedule) -> Sequence[Step]:
    """The loops of a step, or itself. Memory has no type here: addresses are counted in elements of the view."""
    if step.op.name == "view_as":
        shape, strides, offset, dtype = step.attrs
        return [_copy(step, dtype, shape, step.operands[0], (strides, offset), (contiguous_strides(shape), 0))]
    if step.op.name != "update_as":
        return [step]
    (shape, strides, offset), (base, value) = step.attrs, step.operands
    whole = schedule.buffers[base]
    kernel = copy_kernel(_WORDS[whole.dtype.itemsize])
    first = Loop(kernel, (base, step.output), (whole.numel, 0, 0), nodes=step.nodes)
    return [first, _copy(step, schedule.buffers[value].dtype, shape, value, (contiguous_strides(shape), 0), (strides, offset))]


def _copy(step: Host, dtype: DType, shape: Any, source: int, here: tuple[Any, int], there: tuple[Any, int]) -> Loop:
    """Elements of a type from one window, (strides, offset), to another."""
    word = _WORDS[dtype.itemsize]
    shape, windows = (tuple(shape), (here, there)) if shape else ((1,), (((0,), here[1]), ((0,), there[1])))
    dense = all(strides[-1] == 1 for strides, _ in windows) and prod(shape) > 0
    classes = ("s",) * (len(shape) - 1) + ("1" if dense else "s",)
    words = list(shape)
    for strides, offset in windows:
        words += [offset, *(strides[:-1] if dense else strides)]
    body = (Instr("load", word, (), 0), Instr("store", word, (0,), 1))
    operands = (Operand(word), Operand(word, True))
    kernel = LoopKernel(len(shape), 0, operands, (Access(0, classes), Access(1, classes)), (Stage("map", 0, body),), "p" if dense else "")
    return Loop(kernel, (source, step.output), tuple(words), nodes=step.nodes)
