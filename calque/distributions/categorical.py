"""The categorical distribution."""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.dtypes import FInfo
from calque.base.errors import ShapeError
from calque.base.shapes import Size
from calque.distributions import constraints
from calque.distributions.chances import Chances
from calque.tensor import Tensor

__all__ = ["Categorical"]


class Categorical(Chances):
    """One of K classes, with probabilities proportional to `probs` (..., K), or given by `logits`; samples are int64 numbers of classes.

    >>> import calque
    >>> d = calque.distributions.Categorical(calque.tensor([1.0, 1.0, 2.0]))
    >>> d.probs.tolist(), d.mode.item(), round(d.entropy().item(), 4), d.sample((2, 3)).shape
    ([0.25, 0.25, 0.5], 2, 1.0397, torch.Size([2, 3]))
    """

    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True
    _binary = False
    _expands = ("probs", "logits")
    _copies = ("_given", "_num_events")

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        name, value = self._which(probs, logits)
        if value.dim() < 1:
            raise ShapeError(f"[Categorical] `{name}` parameter must be at least one-dimensional.")
        sure = value / T.sum(value, -1, True) if name == "probs" else value - T.logsumexp(value, -1, True)
        self.__dict__[name] = sure
        self._num_events = sure.shape[-1]
        super().__init__(sure.shape[:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def mean(self) -> Tensor:
        return self._filled(math.nan, self.probs)

    @property
    def mode(self) -> Tensor:
        return T.argmax(self.probs, -1)

    @property
    def variance(self) -> Tensor:
        return self._filled(math.nan, self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        with no_grad():
            rows = T.reshape(self.probs, (-1, self._num_events))
            return T.reshape(T.multinomial(rows, Size(sample_shape).numel(), True).T, tuple(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        places, logs = T.broadcast_tensors(T.unsqueeze(self._checked(value).long(), -1), self.logits)
        return T.squeeze(T.gather(logs, -1, places[..., :1]), -1)

    def entropy(self) -> Tensor:
        return -T.sum(T.clamp(self.logits, min=FInfo(self.logits.dtype).min) * self.probs, -1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = T.reshape(T.arange(self._num_events, device=self._param.device), (-1, *(1,) * len(self._batch_shape)))
        return T.expand(values, (-1, *self._batch_shape)) if expand else values
