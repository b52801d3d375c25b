"""Backend-neutral parameters of contractions: strided operands, dense row-major outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from calque.base.shapes import Shape
from calque.ops import opdef
from calque.ops.rules import widen

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ContractSpec:
    """`Contract.spec`. Shapes and strides (in elements) are those the contraction sees; the output is dense.

    matmul: a (batch..., m, k), b (batch..., k, n) -> (batch..., m, n); batch dims are already broadcast (stride 0 where
    repeated). conv2d: x (N, C, H, W), w (O, C/groups, kh, kw) -> (N, O, H', W').
    conv2d_input_grad: g (N, O, H', W'), w (O, C/groups, kh, kw) -> (N, C, H, W).
    conv2d_weight_grad: x (N, C, H, W), g (N, O, H', W') -> (O, C/groups, kh, kw).
    """

    a_shape: Shape
    a_strides: Shape
    b_shape: Shape
    b_strides: Shape
    out_shape: Shape
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def operand_views(self) -> tuple[tuple[Shape, Shape], ...]:
        """(shape, strides) of both operands."""
        return (self.a_shape, self.a_strides), (self.b_shape, self.b_strides)

    def flops(self, kind: str) -> int:
        """Multiplications and additions."""
        if kind == "matmul":
            return 2 * int(np.prod(self.out_shape, dtype=object)) * self.a_shape[-1]
        weight = {"conv2d": self.b_shape, "conv2d_input_grad": self.b_shape, "conv2d_weight_grad": self.out_shape}[kind]
        image = {"conv2d": self.out_shape, "conv2d_input_grad": self.a_shape, "conv2d_weight_grad": self.b_shape}[kind]
        return 2 * int(np.prod(weight, dtype=object)) * image[0] * image[2] * image[3]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """`Contract.spec` of attention and its gradient: views of the operands, all with the full batch (stride 0 where repeated).

    attention: q (batch..., L, E), k (batch..., S, E), v (batch..., S, Ev); outputs (batch..., L, Ev) and (batch..., L).
    attention_grad: q, k, v, g (batch..., L, Ev), lse and delta (batch..., L); outputs for q, k and v. The last operand of the `_masked`
    kinds is the mask (batch..., L, S). Outputs that nobody needs are left out of the launch; those of a `turned` one have their rows before the
    last batch dim. `joint`: elements from one row of a turned output to the next where all of them are parts of the rows of one value, else 0.
    """

    views: tuple[tuple[Shape, Shape], ...]
    batch: Shape
    scale: float
    causal: bool
    turned: bool = False
    joint: int = 0

    def operand_views(self) -> tuple[tuple[Shape, Shape], ...]:
        """(shape, strides) of every operand."""
        return self.views

    def flops(self, kind: str) -> int:
        """Multiplications and additions of the matrix products."""
        q, v = self.views[0][0], self.views[2][0]
        products = 3 * q[-1] + 2 * v[-1] if "grad" in kind else q[-1] + v[-1]
        return 2 * int(np.prod(self.batch, dtype=object)) * q[-2] * v[-2] * products // (1 + self.causal)


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """`Contract.spec` of `lstm` and `lstm_grad`: views of their operands, all but the weight with contiguous units; outputs are dense.

    lstm: x (L, N, 4 H), h and c (N, H), weight (4 H, H); outputs (L, N, H) twice and (L, N, 4 H). lstm_grad: weight, gates (L, N, 4 H),
    cells (L, N, H), c (N, H), gradients (L, N, H) and (N, H); outputs (L, N, 4 H) and (N, H) twice. `sizes`: L, N, H.
    """

    views: tuple[tuple[Shape, Shape], ...]
    sizes: tuple[int, int, int]

    def operand_views(self) -> tuple[tuple[Shape, Shape], ...]:
        """(shape, strides) of every operand."""
        return self.views

    def flops(self, kind: str) -> int:
        """Multiplications and additions of the matrix products."""
        steps, rows, units = self.sizes
        return 8 * steps * rows * units * units


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """`Contract.spec` of `cumsum` and `cumprod`: the view of the operand and the dim; the output is dense."""

    view: tuple[Shape, Shape]
    dim: int

    def operand_views(self) -> tuple[tuple[Shape, Shape], ...]:
        """(shape, strides) of the operand."""
        return (self.view,)

    def flops(self, kind: str) -> int:
        """A step waits for the one before it, as long as so many multiplications and additions take."""
        return 320 * int(np.prod(self.view[0], dtype=object))


Spec = ContractSpec | AttentionSpec | RecurrentSpec | ScanSpec


def put(result: Any, out: Any, start: int, spec: Spec) -> None:
    """Write what `reference` returned into the flat array `out` from element `start` on."""
    dense = result.reshape(-1).astype(out.dtype)
    if not isinstance(spec, AttentionSpec) or not spec.joint:
        out[start : start + dense.size] = dense
        return
    rows = dense.reshape(-1, prod(result.shape[-2:]))
    out.reshape(-1, spec.joint)[:, start : start + rows.shape[1]] = rows


def reference(kind: str, spec: Spec, arrays: Sequence[Any], part: int = 0) -> Any:
    """Output number `part` of a contraction by the NumPy definition of its primitive."""
    if isinstance(spec, AttentionSpec):
        record = opdef.get(kind)
        assert record.ref is not None
        return record.ref(*arrays, record.parts[part], spec.scale, spec.causal, spec.turned)
    if isinstance(spec, RecurrentSpec):
        record = opdef.get(kind)
        assert record.ref is not None
        return record.ref(*arrays, record.parts[part])
    if isinstance(spec, ScanSpec):
        ref = opdef.get(kind).ref
        assert ref is not None
        return ref(*arrays, spec.dim)
    a, b = arrays
    if kind == "matmul":
        return np.matmul(widen(a), widen(b))
    window = (spec.stride, spec.padding, spec.dilation, spec.groups)
    extent = () if kind == "conv2d" else (spec.out_shape[2:],)
    ref = opdef.get(kind).ref
    assert ref is not None
    return ref(a, b, *extent, *window)
