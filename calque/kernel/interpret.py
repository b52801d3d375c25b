"""The slow, obvious twin of a backend: runs loop kernels and whole schedules with NumPy.

Every value is an array over the axes P + R (extent 1 where it does not vary), every instruction one NumPy call. The arena is one
block of bytes, so a wrong lifetime shows as a wrong number. `check=True` also proves each launch free of races: a buffer that a
kernel both reads and writes must be read at the element that the same iteration writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, float32
from calque.kernel.contract import put, reference
from calque.kernel.loops import JOINING, STORES, Access, Instr, LoopKernel, Stage, in_order
from calque.kernel.schedule import Contract, Host, Loop, Schedule
from calque.ops.movement import window

Array = Any  # numpy.ndarray of any element type
Scalar = bool | int | float

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _int_safe(f: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Integer division by zero gives 0 (see `ir/scalar.py`)."""

    def call(a: Array, b: Array) -> Array:
        if a.dtype.kind not in "iu":
            return f(a, b)
        return np.where(b == 0, np.zeros((), a.dtype), f(a, np.where(b == 0, np.ones((), b.dtype), b)))

    return call


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "neg": np.negative, "abs": np.abs, "not_": np.invert, "sqrt": np.sqrt, "exp": np.exp, "exp_shifted": np.exp, "log": np.log, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "erf": _erf, "atan": np.arctan, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "rint": np.rint, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "floordiv": _int_safe(np.floor_divide), "mod": _int_safe(np.mod), "pow": _power, "min": np.minimum, "max": np.maximum,
    "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "select": np.where,
}  # fmt: skip


def wrap(value: Scalar, dtype: DType) -> Array:
    """A Python number as a 0-d array of `dtype`; integers wrap around."""
    if dtype.category == 1 and not isinstance(value, float):
        low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
        value = (int(value) - low) % (1 << dtype.bits) + low
    return np.asarray(value).astype(dtype.np)


def evaluate(op: str, dtype: DType, args: Sequence[Array]) -> Array:
    """One instruction of the closed set on arrays; 16-bit floats compute in float32 and round."""
    if op == "cast":
        if dtype.category == 0:
            return args[0] != 0
        return args[0].astype(dtype.np)
    if op == "bitcast":
        return np.ascontiguousarray(args[0]).view(dtype.np).reshape(args[0].shape)
    if dtype.compute is not dtype or (args[0].dtype.itemsize == 2 and args[0].dtype.kind not in "iu"):
        args = [a.astype(float32.np) if a.dtype.itemsize == 2 and a.dtype.kind not in "iub" else a for a in args]
    if op == "fma":  # one rounding: exact in float64 for float32 operands
        wide = [a.astype(np.float64) for a in args] if dtype.category == 2 else list(args)
        return (wide[0] * wide[1] + wide[2]).astype(dtype.np)
    result = np.asarray(FUNCTIONS[op](*args))
    return result if result.dtype == dtype.np else result.astype(dtype.np)


def reduce_values(combine: str, values: Array, positions: Array | None, axes: tuple[int, ...], dtype: DType) -> Array:
    """Reduce over `axes`, which stay with extent 1. 16-bit floats accumulate in float32."""
    if positions is not None:
        split = values.ndim - len(axes)
        lead = values.shape[:split]
        flat = values.reshape(*lead, -1)
        chosen = np.expand_dims((np.argmax if combine == "argmax" else np.argmin)(flat, axis=-1), -1)
        found = np.take_along_axis(np.broadcast_to(positions, values.shape).reshape(flat.shape), chosen, -1)
        return found.reshape(*lead, *(1,) * len(axes))
    wide = values.astype(dtype.compute.np)
    if not axes:
        return wide.astype(dtype.np)
    if combine == "sum":
        return np.sum(wide, axis=axes, keepdims=True, dtype=dtype.compute.np).astype(dtype.np)
    if combine == "prod":
        return np.prod(wide, axis=axes, keepdims=True, dtype=dtype.compute.np).astype(dtype.np)
    function = np.max if combine == "max" else np.min
    return function(wide, axis=axes, keepdims=True).astype(dtype.np)


