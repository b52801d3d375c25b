"""The loop: prompts in, tokens out, one program per token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.dtypes import int64
from calque.base.errors import ArgumentError
from calque.base.text import shown, type_name
from calque.functional.common import is_tensor
from calque.functional.generators import Generator
from calque.generate.decoder import Decoder
from calque.generate.sampling import check_settings, sample
from calque.hybrid import compile
from calque.nn.module import Module
from calque.tensor import Tensor

__all__ = ["generate", "stream"]

_RUNNING: WeakKeyDictionary[Module, object] = WeakKeyDictionary()  # by cache: the loop that began last


def generate(
    decoder: Module, prompts: Any, max_new_tokens: int, *, lengths: Any = None, temperature: float = 0.0, top_k: int | None = None,
    top_p: float | None = None, generator: Generator | None = None, stop: int | Collection[int] = (), multiple: int = 1,
) -> list[Tensor]:  # fmt: skip
    """The tokens that a decoder puts after each prompt: for each an int64 tensor (new,), with the stop token if one ended it.

    Arguments are those of `stream`, and so are its errors.

    >>> import calque
    >>> class Next(calque.nn.Module):  # says the next number, whatever came before
    ...     def forward(self, tokens, view):
    ...         return calque.nn.functional.one_hot((tokens + 1) % 10, 10).float()
    >>> decoder = calque.generate.Decoder(Next(), calque.generate.Cache(layers=1, batch=2, heads=1, length=16, size=1))
    >>> [t.tolist() for t in calque.generate.generate(decoder, [[1, 2, 3], [7]], 4, stop=9)]
    [[4, 5, 6, 7], [8, 9]]
    """
    found: list[list[int]] = []
    settings: dict[str, Any] = {
        "lengths": lengths, "temperature": temperature, "top_k": top_k, "top_p": top_p, "generator": generator, "stop": stop, "multiple": multiple,
    }  # fmt: skip
    for tokens in stream(decoder, prompts, max_new_tokens, **settings):
        found = found or [[] for _ in tokens]
        for row, token in zip(found, tokens, strict=True):
            if token is not None:
                row.append(token)
    return [T.tensor(row, dtype=int64) for row in found]


def stream(
    decoder: Module, prompts: Any, max_new_tokens: int, *, lengths: Any = None, temperature: float = 0.0, top_k: int | None = None,
    top_p: float | None = None, generator: Generator | None = None, stop: int | Collection[int] = (), multiple: int = 1,
) -> Iterator[list[int | None]]:  # fmt: skip
    """As `generate`, a token of every prompt at a time: lists with a token for each prompt, None for those that have ended.

    decoder: a `Decoder`, or an export of one with the entries "prefill" and "decode". One that is hybridized runs its steps without their Python.
    prompts: a list of prompts (lists of ints, or tensors of one dim), or a tensor (prompts, count) with all of them; at most as many as the cache has
    rows. lengths: how many tokens of each row of such a tensor, from its left, are the prompt (default: all). max_new_tokens: from 1 on.
    temperature, top_k, top_p, generator: see `sample`; temperature 0, the default, takes the likeliest token. stop: a token, or some, that end a
    prompt's answer. multiple: prompts are padded to a multiple of this many tokens, so that prompts of all lengths need few programs (default: no
    padding but that of shorter prompts); padding takes room in the cache.

    Raises ArgumentError, before anything is computed, for prompts that are empty or none, for more of them than the cache has rows, for more tokens
    than it has room for, and for settings out of range.

    >>> import calque
    >>> class Next(calque.nn.Module):
    ...     def forward(self, tokens, view):
    ...         return calque.nn.functional.one_hot((tokens + 1) % 10, 10).float()
    >>> decoder = calque.generate.Decoder(Next(), calque.generate.Cache(layers=1, batch=2, heads=1, length=16, size=1))
    >>> list(calque.generate.stream(decoder, [[1, 2, 3], [7]], 3, stop=9))
    [[4, 8], [5, 9], [6, None]]
    """
    check_settings("generate", temperature, top_k, top_p)
    ends = _ends(stop)
    for name, number in (("max_new_tokens", max_new_tokens), ("multiple", multiple)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ArgumentError(f"[generate] expected {name} as an integer from 1 on, got {shown(number)}")
    batch, room = _memory(decoder)
    rows = _rows(prompts, lengths, batch)
    padded = -(-max(map(len, rows)) // multiple) * multiple
    if padded + max_new_tokens - 1 > room:  # the last token is not read any more
        raise ArgumentError(
            f"[generate] expected prompts and new tokens that fit into the {room} slots of the cache, got {padded} of prompts and {max_new_tokens} "
            "new ones; make the Cache longer, or ask for less"
        )
    settings = (float(temperature), top_k, None if top_p is None else float(top_p), generator)
    return _tokens(decoder, rows, (batch, padded), max_new_tokens, settings, ends)


def _ends(stop: Any) -> set[int]:
    """The tokens that end an answer."""
    found = stop.tolist() if is_tensor(stop) else stop
    found = found if isinstance(found, Collection) else [found]
    tokens = [t.item() if is_tensor(t) and t.numel() == 1 else t for t in found]
    if not all(isinstance(t, int | np.integer) and not isinstance(t, bool) for t in tokens):
        raise ArgumentError(f"[generate] expected stop as a token, or several, which are integers, got {shown(stop)}; encode texts before")
    return {int(t) for t in tokens}  # type: ignore[arg-type]


def _tokens(
    decoder: Module, rows: list[list[int]], size: tuple[int, int], count: int, settings: tuple[Any, ...], ends: set[int]
) -> Iterator[list[int | None]]:
    """The loop itself. Rows that are there to fill the batch, and those that have ended, go on and are not looked at."""
    prompts, lengths = np.zeros(size, np.int64), np.ones(size[0], np.int64)
    for k, row in enumerate(rows):
        prompts[k, size[1] - len(row) :], lengths[k] = row, len(row)
    first, step = _steps(decoder)
    alive = [True] * len(rows)
    tokens: Any = None
    mine = _RUNNING[decoder.cache] = object()
    for k in range(count):
        if _RUNNING.get(decoder.cache) is not mine:
            raise ArgumentError(
                "[stream] expected one loop at a time with a cache, but another one has begun with it since, and forgotten what was there; give each "
                "loop a Decoder with a Cache of its own"
            )
        with no_grad():  # left before each yield: what the caller does meanwhile has gradients
            tokens = step(tokens, *settings) if k else first(T.tensor(prompts), T.tensor(lengths), *settings)
            found = tokens.flatten().tolist()
        yield [token if there else None for token, there in zip(found, alive, strict=False)]
        alive = [there and token not in ends for token, there in zip(found, alive, strict=False)]
        if not any(alive):
            return


def _steps(decoder: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Functions of (tokens, lengths, settings) and of (tokens, settings), which give the next tokens, (batch, 1): each is one program. Where they are
    replayed, they are recorded in every loop anew, which is two tokens' Python: a decoder that kept them could not be copied."""

    def first(tokens: Tensor, lengths: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Any) -> Tensor:
        scores = decoder.prefill(tokens, lengths)
        return T.unsqueeze(sample(scores, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator), 1)

    def step(tokens: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Any) -> Tensor:
        return T.unsqueeze(sample(decoder.decode(tokens), temperature=temperature, top_k=top_k, top_p=top_p, generator=generator), 1)

    return (compile(first), compile(step)) if decoder.__dict__.get("_hybrid") is not None else (first, step)


