"""Lanes outside the mask of a tail take no part in a reduction, whatever they would compute: what is reduced is never 0 where the input is 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from tests.fuzz.check import mode

REDUCTIONS: dict[str, Callable[[Any, int], Any]] = {
    "sum": lambda x, dim: (x * 0 + 3).sum(dim),
    "prod": lambda x, dim: (x * 0 + 2).prod(dim),
    "max": lambda x, dim: (-(x * x)).amax(dim),
    "min": lambda x, dim: (x * x).amin(dim),
    "argmax": lambda x, dim: (-(x * x)).argmax(dim),
    "argmin": lambda x, dim: (x * x + 1).argmin(dim),
    "all": lambda x, dim: (x != 0).all(dim),
    "any": lambda x, dim: (x == 0).any(dim),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("dim", [0, 1])
def test_every_length_of_a_tail(dtype: str, dim: int) -> None:
    for length in (1, 2, 3, 5, 15, 17, 31, 33, 47):
        shape = (70, length) if dim else (length, 70)
        values = np.random.default_rng(length).integers(1, 7, shape)

        def run(values: Any = values) -> list[Any]:
            x = calque.tensor(values, dtype=getattr(calque, dtype))
            return [f(x, dim).tolist() for f in REDUCTIONS.values()]

        with mode("ref"):
            wanted = run()
        with mode("cpu"):
            found = run()
        for name, a, b in zip(REDUCTIONS, found, wanted, strict=True):
            assert a == b, f"{name} of {length} {dtype}"