class KernelRun:
    """State of one launch: extents, access parameters and the value of every instruction so far."""

    def __init__(self, kernel: LoopKernel, params: Sequence[int], buffers: Sequence[Array], scalars: Sequence[Scalar]) -> None:
        self.kernel = kernel
        self.buffers = buffers
        self.scalars = scalars
        self.values: list[Array] = []
        dims = kernel.rank_p + kernel.rank_r
        self.extents = tuple(params[:dims])
        self.axes = [
            np.arange(e, dtype=np.int64).reshape((1,) * d + (e,) + (1,) * (dims - d - 1)) for d, e in enumerate(self.extents)
        ]
        self.accesses: list[tuple[Array, int, int]] = []  # addresses, index stride, limit
        position = dims
        for access in kernel.accesses:
            position = self._decode(access, params, position)
        if position != len(params):
            raise ValueError(f"kernel wants {position} parameters, got {len(params)}")

    def _decode(self, access: Access, params: Sequence[int], position: int) -> int:
        address = np.full((1,) * len(self.extents), params[position], np.int64)
        position += 1
        for axis, stride in zip(self.axes, access.strides, strict=True):
            if stride != "0":
                if stride == "s":
                    step = params[position]
                    position += 1
                else:
                    step = int(stride)
                address = address + axis * step
        if not access.indirect:
            self.accesses.append((address, 0, 0))
            return position
        self.accesses.append((address, params[position], params[position + 1]))
        return position + 2

    def address(self, access: int, index: Array | None) -> Array:
        """Element addresses of an access at every iteration."""
        base, step, limit = self.accesses[access]
        if index is None:
            return base
        return base + np.clip(index.astype(np.int64), 0, max(limit - 1, 0)) * step

    def run(self) -> None:
        """Run all stages; the operand buffers change in place."""
        for stage in self.kernel.stages:
            assert stage.first == len(self.values), "instruction numbering"
            for instr in stage.instrs:
                self.values.append(self.step(stage, instr))

    def step(self, stage: Stage, instr: Instr) -> Array:
        """The value of one instruction."""
        op, dtype = instr.op, instr.dtype
        args = [self.values[a] for a in instr.args]
        if op == "const":
            return wrap(instr.imm, dtype).reshape((1,) * len(self.extents))
        if op == "extent":
            return np.full((1,) * len(self.extents), self.extents[instr.imm], dtype.np)
        if op == "index":
            return self.axes[instr.imm].astype(dtype.np)
        if op == "scalar":
            return wrap(self.scalars[instr.imm], dtype).reshape((1,) * len(self.extents))
        if op in ("load", "load_at"):
            buffer = self.buffers[self.kernel.accesses[instr.imm].operand]
            address = self.address(instr.imm, args[0] if args else None)
            if buffer.size == 0:
                return np.zeros(address.shape, dtype.np)
            return buffer[address]
        if op in STORES:
            return self.store(stage, instr, args)
        if op == "reduce":
            shape = self.extents
            values = np.broadcast_to(args[0], shape)
            r_axes = tuple(range(self.kernel.rank_p, len(shape)))
            return reduce_values(instr.imm, values, args[1] if len(args) > 1 else None, r_axes, dtype)
        return evaluate(op, dtype, args)

    def store(self, stage: Stage, instr: Instr, args: list[Array]) -> Array:
        """Write (or accumulate) one value per iteration, in iteration order."""
        buffer = self.buffers[self.kernel.accesses[instr.imm].operand]
        shape = self.extents if stage.kind != "point" else self.extents[: self.kernel.rank_p] + (1,) * self.kernel.rank_r
        address = np.broadcast_to(self.address(instr.imm, args[1] if instr.op != "store" else None), shape)
        value = np.broadcast_to(args[0], shape)
        if instr.op == "store":
            buffer[address] = value
            return args[0]
        for where, what in zip(address.ravel(), value.ravel(), strict=True):
            joined = JOINING.get(instr.op)
            buffer[where] = what if joined is None else evaluate(joined, instr.dtype, in_order(instr.op, buffer[where], what))
        return args[0]


def check_races(run: KernelRun) -> None:
    """Raise when an iteration may read an element that another iteration writes, or one that it has overwritten itself.

    What a point of P writes it may read itself in the stages before: they are complete by then.
    """
    kernel = run.kernel
    for late, stage in enumerate(kernel.stages):
        for instr in stage.instrs:
            if instr.op != "store":
                continue
            target = run.buffers[kernel.accesses[instr.imm].operand]
            for early, other_stage in enumerate(kernel.stages):
                for other in other_stage.instrs:
                    if other.op not in ("load", "load_at"):
                        continue
                    source = run.buffers[kernel.accesses[other.imm].operand]
                    if not np.shares_memory(source, target) or 0 in run.extents:
                        continue
                    again = kernel.accesses[other.imm].operand == kernel.accesses[instr.imm].operand
                    if not _safe(run, other, instr.imm, early - late, again):
                        raise ValueError(f"race: access {other.imm} reads what access {instr.imm} writes\n{kernel}")


def _safe(run: KernelRun, load: Instr, write: int, order: int, again: bool) -> bool:
    """Whether a load may stand `order` stages after the store to access `write` of the same memory (`again`: through the same operand)."""
    source, target = (run.buffers[run.kernel.accesses[k].operand] for k in (load.imm, write))
    written = run.accesses[write][0]
    base, step, limit = run.accesses[load.imm]
    if source.dtype.itemsize != target.dtype.itemsize:
        return False
    read = base + (source.ctypes.data - target.ctypes.data) // target.dtype.itemsize
    if load.op == "load":
        shown = np.broadcast_shapes(read.shape, written.shape)
        if np.array_equal(np.broadcast_to(read, shown), np.broadcast_to(written, shown)):
            return order <= 0 or again
        if not np.isin(read, written).any():
            return True
    if order >= 0:
        return False
    points = np.arange(math.prod(run.extents[: run.kernel.rank_p]), dtype=np.int64)
    points = points.reshape(*run.extents[: run.kernel.rank_p], *(1,) * run.kernel.rank_r)
    owner = np.full(int(written.max()) + 1, -1, np.int64)
    owner[np.broadcast_to(written, run.extents)] = np.broadcast_to(points, run.extents)
    for k in range(max(limit, 1) if load.op == "load_at" else 1):
        place = np.broadcast_to(read + k * step, run.extents)
        inside = (place >= 0) & (place < owner.size)
        who = owner[np.where(inside, place, 0)]
        if (inside & (who >= 0) & (who != np.broadcast_to(points, run.extents))).any():
            return False
    return True


