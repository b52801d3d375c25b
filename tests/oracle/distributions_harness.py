"""The same distributions with parameters drawn at random, in Calque and in PyTorch, float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator


def real(rng: Rng, *shape: int) -> np.ndarray:
    return rng.normal(size=shape)


def positive(rng: Rng, *shape: int) -> np.ndarray:
    return np.exp(rng.normal(size=shape) * 0.7)


def chance(rng: Rng, *shape: int) -> np.ndarray:
    return rng.uniform(0.05, 0.95, size=shape)


def simplex(rng: Rng, *shape: int) -> np.ndarray:
    p = rng.uniform(0.1, 1.0, size=shape)
    return p / p.sum(-1, keepdims=True)


def covariance(rng: Rng, n: int, *batch: int) -> np.ndarray:
    a = rng.normal(size=(*batch, n, n))
    return a @ np.swapaxes(a, -1, -2) + np.eye(n)


def factor(rng: Rng, n: int, *batch: int) -> np.ndarray:
    return np.linalg.cholesky(covariance(rng, n, *batch))


def concentrated(rng: Rng, *shape: int) -> np.ndarray:
    return positive(rng, *shape) + 1.5


# name -> cases: keyword -> maker of an array, or a constant
CASES: dict[str, list[dict[str, Any]]] = {
    "Bernoulli": [{"probs": lambda r: chance(r, 4)}, {"logits": lambda r: real(r, 2, 3)}],
    "Beta": [{"concentration1": lambda r: positive(r, 3), "concentration0": lambda r: positive(r, 2, 3)}],
    "Binomial": [{"total_count": 5, "probs": lambda r: chance(r, 4)}, {"total_count": 3, "logits": lambda r: real(r, 2, 3)}],
    "Categorical": [{"probs": lambda r: positive(r, 2, 4)}, {"logits": lambda r: real(r, 5)}],
    "Cauchy": [{"loc": lambda r: real(r, 3), "scale": lambda r: positive(r, 2, 1)}],
    "Chi2": [{"df": lambda r: concentrated(r, 4)}],
    "ContinuousBernoulli": [
        {"probs": lambda r: chance(r, 4)}, {"logits": lambda r: real(r, 3)}, {"probs": lambda r: np.array([0.4995, 0.5, 0.5005])},
    ],
    "Dirichlet": [{"concentration": lambda r: concentrated(r, 2, 3)}],
    "Exponential": [{"rate": lambda r: positive(r, 4)}],
    "FisherSnedecor": [{"df1": lambda r: concentrated(r, 3) + 2, "df2": lambda r: concentrated(r, 3) + 4}],
    "Gamma": [{"concentration": lambda r: positive(r, 3), "rate": lambda r: positive(r, 2, 1)}],
    "GeneralizedPareto": [  # in float32, as PyTorch has no other
        {"loc": lambda r: real(r, 3), "scale": lambda r: positive(r, 3), "concentration": lambda r: np.array([-0.4, 0.0, 0.3])},
    ],
    "Geometric": [{"probs": lambda r: chance(r, 4)}, {"logits": lambda r: real(r, 4)}],
    "Gumbel": [{"loc": lambda r: real(r, 3), "scale": lambda r: positive(r, 3)}],
    "HalfCauchy": [{"scale": lambda r: positive(r, 3)}],
    "HalfNormal": [{"scale": lambda r: positive(r, 3)}],
    "InverseGamma": [{"concentration": lambda r: concentrated(r, 3) + 1, "rate": lambda r: positive(r, 3)}],
    "Kumaraswamy": [{"concentration1": lambda r: concentrated(r, 3), "concentration0": lambda r: concentrated(r, 3)}],
    "LKJCholesky": [{"dim": 3, "concentration": lambda r: positive(r, 2)}],
    "Laplace": [{"loc": lambda r: real(r, 3), "scale": lambda r: positive(r, 3)}],
    "LogNormal": [{"loc": lambda r: real(r, 3), "scale": lambda r: positive(r, 3) * 0.5}],
    "LogisticNormal": [{"loc": lambda r: real(r, 2, 3), "scale": lambda r: positive(r, 2, 3)}],
    "LowRankMultivariateNormal": [
        {"loc": lambda r: real(r, 2, 4), "cov_factor": lambda r: real(r, 4, 2), "cov_diag": lambda r: positive(r, 2, 4)},
    ],
    "Multinomial": [{"total_count": 4, "probs": lambda r: positive(r, 2, 3)}, {"total_count": 6, "logits": lambda r: real(r, 3)}],
    "MultivariateNormal": [
        {"loc": lambda r: real(r, 2, 3), "covariance_matrix": lambda r: covariance(r, 3)},
        {"loc": lambda r: real(r, 3), "precision_matrix": lambda r: covariance(r, 3, 2)},
        {"loc": lambda r: real(r, 2, 3), "scale_tril": lambda r: factor(r, 3, 2)},
    ],
    "NegativeBinomial": [
        {"total_count": lambda r: positive(r, 3), "probs": lambda r: chance(r, 3)}, {"total_count": 3, "logits": lambda r: real(r, 3)},
    ],
    "Normal": [{"loc": lambda r: real(r, 3), "scale": lambda r: positive(r, 2, 1)}, {"loc": 0.5, "scale": 2.0}],
    "OneHotCategorical": [{"probs": lambda r: positive(r, 2, 4)}, {"logits": lambda r: real(r, 5)}],
    "OneHotCategoricalStraightThrough": [{"probs": lambda r: positive(r, 2, 4)}],
    "Pareto": [{"scale": lambda r: positive(r, 3), "alpha": lambda r: concentrated(r, 3) + 1}],
    "Poisson": [{"rate": lambda r: positive(r, 4)}],
    "RelaxedBernoulli": [{"temperature": lambda r: np.array(0.7), "probs": lambda r: chance(r, 3)}],
    "RelaxedOneHotCategorical": [{"temperature": lambda r: np.array(0.7), "logits": lambda r: real(r, 2, 3)}],
    "StudentT": [{"df": lambda r: concentrated(r, 3) + 1.5, "loc": lambda r: real(r, 3), "scale": lambda r: positive(r, 3)}],
    "Uniform": [{"low": lambda r: -positive(r, 3), "high": lambda r: positive(r, 3)}],
    "VonMises": [{"loc": lambda r: real(r, 3), "concentration": lambda r: positive(r, 3) * 3}],
    "Weibull": [{"scale": lambda r: positive(r, 3), "concentration": lambda r: concentrated(r, 3)}],
    "Wishart": [{"df": lambda r: np.array([4.5, 6.0]), "covariance_matrix": lambda r: covariance(r, 3)}],
}


def tensors(T: Any, options: dict[str, Any], seed: int, gradients: bool = False) -> dict[str, Any]:
    """The arguments of a case as tensors of a framework, drawn from `seed`."""
    rng, found = np.random.default_rng(seed), {}
    for name, maker in options.items():
        found[name] = T.tensor(maker(rng)) if callable(maker) else maker
        if gradients and callable(maker):
            found[name].requires_grad_()
    return found


def made(T: Any, name: str, options: dict[str, Any], seed: int, **more: Any) -> tuple[Any, dict[str, Any]]:
    arguments = tensors(T, options, seed, more.pop("gradients", False))
    if name == "GeneralizedPareto":
        arguments = {n: v.detach().to(T.float32).requires_grad_(v.requires_grad) for n, v in arguments.items()}
    return getattr(package(T), name)(**arguments, **more), arguments


def package(T: Any) -> Any:
    return importlib.import_module(f"{T.__name__}.distributions")


def close(a: Any, b: Any, limit: float = 1e-9, what: str = "") -> None:
    assert tuple(a.shape) == tuple(b.shape), (what, a.shape, b.shape)
    x, y = a.detach().numpy(), b.detach().numpy()
    assert x.dtype == y.dtype, what
    np.testing.assert_allclose(x, y, rtol=limit, atol=limit, err_msg=what)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the class of what it raises."""
    try:
        return call()
    except NotImplementedError:
        return NotImplementedError
