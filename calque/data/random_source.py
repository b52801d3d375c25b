"""Random numbers of this layer: one seed from the generator, everything else on the host from that seed.

Drawing happens where the loop over batches runs, so it must neither wait for the device nor break a recorded step apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_fallback = np.random.default_rng(0)


def draw_seed(generator: Any = None) -> int:
    """A number in [0, 2**63) from `generator` (None: the default one), which moves on by one draw."""
    return int((generator or _fallback).integers(0, 2**63 - 1))


def host_generator(generator: Any = None) -> np.random.Generator:
    """A NumPy generator that depends on the state of `generator` alone."""
    return np.random.Generator(np.random.Philox(draw_seed(generator)))


def permutation(count: int, generator: Any = None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers 0 to count - 1 in random order, shape `(count,)`."""
    return host_generator(generator).permutation(count)
