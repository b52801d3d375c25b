"""Numbers beside 16-bit floats: products and quotients take them as float32 numbers, other operations round them first, bit for bit as PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")

CASES: dict[str, Callable[..., Any]] = {
    "mul": lambda T, x, y, s: x * s, "rmul": lambda T, x, y, s: s * x, "mul_": lambda T, x, y, s: x.clone().mul_(s),
    "div": lambda T, x, y, s: x / s, "rdiv": lambda T, x, y, s: s / x, "floor_divide": lambda T, x, y, s: x // s,
    "add": lambda T, x, y, s: x + s, "sub": lambda T, x, y, s: x - s, "rsub": lambda T, x, y, s: s - x, "remainder": lambda T, x, y, s: x % s,
    "fmod": lambda T, x, y, s: T.fmod(x, s), "eq": lambda T, x, y, s: T.full_like(x, s) == s, "lt": lambda T, x, y, s: x < s,
    "clamp": lambda T, x, y, s: T.clamp(x, min=s), "where": lambda T, x, y, s: T.where(x > y, x, s), "fill": lambda T, x, y, s: x.clone().fill_(s),
    "masked_fill": lambda T, x, y, s: x.masked_fill(x > 0, s), "several": lambda T, x, y, s: (x * s + y) * s - s,
    "a tensor of one": lambda T, x, y, s: x * T.tensor(s), "a tensor of one first": lambda T, x, y, s: T.tensor(s) * x,
    "by a tensor of one": lambda T, x, y, s: x / T.tensor(s), "a short tensor of one": lambda T, x, y, s: x * T.tensor(s, dtype=x.dtype),
    "lists": lambda T, x, y, s: T._foreach_mul([x], s)[0], "leaky_relu": lambda T, x, y, s: T.nn.functional.leaky_relu(x, s),
    "hardshrink": lambda T, x, y, s: T.nn.functional.hardshrink(x, abs(s)),
    "rad2deg": lambda T, x, y, s: T.rad2deg(x), "deg2rad": lambda T, x, y, s: T.deg2rad(x), "log10": lambda T, x, y, s: T.log10(x.abs()),
    "round": lambda T, x, y, s: T.round(x, decimals=2), "round tens": lambda T, x, y, s: T.round(x * 20, decimals=-1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("count", [60, 30000])
def test_bits(name: str, kind: str, count: int, rng: np.random.Generator) -> None:
    """Few elements are computed at once, many by a compiled kernel."""
    x, y = (torch.tensor(rng.normal(size=count) * 3).to(getattr(torch, kind)) for _ in range(2))
    mine = [calque.tensor(v.float().numpy()).to(getattr(calque, kind)) for v in (x, y)]
    for number in (0.1, 3.3, -0.7, 1e-3, 2.0, 7):
        theirs, ours = CASES[name](torch, x, y, number), CASES[name](calque, *mine, number)
        assert str(ours.dtype) == str(theirs.dtype)
        assert np.array_equal(ours.float().numpy(), theirs.float().numpy(), equal_nan=True), number


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["erfc", "hypot", "lerp"])
def test_rounded_once(name: str, kind: str, rng: np.random.Generator) -> None:
    """As near to the function in float64 as PyTorch's: half a unit in the last place, and what float32 adds."""
    half = 2.0**-9 if kind == "bfloat16" else 2.0**-12
    x, y = (calque.tensor(rng.uniform(0.1, 2.5, 3000)).to(getattr(calque, kind)) for _ in range(2))
    calls = {"erfc": lambda x, y: calque.erfc(x), "hypot": calque.hypot, "lerp": lambda x, y: calque.lerp(x, y, 0.3)}
    found, exact = calls[name](x, y).double().numpy(), calls[name](x.double(), y.double()).numpy()
    assert (np.abs(found - exact) / np.abs(exact)).max() < 2.01 * half


SPECIAL = [complex(a, b) for a in (0.0, -0.0, 1.0, np.inf, -np.inf, -2.0) for b in (0.0, -0.0, 1.0, np.inf, -np.inf, -2.0)]


def test_logarithms_of_complex_infinities() -> None:
    found, expected = calque.log10(calque.tensor(SPECIAL)).numpy(), torch.log10(torch.tensor(SPECIAL)).numpy()
    for part in ("real", "imag"):
        assert np.allclose(getattr(found, part), getattr(expected, part), rtol=1e-6, equal_nan=True)


def test_angles_of_real_numbers() -> None:
    numbers = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan")]
    for kind in ("float32", "float64", "float16"):
        found, expected = (T.angle(T.tensor(numbers, dtype=getattr(T, kind))).float().numpy() for T in (calque, torch))
        assert np.array_equal(found, expected, equal_nan=True) and (np.signbit(found) == np.signbit(expected)).all()
