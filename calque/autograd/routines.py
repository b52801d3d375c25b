"""Which operations are computed at once where programs hardly come again, and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.backend.ref.quick import Routine, routine_of
from calque.base.layout import Layout
from calque.ops.opdef import OpDef, get

LARGE = 1 << 16  # numbers in an operand or a result from which on an operation is worth recording
PRODUCT = 1 << 22  # multiplications of a matrix product from which on it is
_PRODUCT = get("matmul")


def routine(op: OpDef, attrs: tuple[Any, ...], layouts: tuple[Any, ...], result: Layout) -> Routine:
    """How an operation on values of these layouts is computed."""
    operands = [(tuple(lay.shape), lay.dtype) if lay.__class__ is Layout else ((), lay) for lay in layouts]
    return routine_of(op, attrs, operands, tuple(result.shape), result.dtype)


def large(op: OpDef, layouts: tuple[Any, ...], result: Layout) -> bool:
    """Whether an operation gains more from being compiled than its planning costs."""
    if op.kind == "contract":
        return op is not _PRODUCT or result.numel * layouts[0].shape[-1] >= PRODUCT
    return max([result.numel, *[lay.numel for lay in layouts if lay.__class__ is Layout]]) >= LARGE


def same(name: str, found: Any, expected: Any, operands: Sequence[Any] = ()) -> None:
    """Raise if two ways to compute something disagree by more than rounding (`settings.verify`). `operands`: what it is computed of."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape == expected.shape and found.dtype == expected.dtype:
        if found.dtype.kind not in "fc" or not found.dtype.isbuiltin:
            close = found.dtype.kind == "V" or np.array_equal(found, expected, equal_nan=found.dtype.kind in "fcV") or not found.dtype.isbuiltin
        else:
            small = 64 * float(np.finfo(found.dtype).eps)
            sizes = [float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in map(np.asarray, (expected, *operands)) if x.dtype.kind in "fc"]
            close = np.allclose(found, expected, small, small * max(sizes), equal_nan=True)
        if close:
            return
    raise AssertionError(f"{name} computed at once is not what its definition gives: {found} and {expected}")
