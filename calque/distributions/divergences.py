"""The table of divergences of distributions of one kind, and of one normal vector from another. Loaded with `kl`'s package.

Formulas: M. Gil, "On Renyi divergence measures for continuous alphabet sources" (2011), and the definitions; those of exponential families are
Bregman divergences of their normalisers.
"""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.autograd.api import grad
from calque.autograd.modes import enable_grad
from calque.base.errors import ShapeError
from calque.base.shapes import broadcast_shapes
from calque.distributions.bernoulli import Bernoulli
from calque.distributions.beta import Beta
from calque.distributions.binomial import Binomial
from calque.distributions.categorical import Categorical
from calque.distributions.cauchy import Cauchy
from calque.distributions.continuous_bernoulli import ContinuousBernoulli
from calque.distributions.dirichlet import Dirichlet
from calque.distributions.distribution import ExponentialFamily
from calque.distributions.exponential import Exponential
from calque.distributions.gamma import Gamma
from calque.distributions.geometric import Geometric
from calque.distributions.gumbel import Gumbel
from calque.distributions.half_normal import HalfNormal
from calque.distributions.independent import Independent
from calque.distributions.kl import kl_divergence, register_kl
from calque.distributions.laplace import Laplace
from calque.distributions.lowrank_multivariate_normal import LowRankMultivariateNormal, lowrank_mahalanobis
from calque.distributions.multivariate_normal import MultivariateNormal, batch_mahalanobis
from calque.distributions.normal import Normal
from calque.distributions.one_hot_categorical import OneHotCategorical
from calque.distributions.pareto import Pareto
from calque.distributions.poisson import Poisson
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.uniform import Uniform
from calque.distributions.utils import euler_constant, solve_lower, sum_rightmost
from calque.nn import functional as F
from calque.tensor import Tensor


def infinite_where(condition: Any, value: Any) -> Any:
    """Infinity where q excludes what p allows."""
    return T.where(condition, math.inf, value)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Any, q: Any) -> Tensor:
    one = p.probs * (F.softplus(-q.logits) - F.softplus(-p.logits))
    one = T.where(p.probs == 0, 0.0, infinite_where(q.probs == 0, one))
    zero = (1 - p.probs) * (F.softplus(q.logits) - F.softplus(p.logits))
    return one + T.where(p.probs == 1, 0.0, infinite_where(q.probs == 1, zero))


@register_kl(Beta, Beta)
def _beta(p: Any, q: Any) -> Tensor:
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Any, q: Any) -> Tensor:
    a, b = p.concentration, q.concentration
    total = T.sum(a, -1)
    norms = T.lgamma(total) - T.lgamma(T.sum(b, -1)) - T.sum(T.lgamma(a) - T.lgamma(b), -1)
    return norms + T.sum((a - b) * (T.digamma(a) - T.unsqueeze(T.digamma(total), -1)), -1)


@register_kl(Binomial, Binomial)
def _binomial(p: Any, q: Any) -> Any:
    if bool(T.any(p.total_count < q.total_count)):
        raise NotImplementedError("[kl_divergence] KL between Binomials where q.total_count > p.total_count is not implemented")
    found = p.total_count * (p.probs * (p.logits - q.logits) + T.log1p(-p.probs) - T.log1p(-q.probs))
    return infinite_where(p.total_count > q.total_count, found)


@register_kl(Categorical, Categorical)
def _categorical(p: Any, q: Any) -> Tensor:
    terms = infinite_where(q.probs == 0, p.probs * (p.logits - q.logits))
    return T.sum(T.where(p.probs == 0, 0.0, terms), -1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: Any, q: Any) -> Tensor:
    return _categorical(p._categorical, q._categorical)


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p: Any, q: Any) -> Any:
    norms = p._cont_bern_log_norm() + T.log1p(-p.probs) - q._cont_bern_log_norm() - T.log1p(-q.probs)
    return p.mean * (p.logits - q.logits) + norms


@register_kl(Exponential, Exponential)
def _exponential(p: Any, q: Any) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - T.log(ratio) - 1


@register_kl(ExponentialFamily, ExponentialFamily)
def _exponential_family(p: Any, q: Any) -> Any:
    if type(p) is not type(q):
        raise NotImplementedError(
            f"[kl_divergence] The cross KL-divergence between different exponential families ({type(p).__name__}, {type(q).__name__}) cannot be "
            "computed using Bregman divergences"
        )
    with enable_grad():
        ours = [x.detach().requires_grad_() for x in p._natural_params]
        norm = p._log_normalizer(*ours)
        slopes: Any = grad(T.sum(norm), ours, create_graph=True)
    result = q._log_normalizer(*q._natural_params) - norm
    for x, y, slope in zip(ours, q._natural_params, slopes, strict=True):
        result = result - sum_rightmost((y - x) * slope, len(q.event_shape))
    return result


