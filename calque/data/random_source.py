"""Random numbers of this layer: one number from the generator's stream, everything else on the host from that.

Drawing happens where the loop over batches runs, so it must neither wait for the device nor break a recorded step apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.base.text import type_name
from calque.functional.generators import Generator, default_generator


def draw_seed(generator: Generator | None = None) -> int:
    """A number in [0, 2**63) from `generator` (None: the default one), which moves on by one draw."""
    return int(_draw(generator).generate_state(1, np.uint64)[0]) >> 1


def host_generator(generator: Generator | None = None) -> np.random.Generator:
    """A NumPy generator that depends on the state of `generator` alone, which moves on by one draw."""
    return np.random.Generator(np.random.Philox(_draw(generator)))


def permutation(count: int, generator: Generator | None = None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers 0 to count - 1 in random order, shape `(count,)`."""
    return host_generator(generator).permutation(count)


def position(generator: Generator | None, new: tuple[int, int] | None = None) -> tuple[int, int]:
    """Where `generator` (None: the default one) stands: seed and offset. `new`: go there."""
    found = generator or default_generator
    before = found._seed, found._offset
    if new is not None:
        found._seed, found._offset = new
    return before


def require_generator(where: str, generator: object) -> None:
    """Raise TypeError unless `generator` is a Generator or None."""
    if generator is not None and not isinstance(generator, Generator):
        raise TypeError(f"[{where}] expected generator to be a calque.Generator or None, got {type_name(generator)}")


def _draw(generator: Generator | None) -> np.random.SeedSequence:
    seed, offset = (generator or default_generator).take(1)
    return np.random.SeedSequence([seed % 2**64, offset])
