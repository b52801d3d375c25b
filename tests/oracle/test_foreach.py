"""Every `_foreach_` function of PyTorch: it exists here, and gives the same values from the same lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = pytest.mark.oracle

NAMES = [name for name in dir(torch) if name.startswith("_foreach_")]
SHAPES = ((2, 3), (4,), ())
MORE: dict[str, list[Any]] = {
    "addcdiv": [("L", "L"), ("L", "L", 2.0), ("L", "L", [1.0, 2.0, 3.0])], "addcmul": [("L", "L"), ("L", "L", 2.0), ("L", "L", [1.0, 2.0, 3.0])],
    "lerp": [("L", 0.25), ("L", "L")], "norm": [(), (1,), (float("inf"),)], "powsum": [(), (1,), (3,)], "mm": [("L",)], "copy_": [("L",)],
}  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_max", "clamp_min")


def calls(name: str) -> list[Any]:
    plain = name.removeprefix("_foreach_").rstrip("_")
    if plain in BINARY:
        return [("L",), (0.5,), ([0.5, 2.0, 3.0],)]
    return MORE.get(plain, MORE.get(f"{plain}_", [()]))


def tensors(T: Any, seed: int, square: bool) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [T.tensor(rng.uniform(0.1, 0.9, size=s)) for s in (((2, 2), (3, 3)) if square else SHAPES)]


@pytest.mark.parametrize("name", NAMES)
def test_same_values(name: str) -> None:
    for arguments in calls(name):
        results = []
        for T in (calque, torch):
            given = [tensors(T, k + 1, name == "_foreach_mm") if a == "L" else a for k, a in enumerate(arguments)]
            xs = tensors(T, 0, name == "_foreach_mm")
            out = getattr(T, name)(xs, *given)
            assert (out is xs) == name.endswith("_") or out is None
            results.append([*out, *xs])
        for a, b in zip(*results, strict=True):
            assert tuple(a.shape) == tuple(b.shape) and str(a.dtype) == str(b.dtype)
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12, atol=1e-12)
