"""What distributions share that are given by `probs` or `logits`."""

from __future__ import annotations

from typing import Any

from calque.base.errors import ArgumentError, DTypeError, how_to_pass
from calque.base.shapes import Size
from calque.base.text import described
from calque.distributions.distribution import Distribution
from calque.distributions.utils import lazy_property, logits_to_probs, probs_to_logits
from calque.functional.common import is_tensor
from calque.tensor import Tensor


class Chances(Distribution):
    """Chances of yes or no (`_binary`), or of one class among those of the last dim; what is not given is computed once."""

    _binary = True

    def _which(self, probs: Any, logits: Any) -> tuple[str, Any]:
        """Name and value of what is given."""
        if (probs is None) == (logits is None):
            raise ArgumentError(f"[{type(self).__name__}] Either `probs` or `logits` must be specified, but not both.")
        self._given, value = ("logits", logits) if probs is None else ("probs", probs)
        if not self._binary and not is_tensor(value):  # numbers are chances of two sides alone
            raise DTypeError(f"[{type(self).__name__}] expected {self._given} as a Tensor (..., K), got {described(value)}; {how_to_pass(value)}")
        return self._given, value

    @lazy_property
    def logits(self) -> Tensor:
        """Logarithms of the odds, or of the probabilities of classes."""
        return probs_to_logits(self.probs, is_binary=self._binary)

    @lazy_property
    def probs(self) -> Tensor:
        """Probabilities."""
        return logits_to_probs(self.logits, is_binary=self._binary)

    @property
    def _param(self) -> Tensor:
        return getattr(self, self._given)  # type: ignore[no-any-return]

    @property
    def param_shape(self) -> Size:
        """Shape of `probs` and `logits`."""
        return Size(self._param.shape)


class ByCategories(Distribution):
    """What is made from the probabilities of a `Categorical`, held as `_categorical`; the last dim of the parameters is the event."""

    _categorical: Any

    @property
    def logits(self) -> Tensor:
        """Logarithms of the probabilities, normalised."""
        return self._categorical.logits  # type: ignore[no-any-return]

    @property
    def probs(self) -> Tensor:
        """Probabilities, normalised."""
        return self._categorical.probs  # type: ignore[no-any-return]

    @property
    def _param(self) -> Tensor:
        return self._categorical._param  # type: ignore[no-any-return]

    @property
    def param_shape(self) -> Size:
        """Shape of `probs` and `logits`."""
        return self._categorical.param_shape  # type: ignore[no-any-return]