def run_loop(launch: Loop, buffers: Sequence[Array], scalars: Sequence[Scalar], check: bool = False) -> None:
    """Run one loop kernel on its operand buffers (flat arrays, changed in place). `scalars` are those of the whole schedule."""
    params = list(launch.params)
    for position, leaf, factor in launch.dynamic:
        params[position] += factor * int(scalars[leaf])
    typed = [b if b.dtype == o.dtype.np else b.view(o.dtype.np) for b, o in zip(buffers, launch.kernel.operands, strict=True)]  # whole values, copied
    run = KernelRun(launch.kernel, params, typed, [scalars[k] for k in launch.scalars])
    if check:
        check_races(run)
    with np.errstate(all="ignore"):
        run.run()


def _strided(buffer: Array, shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    size = buffer.dtype.itemsize
    return window(buffer[offset:], tuple(shape), tuple(s * size for s in strides), writeable=False)


def run_contract(launch: Contract, buffers: Sequence[Array], scalars: Sequence[Scalar]) -> None:
    """Run a contraction through the reference function of its primitive."""
    offsets = list(launch.offsets)
    for position, leaf, factor in launch.dynamic:
        offsets[position] += factor * int(scalars[leaf])
    arrays = [
        _strided(b, shape, strides, offset)
        for b, offset, (shape, strides) in zip(buffers, offsets, launch.spec.operand_views(), strict=False)
    ]
    for part, position in enumerate(range(launch.inputs, len(launch.operands))):
        if launch.operands[position] < 0:
            continue
        with np.errstate(all="ignore"):
            result = reference(launch.kind, launch.spec, arrays, part)
        put(result, buffers[position], offsets[position], launch.spec)


def run_host(launch: Host, buffers: Sequence[Array], output: Array, scalars: Sequence[Scalar]) -> None:
    """Run the reference function of an opaque primitive on whole values."""
    arguments: list[Any] = []
    leaves = dict(launch.scalars)
    position = 0
    for k in range(len(launch.operands) + len(launch.scalars)):
        if k in leaves:
            arguments.append(np.asarray(scalars[leaves[k]]))
            continue
        arguments.append(buffers[position].reshape(launch.shapes[position]))
        position += 1
    with np.errstate(all="ignore"):
        result = launch.op.ref(*arguments, *launch.attrs)
    output[:] = np.asarray(result).astype(output.dtype).reshape(-1)


def allocate(schedule: Schedule, inputs: Sequence[Array], copy_inputs: bool = True) -> list[Array]:
    """One flat array per buffer; arena buffers are windows of one block of bytes filled with a NaN pattern."""
    arena = np.full(max(schedule.arena_bytes, 1), 0xFF, np.uint8)
    given = [np.array(a).reshape(-1) if copy_inputs else a.reshape(-1) for a in inputs]
    flat: list[Array] = []
    for buffer in schedule.buffers:
        if buffer.kind == "input":
            flat.append(given[buffer.index])
        elif buffer.kind == "constant":
            flat.append(np.ascontiguousarray(buffer.data).reshape(-1))
        elif buffer.kind == "arena":
            flat.append(arena[buffer.index : buffer.index + buffer.nbytes].view(buffer.dtype.np))
        elif buffer.donor >= 0:
            flat.append(given[buffer.donor].view(buffer.dtype.np))
        else:
            flat.append(np.full(max(buffer.nbytes, 1), 0xFF, np.uint8)[: buffer.nbytes].view(buffer.dtype.np))
    return flat


def interpret(
    schedule: Schedule, inputs: Sequence[Array], scalars: Sequence[Scalar] = (), *, check: bool = True, copy_inputs: bool = True
) -> list[Array]:
    """Run a schedule; returns the outputs as flat arrays. With `copy_inputs=False` donated inputs are overwritten as in
    production."""
    flat = allocate(schedule, inputs, copy_inputs)
    for step in schedule.steps:
        operands = [flat[k] for k in step.operands]  # absent outputs (-1) are not looked at
        if isinstance(step, Loop):
            run_loop(step, operands, scalars, check)
        elif isinstance(step, Contract):
            run_contract(step, operands, scalars)
        else:
            run_host(step, operands, flat[step.output], scalars)
    return [flat[k] for k in schedule.outputs]
