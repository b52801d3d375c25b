"""Strides of expanded tensors beside PyTorch's, dims of size 1 too."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

BASES = [
    lambda T: T.zeros(5), lambda T: T.zeros(1), lambda T: T.zeros(()), lambda T: T.zeros(3, 1), lambda T: T.zeros(1, 3),
    lambda T: T.zeros(4, 3)[:, :1],
    lambda T: T.zeros(2, 1, 3).transpose(0, 2), lambda T: T.zeros(0, 1),
]  # fmt: skip


def strides(T: Any, base: Any, target: tuple[int, ...]) -> Any:
    try:
        return base(T).expand(target).stride()
    except RuntimeError:
        return None


@pytest.mark.parametrize("k", range(len(BASES)))
def test_strides(k: int) -> None:
    for target in itertools.product((1, 2, 3, 5, -1), repeat=3):
        assert strides(calque, BASES[k], target) == strides(torch, BASES[k], target), target
