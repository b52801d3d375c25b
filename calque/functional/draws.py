"""Random numbers of distributions that few programs draw from: Cauchy, geometric, log-normal, Poisson, binomial."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, UnsupportedTypeError
from calque.functional.common import cast, linked, prim
from calque.functional.elementary import exp, log1p, tan
from calque.functional.generators import Generator
from calque.functional.placing import beside_input, host_values
from calque.functional.random import _floating, _host_bits, _in_place, gaussian, uniform
from calque.functional.views import broadcast_tensors
from calque.tensor import Tensor, read

Shape = tuple[int, ...]


def _cauchy(shape: Shape, dtype: dt.DType, generator: Any, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    """Cauchy numbers around `median` of width `sigma`, written into the tensor."""
    if sigma <= 0:
        raise ArgumentError(f"[cauchy_] cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    draw = uniform(shape, _floating("cauchy_", None, dtype), generator)
    return tan((draw - 0.5) * math.pi) * float(sigma) + float(median)


def _geometric(shape: Shape, dtype: dt.DType, generator: Any, p: float) -> Tensor:
    """Numbers of trials up to the first success, each with probability p, written into the tensor."""
    if not 0 < p < 1:
        raise ArgumentError(f"[geometric_] geometric_ expects p to be in (0, 1), but got p={p}")
    if dtype.category in (0, 3):
        raise UnsupportedTypeError(f"[geometric_] expected real numbers, got {dtype!r}: not implemented for it; draw into another dtype")
    draw = uniform(shape, dt.float64 if dtype is dt.float64 else dt.float32, generator)
    count = prim("ceil", log1p(-draw) / math.log1p(-p)).clamp(min=1.0)  # type: ignore[attr-defined]
    return cast(count, dtype)


def _log_normal(shape: Shape, dtype: dt.DType, generator: Any, mean: float = 1.0, std: float = 2.0) -> Tensor:
    """Numbers whose logarithms are normal with `mean` and `std`, written into the tensor."""
    if std <= 0:
        raise ArgumentError(f"[log_normal_] log_normal_ expects std > 0.0, but found std={std}")
    return exp(gaussian(shape, _floating("log_normal_", None, dtype), generator) * float(std) + float(mean))


for _name, _draw in (("cauchy_", _cauchy), ("geometric_", _geometric), ("log_normal_", _log_normal)):
    _in_place(_name, _draw)


def _numpy(generator: Generator | None) -> np.random.Generator:
    """NumPy's generator, seeded by ours: equal seeds give equal draws."""
    return np.random.Generator(np.random.Philox(key=_host_bits(2, generator).astype(np.uint64)))


@beside_input
def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Poisson numbers of the rates in `input`: (*) -> (*). Reads the rates; the gradient is zero.

    >>> import calque
    >>> calque.poisson(calque.zeros(3))
    tensor([0., 0., 0.])
    """
    kind = _floating("poisson", None, input._layout.dtype)

    def values() -> np.ndarray[Any, Any]:
        rates = read(input, "poisson").astype(np.float64)
        if (rates < 0).any():
            raise ArgumentError(f"[poisson] invalid Poisson rate, expected rate to be non-negative, got {rates.min()}")
        return np.asarray(_numpy(generator).poisson(rates)).astype(kind.np)

    return linked(host_values(tuple(input._layout.shape), kind, values, random=True), input)


@beside_input
def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of successes in `count` trials with probability `prob`, broadcast: (*), (*) -> (*). Reads both; the gradient is zero.

    >>> import calque
    >>> calque.binomial(calque.tensor([3.0, 4.0]), calque.ones(2))
    tensor([3., 4.])
    """
    kind = _floating("binomial", None, count._layout.dtype)
    trials, chances = broadcast_tensors(count, cast(prob, kind))

    def values() -> np.ndarray[Any, Any]:
        n, p = read(trials, "binomial").astype(np.int64), read(chances, "binomial").astype(np.float64)
        if (n < 0).any() or (p < 0).any() or (p > 1).any():
            raise ArgumentError("[binomial] expected counts >= 0 and probabilities in [0, 1], got others")
        return np.asarray(_numpy(generator).binomial(n, p)).astype(kind.np)

    return linked(host_values(tuple(trials._layout.shape), kind, values, random=True), count, prob)
