"""Distributions against PyTorch: log-probabilities, entropies, cdf, icdf, moments, gradients, shapes, text, divergences, transforms, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.distributions_harness import CASES, close, made, outcome, package, tensors  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:Low df values"), pytest.mark.filterwarnings("ignore:Singular sample")]

SIDES = (calque, torch)
ALL = [(name, k) for name, cases in CASES.items() for k in range(len(cases))]
# PyTorch has float32 in these: lgamma of an int, a tolerance that must be float32, parameters that are numbers.
LIMIT = {("Multinomial", 0): 1e-6, ("Multinomial", 1): 1e-6, ("GeneralizedPareto", 0): 2e-5, ("Normal", 1): 1e-6}


def values_for(name: str, options: dict[str, Any], seed: int) -> np.ndarray:
    """A sample of PyTorch's, with one more dim in front."""
    d, _ = made(torch, name, options, seed)
    torch.manual_seed(seed)
    return d.sample((5,)).numpy()


@pytest.mark.parametrize(("name", "k"), ALL)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_densities_and_gradients(name: str, k: int, seed: int) -> None:
    options, value = CASES[name][k], values_for(name, CASES[name][k], seed)
    results = []
    for T in SIDES:
        d, arguments = made(T, name, options, seed, gradients=True)
        x = T.tensor(value).requires_grad_(not package(T).constraints.is_dependent(d.support) and not d.support.is_discrete)
        logs = d.log_prob(x)
        if logs.requires_grad:
            logs.sum().backward()
        arguments["value"] = x
        results.append((logs, {n: a.grad for n, a in arguments.items() if hasattr(a, "grad") and a.grad is not None}))
    limit = LIMIT.get((name, k), 1e-9)
    close(results[0][0], results[1][0], limit, "log_prob")
    assert results[0][1].keys() == results[1][1].keys()
    for n in results[1][1]:
        close(results[0][1][n], results[1][1][n], limit * 10, f"gradient of {n}")


@pytest.mark.parametrize(("name", "k"), ALL)
def test_properties(name: str, k: int) -> None:
    options, value = CASES[name][k], values_for(name, CASES[name][k], 7)
    (mine, _), (theirs, _) = (made(T, name, options, 7) for T in SIDES)
    assert mine.batch_shape == tuple(theirs.batch_shape) and mine.event_shape == tuple(theirs.event_shape)
    assert repr(mine).replace("\n", "").replace(" ", "") == repr(theirs).replace("\n", "").replace(" ", "")
    assert mine.has_rsample == theirs.has_rsample and mine.has_enumerate_support == theirs.has_enumerate_support
    for attribute in ("mean", "mode", "variance", "stddev"):
        a, b = outcome(lambda n=attribute: getattr(mine, n)), outcome(lambda n=attribute: getattr(theirs, n))
        if NotImplementedError in (a, b):
            assert a is b, attribute
        else:
            close(a, b, LIMIT.get((name, k), 1e-9), attribute)
    for method, arguments in (("entropy", ()), ("perplexity", ()), ("cdf", (value,)), ("icdf", (np.full(value.shape, 0.3),))):
        a = outcome(lambda n=method, v=arguments: getattr(mine, n)(*map(calque.tensor, v)))
        b = outcome(lambda n=method, v=arguments: getattr(theirs, n)(*map(torch.tensor, v)))
        if NotImplementedError in (a, b):
            assert a is b, method
        else:
            close(a, b, LIMIT.get((name, k), 1e-8), method)
    if theirs.has_enumerate_support:
        for expand in (True, False):
            close(mine.enumerate_support(expand), theirs.enumerate_support(expand), what="enumerate_support")


@pytest.mark.parametrize(("name", "k"), ALL)
def test_gradients_of_entropy_and_cdf(name: str, k: int) -> None:
    options, value = CASES[name][k], values_for(name, CASES[name][k], 9)
    if outcome(lambda: made(torch, name, options, 9)[0].entropy()) is NotImplementedError:
        pytest.skip("no entropy")
    results = []
    for T in SIDES:
        d, arguments = made(T, name, options, 9, gradients=True)
        total = d.entropy().sum()
        if total.requires_grad:
            total.backward()
        results.append({n: a.grad for n, a in arguments.items() if getattr(a, "grad", None) is not None})
    assert results[0].keys() == results[1].keys() and value is not None
    for n in results[1]:
        close(results[0][n], results[1][n], 1e-7, n)


