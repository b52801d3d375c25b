"""The table of divergences of distributions of different kinds."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.distributions.bernoulli import Bernoulli
from calque.distributions.beta import Beta
from calque.distributions.binomial import Binomial
from calque.distributions.continuous_bernoulli import ContinuousBernoulli
from calque.distributions.divergences import infinite_where
from calque.distributions.exponential import Exponential
from calque.distributions.gamma import Gamma
from calque.distributions.gumbel import Gumbel
from calque.distributions.kl import register_kl
from calque.distributions.laplace import Laplace
from calque.distributions.normal import Normal
from calque.distributions.pareto import Pareto
from calque.distributions.poisson import Poisson
from calque.distributions.uniform import Uniform
from calque.distributions.utils import euler_constant
from calque.tensor import Tensor

_TAU = 2 * math.pi


def _infinite(p: Any, q: Any) -> Tensor:
    """p has values that q excludes, whatever their parameters are."""
    return T.full_like(p.mean, math.inf)


for _p, _excluding in (
    (Beta, (Pareto,)),
    (ContinuousBernoulli, (Pareto,)),
    (Exponential, (Beta, ContinuousBernoulli, Pareto, Uniform)),
    (Gamma, (Beta, ContinuousBernoulli, Pareto, Uniform)),
    (Gumbel, (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    (Laplace, (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    (Normal, (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    (Pareto, (Beta, ContinuousBernoulli, Uniform)),
    (Poisson, (Bernoulli, Binomial)),
):
    for _q in _excluding:
        register_kl(_p, _q)(_infinite)


def _gamma_norm(q: Any) -> Any:
    """The logarithm of the factor of a gamma density, negated."""
    return T.lgamma(q.concentration) - q.concentration * T.log(q.rate)


def _normal_norm(q: Any) -> Any:
    return 0.5 * math.log(_TAU) + T.log(q.scale)


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Any, q: Any) -> Any:
    return -p.entropy() - (p.probs * T.log(q.rate) - q.rate)


@register_kl(Beta, ContinuousBernoulli)
def _beta_continuous_bernoulli(p: Any, q: Any) -> Any:
    return -p.entropy() - p.mean * q.logits - T.log1p(-q.probs) - q._cont_bern_log_norm()


@register_kl(Beta, Exponential)
@register_kl(ContinuousBernoulli, Exponential)
@register_kl(Gamma, Exponential)
def _mean_exponential(p: Any, q: Any) -> Any:
    return -p.entropy() - T.log(q.rate) + q.rate * p.mean


@register_kl(Beta, Gamma)
def _beta_gamma(p: Any, q: Any) -> Any:
    mean_log = T.digamma(p.concentration1) - T.digamma(p.concentration1 + p.concentration0)
    return -p.entropy() + _gamma_norm(q) - (q.concentration - 1) * mean_log + q.rate * p.mean


@register_kl(Beta, Normal)
@register_kl(ContinuousBernoulli, Normal)
@register_kl(Exponential, Normal)
@register_kl(Gamma, Normal)
@register_kl(Gumbel, Normal)
@register_kl(Laplace, Normal)
@register_kl(Uniform, Normal)
def _moments_normal(p: Any, q: Any) -> Any:
    """-entropy(p) plus the mean of -log q, which only asks for mean and variance of p."""
    return -p.entropy() + _normal_norm(q) + (p.variance + T.square(p.mean - q.loc)) / (2 * T.square(q.scale))


@register_kl(Beta, Uniform)
def _beta_uniform(p: Any, q: Any) -> Any:
    return infinite_where((q.low > 0) | (q.high < 1), -p.entropy() + T.log(q.high - q.low))


@register_kl(ContinuousBernoulli, Uniform)
def _continuous_bernoulli_uniform(p: Any, q: Any) -> Any:
    return infinite_where((q.low >= 0) | (q.high <= 1), -p.entropy() + T.log(q.high - q.low))  # infinite at the bounds too, as PyTorch's


@register_kl(Exponential, Gamma)
def _exponential_gamma(p: Any, q: Any) -> Any:
    ratio = q.rate / p.rate
    return ratio - q.concentration * T.log(ratio) + T.lgamma(q.concentration) + q.concentration * euler_constant - (1 + euler_constant)


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p: Any, q: Any) -> Any:
    product, place = p.rate * q.scale, q.loc / q.scale
    return T.log(product) - 1 - place + T.exp(place) * product / (product + 1) + T.reciprocal(product)


@register_kl(Gamma, Gumbel)
def _gamma_gumbel(p: Any, q: Any) -> Any:
    product, place, a = p.rate * q.scale, q.loc / q.scale, p.concentration
    own = (a - 1) * T.digamma(a) - T.lgamma(a) - a
    return own + T.log(product) + a / product + T.exp(place) * (1 + T.reciprocal(product)) ** (-a) - place


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Any, q: Any) -> Any:
    square, shift = T.square(p.scale / q.scale), (p.loc - q.loc) / q.scale
    return shift - 0.5 * T.log(square) + T.exp(0.5 * square - shift) - 0.5 * (1 + math.log(_TAU))


@register_kl(Normal, Laplace)
def _normal_laplace(p: Any, q: Any) -> Any:
    away = p.loc - q.loc
    z = away / p.scale
    mean = math.sqrt(2 / math.pi) * p.scale * T.exp(-0.5 * T.square(z)) + away * T.erf(math.sqrt(0.5) * z)
    return mean / q.scale - T.log(p.scale / q.scale) - 0.5 * (1 + math.log(0.5 * math.pi))


@register_kl(Pareto, Exponential)
def _pareto_exponential(p: Any, q: Any) -> Any:
    product = p.scale * q.rate
    found = T.log(p.alpha / product) - T.reciprocal(p.alpha) + p.alpha * product / (p.alpha - 1) - 1
    return infinite_where(p.alpha <= 1, found)


@register_kl(Pareto, Gamma)
def _pareto_gamma(p: Any, q: Any) -> Any:
    mean_log = T.log(p.scale) + T.reciprocal(p.alpha)
    found = T.log(p.alpha) - mean_log + _gamma_norm(q) + (1 - q.concentration) * mean_log
    return infinite_where(p.alpha <= 1, found + q.rate * p.alpha * p.scale / (p.alpha - 1) - 1)


@register_kl(Pareto, Normal)
def _pareto_normal(p: Any, q: Any) -> Any:
    part = p.scale / (p.alpha - 1)
    spread = p.alpha * T.square(part) / (p.alpha - 2) + T.square(p.alpha * part - q.loc)
    found = T.log(math.sqrt(_TAU) * q.scale * p.alpha / p.scale) - T.reciprocal(p.alpha) + spread / (2 * T.square(q.scale)) - 1
    return infinite_where(p.alpha <= 2, found)


def _mean_log(p: Any) -> Any:
    """The mean of log(x) over a uniform distribution of positive numbers."""
    return (T.xlogy(p.high, p.high) - T.xlogy(p.low, p.low)) / (p.high - p.low) - 1


@register_kl(Uniform, Beta)
def _uniform_beta(p: Any, q: Any) -> Any:
    width, a, b = p.high - p.low, q.concentration1, q.concentration0
    upper = (T.xlogy(1 - p.high, 1 - p.high) - T.xlogy(1 - p.low, 1 - p.low)) / width + 1
    norm = T.lgamma(a) + T.lgamma(b) - T.lgamma(a + b)
    return infinite_where((p.high > 1) | (p.low < 0), (b - 1) * upper + norm - T.log(width) - (a - 1) * _mean_log(p))


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_continuous_bernoulli(p: Any, q: Any) -> Any:
    found = -p.entropy() - p.mean * q.logits - T.log1p(-q.probs) - q._cont_bern_log_norm()
    return infinite_where((p.high >= 1) | (p.low <= 0), found)  # infinite at the bounds too, as PyTorch's


@register_kl(Uniform, Exponential)
def _uniform_exponential(p: Any, q: Any) -> Any:
    return infinite_where(p.low < 0, q.rate * p.mean - T.log((p.high - p.low) * q.rate))


@register_kl(Uniform, Gamma)
def _uniform_gamma(p: Any, q: Any) -> Any:
    found = _gamma_norm(q) - T.log(p.high - p.low) + (1 - q.concentration) * _mean_log(p) + q.rate * p.mean
    return infinite_where(p.low < 0, found)


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Any, q: Any) -> Any:
    ratio, high, low = q.scale / (p.high - p.low), (p.high - q.loc) / q.scale, (p.low - q.loc) / q.scale
    return T.log(ratio) + 0.5 * (high + low) - ratio * (T.exp(-high) - T.exp(-low))


@register_kl(Uniform, Pareto)
def _uniform_pareto(p: Any, q: Any) -> Any:
    found = _mean_log(p) * (q.alpha + 1) - T.log(q.alpha * q.scale**q.alpha * (p.high - p.low))
    return infinite_where(p.low < q.support.lower_bound, found)
