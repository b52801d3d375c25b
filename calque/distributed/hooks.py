"""How a bucket of gradients travels: as it is, in 16 bits, or as a function of the user's has it."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import ml_dtypes
import numpy as np

from calque.autograd.modes import no_grad
from calque.base.dtypes import bfloat16, float16
from calque.base.errors import ArgumentError
from calque.distributed.collectives import all_reduce, as_bytes
from calque.distributed.exchange import flat
from calque.distributed.group import ProcessGroup
from calque.distributed.world import group_of
from calque.functional.creation import empty, zeros
from calque.functional.inplace import copy_
from calque.functional.joining import cat
from calque.functional.views import detach
from calque.tensor import Tensor

_ALIGN = 64  # bytes: the beginning of every gradient in its bucket


class Flat:
    """Where the gradients of a bucket lie in one array."""

    def __init__(self, sizes: list[int], dtype: Any) -> None:
        self.sizes, self.dtype = sizes, np.dtype(dtype)
        self.wide = np.dtype(np.float32) if self.dtype.itemsize == 2 else self.dtype  # in which they are added
        step = _ALIGN // self.wide.itemsize
        self.starts: list[int] = []
        at = 0
        for size in sizes:
            self.starts.append(at)
            at += -(-size // step) * step
        self.total = at

    def average(self, pg: ProcessGroup, arrays: list[Any], there: list[bool], factor: float, wire: Any) -> list[Any]:
        """The weighted means; `there`: which parameters the arrays are of, the others are zeros. `wire`: dtype that travels, or None."""
        given = iter(arrays)
        sources = [next(given) if has else None for has in there]
        whole = flat(self.total, self.wide)
        if wire is None and pg.size() > 1:
            pg.add_up(lambda into, at: self._fill(into, at, sources, factor), whole)
        else:
            self._fill(whole, 0, sources, factor)
            if pg.size() > 1:
                whole = _halved(pg, whole, wire)
        if self.wide is not self.dtype:
            with np.errstate(over="ignore"):
                whole = whole.astype(self.dtype)
        return [whole[start : start + size] for start, size in zip(self.starts, self.sizes, strict=True)]

    def _fill(self, into: Any, low: int, sources: list[Any], factor: float) -> None:
        """Write what this rank adds to the piece of the bucket that begins at `low`."""
        end, high = low, low + into.size
        for k in range(max(bisect_right(self.starts, low) - 1, 0), len(self.sizes)):
            start, source = self.starts[k], sources[k]
            if start >= high:
                break
            first, last = max(start, low), min(start + self.sizes[k], high)
            if first >= last:
                continue
            into[end - low : first - low] = 0
            if source is None:
                into[first - low : last - low] = 0
            else:
                np.multiply(source[first - start : last - start], factor, out=into[first - low : last - low], casting="unsafe")
            end = last
        into[end - low :] = 0


def _halved(pg: ProcessGroup, whole: Any, wire: Any) -> Any:
    """A sum whose addends and result travel in 16 bits and are added as they are, in the order of ranks: the same bits everywhere."""
    if whole.dtype.kind == "c":
        return _halved(pg, whole.view(f"f{whole.itemsize // 2}"), wire).view(whole.dtype)
    count = pg.size()
    part = -(-whole.size // count)
    sent = np.zeros(part * count, wire)
    with np.errstate(over="ignore"):
        sent[: whole.size] = whole
    received, sizes = np.empty((count, part), wire), [part * sent.itemsize] * count
    pg.all_to_all(as_bytes(sent), as_bytes(received.reshape(-1)), sizes, sizes)
    total = received[0].astype(whole.dtype)
    for row in received[1:]:
        total += row
    with np.errstate(over="ignore"):
        mine = total.astype(wire)
    pg.all_gather(as_bytes(mine), as_bytes(sent))
    whole[:] = sent[: whole.size]
    return whole


class GradBucket:
    """What a hook gets."""

    def __init__(self, buffer: Tensor, index: int, last: bool, params: list[Any], gradients: list[Any]) -> None:
        self._buffer, self._index, self._last, self._params, self._gradients = buffer, index, last, params, gradients

    def buffer(self) -> Any:
        """The gradients as one vector."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Put another vector in its place."""
        self._buffer = buffer

    def index(self) -> int:
        """Number of the bucket."""
        return self._index

    def is_last(self) -> bool:
        """Whether it is the last of the step."""
        return self._last

    def parameters(self) -> list[Any]:
        """Whose gradients they are."""
        return self._params

    def gradients(self) -> list[Any]:
        """The gradients, one by one."""
        return self._gradients


