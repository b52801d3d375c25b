"""The text of every error that a record raises: what was expected, what came, how to fix it."""

from __future__ import annotations

from typing import Any

import pytest

from calque.base.dtypes import bool_, float32, float64, int32, int64
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.ops import get

ONE = (1, 1)
PLAIN = (ONE, (0, 0), ONE, 1)

SHAPES: list[tuple[str, tuple[Any, ...], tuple[Any, ...], str]] = [
    ("add", ((2, 3), (4,)), (), "shapes that broadcast, got (2, 3) and (4,)"),
    ("matmul", ((3,), (3, 4)), (), "two matrices (2-d or more), got shapes (3,) and (3, 4); add a dimension"),
    ("matmul", ((2, 3), (4, 5)), (), "inner sizes to agree, got (2, 3) @ (4, 5): 3 and 4 differ; transpose"),
    ("matmul", ((2, 1, 3), (5, 3, 4)), (), "shapes that broadcast, got (2,) and (5,)"),
    ("conv2d", ((3, 5, 5), (4, 3, 3, 3)), PLAIN, "a 4-d input (N, C, H, W), got shape (3, 5, 5); add dimensions"),
    ("conv2d", ((1, 3, 5, 5), (4, 2, 3, 3)), PLAIN, "an input with 2 channels (weight (4, 2, 3, 3), groups=1), got 3"),
    ("conv2d", ((1, 4, 5, 5), (3, 2, 3, 3)), (ONE, (0, 0), ONE, 2), "output channels divisible by groups, got 3"),
    ("conv2d", ((1, 3, 2, 5), (4, 3, 3, 3)), PLAIN, "a kernel no larger than the padded input, got kernel (3, 3)"),
    ("conv2d", ((1, 3, 5, 5), (4, 3, 3, 3)), ((0, 1), (0, 0), ONE, 1), "stride as a pair of ints >= 1, got (0, 1)"),
    ("conv2d", ((1, 3, 5, 5), (4, 3, 3, 3)), (ONE, (0, 0), ONE, 0), "groups >= 1, got 0; groups divides"),
    ("conv2d_input_grad", ((1, 3, 3, 3), (4, 3, 3, 3)), ((5, 5), *PLAIN), "4 channels divisible by groups=1"),
    ("conv2d_input_grad", ((1, 4, 2, 2), (4, 3, 3, 3)), ((5, 5), *PLAIN), "spatial sizes (3, 3) for an input"),
    ("conv2d_weight_grad", ((1, 3, 5, 5), (2, 4, 3, 3)), ((3, 3), *PLAIN), "equal batches and channels"),
    ("conv2d_weight_grad", ((1, 3, 5, 5), (1, 4, 2, 3)), ((3, 3), *PLAIN), "spatial sizes (3, 3)"),
    ("sum", ((2, 3),), ((1, 0), False), "sorted distinct dims of a 2-d tensor, got (1, 0); use 0..1"),
    ("amax", ((2, 0),), ((1,), False), "a non-empty reduction, got shape (2, 0) over dims (1,); it has no identity"),
    ("view", ((2, 3),), ((7,), (1,), 0), "a view inside the 6 elements of shape (2, 3), got shape (7,)"),
    ("view", ((2, 3),), ((7,), (1, 2), 0), "one stride per size and sizes >= 0, got shape (7,) and strides (1, 2)"),
    ("view_at", ((2, 3), (1,)), ((3,), (1,)), "a 0-d offset, got shape (1,); use one offset per view"),
    ("update", ((2, 3), (2,)), ((3,), (1,), 0), "a value of shape (3,), got (2,); expand or reshape it first"),
    ("update", ((2, 3), (3,)), ((3,), (0,), 0), "a view whose elements are distinct, got shape (3,) with strides (0,)"),
    ("cat", (), (0,), "at least one tensor, got none; pass a non-empty list"),
    ("cat", ((), ()), (0,), "a dim of 0-d tensors, got 0; 0-d tensors need stack()"),
    ("cat", ((2, 3), (2, 4)), (0,), "equal sizes except in dim 0, got (2, 3) and (2, 4) (tensor 1)"),
    ("full", ((2,),), ((3,),), "a 0-d fill value, got shape (2,); use expand() to repeat a tensor"),
    ("full", ((),), ((-3,),), "sizes >= 0, got shape (-3,); sizes cannot be negative"),
    ("index_select", ((2, 3), (4,)), (2,), "a dim of a 2-d tensor, got 2; use 0..1"),
    ("index_select", ((0, 3), (4,)), (0,), "elements in dim 0, got shape (0, 3); nothing can be indexed there"),
    ("gather", ((2, 3), (4,)), (0,), "an index with 2 dims like the tensor (2, 3), got shape (4,); add dims"),
    ("gather", ((2, 3), (2, 4)), (0,), "an index no larger than (2, 3) outside dim 0, got (2, 4): 4 > 3 in dim 1"),
    ("index_add", ((2, 3), (4,), (4, 2)), (0,), "a source of shape (4, 3), got (4, 2); expand it first"),
    ("scatter", ((2, 3), (2, 3), (2, 4)), (0,), "a source of the index's shape (2, 3), got (2, 4); narrow or expand"),
    ("argsort", ((2, 3),), (2, False), "a dim of a 2-d tensor, got 2; use 0..1"),
]  # fmt: skip

DTYPES: list[tuple[str, tuple[Any, ...], tuple[Any, ...], type[Exception], str]] = [
    ("add", (float32, int64), (), DTypeError, "operands of one dtype, got torch.float32 and torch.int64; convert one"),
    ("exp", (int64,), (), DTypeError, "a floating dtype, got torch.int64; convert with .float() or .double()"),
    ("sub", (bool_, bool_), (), DTypeError, "a number dtype, got torch.bool; use ~x, logical_not(), bitwise_xor()"),
    ("bitwise_and", (float32, float32), (), DTypeError, "an integer dtype, got torch.float32; convert"),
    ("shift_left", (bool_, bool_), (), DTypeError, "an integer dtype, got torch.bool; convert with .long()"),
    ("any", (float32,), ((0,), False), DTypeError, "torch.bool, got torch.float32; compare with 0 first"),
    ("where", (int64, float32, float32), (), DTypeError, "a condition of dtype torch.bool, got torch.int64; compare"),
    ("gather", (float32, int32), (0,), DTypeError, "an index of dtype torch.int64, got torch.int32; convert it with"),
    ("scatter", (float32, int64, float64), (0,), DTypeError, "operands of one dtype, got torch.float32 and"),
    ("view_at", (float32, int32), ((), ()), DTypeError, "an offset of dtype torch.int64, got torch.int32; convert"),
    ("random_bits", (int64, int32), ((2,),), DTypeError, "seed and offset of dtype torch.int64, got torch.int64"),
    ("polygamma", (float32,), (0,), ArgumentError, "an order n >= 1, got 0; use digamma() for order 0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "attrs", "message"), SHAPES)
def test_shape_rules(name: str, shapes: tuple[Any, ...], attrs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        get(name).shape(shapes, attrs)
    assert str(caught.value).startswith(f"[{name}] expected {message}")


@pytest.mark.parametrize(("name", "dtypes", "attrs", "kind", "message"), DTYPES)
def test_dtype_rules(name: str, dtypes: tuple[Any, ...], attrs: tuple[Any, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        get(name).dtype(dtypes, attrs)
    assert str(caught.value).startswith(f"[{name}] expected {message}")
