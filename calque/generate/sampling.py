"""Choosing the next token."""

from __future__ import annotations

import math

from calque import functional as T
from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import shown
from calque.functional.generators import Generator
from calque.tensor import Tensor

__all__ = ["check_settings", "sample"]

_LEAST = 2.0**-25  # below all random numbers but 0, of which the noise would be infinite: as little as the score of a token that may not be drawn


def check_settings(op: str, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise ArgumentError for numbers that say nothing."""
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature < math.inf:
        raise ArgumentError(f"[{op}] expected temperature as a finite number from 0 on, got {shown(temperature)}; 0 takes the likeliest token")
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
        raise ArgumentError(f"[{op}] expected top_k as an integer from 1 on, got {shown(top_k)}; None allows every token")
    if top_p is not None and (not isinstance(top_p, int | float) or isinstance(top_p, bool) or not 0 < top_p <= 1):
        raise ArgumentError(f"[{op}] expected top_p as a number above 0 and at most 1, got {shown(top_p)}; None allows every token")


def sample(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, generator: Generator | None = None
) -> Tensor:
    """Draw a token for each row of scores: (batch, vocabulary) floats -> (batch,) int64.

    temperature: scores are divided by it; 0 takes the largest (and draws nothing), 1 leaves them. top_k: only the k largest scores may be drawn, and
    those equal to the k-th; more than there are is all. top_p: of these only the likeliest, until their probabilities add up to it; always one, and
    those equal to the last. generator: where random numbers come from (default: the global one).

    It is operations on tensors alone (the largest of score plus Gumbel noise), so that it belongs to the program that computes the scores. Scores
    that are NaN give tokens that mean nothing. Raises ShapeError and ArgumentError for what is none of this.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration (2020), for top_p.

    >>> import calque
    >>> logits = calque.tensor([[0.0, 3.0, 1.0], [5.0, 5.0, -9.0]])
    >>> calque.generate.sample(logits, temperature=0).tolist()
    [1, 0]
    >>> calque.generate.sample(logits, top_k=1, generator=calque.Generator().manual_seed(0)).tolist()[0]
    1
    """
    check_settings("sample", temperature, top_k, top_p)
    if logits.ndim != 2 or not logits.dtype.is_floating_point:
        raise ShapeError(
            f"[sample] expected floats of shape (batch, vocabulary), got {logits.dtype.name} of shape {tuple(logits.shape)}; pass scores[:, -1]"
        )
    if temperature == 0:
        return T.argmax(logits, -1)
    scores = logits.float()
    scores = (scores - T.amax(scores, -1, keepdim=True)) / temperature  # at most 0: a small temperature gives -inf, never NaN
    if top_k is not None and top_k < logits.shape[-1]:
        least = T.narrow(T.topk(scores, top_k, -1)[0], -1, top_k - 1, 1)
        scores = T.where(scores < least, -math.inf, scores)
    if top_p is not None and top_p < 1:
        chances = T.softmax(scores, -1)
        ordered = T.sort(chances, -1, descending=True)[0]
        before = T.cumsum(ordered, -1) - ordered
        least = T.amin(T.where(before < top_p, ordered, math.inf), -1, keepdim=True)
        scores = T.where(chances < least, -math.inf, scores)
    noise = T.clamp(T.rand(tuple(scores.shape), generator=generator), _LEAST)
    return T.argmax(scores - T.log(-T.log(noise)), -1)
