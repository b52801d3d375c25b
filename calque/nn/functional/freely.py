"""What tables that NumPy makes of sizes say, by operations: for sizes that are free, of which no table can be made."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.functional.common import cast, prim
from calque.nn.functional.rows import constant, positions
from calque.tensor import Tensor


def nearest_index(size: int, out: int, scale: float | None, exact: bool) -> Tensor:
    """Which element every output position takes."""
    step = constant(1.0 / scale if scale else size / out, dt.float32)
    i = positions((out,), dt.float32)
    return T.clamp(cast(prim("floor", (i + 0.5) * step if exact else i * step), dt.int64), max=size - 1)  # type: ignore[operator]


def resized(x: Tensor, d: int, out: int, scale: float | None, cubic: bool, align_corners: bool) -> Tensor:
    """Linear or cubic interpolation along dim d: a sum of elements, weighted by how far they are."""
    size, kind = x._layout.shape[d], x._layout.dtype
    i = positions((out,), dt.float64)
    if align_corners:
        place: Any = i * ((size - 1) / (out - 1)) if out > 1 else i * 0.0  # type: ignore[operator]
    else:
        place = (i + 0.5) * (1.0 / scale if scale else size / out) - 0.5  # type: ignore[operator]
    if not cubic:
        place = T.clamp(place, 0.0, size - 1)
    low = prim("floor", place)
    t = place - low
    total: Any = None
    for offset, weight in enumerate(_cubic(t) if cubic else (1.0 - t, t), -1 if cubic else 0):
        index = T.clamp(cast(low, dt.int64) + offset, 0, size - 1)
        shape = tuple(out if k == d else 1 for k in range(x._layout.ndim))
        part = prim("index_select", x, index, d) * T.reshape(cast(weight, kind), shape)
        total = part if total is None else total + part
    return total  # type: ignore[no-any-return]


def _cubic(t: Tensor) -> tuple[Any, ...]:
    """Weights of the four neighbours: see `vision._cubic_weights`."""
    a = -0.75

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def affine_grid(theta: Tensor, sizes: Sequence[int], align_corners: bool | None) -> Tensor:
    """Where the elements of an image of these sizes, (N, C, *), come from."""
    n, kind = len(sizes) - 2, theta._layout.dtype
    axes = []
    for k, s in enumerate(sizes[2:]):
        i = positions((s,), dt.float64)
        line: Any = i * 0.0 if s <= 1 else i * (2.0 / (s - 1)) - 1.0  # type: ignore[operator]
        line = line if align_corners else line * ((s - 1) / s)
        axes.append(T.expand(T.reshape(line, tuple(s if k == j else 1 for j in range(n))), tuple(sizes[2:])))
    ones = prim("full", (1.0, dt.float64), tuple(sizes[2:]))
    base = T.reshape(T.stack([*axes[::-1], ones], -1), (prod(sizes[2:]), n + 1))
    return T.reshape(T.matmul(cast(base, kind), T.transpose(theta, 1, 2)), (sizes[0], *sizes[2:], n))
