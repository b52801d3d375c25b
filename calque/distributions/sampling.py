"""Samples that NumPy draws on the host, from the stream of the default generator, and the derivative of gamma samples.

Loops that reject and try again have no fixed program, so these read their parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque import functional as T
from calque.autograd.function import Function
from calque.autograd.superinstruction import superinstruction
from calque.base.dtypes import DType
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.placing import beside_input, host_values
from calque.record.recorder import local
from calque.tensor import Tensor, read

Array = np.ndarray[Any, Any]
_ASYMPTOTIC = 1e4  # above this concentration Wilson and Hilferty's cube root is exact to six digits


_idle: list[np.random.Generator] = []  # generators that nobody draws from: to make one takes five times as long as to set where it stands
_NONE = np.zeros(4, np.uint64)


def _drawn(count: int, draw: Callable[[np.random.Generator], Array]) -> Array:
    """What is drawn from NumPy's numbers for the next range of the default generator."""
    seed, offset = T.default_generator.take(max(count, 1))
    key = np.array([seed & ((1 << 64) - 1), offset], np.uint64)
    try:
        stream = _idle.pop()
    except IndexError:
        stream = np.random.Generator(np.random.Philox())
    start = {"counter": _NONE, "key": key}
    stream.bit_generator.state = {"bit_generator": "Philox", "state": start, "buffer": _NONE, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
    try:
        return np.asarray(draw(stream))
    finally:
        _idle.append(stream)


@beside_input
def _on_host(input: Tensor, op: str, dtype: DType, values: Callable[[Array], Array], random: bool = True) -> Tensor:
    shape = tuple(input.shape)

    def drawn() -> Array:
        given = read(input.detach(), op).astype(np.float64)
        try:
            return values(given).astype(np.float64).reshape(shape)
        except ValueError as error:  # only parameters that nobody has validated come so far
            raise ArgumentError(f"[{op}] expected parameters of the distribution, got {shown(given)}: {error}; use validate_args=True") from None

    return host_values(shape, dtype, drawn, random)


def poisson(rate: Tensor) -> Tensor:
    """Poisson counts of these rates, in their dtype."""
    return _on_host(rate, "poisson", rate.dtype, lambda r: _drawn(r.size, lambda stream: stream.poisson(r)))


def binomial(count: Tensor, prob: Tensor) -> Tensor:
    """Successes among `count` tries (one shape with `prob`), in the dtype of `prob`."""

    def draw(p: Array) -> Array:
        tries = read(count.detach(), "binomial").astype(np.int64)
        return _drawn(p.size, lambda stream: stream.binomial(tries, p))

    return _on_host(prob, "binomial", prob.dtype, draw)


def von_mises(loc: Tensor, concentration: Tensor) -> Tensor:
    """Angles in [-pi, pi) around `loc`."""

    def draw(k: Array) -> Array:
        around = read(loc.detach(), "von_mises").astype(np.float64)
        return _drawn(k.size, lambda stream: stream.vonmises(around, k))

    return _on_host(concentration, "von_mises", loc.dtype, draw)


def _log_gamma_draw(a: Array) -> Array:
    """The logarithm of gamma samples; those of small concentrations would underflow themselves."""
    small = a < 1
    if not small.any():
        return np.log(_drawn(a.size, lambda stream: stream.standard_gamma(a)))

    def draw(stream: np.random.Generator) -> Array:
        draws = np.log(stream.standard_gamma(np.where(small, a + 1, a)))
        return np.asarray(draws + np.where(small, np.log1p(-stream.random(a.shape)) / np.where(small, a, 1.0), 0.0))

    return _drawn(a.size, draw)


def _log_gammas(concentration: Tensor) -> Tensor:
    return _on_host(concentration, "standard_gamma", concentration.dtype, _log_gamma_draw)


def _digamma(x: Array) -> Array:
    """The derivative of lgamma for x > 0: up to 10 by its recurrence, then its asymptotic series."""
    total = np.zeros_like(x)
    y = x.astype(np.float64)
    for _ in range(10):
        low = y < 10
        total -= np.where(low, 1 / y, 0.0)
        y = np.where(low, y + 1, y)
    square = 1 / (y * y)
    tail = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return np.asarray(total + np.log(y) - 0.5 / y - tail)


def _slope_by_series(a: Array, log_x: Array) -> Array:
    """d log x / da where P(a, x) stays what it is, from the power series of the incomplete gamma function P (DLMF 8.7.1) and its derivative."""
    x = np.exp(log_x)
    term, harmonic = np.ones_like(x), np.zeros_like(x)
    total, weighted = np.ones_like(x), np.zeros_like(x)
    n = 0
    while n < 100_000:
        n += 1
        term = term * (x / (a + n))
        harmonic = harmonic + 1 / (a + n)
        total, weighted = total + term, weighted + term * harmonic
        if not np.any(term * harmonic > 1e-17 * (weighted + 1e-300)):
            break
    return np.asarray((weighted - (log_x - _digamma(a + 1)) * total) / a)


def _slope_by_cube_root(a: Array, log_x: Array) -> Array:
    """The same for large a, from (x / a)**(1/3) being nearly normal (Wilson & Hilferty 1931)."""
    root = np.exp((log_x - np.log(a)) / 3)
    z = (root - (1 - 1 / (9 * a))) * 3 * np.sqrt(a)
    slope = root**3 + 3 * a * root**2 * (1 / (9 * a * a) - z / (6 * a**1.5))
    return np.asarray(slope / np.exp(log_x))


def log_gamma_slope(a: Array, log_x: Array) -> Array:
    """How the logarithm of a gamma sample changes with the concentration, at the same quantile (Figurnov et al. 2018)."""
    found = np.empty_like(a)
    large = a > _ASYMPTOTIC
    with np.errstate(all="ignore"):
        if large.any():
            found[large] = _slope_by_cube_root(a[large], log_x[large])
        if not large.all():
            found[~large] = _slope_by_series(a[~large], log_x[~large])
    return found


class _LogStandardGamma(Function):
    """Logarithms of gamma samples of rate 1."""

    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        drawn = _log_gammas(concentration)
        ctx.save_for_backward(concentration, drawn)
        return drawn

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override, unused-ignore]
        concentration, drawn = ctx.saved_tensors
        logs = read(drawn.detach(), "standard_gamma").astype(np.float64)
        return gradient * _on_host(concentration, "standard_gamma", concentration.dtype, lambda a: log_gamma_slope(a, logs), False)


def log_standard_gamma(concentration: Tensor) -> Tensor:
    """Logarithms of gamma samples of rate 1, differentiable."""
    if not concentration.requires_grad and local.state.trace.eager:  # no transform looks at how it is made
        return _log_gammas(concentration)
    return _LogStandardGamma.apply(concentration)  # type: ignore[no-any-return]


@superinstruction
def kept_between(drawn: Tensor, low: float, high: float | None = None) -> Tensor:
    """Samples, those that rounding took out of the support at its edge, with the gradients of what was drawn."""
    plain = drawn.detach()  # type: ignore[attr-defined]
    found = T.where(plain < low, low + (drawn - plain), drawn)
    return found if high is None else T.where(plain > high, high + (drawn - plain), found)
