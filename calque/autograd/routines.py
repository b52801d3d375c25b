"""How operations are computed where they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.backend.ref.quick import WHOLE, QuickRoutine, routine_of
from calque.backend.ref.small import kernel_of
from calque.base.device import CPU
from calque.base.dtypes import from_numpy_dtype
from calque.base.layout import Layout
from calque.ops.opdef import OpDef
from calque.ops.recurrent import is_recurrent
from calque.run.backends import recurrence


def routine(op: OpDef, attrs: tuple[Any, ...], layouts: tuple[Any, ...], result: Layout) -> QuickRoutine:
    """How an operation on values of these layouts is computed."""
    operands = [(tuple(lay.shape), lay.dtype) if lay.__class__ is Layout else ((), lay) for lay in layouts]
    if op.kind == "contract" and is_recurrent(op.name) and result.dtype in WHOLE:
        number = op.parts.index(attrs[0]) if op.parts else 0
        return QuickRoutine(lambda *values: recurrence(op, values)[number], False, True)
    return routine_of(op, attrs, operands, tuple(result.shape), result.dtype)


def kernel(op: OpDef, attrs: tuple[Any, ...], views: tuple[Any, ...], result: Layout, memory: Layout, found: QuickRoutine, forward: bool) -> Any:
    """What the compiled module runs for an operation on values that lie in memory like this, numbers as their dtypes; None if it has nothing for it.
    It is a function of row-major arrays, too. `memory`: the layout of the result's block of memory. `forward`: it is not run in
    forward passes, as it is large."""
    if result.device is not CPU or any(v.__class__ is Layout and v.device is not CPU for v in views):
        return None
    operands = [(tuple(v.shape), v.strides, v.dtype) if v.__class__ is Layout else ((), (), v) for v in views]
    for k in op.wide:
        if k < len(views) and views[k].__class__ is not Layout:  # a number beside floats of 16 bits that is not rounded to them
            operands[k] = (), (), views[k].compute
    return kernel_of(op, attrs, operands, result, memory, tuple(result.shape), result.strides, result.dtype, found.function, forward)


def _wide(values: Any) -> Any:
    """Floating or complex numbers in the widest type of their kind; None for values that nothing is computed of, and for integers."""
    kind = from_numpy_dtype(values.dtype)
    return None if kind is None or kind.category < 2 or kind.stored else values.astype(np.complex128 if kind.is_complex else np.float64)


def same(name: str, found: Any, expected: Any, operands: Sequence[Any] = ()) -> None:
    """Raise if two ways to compute something disagree by more than rounding (`settings.verify`). `operands`: what it is computed of."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape == expected.shape and found.dtype == expected.dtype:
        a, b = _wide(found), _wide(expected)
        if a is None or b is None:
            close = found.tobytes() == expected.tobytes()
        else:
            digits = from_numpy_dtype(found.dtype).digits  # type: ignore[union-attr]
            small = (64 if digits >= 24 else 8) * 2.0 ** (1 - digits)  # narrow types are rounded once, from float32
            sizes = [float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in (b, *map(_wide, map(np.asarray, operands))) if x is not None]
            close = np.allclose(a, b, small, small * max(sizes), equal_nan=True)
        if close:
            return
    raise AssertionError(f"{name} computed at once is not what its definition gives: {found} and {expected}")
