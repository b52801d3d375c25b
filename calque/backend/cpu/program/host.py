"""Steps that run on the host with NumPy: opaque primitives, and contractions of types that have no native kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calque.backend.base import Array, Scalar
from calque.base.dtypes import DType
from calque.kernel.contract import put, reference
from calque.kernel.schedule import Contract, Host


class Counters:
    """How often the host computed what one might expect to be native."""

    def __init__(self) -> None:
        self.contractions = 0


COUNTERS = Counters()


def run_host(step: Host, operands: Sequence[Array], output: Array, scalars: Sequence[Scalar], dtypes: Sequence[DType]) -> None:
    """Apply the reference function of a primitive to whole values."""
    leaves = dict(step.scalars)
    values = iter(zip(operands, step.shapes, strict=False))
    arguments = []
    for k in range(len(step.operands) + len(step.scalars)):
        if k in leaves:
            arguments.append(np.asarray(scalars[leaves[k]]).astype(dtypes[leaves[k]].np))
        else:
            array, shape = next(values)
            arguments.append(array.reshape(shape))
    with np.errstate(all="ignore"):
        result = step.op.ref(*arguments, *step.attrs)
    output[:] = np.asarray(result).astype(output.dtype, copy=False).reshape(-1)


def run_contract(step: Contract, buffers: Sequence[Array], scalars: Sequence[Scalar]) -> None:
    """A contraction by its NumPy definition; 16-bit floats are multiplied in float32 and rounded once."""
    COUNTERS.contractions += 1
    offsets = list(step.offsets)
    for position, leaf, factor in step.dynamic:
        offsets[position] += factor * int(scalars[leaf])
    wide = step.dtype.compute.np
    arrays = []
    for buffer, offset, (shape, strides) in zip(buffers, offsets, step.spec.operand_views(), strict=False):
        steps = tuple(s * buffer.itemsize for s in strides)
        view = np.lib.stride_tricks.as_strided(buffer[offset:], shape, steps, writeable=False)
        arrays.append(view.astype(wide, copy=False))
    for part, position in enumerate(range(step.inputs, len(step.operands))):
        if step.operands[position] < 0:
            continue
        with np.errstate(all="ignore"):
            result = reference(step.kind, step.spec, arrays, part)
        put(result, buffers[position], offsets[position], step.spec)
