"""Distributions without PyTorch: samples have the moments that are claimed, densities integrate to one, gradients of samples are those of
their means, cdf and icdf are inverse, divergences are the means that they are, and mistakes are refused."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import calque
from calque import distributions as D
from calque.base.errors import ArgumentError
from calque.distributions import constraints
from calque.distributions.sampling import kept_between, log_gamma_slope
from calque.functional.gamma import igamma

COUNT = 20_000


def t(*values: Any) -> Any:
    return calque.tensor(values[0] if len(values) == 1 else list(values), dtype=calque.float64)


def cases() -> list[Any]:
    """Distributions with finite moments, of one or several batch dims."""
    cov = t([[2.0, 0.5], [0.5, 1.0]])
    return [
        D.Bernoulli(t(0.2, 0.7)), D.Beta(t(0.5, 2.0), t(1.5, 3.0)), D.Binomial(10, t(0.2, 0.7)), D.Chi2(t(1.0, 5.0)),
        D.ContinuousBernoulli(t(0.2, 0.5)), D.Dirichlet(t([0.2, 1.0, 3.0])), D.Exponential(t(0.5, 2.0)), D.FisherSnedecor(t(3.0), t(12.0)),
        D.Gamma(t(0.3, 1.0, 20.0), t(2.0)), D.GeneralizedPareto(t(1.0), t(2.0), t(-0.3, 0.0, 0.1)), D.Geometric(t(0.3, 0.9)),
        D.Gumbel(t(1.0), t(0.5)), D.HalfNormal(t(2.0)), D.InverseGamma(t(6.0), t(3.0)), D.Kumaraswamy(t(2.0), t(3.0)), D.Laplace(t(1.0), t(2.0)),
        D.LogNormal(t(0.1), t(0.4)), D.LowRankMultivariateNormal(t([1.0, 2.0]), t([[1.0], [0.5]]), t([0.3, 0.2])),
        D.MixtureSameFamily(D.Categorical(t([0.3, 0.7])), D.Normal(t([-1.0, 2.0]), t([1.0, 0.5]))), D.Multinomial(5, t([0.2, 0.3, 0.5])),
        D.MultivariateNormal(t([1.0, -1.0]), covariance_matrix=cov), D.NegativeBinomial(t(3.0), t(0.4)), D.Normal(t(1.0, -2.0), t(0.5, 3.0)),
        D.OneHotCategorical(t([0.2, 0.3, 0.5])), D.Pareto(t(1.0), t(8.0)), D.Poisson(t(0.3, 50.0)), D.StudentT(t(8.0), t(1.0), t(2.0)),
        D.Uniform(t(-1.0), t(3.0)), D.Weibull(t(2.0), t(1.5)), D.Wishart(t(5.0), covariance_matrix=cov), D.Independent(D.Normal(t(1.0, 2.0), 1.0), 1),
    ]  # fmt: skip


@pytest.mark.parametrize("k", range(len(cases())), ids=lambda k: type(cases()[k]).__name__)
def test_samples_have_the_moments(k: int) -> None:
    d = cases()[k]
    calque.manual_seed(5)
    x = d.sample((COUNT,)).numpy()
    mean, variance = d.mean.numpy(), d.variance.numpy()
    found = x.mean(0)
    fourth = ((x - found) ** 4).mean(0)
    np.testing.assert_array_less(np.abs(found - mean), 5 * np.sqrt(variance / COUNT) + 1e-9)
    np.testing.assert_array_less(np.abs(x.var(0) - variance), 6 * np.sqrt(fourth / COUNT) + 1e-9)
    assert bool(d.support.check(calque.tensor(x[:50])).all())
    again = d.expand((3, *d.batch_shape))
    assert again.batch_shape == (3, *d.batch_shape) and again.sample((2,)).shape == (2, 3, *d.batch_shape, *d.event_shape)


CONTINUOUS = [
    D.Beta(t(2.5), t(1.5)), D.Cauchy(t(0.5), t(1.0)), D.ContinuousBernoulli(t(0.3)), D.Exponential(t(2.0)), D.FisherSnedecor(t(5.0), t(6.0)),
    D.Gamma(t(2.5), t(2.0)), D.GeneralizedPareto(t(0.0), t(1.0), t(-0.3)), D.Gumbel(t(1.0), t(2.0)), D.HalfCauchy(t(1.0)), D.HalfNormal(t(1.0)),
    D.InverseGamma(t(3.0), t(2.0)), D.Kumaraswamy(t(2.0), t(3.0)), D.Laplace(t(0.0), t(1.0)), D.LogNormal(t(0.0), t(0.5)), D.Normal(t(0.0), t(1.0)),
    D.Pareto(t(1.0), t(3.0)), D.RelaxedBernoulli(t(2.0), t(0.4)), D.StudentT(t(4.0)), D.Uniform(t(-1.0), t(1.0)), D.VonMises(t(0.5), t(2.0)),
    D.Weibull(t(1.0), t(2.0)),
]  # fmt: skip


@pytest.mark.parametrize("d", CONTINUOUS, ids=lambda d: type(d).__name__)
def test_densities_integrate_to_one(d: Any) -> None:
    """Over the real line by u -> x of the support; VonMises over its circle."""
    if isinstance(d, D.VonMises):
        x = np.linspace(-math.pi, math.pi, 20_001)
        np.testing.assert_allclose(np.trapezoid(d.log_prob(calque.tensor(x)).exp().numpy(), x), 1.0, atol=1e-6)
        return
    to = D.biject_to(d.support)
    u = calque.tensor(np.linspace(-30, 30, 60_001))
    x = to(u)
    density = (d.log_prob(x) + to.log_abs_det_jacobian(u, x)).exp().nan_to_num()
    tails = 3e-2 if isinstance(d, (D.Cauchy, D.HalfCauchy)) else 2e-4
    np.testing.assert_allclose(np.trapezoid(density.numpy(), u.numpy()), 1.0, atol=tails)


@pytest.mark.parametrize("d", CONTINUOUS, ids=lambda d: type(d).__name__)
def test_cdf_and_icdf_are_inverse_and_have_the_density_as_slope(d: Any) -> None:
    p = calque.tensor(np.linspace(0.1, 0.9, 8))
    try:
        x = d.icdf(p).detach().requires_grad_()
    except NotImplementedError:
        pytest.skip("no icdf")
    y = d.cdf(x)
    np.testing.assert_allclose(y.detach().numpy(), p.numpy(), rtol=1e-6)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), d.log_prob(x).exp().detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("a", [0.05, 0.5, 1.0, 3.0, 30.0, 400.0, 5000.0])
def test_derivative_of_gamma_samples(a: float) -> None:
    """-(dP/da) / (dP/dx) by differences of the incomplete gamma function."""
    rng = np.random.default_rng(1)
    x = np.quantile(rng.standard_gamma(a, 4000), [0.02, 0.2, 0.5, 0.8, 0.98])
    x = np.maximum(x, 1e-12)
    h = 1e-5 * a
    def part(b: float) -> np.ndarray:
        return igamma(calque.tensor(np.full_like(x, b)), calque.tensor(x)).numpy()
    slope = (part(a + h) - part(a - h)) / (2 * h)
    density = D.Gamma(t(a), t(1.0)).log_prob(calque.tensor(x)).exp().numpy()
    found = log_gamma_slope(np.full_like(x, a), np.log(x)) * x
    np.testing.assert_allclose(found, -slope / density, rtol=2e-4)


def test_derivative_for_large_concentrations_continues_the_other() -> None:
    a = np.full(5, 1e4)
    x = a + np.array([-3.0, -1, 0, 1, 3]) * 100
    from_series, from_root = log_gamma_slope(a, np.log(x)), log_gamma_slope(a * (1 + 1e-12), np.log(x))
    np.testing.assert_allclose(from_root, from_series, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: D.Gamma(p, 2.0), lambda p: D.Gamma(3.0, p), lambda p: D.Beta(p, 1.5), lambda p: D.Normal(p, 1.0), lambda p: D.Laplace(p, 1.0),
        lambda p: D.Exponential(p), lambda p: D.Weibull(p, 2.0), lambda p: D.Chi2(p), lambda p: D.Gumbel(0.0, p),
        lambda p: D.ContinuousBernoulli(p / 3),
        lambda p: D.InverseGamma(p + 4, 2.0), lambda p: D.Kumaraswamy(p, 2.0), lambda p: D.LogNormal(0.0, p / 3),
    ],
)  # fmt: skip
def test_gradients_of_samples_are_those_of_the_mean(make: Any) -> None:
    calque.manual_seed(3)
    p = t(0.8).requires_grad_()
    spread = calque.ones(COUNT, dtype=calque.float64) * p  # a parameter per sample, so that each has a gradient of its own
    spread.retain_grad()
    make(spread).rsample().sum().backward()
    each = spread.grad.numpy()
    q = t(0.8).requires_grad_()
    make(q).mean.backward()
    assert abs(each.mean() - q.grad.item()) < 5 * each.std() / math.sqrt(COUNT) + 1e-9


def test_tiny_concentrations_stay_on_the_simplex() -> None:
    x = D.Dirichlet(calque.full((1000, 3), 1e-3)).sample()
    assert bool(x.isfinite().all()) and bool(((x.sum(-1) - 1).abs() < 1e-5).all())
    assert bool((D.Gamma(calque.full((100,), 1e-3), 1.0).sample() > 0).all())


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (D.Normal(t(0.0), t(1.0)), D.Laplace(t(0.5), t(2.0))), (D.Gamma(t(2.0), t(1.0)), D.Exponential(t(0.5))),
        (D.Beta(t(2.0), t(3.0)), D.Gamma(t(1.5), t(2.0))), (D.Exponential(t(1.0)), D.Gumbel(t(0.5), t(2.0))),
        (D.Uniform(t(0.1), t(0.9)), D.Beta(t(2.0), t(3.0))), (D.Pareto(t(1.0), t(5.0)), D.Normal(t(1.0), t(1.0))),
        (D.Gumbel(t(0.0), t(1.0)), D.Gumbel(t(0.5), t(1.5))), (D.Cauchy(t(0.0), t(1.0)), D.Cauchy(t(1.0), t(2.0))),
        (D.Gamma(t(2.0), t(1.5)), D.Gumbel(t(0.3), t(1.2))), (D.Laplace(t(0.3), t(1.0)), D.Normal(t(0.0), t(1.5))),
    ],
)  # fmt: skip
def test_divergences_are_means(p: Any, q: Any) -> None:
    calque.manual_seed(1)
    x = p.sample((60_000,))
    ratio = (p.log_prob(x) - q.log_prob(x)).numpy()
    assert abs(ratio.mean() - D.kl_divergence(p, q).item()) < 5 * ratio.std() / math.sqrt(len(ratio))


def test_register_kl_prefers_what_is_closer() -> None:
    class Mine(D.Normal):
        pass

    assert D.kl_divergence(Mine(0.0, 1.0), D.Normal(0.0, 1.0)).item() == 0.0
    D.register_kl(Mine, D.Normal)(lambda p, q: "mine")
    try:
        assert D.kl_divergence(Mine(0.0, 1.0), D.Normal(0.0, 1.0)) == "mine"
        D.register_kl(D.Normal, Mine)(lambda p, q: "other")
        with pytest.warns(RuntimeWarning, match="Ambiguous kl_divergence"):
            D.kl_divergence(Mine(0.0, 1.0), Mine(0.0, 1.0))
    finally:
        for key in ((Mine, D.Normal), (D.Normal, Mine)):
            D.kl._REGISTRY.pop(key, None)
        D.kl._FOUND.clear()
    with pytest.raises(NotImplementedError, match="No KL"):
        D.kl_divergence(D.Cauchy(0.0, 1.0), D.Normal(0.0, 1.0))
    with pytest.raises(TypeError, match="register_kl"):
        D.register_kl(3, D.Normal)


def test_a_distribution_is_one_class() -> None:
    """A class of a user, with PyTorch's way to expand, and one that names what is expanded."""

    class Triangle(D.Distribution):
        arg_constraints = {"width": constraints.positive}
        support = constraints.real
        has_rsample = True
        _expands = ("width",)

        def __init__(self, width: Any, validate_args: bool | None = None) -> None:
            (self.width,) = D.utils.broadcast_all(width)
            super().__init__(self.width.shape, validate_args=validate_args)

        def rsample(self, sample_shape: Any = ()) -> Any:
            shape = self._extended_shape(sample_shape)
            return (calque.rand(shape) - calque.rand(shape)) * self.width

        def log_prob(self, value: Any) -> Any:
            return ((1 - value.abs() / self.width) / self.width).log()

    d = Triangle(calque.tensor([1.0, 2.0]))
    assert repr(d) == "Triangle(width: torch.Size([2]))"
    assert d.expand((3, 2)).sample((4,)).shape == (4, 3, 2)
    with pytest.raises(ValueError, match="Expected parameter width"):
        Triangle(-1.0)
    two = D.TransformedDistribution(d, [D.AffineTransform(1.0, 2.0)])
    np.testing.assert_allclose(two.log_prob(calque.tensor([1.0, 1.0])).exp().tolist(), [0.5, 0.25], rtol=1e-6)

    class Own(D.Normal):
        def __init__(self, loc: Any) -> None:
            super().__init__(loc, 1.0)

    with pytest.raises(NotImplementedError, match="must also define a custom .expand"):
        Own(0.0).expand((2,))