@no_grad()
def by_hook(hook: tuple[Any, Any], index: int, last: bool, params: list[Any], there: list[bool], wanted: list[bool]) -> None:
    """Let a function of the user's average a bucket. `there`: which parameters have a gradient, the others are zeros; `wanted`: which get one."""
    gradients = [p._grad if has else zeros(tuple(p._layout.shape), dtype=p._layout.dtype) for p, has in zip(params, there, strict=True)]
    bucket = GradBucket(cat([g.reshape(-1) for g in gradients]), index, last, params, gradients)
    found = _value(hook[1](hook[0], bucket))
    at = 0
    for p, g, want in zip(params, gradients, wanted, strict=True):
        if want:
            copy_(detach(g), found[at : at + g._layout.numel].reshape(tuple(g._layout.shape)))
            p._grad = g
        at += g._layout.numel


def _value(found: Any) -> Any:
    """The vector that a hook has given: itself, a future of it, or a list of one."""
    while not hasattr(found, "_layout"):
        found = found.wait() if hasattr(found, "wait") else found[0]
    return found


def empty_like(p: Any) -> Any:
    """A gradient whose values will come."""
    return empty(tuple(p._layout.shape), dtype=p._layout.dtype)


def _mean(group: Any, buffer: Tensor, dtype: Any) -> Any:
    """What the hooks below are when a function of the user's calls them."""
    pg = group_of("register_comm_hook", group)
    if pg is None:
        raise ArgumentError("[register_comm_hook] expected a group of which this process is a member")
    sent = (buffer / pg.size()).to(dtype)
    all_reduce(sent, group=pg)
    return sent.to(buffer.dtype)


def allreduce_hook(state: Any, bucket: GradBucket) -> Any:
    """For `register_comm_hook`: gradients travel as they are. state: the group, or None."""
    return _mean(state, bucket.buffer(), bucket.buffer().dtype)


def fp16_compress_hook(state: Any, bucket: GradBucket) -> Any:
    """For `register_comm_hook`: gradients travel as float16. state: the group, or None."""
    return _mean(state, bucket.buffer(), float16)


def bf16_compress_hook(state: Any, bucket: GradBucket) -> Any:
    """For `register_comm_hook`: gradients travel as bfloat16. state: the group, or None."""
    return _mean(state, bucket.buffer(), bfloat16)


def noop_hook(state: Any, bucket: GradBucket) -> Any:
    """For `register_comm_hook`: nothing travels, and each rank keeps its own gradients. To see what communication costs."""
    return bucket.buffer()


def _narrowing(hook: Any, dtype: Any) -> Any:
    def narrowed(state: Any, bucket: GradBucket) -> Any:
        wide = bucket.buffer()
        bucket.set_buffer(wide.to(dtype))
        return _value(hook(state, bucket)).to(wide.dtype)

    return narrowed


def fp16_compress_wrapper(hook: Any) -> Any:
    """A hook that gives another one float16 gradients, and makes of its result what they were."""
    return _narrowing(hook, float16)


def bf16_compress_wrapper(hook: Any) -> Any:
    """A hook that gives another one bfloat16 gradients, and makes of its result what they were."""
    return _narrowing(hook, bfloat16)


NATIVE: dict[Any, Any] = {allreduce_hook: None, fp16_compress_hook: np.dtype(np.float16), bf16_compress_hook: np.dtype(ml_dtypes.bfloat16)}
