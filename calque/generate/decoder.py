"""A model and its cache as the two steps of decoding."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base.dtypes import int64
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import type_name
from calque.functional.common import is_tensor
from calque.generate.cache import Cache, View
from calque.nn.module import Module
from calque.tensor import Tensor

__all__ = ["Decoder"]


class Decoder(Module):
    """A model with a `Cache`: `prefill` reads prompts, `decode` one more token of each row; both give the scores for the next one.

    model: called as `model(tokens, view)` with tokens (batch, count) int64 and a `View`, it gives scores (batch, count, vocabulary); those of the
    last token suffice. cache: with a layer for each layer that attends. `decoder(tokens, lengths)` is `prefill`, `decoder(tokens)` is `decode`; after
    `decoder.hybridize()` both are replayed without their Python. Exported with entries called "prefill" and "decode" it runs in the same loops
    (`generate`, `stream`).

    Raises ArgumentError for something that is no module, or no `Cache`.

    >>> import calque
    >>> class Words(calque.nn.Module):  # a layer of attention
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.words, self.head = calque.nn.Embedding(10, 4), calque.nn.Linear(4, 10)
    ...     def forward(self, tokens, view):
    ...         x = self.words(tokens).unsqueeze(1)
    ...         return self.head(view.attend(0, x, x, x).squeeze(1))
    >>> decoder = calque.generate.Decoder(Words(), calque.generate.Cache(layers=1, batch=2, heads=1, length=16, size=4))
    >>> scores = decoder.prefill(calque.tensor([[3, 1, 2], [0, 0, 7]]), calque.tensor([3, 1]))
    >>> tuple(scores.shape), tuple(decoder.decode(calque.tensor([[4], [4]])).shape), decoder.cache.place.item()
    ((2, 10), (2, 10), 4)
    """

    def __init__(self, model: Module, cache: Cache) -> None:
        super().__init__()
        if not isinstance(model, Module):
            raise ArgumentError(f"[Decoder] expected a Module called as model(tokens, view), got {type_name(model)}; pass the model itself")
        if not isinstance(cache, Cache):
            raise ArgumentError(f"[Decoder] expected a calque.generate.Cache, got {type_name(cache)}; make one with a layer for each that attends")
        self.model, self.cache = model, cache

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Forget what was there and read prompts: tokens (batch, count) int64, the last `lengths` (batch,) int64 of each row -> (batch, vocabulary).

        Shorter prompts are padded at the left, with any token; a length is from 1 to count. Raises ShapeError for other shapes, and for more tokens
        than the cache is long, DTypeError for lengths of another dtype, and IndexError, when scores are read, for those that are too short or long.
        """
        count = self._count("prefill", tokens)
        if not is_tensor(lengths) or tuple(lengths.shape) != (self.cache.batch,):
            got = tuple(lengths.shape) if is_tensor(lengths) else type_name(lengths)
            raise ShapeError(f"[prefill] expected lengths of shape ({self.cache.batch},), got {got}; give the number of tokens of each prompt")
        if lengths.dtype is not int64:
            raise DTypeError(f"[prefill] expected lengths as int64, got {lengths.dtype.name}; convert with .long()")
        if count > self.cache.length:
            raise ShapeError(f"[prefill] expected at most {self.cache.length} tokens, got {count}; make the Cache longer")
        return self._scores(tokens, self.cache.begin(count, lengths))

    def decode(self, tokens: Tensor) -> Tensor:
        """Read the next tokens of each row, (batch, count) int64 (count is 1 when one token is decoded at a time) -> (batch, vocabulary).

        Raises ShapeError for other shapes, and IndexError, when the scores are read, if the cache is full.
        """
        return self._scores(tokens, self.cache.proceed(self._count("decode", tokens)))

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """`decode`, or, with lengths, `prefill`."""
        return self.decode(tokens) if lengths is None else self.prefill(tokens, lengths)

    def _count(self, op: str, tokens: Any) -> int:
        if not is_tensor(tokens) or tokens.ndim != 2 or tokens.shape[0] != self.cache.batch:
            got = tuple(tokens.shape) if is_tensor(tokens) else type_name(tokens)
            raise ShapeError(f"[{op}] expected tokens of shape ({self.cache.batch}, count), got {got}; the Cache says how many rows there are")
        return tokens.shape[1]  # type: ignore[no-any-return]

    def _scores(self, tokens: Tensor, view: View) -> Tensor:
        scores = self.model(tokens, view)
        if not is_tensor(scores) or scores.ndim != 3 or scores.shape[0] != self.cache.batch:
            got = tuple(scores.shape) if is_tensor(scores) else type_name(scores)
            raise ShapeError(f"[Decoder] expected a model that gives scores of shape ({self.cache.batch}, count, vocabulary), got {got}")
        view.close()
        return T.select(scores, 1, -1)
