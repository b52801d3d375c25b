"""Shapes that broadcast, products and combinations of sequences, block matrices, integrals over samples."""

from __future__ import annotations

import itertools
from typing import Any

from calque.base import dtypes as dt
from calque.base import shapes
from calque.base.errors import ArgumentError, ShapeError
from calque.base.shapes import Size, ints, normalize_dim, whole
from calque.functional.common import cast, require_dims, require_numbers, require_tensors
from calque.functional.creation import meshgrid, tensor, zeros
from calque.functional.declared import public
from calque.functional.joining import cat, stack
from calque.functional.reductions import sum
from calque.functional.views import atleast_2d, reshape
from calque.functional.windows import narrow
from calque.tensor import Tensor


@public(method=False)
def broadcast_shapes(*sizes: Any) -> Size:
    """The shape that results from broadcasting shapes with each other.

    >>> import calque
    >>> calque.broadcast_shapes((4, 1), (3,), 1)
    torch.Size([4, 3])
    """
    given = [ints("broadcast_shapes", s) for s in sizes]
    if any(n < 0 for s in given for n in s):
        raise ShapeError(f"[broadcast_shapes] expected sizes >= 0, got {given}; Trying to create tensor with negative dimension")
    return Size(shapes.broadcast_shapes(*given, op="broadcast_shapes"))


@public(method=False)
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each 1-d tensor, as rows; of one tensor: the tensor.

    >>> import calque
    >>> calque.cartesian_prod(calque.tensor([1, 2]), calque.tensor([3, 4])).tolist()
    [[1, 3], [1, 4], [2, 3], [2, 4]]
    """
    for t in tensors:
        if t._layout.ndim != 1:
            raise ShapeError(f"[cartesian_prod] expected 1-d tensors, got shape {tuple(t._layout.shape)}; flatten it first")
    return tensors[0] if len(tensors) == 1 else stack([reshape(g, (-1,)) for g in meshgrid(*tensors, indexing="ij")], 1)


@public()
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Combinations of r elements of a 1-d tensor, as rows, in the order of `itertools`."""
    if input._layout.ndim != 1:
        raise ShapeError(f"[combinations] expected a 1-d tensor, got shape {tuple(input._layout.shape)}; flatten it first")
    r = whole("combinations", "r", r)
    if not 0 <= r < 1 << 31:
        raise ArgumentError(f"[combinations] expected r >= 0, the number of elements in a combination, below 2**31, got {r}")
    if not r:
        return zeros((0,), dtype=input._layout.dtype, device=input._layout.device)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(input._layout.numel), r))
    index = reshape(tensor(rows, dtype=dt.int64), (len(rows), r))
    picked: Tensor = input[index]
    return picked


@public(method=False)
def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with the given matrices (1-d tensors are rows) along its diagonal and zeros elsewhere."""
    require_tensors("block_diag", *tensors)
    blocks = [atleast_2d(t) for t in tensors]
    if not blocks:
        return zeros((1, 0))
    for block in blocks:
        if block._layout.ndim != 2:
            raise ShapeError(f"[block_diag] expected at most 2 dims, got shape {tuple(block._layout.shape)}")
    width, left, rows = _total(b._layout.shape[1] for b in blocks), 0, []
    for block in blocks:
        height, own = block._layout.shape
        kind = block._layout.dtype
        rows.append(cat([zeros((height, left), dtype=kind), block, zeros((height, width - left - own), dtype=kind)], 1))
        left += own
    return cat(rows, 0)


def _total(numbers: Any) -> int:
    found = 0
    for n in numbers:
        found += n
    return found


@public("trapz", method=False, steps=True)
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """Integral of samples by the trapezoidal rule along `dim`, at places `x` or `dx` apart: (*) -> (* without dim)."""
    require_dims("trapezoid", y, 1, name="y")
    require_numbers("trapezoid", y, x)
    count = y._layout.shape[normalize_dim(dim, y._layout.ndim, "trapezoid")]
    if x is not None and x._layout.ndim == 1 and x._layout.numel != count:
        raise ShapeError(f"[trapezoid] expected one x value for each of the {count} samples of dim {dim}, got {x._layout.numel}")
    if not count:
        return cast(sum(y, dim), y._layout.dtype)
    means = (narrow(y, dim, 0, count - 1) + narrow(y, dim, 1, count - 1)) / 2
    if x is None:
        return sum(means, dim) * dx
    if x._layout.ndim == 1 and y._layout.ndim > 1:
        x = reshape(x, tuple(-1 if d == dim % y._layout.ndim else 1 for d in range(y._layout.ndim)))
    steps = narrow(x, dim, 1, count - 1) - narrow(x, dim, 0, count - 1)
    return sum(means * steps, dim)


