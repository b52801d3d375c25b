"""Probability distributions, transforms of them, and divergences between them. Same names as `torch.distributions`.

>>> import calque
>>> from calque.distributions import Normal, kl_divergence
>>> p, q = Normal(0.0, 1.0), Normal(1.0, 1.0)
>>> kl_divergence(p, q).item(), tuple(p.rsample((3,)).shape)
(0.5, (3,))
"""

import sys

from calque.distributions import constraints, cross_divergences, exp_family, kl, transforms, utils  # noqa: F401
from calque.distributions.bernoulli import Bernoulli
from calque.distributions.beta import Beta
from calque.distributions.binomial import Binomial
from calque.distributions.categorical import Categorical
from calque.distributions.cauchy import Cauchy
from calque.distributions.chi2 import Chi2
from calque.distributions.constraint_registry import biject_to, transform_to
from calque.distributions.continuous_bernoulli import ContinuousBernoulli
from calque.distributions.dirichlet import Dirichlet
from calque.distributions.distribution import Distribution, ExponentialFamily
from calque.distributions.exponential import Exponential
from calque.distributions.fishersnedecor import FisherSnedecor
from calque.distributions.gamma import Gamma
from calque.distributions.generalized_pareto import GeneralizedPareto
from calque.distributions.geometric import Geometric
from calque.distributions.gumbel import Gumbel
from calque.distributions.half_cauchy import HalfCauchy
from calque.distributions.half_normal import HalfNormal
from calque.distributions.independent import Independent
from calque.distributions.inverse_gamma import InverseGamma
from calque.distributions.kl import kl_divergence, register_kl
from calque.distributions.kumaraswamy import Kumaraswamy
from calque.distributions.laplace import Laplace
from calque.distributions.lkj_cholesky import LKJCholesky
from calque.distributions.log_normal import LogNormal
from calque.distributions.logistic_normal import LogisticNormal
from calque.distributions.lowrank_multivariate_normal import LowRankMultivariateNormal
from calque.distributions.mixture_same_family import MixtureSameFamily
from calque.distributions.multinomial import Multinomial
from calque.distributions.multivariate_normal import MultivariateNormal
from calque.distributions.negative_binomial import NegativeBinomial
from calque.distributions.normal import Normal
from calque.distributions.one_hot_categorical import OneHotCategorical, OneHotCategoricalStraightThrough
from calque.distributions.pareto import Pareto
from calque.distributions.poisson import Poisson
from calque.distributions.relaxed_bernoulli import RelaxedBernoulli
from calque.distributions.relaxed_categorical import RelaxedOneHotCategorical
from calque.distributions.studentT import StudentT
from calque.distributions.transformed_distribution import TransformedDistribution
from calque.distributions.transforms import *  # noqa: F403
from calque.distributions.uniform import Uniform
from calque.distributions.von_mises import VonMises
from calque.distributions.weibull import Weibull
from calque.distributions.wishart import Wishart
from calque.functional.blame import publish as _publish

__all__ = [
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ContinuousBernoulli", "Dirichlet", "Distribution", "Exponential",
    "ExponentialFamily", "FisherSnedecor", "Gamma", "GeneralizedPareto", "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent",
    "InverseGamma", "Kumaraswamy", "LKJCholesky", "Laplace", "LogNormal", "LogisticNormal", "LowRankMultivariateNormal", "MixtureSameFamily",
    "Multinomial", "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical", "OneHotCategoricalStraightThrough", "Pareto",
    "Poisson", "RelaxedBernoulli", "RelaxedOneHotCategorical", "StudentT", "TransformedDistribution", "Uniform", "VonMises", "Weibull", "Wishart",
    "biject_to", "constraints", "kl", "kl_divergence", "register_kl", "transform_to", "utils", *transforms.__all__,
]  # fmt: skip

_publish(sys.modules[__name__])
