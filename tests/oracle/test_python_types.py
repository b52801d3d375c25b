"""Python's own types as dtypes: `dtype=float` is float64 and `complex` complex128, whatever the default dtype is."""

from __future__ import annotations

from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

MAKERS = [
    lambda T, t: T.zeros(2, dtype=t), lambda T, t: T.tensor([1], dtype=t), lambda T, t: T.ones(2).to(t),
    lambda T, t: T.empty(1).new_zeros(2, dtype=t), lambda T, t: T.zeros_like(T.ones(1), dtype=t), lambda T, t: T.ones(2).sum(dtype=t),
    lambda T, t: T.full((2,), 1, dtype=t), lambda T, t: T.ones(2, dtype=t) * 2,
]  # fmt: skip


@pytest.mark.parametrize("kind", [float, int, bool, complex])
@pytest.mark.parametrize("k", range(len(MAKERS)))
def test_python_types(kind: Any, k: int) -> None:
    assert str(MAKERS[k](calque, kind).dtype) == str(MAKERS[k](torch, kind).dtype)