def test_validation_can_be_turned_off() -> None:
    assert D.Normal(0.0, -1.0, validate_args=False).scale.item() == -1.0
    D.Distribution.set_default_validate_args(False)
    try:
        D.Normal(0.0, -1.0)
    finally:
        D.Distribution.set_default_validate_args(True)
    with pytest.raises(ValueError, match="Expected parameter scale"):
        D.Normal(0.0, -1.0)


def test_caches_remember_the_last_value() -> None:
    flow = D.TransformedDistribution(D.Normal(0.0, 1.0), [D.TanhTransform(cache_size=1)])
    x = flow.rsample((4,))
    assert flow.transforms[0].inv(x) is flow.transforms[0]._cached[0]
    assert bool(flow.log_prob(x).isfinite().all())


def test_a_variational_step_is_recorded_and_replayed() -> None:
    """Normal samples and divergences are ordinary operations; gamma samples are drawn on the host in every step."""

    def losses(hybrid: bool, kind: str) -> list[float]:
        calque.manual_seed(7)
        raw = calque.zeros(3, requires_grad=True)
        optimizer = calque.optim.SGD([raw], lr=0.05)

        def step() -> Any:
            optimizer.zero_grad()
            p: Any = D.Normal(raw, 1.0, validate_args=False) if kind == "normal" else D.Gamma(raw.exp(), 1.0, validate_args=False)
            q: Any = D.Normal(1.0, 2.0) if kind == "normal" else D.Gamma(2.0, 2.0)
            loss = (p.rsample((8,)) ** 2).mean() + D.kl_divergence(p, q).sum()
            loss.backward()
            optimizer.step()
            return loss

        run = calque.compile(step) if hybrid else step
        return [float(run()) for _ in range(8)]

    for kind in ("normal", "gamma"):
        wanted = losses(False, kind)
        assert wanted[0] != wanted[1] != wanted[2]
        np.testing.assert_allclose(losses(True, kind), wanted, rtol=1e-5)


