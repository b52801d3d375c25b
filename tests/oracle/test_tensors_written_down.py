"""Tensors of nested lists: the dtype of numbers of several kinds, large numbers, and segments of them."""

from __future__ import annotations

import enum
import itertools
import math
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")

ELEMENTS = [
    lambda T: True, lambda T: 2, lambda T: 2.5, lambda T: 2.5j, lambda T: np.int16(3), lambda T: np.float16(3), lambda T: np.float32(3),
    lambda T: np.float64(3), lambda T: np.complex64(3), lambda T: T.tensor(4), lambda T: T.tensor(4.0), lambda T: T.tensor(4.0, dtype=T.float64),
    lambda T: T.tensor(4.0, dtype=T.float16), lambda T: T.tensor(True), lambda T: T.tensor(4.0, dtype=T.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize("pair", list(itertools.product(range(len(ELEMENTS)), repeat=2)))
@pytest.mark.parametrize("nested", [False, True])
def test_dtype_of_several_kinds(pair: tuple[int, int], nested: bool) -> None:
    found = []
    for T in (calque, torch):
        row = [ELEMENTS[k](T) for k in pair]
        x = T.tensor([row, row] if nested else row)
        found.append((str(x.dtype), x.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "row",
    [
        [1, math.inf], [1, -math.inf, math.nan], [1, 1e20], [-1, -1e300], [1, 2**63, 0.5], [1, 2**64, 0.5], [True, 2**70, 1.0], [0, 2**64, 1j],
        [2**63], [-1, 2**63], [2**64], [-(2**64)], [-(2**63)], [2**63 - 1],
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [None, "float32", "float64", "int64", "complex64"])
def test_large_numbers(row: list[Any], dtype: str | None) -> None:
    found = []
    for T in (calque, torch):
        try:
            x = T.tensor(row, dtype=getattr(T, dtype) if dtype else None)
            found.append(repr((str(x.dtype), x.tolist())))
        except (ValueError, RuntimeError, TypeError, OverflowError):
            found.append("an error")
    assert found[0] == found[1]


def test_large_unsigned_numbers() -> None:
    for row in ([2**64 - 1, 3], [2**63, 0], [2**64], [-1, 2**63]):
        try:
            expected = torch.tensor(row, dtype=torch.uint64).tolist()
        except (ValueError, RuntimeError, TypeError, OverflowError):
            with pytest.raises(ValueError, match="64 bits"):
                calque.tensor(row, dtype=calque.uint64)
            continue
        assert calque.tensor(row, dtype=calque.uint64).tolist() == expected


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 3.0])
@pytest.mark.parametrize("lengths", [[1, 2, 3, 0], [0, 0], [6]])
@pytest.mark.parametrize("width", [(), (2,)])
def test_segments(reduce: str, initial: float | None, lengths: list[int], width: tuple[int, ...]) -> None:
    found = []
    for T in (calque, torch):
        data = T.tensor([1.0, math.nan, 3.0, 4.0, 5.0, 5.0])[: sum(lengths)].reshape(-1, *(1 for _ in width)).expand(-1, *width).clone()
        data.requires_grad_(True)
        out = T.segment_reduce(data, reduce, lengths=T.tensor(lengths), initial=initial)
        out.sum().backward()
        found.append(repr((out.tolist(), data.grad.tolist())))
    assert found[0] == found[1]


class Price(float):
    pass


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@pytest.mark.parametrize("values", [
    [Price(0.1), 2.0], [Price(0.1), 2], [Price(3.0)], Price(0.1), [Level.LOW, Level.HIGH], [Level.LOW, 0.5], [[Level.HIGH], [True]],
], ids=str)  # fmt: skip
def test_numbers_of_classes_of_the_users(values: Any) -> None:
    one, other = torch.tensor(values), calque.tensor(values)
    assert str(one.dtype) == repr(other.dtype) and one.tolist() == other.tolist()
