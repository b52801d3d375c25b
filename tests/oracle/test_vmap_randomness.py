"""Random numbers inside `vmap`: an error, the same or others for every slice, whatever draws them: a recorded primitive, NumPy, a distribution."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

SLICES, COUNT = 3, 40
MODES = ("error", "same", "different")


def half(T: Any) -> Any:
    return T.full((COUNT,), 0.5)


OF_NOTHING: dict[str, Callable[[Any, Any], Any]] = {
    "rand": lambda T, x: T.rand(COUNT),
    "randint": lambda T, x: T.randint(0, 1000, (COUNT,)),
    "randperm": lambda T, x: T.randperm(COUNT),
    "randperm int32": lambda T, x: T.randperm(COUNT, dtype=T.int32),
    "bernoulli": lambda T, x: T.bernoulli(half(T)),
    "multinomial": lambda T, x: T.multinomial(half(T), 30),
    "poisson": lambda T, x: T.poisson(half(T) * 20),
    "normal": lambda T, x: T.normal(half(T), half(T)),
    "dropout": lambda T, x: T.nn.functional.dropout(half(T)),
    "randperm after x": lambda T, x: (x.sum(), T.randperm(COUNT))[1],
    "randperm in a gradient": lambda T, x: T.func.grad(lambda y: (y * T.randperm(COUNT)).sum())(half(T)),
    "multinomial in vmap": lambda T, x: T.vmap(lambda y: T.multinomial(half(T), 30), randomness="different")(T.ones(2)),
}
OF_SLICES: dict[str, Callable[[Any, Any], Any]] = {
    "multinomial": lambda T, x: T.multinomial(x, 30),
    "multinomial, replacing": lambda T, x: T.multinomial(x, 30, replacement=True),
    "poisson": lambda T, x: T.poisson(x * 20),
    "binomial": lambda T, x: T.binomial(x * 0 + 100, x),
    "gamma": lambda T, x: T._standard_gamma(x),
    "normal": lambda T, x: T.normal(x, x),
    "normal, one deviation": lambda T, x: T.normal(x, 1.0),
    "normal, one mean": lambda T, x: T.normal(half(T), x),
    "Normal": lambda T, x: T.distributions.Normal(x, 1.0).sample(),
    "Bernoulli": lambda T, x: T.distributions.Bernoulli(x).sample(),
    "Categorical": lambda T, x: T.distributions.Categorical(x).sample((30,)),
    "uniform_": lambda T, x: x.clone().uniform_(),
    "rand_like": lambda T, x: T.rand_like(x),
    "bernoulli_": lambda T, x: x.clone().bernoulli_(x),
    "dropout": lambda T, x: T.nn.functional.dropout(x + 1),
}


def kinds(T: Any, function: Callable[[Any, Any], Any]) -> dict[str, str]:
    """For every mode whether the slices of a result are the same or different, or the call raises."""
    found = {}
    for mode in MODES:
        T.manual_seed(3)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = T.vmap(lambda x: function(T, x), randomness=mode)(T.full((SLICES, COUNT), 0.5)).reshape(SLICES, -1).tolist()
        except Exception:
            found[mode] = "an error"
        else:
            found[mode] = {1: "same", SLICES: "different"}.get(len(set(map(tuple, rows))), "mixed")
    return found


@pytest.mark.parametrize("name", OF_NOTHING)
def test_what_is_drawn_from_the_same_for_all_slices(name: str) -> None:
    assert kinds(calque, OF_NOTHING[name]) == kinds(torch, OF_NOTHING[name]) == dict(zip(MODES, ("an error", "same", "different"), strict=True))


@pytest.mark.parametrize("name", OF_SLICES)
def test_what_is_drawn_from_slices(name: str) -> None:
    function = OF_SLICES[name]
    if name == "gamma":
        from calque.compat.torch import _VF

        found = kinds(calque, lambda T, x: _VF._standard_gamma(x))
    else:
        found = kinds(calque, function)
    wanted = kinds(torch, function)
    assert found["error"] == wanted["error"] == "an error" and found["different"] == wanted["different"] == "different"
    assert found["same"] in ("same", "an error")  # PyTorch refuses nearly all, where the same noise could be used


def test_distributions_in_vmap_look_at_all_slices() -> None:
    def scores(T: Any) -> Any:
        return T.vmap(lambda m, v: T.distributions.Normal(m, 2.0).log_prob(v))(T.arange(3.0), T.ones(3))

    assert scores(calque).tolist() == pytest.approx(scores(torch).tolist())


@pytest.mark.parametrize("T", [calque, torch])
def test_parameters_that_are_wrong_in_one_slice(T: Any) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        T.vmap(lambda s: T.distributions.Normal(0.0, s).mean)(T.tensor([1.0, -1.0]))
    with pytest.raises((ValueError, RuntimeError)):
        T.vmap(lambda s: T.normal(0.0, s), randomness="different")(T.tensor([1.0, -1.0]))