@register_kl(Gamma, Gamma)
def _gamma(p: Any, q: Any) -> Any:
    a, b = p.concentration, q.concentration
    found = b * T.log(p.rate / q.rate) + T.lgamma(b) - T.lgamma(a)
    return found + (a - b) * T.digamma(a) + (q.rate - p.rate) * (a / p.rate)


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Any, q: Any) -> Any:
    ratio, shift = p.scale / q.scale, (q.loc - p.loc) / q.scale
    return ratio * euler_constant - T.log(ratio) - shift + T.exp(shift + T.lgamma(1 + ratio)) - (1 + euler_constant)


@register_kl(Geometric, Geometric)
def _geometric(p: Any, q: Any) -> Any:
    return -p.entropy() - T.log1p(-q.probs) / p.probs - q.logits


@register_kl(Normal, Normal)
def _normal(p: Any, q: Any) -> Any:
    ratio = T.square(p.scale / q.scale)
    return 0.5 * (ratio + T.square((p.loc - q.loc) / q.scale) - 1 - T.log(ratio))


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: Any, q: Any) -> Any:
    return _normal(p.base_dist, q.base_dist)


@register_kl(Laplace, Laplace)
def _laplace(p: Any, q: Any) -> Any:
    ratio, away = p.scale / q.scale, T.abs(p.loc - q.loc)
    return away / q.scale - T.log(ratio) + ratio * T.exp(-away / p.scale) - 1


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Any, q: Any) -> Tensor:
    return T.log(T.square(p.scale + q.scale) + T.square(p.loc - q.loc)) - T.log(4 * p.scale * q.scale)


@register_kl(Pareto, Pareto)
def _pareto(p: Any, q: Any) -> Any:
    ratio = q.alpha / p.alpha
    found = q.alpha * T.log(p.scale / q.scale) - T.log(ratio) + ratio - 1
    return infinite_where(p.support.lower_bound < q.support.lower_bound, found)


@register_kl(Poisson, Poisson)
def _poisson(p: Any, q: Any) -> Any:
    return p.rate * (T.log(p.rate) - T.log(q.rate)) - (p.rate - q.rate)


@register_kl(Uniform, Uniform)
def _uniform(p: Any, q: Any) -> Any:
    return infinite_where((q.low > p.low) | (q.high < p.high), T.log((q.high - q.low) / (p.high - p.low)))


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: Any, q: Any) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("[kl_divergence] expected the same transforms and event shapes of two transformed distributions")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Independent, Independent)
def _independent(p: Any, q: Any) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("[kl_divergence] expected the same reinterpreted_batch_ndims of two independent distributions")
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


# --------------------------------------------------------------------------------------------------------- normal vectors


def _squares(x: Any) -> Tensor:
    """The sum of the squares of a matrix."""
    return T.sum(T.square(x), (-2, -1))


def _whitened(factor: Any, x: Any) -> Tensor:
    """L^-1 x, of batches that broadcast."""
    shape = broadcast_shapes(tuple(factor.shape[:-2]), tuple(x.shape[:-2]))
    return solve_lower(T.expand(factor, (*shape, *factor.shape[-2:])), T.expand(x, (*shape, *x.shape[-2:])))


def _parts(d: Any) -> list[Tensor]:
    """Matrices W such that the covariance is the sum of the W W^T."""
    if isinstance(d, MultivariateNormal):
        return [d._unbroadcasted_scale_tril]
    return [d._unbroadcasted_cov_factor, T.diag_embed(T.sqrt(d._unbroadcasted_cov_diag))]


def _log_det(d: Any) -> Any:
    return 2 * d._half_log_det() if isinstance(d, MultivariateNormal) else d._log_det()


def _in_measure_of(q: Any, x: Any) -> Any:
    """The trace of Q^-1 x x^T for the covariance Q of q."""
    if isinstance(q, MultivariateNormal):
        return _squares(_whitened(q._unbroadcasted_scale_tril, x))
    diagonal = T.unsqueeze(q._unbroadcasted_cov_diag, -1)
    inside = T.matmul((q._unbroadcasted_cov_factor / diagonal).mT, x)
    return _squares(x * T.rsqrt(diagonal)) - _squares(_whitened(q._capacitance_tril, inside))


def _normal_vectors(p: Any, q: Any) -> Any:
    if p.event_shape != q.event_shape:
        raise ShapeError(f"[kl_divergence] KL-divergence between normal vectors with different event shapes {p.event_shape} and {q.event_shape}")
    away = q.loc - p.loc
    if isinstance(q, MultivariateNormal):
        distance = batch_mahalanobis(q._unbroadcasted_scale_tril, away)
    else:
        distance = lowrank_mahalanobis(q._unbroadcasted_cov_factor, q._unbroadcasted_cov_diag, away, q._capacitance_tril)
    trace = sum(_in_measure_of(q, part) for part in _parts(p))
    return 0.5 * (_log_det(q) - _log_det(p) + trace + distance - p.event_shape[0])


for _first in (MultivariateNormal, LowRankMultivariateNormal):
    for _second in (MultivariateNormal, LowRankMultivariateNormal):
        register_kl(_first, _second)(_normal_vectors)
