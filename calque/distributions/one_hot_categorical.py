"""Categorical distributions whose samples are one-hot vectors."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.distributions import constraints
from calque.distributions.categorical import Categorical
from calque.distributions.chances import ByCategories
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["OneHotCategorical", "OneHotCategoricalStraightThrough"]


class OneHotCategorical(ByCategories):
    """A vector of K zeros with a one at the class that was drawn; `probs` (..., K) or `logits` as for `Categorical`.

    >>> import calque
    >>> d = calque.distributions.OneHotCategorical(calque.tensor([0.0, 1.0]))
    >>> d.sample().tolist(), d.event_shape
    ([0.0, 1.0], torch.Size([2]))
    """

    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support: Any = constraints.one_hot
    has_enumerate_support = True
    _expands = ("_categorical",)

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._categorical = Categorical(probs, logits, validate_args=validate_args)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return self._vectors(self._categorical.mode)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def _vectors(self, classes: Tensor) -> Tensor:
        return F.one_hot(classes, self._event_shape[0]).to(self.probs.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._vectors(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self._categorical.log_prob(T.argmax(self._checked(value), -1))  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        return self._categorical.entropy()  # type: ignore[no-any-return]

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self._event_shape[0]
        values = T.eye(n, dtype=self._param.dtype, device=self._param.device)
        values = T.reshape(values, (n, *(1,) * len(self._batch_shape), n))
        return T.expand(values, (n, *self._batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """`OneHotCategorical` whose samples have the gradient of the probabilities (Bengio et al. 2013).

    >>> import calque
    >>> p = calque.tensor([0.0, 1.0], requires_grad=True)
    >>> calque.distributions.OneHotCategoricalStraightThrough(p).rsample()[1].backward()
    >>> p.grad.tolist()
    [-1.0, 0.0]
    """

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
