"""Divergences of Kullback and Leibler, by the kinds of two distributions: a table that `register_kl` adds to; the formulas are in `divergences`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from calque.base.text import described
from calque.distributions.distribution import Distribution
from calque.functional.blame import publish as _publish
from calque.tensor import Tensor

__all__ = ["kl_divergence", "register_kl"]

_REGISTRY: dict[tuple[type, type], Callable[[Any, Any], Any]] = {}
_FOUND: dict[tuple[type, type], Callable[[Any, Any], Any]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
    """A decorator: the function gives KL(p || q) for p and q of these classes and of their subclasses that have none of their own.

    >>> import calque
    >>> from calque.distributions import Normal, kl_divergence, register_kl
    >>> class Point(Normal):
    ...     pass
    >>> @register_kl(Point, Normal)
    ... def _kl(p, q):
    ...     return -q.log_prob(p.mean)
    >>> round(kl_divergence(Point(0.0, 1.0), Normal(0.0, 1.0)).item(), 4)
    0.9189
    """
    for kind in (type_p, type_q):
        if not isinstance(kind, type):  # any class: libraries mix one of their own into each distribution, and register that
            raise TypeError(f"[register_kl] Expected a Distribution subclass but got {described(kind)}")

    def keep(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        _REGISTRY[type_p, type_q] = function
        _FOUND.clear()
        return function

    return keep


def _closest(matches: list[tuple[type, type]], first: int) -> tuple[type, type]:
    """The match that is most derived in one argument, and among those in the other."""
    best = matches[0]
    for match in matches[1:]:
        a, b = (match, best) if first == 0 else (match[::-1], best[::-1])
        if issubclass(a[0], b[0]) and (a[0] is not b[0] or issubclass(a[1], b[1])):
            best = match
    return best


def _look_up(type_p: type, type_q: type) -> Callable[[Any, Any], Any]:
    matches = [(p, q) for p, q in _REGISTRY if issubclass(type_p, p) and issubclass(type_q, q)]
    if not matches:
        raise NotImplementedError(f"No KL(p || q) is implemented for p type {type_p.__name__} and q type {type_q.__name__}")
    left, right = _closest(matches, 0), _closest(matches, 1)
    if _REGISTRY[left] is not _REGISTRY[right]:
        warnings.warn(
            f"Ambiguous kl_divergence({type_p.__name__}, {type_q.__name__}). Please register_kl({left[0].__name__}, {right[1].__name__})",
            RuntimeWarning,
            stacklevel=4,
        )
    return _REGISTRY[left]


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The mean of log p(x) - log q(x) over x of p, of shape batch_shape; differentiable in all parameters.

    Raises NotImplementedError for pairs that are not registered.

    >>> import calque
    >>> d = calque.distributions
    >>> round(d.kl_divergence(d.Bernoulli(0.5), d.Bernoulli(0.25)).item(), 4)
    0.1438
    """
    kinds = (type(p), type(q))
    function = _FOUND.get(kinds)
    if function is None:
        function = _FOUND[kinds] = _look_up(*kinds)
    return function(p, q)  # type: ignore[no-any-return]


_publish(sys.modules[__name__])
