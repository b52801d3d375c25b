"""What a search draws from. Names and meanings are those of Ray Tune."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from calque.base.errors import ArgumentError, MissingEntryError
from calque.base.text import nearest, shown, type_name


class Domain:
    """Something that a value is drawn from. name, given: the function of this module that has made it, and what it got."""

    def __init__(self, draw: Callable[[random.Random, Any], Any], name: str, *given: Any) -> None:
        self._draw, self.name, self.given = draw, name, given

    def sample(self, rng: random.Random | None = None, spec: Any = None) -> Any:
        """A value. spec: what functions of `sample_from` get."""
        return self._draw(random.Random() if rng is None else rng, spec)

    def __repr__(self) -> str:
        return f"{self.name}({'...' if self.name == 'sample_from' else ', '.join(map(str, self.given))})"


class Spec:
    """What a function of `sample_from` gets: `spec.config.lr` and `spec.config["lr"]` are what was drawn before it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = Config(config)


class Config(dict[str, Any]):
    """A configuration that names what is like a name it has not; entries are attributes as well."""

    def __missing__(self, name: Any) -> Any:
        raise missing("config", str(name), self, "put it into config=")

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except MissingEntryError as error:
            raise AttributeError(str(error)) from None


def missing(where: str, name: str, known: Iterable[str], how: str) -> MissingEntryError:
    """The error of an entry that is not there."""
    names = [str(k) for k in known]
    like = nearest(name, names, 0.6)
    return MissingEntryError(f"[{where}] expected an entry {name!r}, got only {shown(names)}; {f'did you mean {like!r}?' if like else how}")


def named(value: Any) -> Any:
    """A configuration as the function of a trial gets it."""
    return Config({k: named(v) for k, v in value.items()}) if isinstance(value, dict) else value


def _bounds(name: str, lower: Any, upper: Any, whole: bool = False, positive: bool = False) -> None:
    kinds: Any = int if whole else (int, float)
    right = all(isinstance(n, kinds) and not isinstance(n, bool) and math.isfinite(n) for n in (lower, upper))
    if not right or not lower < upper or (positive and lower <= 0):
        want = f"{'whole ' if whole else ''}numbers lower < upper{', above 0' if positive else ''}"
        raise ArgumentError(f"[{name}] expected {want}, got {shown(lower)} and {shown(upper)}")


def uniform(lower: float, upper: float) -> Domain:
    """A float from lower to upper.

    >>> import random
    >>> from calque import tune
    >>> 2 <= tune.uniform(2, 3).sample(random.Random(0)) < 3
    True
    """
    _bounds("uniform", lower, upper)
    return Domain(lambda rng, _: rng.uniform(lower, upper), "uniform", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Domain:
    """A multiple of q from lower to upper."""
    _bounds("quniform", lower, upper)
    return Domain(lambda rng, _: round(rng.uniform(lower, upper) / q) * q, "quniform", lower, upper, q)


def loguniform(lower: float, upper: float, base: float = 10) -> Domain:
    """A float whose logarithm is uniform: each decade comes equally often."""
    _bounds("loguniform", lower, upper, positive=True)
    return Domain(lambda rng, _: math.exp(rng.uniform(math.log(lower), math.log(upper))), "loguniform", lower, upper)


def randint(lower: int, upper: int) -> Domain:
    """A whole number from lower to upper - 1."""
    _bounds("randint", lower, upper, whole=True)
    return Domain(lambda rng, _: rng.randrange(lower, upper), "randint", lower, upper)


def lograndint(lower: int, upper: int, base: float = 10) -> Domain:
    """A whole number from lower to upper - 1 whose logarithm is uniform."""
    _bounds("lograndint", lower, upper, whole=True, positive=True)
    return Domain(lambda rng, _: min(int(math.exp(rng.uniform(math.log(lower), math.log(upper)))), upper - 1), "lograndint", lower, upper)


def randn(mean: float = 0.0, sd: float = 1.0) -> Domain:
    """A normally distributed number."""
    return Domain(lambda rng, _: rng.gauss(mean, sd), "randn", mean, sd)


def choice(categories: Sequence[Any]) -> Domain:
    """One of several values."""
    values = list(categories)
    if not values:
        raise ArgumentError("[choice] expected some values to choose from, got none")
    return Domain(lambda rng, _: rng.choice(values), "choice", values)


def sample_from(func: Callable[..., Any]) -> Domain:
    """What a function gives: `func(spec)`, where `spec.config` has the values that were drawn before it."""
    if not callable(func):
        raise ArgumentError(f"[sample_from] expected a function, got {type_name(func)}")
    return Domain(lambda _, spec: func(spec), "sample_from", func)


def grid_search(values: Sequence[Any]) -> dict[str, list[Any]]:
    """Every one of these values; several grids give all combinations. `num_samples` repeats them all."""
    return {"grid_search": list(values)}


def leaves_of(config: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The entries of a space that is nested, and where they are."""
    for key, value in config.items():
        if isinstance(value, dict) and set(value) != {"grid_search"}:
            yield from leaves_of(value, (*path, key))
        else:
            yield (*path, key), value


def put(config: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """Set an entry of a configuration that is nested."""
    for key in path[:-1]:
        config = config.setdefault(key, {})
    config[path[-1]] = value


def configs(space: dict[str, Any], num_samples: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """The configurations of a search, one by one. Functions of `sample_from` come last."""
    leaves = list(leaves_of(space))
    grids = [(path, value["grid_search"]) for path, value in leaves if isinstance(value, dict)]
    drawn = [(path, value) for path, value in leaves if isinstance(value, Domain)]
    drawn.sort(key=lambda leaf: leaf[1].name == "sample_from")
    for _ in range(num_samples):
        for combination in itertools.product(*[values for _, values in grids]):
            config: dict[str, Any] = {}
            for path, value in leaves:
                put(config, path, None if isinstance(value, Domain | dict) else value)
            for (path, _), value in zip(grids, combination, strict=True):
                put(config, path, value)
            done: dict[str, Any] = {path[0]: config[path[0]] for path, value in leaves if not isinstance(value, Domain)}
            for path, domain in drawn:
                value = domain.sample(rng, Spec(done))
                put(config, path, value)
                done[path[0]] = config[path[0]]
            yield config
