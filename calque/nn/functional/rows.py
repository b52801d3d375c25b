"""Short names for the reductions that layers are made of, with dims given as sorted non-negative tuples."""

from __future__ import annotations

from typing import Any

from calque.base import dtypes as dt
from calque.base.errors import OutOfRangeError
from calque.base.shapes import normalize_dim
from calque.functional.common import cast
from calque.ops.opdef import get
from calque.record.recorder import local
from calque.tensor import Tensor, record, wrap

SUM, AMAX, EXP_SHIFTED, ARGMAX, GATHER, SELECT_ROWS, WHERE, VIEW, IOTA, FULL, KINK = (
    get(name) for name in ("sum", "amax", "exp_shifted", "argmax", "gather", "index_select", "where", "view", "iota", "full", "kink")
)
Dims = tuple[int, ...]


def total(x: Tensor, dims: Dims, keepdim: bool = True) -> Tensor:
    """Sum over `dims`."""
    return record(SUM, (x,), (dims, keepdim))


def largest(x: Tensor, dims: Dims) -> Tensor:
    """Maximum over `dims` (kept as 1), as a constant: used only to shift values, so it needs no gradient."""
    if not x._layout.numel:
        return record(SUM, (x,), (dims, True))  # nothing is shifted
    if local.state.grad and x._requires_grad:
        x = wrap(x._storage, x._layout)
    return record(AMAX, (x,), (dims, True))


def powers(x: Tensor) -> Tensor:
    """e**x of what `largest` was subtracted from."""
    return record(EXP_SHIFTED, (x,), ())


def kinked(x: Tensor) -> Tensor:
    """x, before a function that is linear in pieces (see the primitive `kink`)."""
    return record(KINK, (x,)) if local.state.grad and x._requires_grad and x._layout.dtype.category == 2 else x


def positions(shape: Dims, dtype: dt.DType = dt.int64) -> Tensor:
    """0, 1, 2, ... in row-major order."""
    return record(IOTA, (), (shape, dtype))


def constant(value: float, dtype: dt.DType, shape: Dims = ()) -> Tensor:
    """A tensor of one value."""
    return record(FULL, ((value, dtype),), (shape,))


def choose(condition: Tensor, x: Any, y: Any, dtype: dt.DType) -> Tensor:
    """`x` where the condition holds, else `y`; numbers become scalars of `dtype`."""
    x = x if isinstance(x, Tensor) else (x, dtype)
    y = y if isinstance(y, Tensor) else (y, dtype)
    return record(WHERE, (condition, x, y))


def wide(x: Tensor) -> Tensor:
    """x in the type its arithmetic is done in: float32 for the 16-bit floats."""
    return cast(x, x._layout.dtype.compute)


def one_dim(x: Tensor, dim: int, op: str) -> int:
    """A non-negative dim."""
    n = max(x._layout.ndim, 1)
    if dim.__class__ is not int:
        return normalize_dim(dim, n, op)
    if not -n <= dim < n:
        raise OutOfRangeError(f"[{op}] Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    return dim % n