def _memory(decoder: Any) -> tuple[int, int]:
    """Rows and slots of the cache."""
    if isinstance(decoder, Module):
        found = {name: b.shape for name, b in decoder.named_buffers() if name in ("cache.keys0", "cache.start")}
        if len(found) == 2 and (isinstance(decoder, Decoder) or {"prefill", "decode"} <= set(getattr(decoder, "entries", ()))):
            return int(found["cache.start"][0]), int(found["cache.keys0"][2])
    raise ArgumentError(
        f'[generate] expected a calque.generate.Decoder, or an export of one with the entries "prefill" and "decode", got {type_name(decoder)}; '
        "write Decoder(model, Cache(...))"
    )


def _rows(prompts: Any, lengths: Any, batch: int) -> list[list[int]]:
    """The prompts as lists of tokens."""
    if is_tensor(prompts) and prompts.ndim == 1 and prompts.dtype is int64:
        prompts = prompts.unsqueeze(0)
    rows = prompts.tolist() if is_tensor(prompts) else [row.tolist() if is_tensor(row) else row for row in prompts] if _listed(prompts) else None
    if not rows or not all(_listed(row) and row and all(type(token) is int for token in row) for row in rows):
        raise ArgumentError("[generate] expected prompts as lists of ints or int64 tensors, at least one and none empty; encode texts before")
    if len(rows) > batch:
        raise ArgumentError(f"[generate] expected at most {batch} prompts, as the cache has {batch} rows, got {len(rows)}; make the Cache wider")
    if lengths is None:
        return [list(row) for row in rows]
    counts = lengths.tolist() if is_tensor(lengths) else list(lengths)
    fits = len(counts) == len(rows) and all(type(n) is int and 1 <= n <= len(row) for n, row in zip(counts, rows, strict=True))
    if not fits:
        raise ArgumentError(f"[generate] expected lengths with an integer for each prompt, from 1 to its number of tokens, got {shown(counts)}")
    return [list(row[:n]) for n, row in zip(counts, rows, strict=True)]


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