@pytest.mark.parametrize(("name", "k"), ALL)
def test_expand_and_sample_shapes(name: str, k: int) -> None:
    options = CASES[name][k]
    (mine, _), (theirs, _) = (made(T, name, options, 5) for T in SIDES)
    wanted = (2, 3, *theirs.batch_shape)
    if name == "Wishart":  # PyTorch expands its matrices to one dim too few
        wide = mine.expand(wanted)
        assert wide.batch_shape == wanted and tuple(wide.sample((4,)).shape) == (4, *wanted, *mine.event_shape)
        return
    a, b = mine.expand(wanted), theirs.expand(wanted)
    assert a.batch_shape == tuple(b.batch_shape) and a.event_shape == tuple(b.event_shape)
    for shape in ((), (2,), (4, 1)):
        x, y = mine.sample(shape), theirs.sample(shape)
        assert tuple(x.shape) == tuple(y.shape) and str(x.dtype) == str(y.dtype)
        assert tuple(a.sample(shape).shape) == tuple(b.sample(shape).shape)
        theirs.log_prob(torch.tensor(x.numpy()))  # PyTorch finds our samples in the support
    value = values_for(name, options, 5)[0]
    close(a.log_prob(calque.tensor(value)), b.log_prob(torch.tensor(value)), LIMIT.get((name, k), 1e-9))


def kl_cases() -> list[tuple[str, str]]:
    table = importlib_kl()
    found = []
    for p, q in table:
        names = (p.__name__, q.__name__)
        if all(n in CASES for n in names):
            found.append(names)
    return sorted(set(found))


def importlib_kl() -> Any:
    import torch.distributions.kl as kl

    return kl._KL_REGISTRY


NARROW = {"low": lambda r: np.array([0.1, 0.2, 0.3]), "high": lambda r: np.array([0.7, 0.9, 0.8])}
WIDE = {"low": lambda r: np.array([-0.5, -1.0, -2.0]), "high": lambda r: np.array([1.5, 2.0, 3.0])}


