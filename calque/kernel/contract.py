"""Backend-neutral parameters of contractions: strided operands, a dense row-major output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calque.base.shapes import Shape
from calque.ops import opdef

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

    def operand_views(self) -> tuple[tuple[Shape, Shape], tuple[Shape, Shape]]:
        """(shape, strides) of both operands."""
        return (self.a_shape, self.a_strides), (self.b_shape, self.b_strides)

    def flops(self, kind: str) -> int:
        """Multiplications and additions."""
        if kind == "matmul":
            return 2 * int(np.prod(self.out_shape, dtype=object)) * self.a_shape[-1]
        weight = {"conv2d": self.b_shape, "conv2d_input_grad": self.b_shape, "conv2d_weight_grad": self.out_shape}[kind]
        image = {"conv2d": self.out_shape, "conv2d_input_grad": self.a_shape, "conv2d_weight_grad": self.b_shape}[kind]
        return 2 * int(np.prod(weight, dtype=object)) * image[0] * image[2] * image[3]


def reference(kind: str, spec: ContractSpec, a: Any, b: Any) -> Any:
    """The contraction by the NumPy definition of its primitive."""
    if kind == "matmul":
        return np.matmul(a, b)
    window = (spec.stride, spec.padding, spec.dilation, spec.groups)
    extent = () if kind == "conv2d" else (spec.out_shape[2:],)
    ref = opdef.get(kind).ref
    assert ref is not None
    return ref(a, b, *extent, *window)
