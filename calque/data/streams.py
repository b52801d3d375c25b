"""Random numbers of samples: what is drawn for a sample is a function of the seed of the pass and of the sample's index, so it does not matter how
many workers there are, of which kind they are, and who loads the sample.

Calque's default stream is one for each thread here. Those of Python's `random` and of NumPy belong to the whole process: they are set where nobody
else draws from them meanwhile, that is in worker processes and, for the time of a batch, in the calling thread; worker threads cannot have them.
"""

from __future__ import annotations

import random
import threading
import zlib
from typing import Any

import numpy as np

from calque.functional.generators import own_stream, stream_of

_MASK = (1 << 64) - 1


class _Here(threading.local):
    """Whether this thread sets the streams of the whole process, too."""

    whole = False


_here = _Here()


def mixed(seed: int, number: int) -> int:
    """A number of 63 bits that depends on two others. Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    z = (seed * 0x9E3779B97F4A7C15 + (number & _MASK) * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return (z ^ (z >> 31)) >> 1


def number_of(index: Any) -> int:
    """A number for the index of a sample, which may be anything that a sampler gives."""
    return index if type(index) is int else zlib.crc32(repr(index).encode()) + (1 << 62)


def begin(seed: int, index: Any) -> None:
    """From here on this thread draws the numbers of a sample."""
    value = mixed(seed, number_of(index))
    own_stream(stream_of(value))
    if _here.whole:
        random.seed(value)
        np.random.seed(value & 0xFFFFFFFF)


def own_process() -> None:
    """This process loads samples and does nothing else."""
    _here.whole = True


class Borrowed:
    """A context in which a thread draws the numbers of samples, after which every stream is where it was. Those of the whole process are lent to the
    main thread alone: others draw from them meanwhile."""

    def __enter__(self) -> None:
        self.outer, self.here = _here.whole, threading.current_thread() is threading.main_thread()
        self.own = own_stream(None)
        if self.here:
            self.python, self.numpy = random.getstate(), np.random.get_state(legacy=False)
            _here.whole = True

    def __exit__(self, *_: object) -> None:
        own_stream(self.own)
        _here.whole = self.outer
        if self.here:
            random.setstate(self.python)
            np.random.set_state(self.numpy)