def one_shape(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Univariate parameters of shape (3,)."""
    if name in ("LowRankMultivariateNormal", "MultivariateNormal", "Categorical", "OneHotCategorical", "Dirichlet"):
        return options
    return {n: (lambda r, m=m: np.broadcast_to(np.ravel(m(r))[:1] if m(r).ndim == 0 else np.resize(m(r), 3), 3).copy()) if callable(m) else m
            for n, m in options.items()}


@pytest.mark.parametrize(("first", "second"), kl_cases())
def test_divergences(first: str, second: str) -> None:
    for i, j in itertools.product(range(len(CASES[first])), range(len(CASES[second]))):
        if first in ("Categorical", "OneHotCategorical") and i != j:
            continue
        left = one_shape(first, NARROW if first == "Uniform" else CASES[first][i])
        right = one_shape(second, WIDE if second == "Uniform" else CASES[second][j])
        if "LowRank" in first + second and ("LowRank" not in first or "LowRank" not in second):
            left, right = ({**o, **({"loc": lambda r: r.normal(size=(2, 4))} if "loc" in o else {})} for o in (left, right))
            if first == "MultivariateNormal":
                left = {"loc": left["loc"], "scale_tril": lambda r: np.tril(r.normal(size=(4, 4)), -1) + np.eye(4)}
            if second == "MultivariateNormal":
                right = {"loc": right["loc"], "scale_tril": lambda r: np.tril(r.normal(size=(2, 4, 4)), -1) + np.eye(4)}
        if first == "Binomial":
            left, right = {**left, "total_count": 5}, {**right, "total_count": 5} if "total_count" in right else right
        results = []
        for T in SIDES:
            (p, a), (q, b) = made(T, first, left, 3, gradients=True), made(T, second, right, 4, gradients=True)
            value = package(T).kl_divergence(p, q)
            gradients = []
            if bool(T.isfinite(value).all()) and value.requires_grad:
                value.sum().backward()
                gradients = [v.grad for v in (*a.values(), *b.values()) if hasattr(v, "grad")]
            results.append((value, gradients))
        limit = max(LIMIT.get((first, i), 1e-8), LIMIT.get((second, j), 1e-8))
        close(results[0][0], results[1][0], limit, "kl")
        for x, y in zip(results[0][1], results[1][1], strict=True):
            assert (x is None) == (y is None)
            if y is not None:
                close(x, y, 10 * limit, "gradient")


def test_the_table_is_as_large() -> None:
    mine = {(p.__name__, q.__name__) for p, q in package(calque).kl._REGISTRY}
    assert {(p.__name__, q.__name__) for p, q in importlib_kl()} <= mine


def transforms(T: Any) -> list[tuple[Any, np.ndarray]]:
    d = package(T)
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(4, 3)), np.abs(rng.normal(size=(4, 3))) + 0.1
    return [
        (d.ExpTransform(), x), (d.SigmoidTransform(), x), (d.TanhTransform(), x), (d.SoftplusTransform(), x),
        (d.PowerTransform(T.tensor(1.5, dtype=T.float64)), y), (d.AffineTransform(1.0, -2.0), x),
        (d.AffineTransform(T.tensor(x[0]), T.tensor(y[0]), event_dim=1), x), (d.StickBreakingTransform(), x),
        (d.CorrCholeskyTransform(), rng.normal(size=(4, 6))), (d.LowerCholeskyTransform(), rng.normal(size=(2, 3, 3))),
        (d.ComposeTransform([d.AffineTransform(0.0, 2.0), d.ExpTransform()]), x), (d.IndependentTransform(d.ExpTransform(), 1), x),
        (d.ReshapeTransform((3,), (3, 1)), x), (d.CumulativeDistributionTransform(d.Normal(T.tensor(0.0, dtype=T.float64), 1.0)), x),
        (d.CatTransform([d.ExpTransform(), d.SigmoidTransform()], dim=1, lengths=[1, 2]), x),
        (d.StackTransform([d.ExpTransform(), d.TanhTransform(), d.identity_transform], dim=1), x), (d.ExpTransform().inv, y),
        (d.biject_to(d.constraints.interval(-1.0, 3.0)), x), (d.biject_to(d.constraints.greater_than(2.0)), x),
        (d.biject_to(d.constraints.less_than(2.0)), x), (d.transform_to(d.constraints.simplex), x), (d.AbsTransform(), x),
        (d.transform_to(d.constraints.positive_definite), rng.normal(size=(3, 3))),
        (d.ComposeTransform([d.ReshapeTransform((3,), (3, 1)), d.AffineTransform(1.0, 2.0)]), x),
    ]  # fmt: skip


@pytest.mark.parametrize("k", range(24))
def test_transforms(k: int) -> None:
    results = []
    for T in SIDES:
        transform, given = transforms(T)[k]
        x = T.tensor(given).requires_grad_()
        y = transform(x)
        back = outcome(lambda t=transform, v=y: t.inv(v))
        log_det = outcome(lambda t=transform, a=x, b=y: t.log_abs_det_jacobian(a, b))
        y.sum().backward()
        facts = [repr(transform), transform.bijective, transform.domain.event_dim, transform.codomain.event_dim, repr(transform.codomain)]
        facts += [tuple(transform.forward_shape(tuple(x.shape) if T is calque else x.shape))]
        results.append((y, back, log_det, x.grad, facts))
    for a, b in zip(results[0][:4], results[1][:4], strict=True):
        if NotImplementedError in (a, b):
            assert a is b
        else:
            close(a, b, 1e-8)
    assert results[0][4][1:4] == results[1][4][1:4] and results[0][4][5] == results[1][4][5]
    assert results[0][4][0].replace("torch.float64", "") .split("(")[0] == results[1][4][0].split("(")[0]


CONSTRAINTS = (
    "boolean", "one_hot", "nonnegative_integer", "positive_integer", "real", "real_vector", "positive", "nonnegative", "unit_interval", "simplex",
    "lower_triangular", "lower_cholesky", "corr_cholesky", "square", "symmetric", "positive_semidefinite", "positive_definite",
)  # fmt: skip
VALUES = (
    np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([[-1.0, 2.0], [float("nan"), 0.5]]),
    np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([[0.25, 0.75], [0.5, 0.6]]), np.eye(2),
)  # fmt: skip


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints(name: str) -> None:
    mine, theirs = (getattr(package(T).constraints, name) for T in SIDES)
    assert repr(mine) == repr(theirs) and mine.is_discrete == theirs.is_discrete and mine.event_dim == theirs.event_dim
    for value in VALUES:
        if np.isnan(value).any() and "positive_" in name and "integer" not in name:
            continue
        assert mine.check(calque.tensor(value)).tolist() == theirs.check(torch.tensor(value)).tolist()


REFUSED = {
    "probs and logits": lambda D, T: D.Bernoulli(probs=T.tensor(0.5), logits=T.tensor(0.0)),
    "negative scale": lambda D, T: D.Normal(0.0, -1.0),
    "nan": lambda D, T: D.Normal(T.tensor([0.0, float("nan")]), 1.0),
    "outside": lambda D, T: D.Exponential(1.0).log_prob(T.tensor(-1.0)),
    "not a tensor": lambda D, T: D.Normal(0.0, 1.0).log_prob(0.5),
    "event shape": lambda D, T: D.Dirichlet(T.ones(3)).log_prob(T.ones(4) / 4),
    "batch shape": lambda D, T: D.Normal(T.zeros(3), 1.0).log_prob(T.zeros(2)),
    "a string": lambda D, T: D.Normal("a", 1.0),
    "low above high": lambda D, T: D.Uniform(1.0, 0.0),
    "no vector": lambda D, T: D.Categorical(T.tensor(0.5)),
    "negative probs": lambda D, T: D.Categorical(T.tensor([-1.0, 2.0])),
    "not positive definite": lambda D, T: D.MultivariateNormal(T.zeros(2), T.tensor([[1.0, 2.0], [2.0, 1.0]])),
    "two matrices": lambda D, T: D.MultivariateNormal(T.zeros(2), T.eye(2), T.eye(2)),
    "dims of independent": lambda D, T: D.Independent(D.Normal(0.0, 1.0), 1),
    "mixture": lambda D, T: D.MixtureSameFamily(D.Categorical(T.ones(3)), D.Normal(T.zeros(2), 1.0)),
    "dim of lkj": lambda D, T: D.LKJCholesky(1),
    "df of wishart": lambda D, T: D.Wishart(T.tensor(0.5), T.eye(2)),
    "no transform": lambda D, T: D.TransformedDistribution(D.Normal(0.0, 1.0), [1]),
    "cache size": lambda D, T: D.ExpTransform(cache_size=2),
    "counts of multinomial": lambda D, T: D.Multinomial(T.tensor([1, 2]), T.ones(3)),
    "no divergence": lambda D, T: D.kl_divergence(D.Cauchy(0.0, 1.0), D.Normal(0.0, 1.0)),
    "rsample": lambda D, T: D.Bernoulli(0.5).rsample(),
    "zero probability": lambda D, T: D.Geometric(0.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # which its compiler turns off for good
    errors = []
    for T in SIDES:
        with pytest.raises((ValueError, NotImplementedError, AssertionError, RuntimeError, TypeError)) as caught:
            REFUSED[name](package(T), T)
        errors.append(caught.value)
    kind = next(k for k in (NotImplementedError, ValueError, AssertionError, TypeError, RuntimeError) if isinstance(errors[1], k))
    assert isinstance(errors[0], kind), errors


def test_mixtures_and_independents() -> None:
    results = []
    rng = np.random.default_rng(0)
    w, m, s, x = np.abs(rng.normal(size=(3, 4))), rng.normal(size=(3, 4, 2)), np.exp(rng.normal(size=(3, 4, 2))), rng.normal(size=(5, 3, 2))
    for T in SIDES:
        D = package(T)
        mixture = D.MixtureSameFamily(D.Categorical(T.tensor(w)), D.Independent(D.Normal(T.tensor(m), T.tensor(s)), 1))
        flat = D.MixtureSameFamily(D.Categorical(T.tensor(w)), D.Normal(T.tensor(m[..., 0]), T.tensor(s[..., 0])))
        wide = mixture.expand((2, 3))
        results.append([mixture.log_prob(T.tensor(x)), mixture.mean, mixture.variance, flat.cdf(T.tensor(x[..., 0])), wide.log_prob(T.tensor(x[:2]))])
        assert tuple(mixture.sample((7,)).shape) == (7, 3, 2) and mixture.has_rsample is False
    for a, b in zip(*results, strict=True):
        close(a, b)


def test_numbers_alone_have_the_default_dtype() -> None:
    for T in SIDES:
        d = package(T).Normal(0, 1)
        assert str(d.sample((2,)).dtype) == "torch.float32" and tuple(d.batch_shape) == ()
        assert str(package(T).Bernoulli(0.5).sample().dtype) == "torch.float32"
    assert tensors(calque, {"a": 1}, 0) == {"a": 1}


@pytest.mark.parametrize("a", [0.1, 0.7, 2.0, 15.0, 300.0])
def test_derivatives_of_gamma_samples(a: float) -> None:
    """PyTorch's own are approximations of about four digits."""
    from calque.distributions.sampling import log_gamma_slope

    x = np.random.default_rng(0).standard_gamma(a, 500) + 1e-12
    wanted = torch._standard_gamma_grad(torch.full((500,), a, dtype=torch.float64), torch.tensor(x)).numpy()
    np.testing.assert_allclose(log_gamma_slope(np.full(500, a), np.log(x)) * x, wanted, rtol=3e-3)