def test_seeds_repeat() -> None:
    for d in (D.Gamma(2.0, 1.0), D.Poisson(3.0), D.Binomial(9, calque.tensor(0.3)), D.VonMises(0.0, 2.0), D.Normal(0.0, 1.0)):
        calque.manual_seed(4)
        first, second = d.sample((5,)), d.sample((5,))
        calque.manual_seed(4)
        assert d.sample((5,)).tolist() == first.tolist() and first.tolist() != second.tolist()


def test_loads_on_first_use() -> None:
    code = "import sys, calque; assert 'calque.distributions' not in sys.modules; calque.distributions.Normal"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_parameters_that_nobody_has_validated_are_refused_when_numbers_are_drawn() -> None:
    with pytest.raises(ArgumentError, match="expected parameters of the distribution"):
        calque.distributions.LKJCholesky(3, concentration=-2, validate_args=False).sample().tolist()
    with pytest.raises(ArgumentError, match="expected sample_shape as a tuple"):
        calque.distributions.Normal(0.0, 1.0).sample(3)


@pytest.mark.parametrize("concentration", [1e-2, 0.1, 0.5])
@pytest.mark.parametrize("dtype", [calque.float32, calque.float64])
def test_samples_at_the_edge_of_a_support_stay_inside(dtype: Any, concentration: float) -> None:
    """Where rounding would give 0 or 1 the density is not finite. Gradients of such samples are those of what was drawn."""
    calque.manual_seed(0)
    c = calque.tensor(concentration, dtype=dtype, requires_grad=True)
    for d in (D.Beta(c, c), D.Dirichlet(c.expand(3)), D.Gamma(c, c), D.Chi2(c)):
        samples = d.rsample((20000,))
        assert d.support.check(samples).all()
        assert calque.isfinite(d.log_prob(samples.detach())).all()
        (gradient,) = calque.autograd.grad(samples.sum(), c)
        assert gradient.isfinite()
    values = calque.tensor([0.0, 0.5, 1.0], dtype=dtype, requires_grad=True)
    kept = kept_between(values, 0.25, 0.75)
    (gradient,) = calque.autograd.grad(kept.sum(), values)
    assert (kept.tolist(), gradient.tolist()) == ([0.25, 0.5, 0.75], [1, 1, 1])


def test_a_wishart_distribution_takes_a_whole_number_of_degrees() -> None:
    d = D.Wishart(calque.tensor(2), calque.eye(2))
    assert d.sample((3,)).shape == (3, 2, 2)


def test_both_parameters_of_a_beta_are_checked() -> None:
    """By the distribution that it draws from, once; in a subclass with other constraints by these."""
    for one, other in ((0.0, 1.0), (1.0, -1.0), (math.nan, 1.0)):
        with pytest.raises(ArgumentError, match="concentration"):
            D.Beta(t(1.0, one), t(1.0, other))
        D.Beta(t(1.0, one), t(1.0, other), validate_args=False)

    class Flat(D.Beta):
        arg_constraints = {"concentration1": constraints.less_than(1.0), "concentration0": constraints.positive}

    Flat(t(0.5), t(3.0))
    with pytest.raises(ArgumentError, match="concentration1"):
        Flat(t(1.5), t(3.0))
