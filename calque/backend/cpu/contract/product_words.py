"""Matrix products as plain data, see :mod:`params`."""

from __future__ import annotations

import struct
from dataclasses import replace
from math import prod

from calque.backend.cpu.contract.schedule import UNTUNED, ProductSchedule
from calque.backend.cpu.contract.target import Blocking, VectorUnit
from calque.base.cache import memoised
from calque.base.dataclass import dataclass
from calque.ops.routines import AddedSpec, ContractSpec

DTYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "int8": "i8"}
Pair = tuple[int, int]


@memoised("block sizes", 1000, 1 / 1024)
def blocking_for(dtype: str, target: VectorUnit) -> Blocking:
    """Block sizes for ``float32``, ``float64``, ``bfloat16`` or ``int8``."""
    return Blocking(DTYPES[dtype], target)


@dataclass(frozen=True, slots=True)
class Matmul:
    """``C[b, m, n] = sum_k A[b, m, k] B[b, k, n]``; buffers (A, B, C, workspace); C is contiguous.

    ``a_strides`` are the element strides of (m, k), ``b_strides`` of (k, n).
    """

    rows: int
    columns: int
    depth: int
    a_strides: Pair
    b_strides: Pair
    batch: tuple[int, ...] = ()
    a_batch_strides: tuple[int, ...] = ()
    b_batch_strides: tuple[int, ...] = ()
    schedule: ProductSchedule = UNTUNED

    @memoised("folded products", 800, 1 / 512)
    def folded(self) -> Matmul:
        """The same product with inner batch dimensions over which B is constant turned into rows."""
        rows, row_step = self.rows, self.a_strides[0]
        dims = [dim for dim in zip(self.batch, self.a_batch_strides, self.b_batch_strides, strict=True) if dim[0] != 1]
        while dims and dims[-1][2] == 0 and (rows == 1 or dims[-1][1] == rows * row_step):
            size, a_step, _ = dims.pop()
            rows, row_step = rows * size, row_step if rows > 1 else a_step
        batch, a_steps, b_steps = (tuple(dim[which] for dim in dims) for which in range(3))
        return replace(self, rows=rows, a_strides=(row_step, self.a_strides[1]), batch=batch, a_batch_strides=a_steps,
                       b_batch_strides=b_steps)

    def words(self) -> tuple[int, ...]:
        """The i64 parameters that follow the four buffers."""
        f = self.folded()
        dims = zip(reversed(f.batch), reversed(f.a_batch_strides), reversed(f.b_batch_strides), strict=True)
        return (f.rows, f.columns, f.depth, *f.a_strides, *f.b_strides, prod(f.batch), len(f.batch), *f.schedule.words(),
                *(word for dim in dims for word in dim))

    def workspace_bytes(self, dtype: str, target: VectorUnit) -> int:
        """None, as every thread packs into its scratch memory; float32 sums if they are rounded and take several blocks of k."""
        f, blocking = self.folded(), blocking_for(dtype, target)
        if not blocking.rounded or f.depth <= min(f.schedule.block or blocking.gemm_depth, blocking.most_depth):
            return 0
        return prod(f.batch) * f.rows * f.columns * blocking.item_bytes + target.vector_bytes


@dataclass(frozen=True, slots=True)
class Addmm:
    """``C[b, m, n] = alpha sum_k A[b, m, k] B[b, k, n] + beta D[b, m, n]``; buffers (A, B, D, C, workspace); C is contiguous, and rounded once.

    ``d_strides`` are the element strides of D, of every batch dimension and of (m, n).
    """

    product: Matmul
    d_strides: tuple[int, ...]
    alpha: float
    beta: float

    def words(self) -> tuple[int, ...]:
        """The i64 parameters that follow the five buffers."""
        p = self.product
        row, column = self.d_strides[-2:]
        dims = zip(reversed(p.batch), reversed(p.a_batch_strides), reversed(p.b_batch_strides), reversed(self.d_strides[:-2]), strict=True)
        factors = struct.unpack("<2q", struct.pack("<2d", self.alpha, self.beta))
        return (p.rows, p.columns, p.depth, *p.a_strides, *p.b_strides, prod(p.batch), len(p.batch), *p.schedule.words(), row, column, *factors,
                *(word for dim in dims for word in dim))

    def workspace_bytes(self, dtype: str, target: VectorUnit) -> int:
        """As of the product."""
        return self.product.workspace_bytes(dtype, target)


def product(spec: ContractSpec, dtype: str) -> Matmul:
    """The parameters of ``matmul``."""
    a, b = spec.a_shape, spec.b_shape
    (a_row, a_depth), (b_depth, b_column) = spec.a_strides[-2:], spec.b_strides[-2:]
    return Matmul(a[-2], b[-1], a[-1], (a_row, a_depth), (b_depth, b_column), a[:-2], spec.a_strides[:-2], spec.b_strides[:-2])


def added_product(spec: AddedSpec, dtype: str) -> Addmm:
    """The parameters of ``addmm``."""
    return Addmm(product(spec.product, dtype), spec.strides, spec.alpha, spec.beta)
