"""Streams of random numbers. A generator is a pair (seed, offset): every call takes the next range of offsets, and the bits of an element depend on
(seed, offset + position) alone, so values are the same on every backend and for every number of threads."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, OutOfMemoryError
from calque.base.text import described
from calque.functional.common import is_tensor
from calque.functional.declared import NAMES, public
from calque.functional.options import resolve_device
from calque.record.recorder import local
from calque.replay.capture import abort
from calque.replay.effects import numbers
from calque.tensor import Tensor, read, upload

_START = 8  # the first offset; small numbers could be baked into a recorded program
_MOST = 1 << 48  # random numbers in one call: more than any memory holds, few enough for offsets of 64 bits
_DEFAULT_SEED = 67280421310721  # PyTorch's


@public(method=False)
class Generator:
    """A stream of random numbers with a seed of its own.

    >>> import calque
    >>> g = calque.Generator().manual_seed(3)
    >>> a = calque.rand(2, generator=g)
    >>> calque.equal(a, calque.rand(2, generator=calque.Generator().manual_seed(3)))
    True
    """

    def __init__(self, device: Any = None) -> None:
        self.device = resolve_device(device, "Generator")
        self._seed = _DEFAULT_SEED
        self._offset = _START
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[str, int, int]:
        """What copies and other processes continue from: a lock cannot go there."""
        return str(self.device), self._seed, int(self._offset)

    def __setstate__(self, state: tuple[str, int, int]) -> None:
        device, self._seed, self._offset = state
        self.device, self._lock = resolve_device(device, "Generator"), threading.Lock()

    def manual_seed(self, seed: int) -> "Generator":
        """Start the stream of `seed`."""
        abort("sets the state of a random generator")
        try:
            value = int(seed)
        except TypeError:
            raise DTypeError(f"[manual_seed] expected a seed as a number, got {described(seed)}; pass an int") from None
        if not -(1 << 63) <= value < 1 << 64:
            raise ArgumentError(f"[manual_seed] expected a seed of at most 64 bits, got {value}: Overflow when unpacking long")
        self._seed = value - (1 << 64) if value >= 1 << 63 else value
        self._offset = _START
        return self

    def seed(self) -> int:
        """Start a stream nobody can predict; returns its seed."""
        value = int.from_bytes(os.urandom(8)) >> 12
        self.manual_seed(value)
        return value

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return self._seed % (1 << 64)

    def get_state(self) -> Tensor:
        """The state as a uint8 tensor of 16 bytes: seed and offset."""
        return upload(np.array([self._seed, self._offset], np.int64).view(np.uint8), dt.uint8)

    def set_state(self, new_state: Tensor) -> "Generator":
        """Continue from a state of `get_state`."""
        if not is_tensor(new_state) or new_state._layout.dtype is not dt.uint8 or new_state._layout.numel != 16:
            raise DTypeError("[set_rng_state] RNG state must be a torch.ByteTensor of 16 elements made by get_rng_state()")
        words = np.ascontiguousarray(read(new_state, "set_rng_state")).reshape(-1).view(np.int64)
        abort("sets the state of a random generator")
        self._seed, self._offset = int(words[0]), int(words[1])
        return self

    def take(self, count: int) -> tuple[int, int]:
        """(seed, first offset) of the next `count` numbers."""
        if count > _MOST:
            raise OutOfMemoryError(f"[random] expected a size that fits into memory, got {count} random numbers; ask for fewer")
        state = local.state
        if state.trace.transforms:
            return state.trace.take(self, count)  # type: ignore[no-any-return]
        seed_, start = self._advance(count) if state.capture is None else numbers(lambda: self._advance(count))
        return seed_, start

    def _advance(self, count: int) -> list[int]:
        with self._lock:
            start = self._offset
            self._offset = start + (count + 7 & -8) & (1 << 62) - 1
            return [self._seed, start]

    def clone_state(self) -> "Generator":
        """A generator in the same state."""
        twin = Generator()
        twin._seed, twin._offset = self._seed, self._offset
        return twin


class _Streams(threading.local):
    """The default stream of a thread that has one of its own: a worker that loads data."""

    own: list[int] | None = None  # seed and offset


_streams = _Streams()


class _Default(Generator):
    """The default stream. In a worker that loads data it is the worker's, which nobody else draws from: where a stream stands is a pair of numbers,
    and whose pair that is depends on the thread."""

    def __init__(self) -> None:
        self._process = [0, 0]
        super().__init__()

    def _numbers(self) -> list[int]:
        own = _streams.own
        return self._process if own is None else own

    def _advance(self, count: int) -> list[int]:
        stream = self._numbers()
        with self._lock:
            before = stream[:]
            stream[1] = before[1] + (count + 7 & -8) & (1 << 62) - 1
            return before

    @property
    def _seed(self) -> int:  # type: ignore[override]
        return self._numbers()[0]

    @_seed.setter
    def _seed(self, value: int) -> None:
        self._numbers()[0] = value

    @property
    def _offset(self) -> int:  # type: ignore[override]
        return self._numbers()[1]

    @_offset.setter
    def _offset(self, value: int) -> None:
        self._numbers()[1] = value


default_generator: Generator = _Default()


def own_stream(start: list[int] | None) -> list[int] | None:
    """From here on the default stream is, in this thread alone, the one at `start` (seed, offset); None: the process's again. What it was."""
    before, _streams.own = _streams.own, start
    return before


def stream_of(seed: int) -> list[int]:
    """The beginning of the stream of a seed."""
    return [seed, _START]


@public(method=False)
def manual_seed(seed: int) -> Generator:
    """Start the default stream of `seed`.

    >>> import calque
    >>> calque.manual_seed(0).initial_seed()
    0
    """
    return default_generator.manual_seed(seed)


@public(method=False)
def seed() -> int:
    """Start the default stream from an unpredictable seed; returns it."""
    return default_generator.seed()


@public(method=False)
def initial_seed() -> int:
    """Seed of the default stream."""
    return default_generator.initial_seed()


@public(method=False)
def get_rng_state() -> Tensor:
    """State of the default stream."""
    return default_generator.get_state()


@public(method=False)
def set_rng_state(new_state: Tensor) -> None:
    """Continue the default stream from a state."""
    default_generator.set_state(new_state)


@public(method=False)
@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """Run a block without moving the default stream."""
    abort("forks the state of a random generator")
    before = default_generator.clone_state()
    try:
        yield
    finally:
        if enabled:
            default_generator._seed, default_generator._offset = before._seed, before._offset


# What users find here, too, and are told the mistakes of.
__all__ = ["default_generator", *(name for name, f in list(globals().items()) if f is not None and NAMES.get(name) is f and f.__module__ == __name__)]
