"""Keys and values of the tokens so far, in memory of a fixed length that is written in place at a place known when the program runs."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.base.dtypes import DType, int64
from calque.base.errors import ArgumentError, OutOfRangeError, ShapeError
from calque.nn import functional as F
from calque.nn.functional.checks import check_indices
from calque.nn.module import Module
from calque.nn.modules.make import extents
from calque.tensor import Tensor

__all__ = ["Cache", "View"]


class Cache(Module):
    """Memory for the keys (batch, heads, length, size) and values (batch, heads, length, value_size) of every layer.

    layers: how many layers attend. batch: rows that are decoded together; a call of `generate` with fewer prompts fills the others up. heads: of keys
    and values, which may be fewer than those of queries. length: the most tokens that a row can have, padding, prompt and new ones together. size: of
    a head. value_size: of the values of a head (default: size). dtype: of both (default: the default dtype).

    The buffers `keys0`, `values0`, `keys1`, ... are written in place. `place` is the next slot to be written, (1,), and `start` the first slot of
    each row that is no padding, (batch,), both int64. None of them is part of a state dict; in an export they are state.

    Raises ArgumentError for sizes that are no positive integers.

    >>> import calque
    >>> cache = calque.generate.Cache(layers=2, batch=1, heads=4, length=256, size=16)
    >>> cache
    Cache(layers=2, batch=1, heads=4, length=256, size=16, value_size=16)
    >>> tuple(cache.keys0.shape), cache.place.tolist()
    ((1, 4, 256, 16), [0])
    """

    place: Tensor
    start: Tensor

    def __init__(
        self, layers: int, batch: int, heads: int, length: int, size: int, *, value_size: int | None = None, dtype: DType | None = None
    ) -> None:
        super().__init__()
        sizes = {"layers": layers, "batch": batch, "heads": heads, "length": length, "size": size, "value_size": value_size or size}
        extents("Cache", **sizes)
        for name, value in sizes.items():
            if int(value) < 1:
                raise ArgumentError(f"[Cache] expected {name} as an integer from 1 on, got {value}; every layer, row, head and slot needs memory")
        self.layers, self.batch, self.heads, self.length, self.size, self.value_size = map(int, sizes.values())
        for kind, width in (("keys", self.size), ("values", self.value_size)):
            for k in range(self.layers):
                self.register_buffer(f"{kind}{k}", T.zeros((self.batch, self.heads, self.length, width), dtype=dtype), persistent=False)
        self.register_buffer("place", T.zeros((1,), dtype=int64), persistent=False)
        self.register_buffer("start", T.zeros((self.batch,), dtype=int64), persistent=False)

    def begin(self, count: int, lengths: Tensor) -> View:
        """Forget everything, and make a `View` for the first `count` tokens of each row, of which the last `lengths` (batch,), int64, are its prompt
        and those before are padding. Raises IndexError, when a value is read, for lengths that are not from 1 to `count`."""
        check_indices(lengths - 1, count, None, lambda place, value: _length_error(place, value + 1, count))
        for k in range(self.layers):  # what an earlier prompt left may be infinite or NaN, which no weight of 0 takes out of a sum
            self.get_buffer(f"keys{k}").zero_()
            self.get_buffer(f"values{k}").zero_()
        self.start.copy_(count - lengths)
        self.place.zero_()
        return View(self, count, True)

    def proceed(self, count: int) -> View:
        """A `View` for the next `count` tokens of each row."""
        return View(self, count, False)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in ("layers", "batch", "heads", "length", "size", "value_size"))


def _length_error(place: tuple[int, ...], value: int, count: int) -> OutOfRangeError:
    return OutOfRangeError(f"[prefill] expected lengths from 1 to {count}, the number of tokens in a row, got {value} for row {place[0]}")


class View:
    """What one call of a decoder sees of a `Cache`: where its tokens are, and what they may look at. `Cache.begin` and `Cache.proceed` make them.

    positions: (batch, count) int64, the number of each token in its row, from 0 on; that of padding is 0. mask: bool (batch, 1, count, seen), True
    where a token (dim 2) may look at a slot (dim 3). A token sees itself and the tokens of its row before it, never padding.

    >>> import calque
    >>> view = calque.generate.Cache(layers=1, batch=2, heads=1, length=8, size=4).begin(3, calque.tensor([3, 1]))
    >>> view.positions.tolist()
    [[0, 1, 2], [0, 0, 0]]
    >>> view.mask[1, 0].int().tolist()
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """

    def __init__(self, cache: Cache, count: int, first: bool) -> None:
        self.cache, self.count, self._first = cache, count, first
        steps = T.arange(count)
        self._slots = steps if first else cache.place + steps
        slots, start = T.unsqueeze(self._slots, 0), T.unsqueeze(cache.start, 1)
        self.positions = T.clamp(slots - start, 0)
        seen = steps if first else T.arange(cache.length)
        # A token of padding sees itself, as the softmax of nothing is NaN, which would spread.
        low = T.reshape(T.minimum(slots, start), (cache.batch, 1, count, 1))
        self.mask = T.logical_and(seen <= T.reshape(self._slots, (count, 1)), seen >= low)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the keys (batch, heads, count, size) and values (batch, heads, count, value_size) of these tokens, and return those that `mask` is
        about: (batch, heads, seen, size) and (batch, heads, seen, value_size).

        layer: which layer they belong to, from 0 on. Raises ShapeError for other shapes, IndexError for a layer that there is none of, and, when the
        value is there, an IndexError if the cache is full.
        """
        cache = self.cache
        if not 0 <= layer < cache.layers:
            raise IndexError(f"[View.write] expected a layer from 0 to {cache.layers - 1}, got {layer}; make the Cache with more layers")
        for name, new, size in (("keys", keys, cache.size), ("values", values, cache.value_size)):
            wanted = (cache.batch, cache.heads, self.count, size)
            if tuple(new.shape) != wanted:
                raise ShapeError(f"[View.write] expected {name} of shape {wanted}, got {tuple(new.shape)}; split heads, and give the Cache theirs")
        pairs = (("keys", keys), ("values", values))
        found: list[Any] = []
        for kind, new in pairs:
            memory = cache.get_buffer(f"{kind}{layer}")
            new = new.to(memory.dtype)
            if self._first:
                T.narrow(memory, 2, 0, self.count).copy_(new)
            else:
                memory.index_copy_(2, self._slots, new)
            found.append(new if self._first else memory)
        return found[0], found[1]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, *, scale: float | None = None) -> Tensor:
        """Attention of these tokens to themselves and to those before: queries (batch, query heads, count, size), keys and values as `write` takes
        them -> (batch, query heads, count, value_size).

        layer: which layer it is, from 0 on. scale: what products are multiplied by (default: 1 / sqrt(size)). With fewer heads of keys than of
        queries each serves several of these, in order. Raises what `write` raises.
        """
        keys, values = self.write(layer, keys, values)
        grouped = queries.shape[1] != self.cache.heads
        return F.scaled_dot_product_attention(queries.to(keys.dtype), keys, values, self.mask, scale=scale, enable_gqa=grouped).to(queries.dtype)

    def close(self) -> None:
        """These tokens are written in all layers: the next call comes after them."""
        self.cache.place.add_(self.count)
