"""The streams of random numbers of a process."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import calque


def streams() -> dict[str, Any]:
    """Where the streams of Calque, `random` and NumPy stand."""
    version, words, gauss = random.getstate()
    return {"calque": calque.get_rng_state(), "python": [version, np.array(words, np.uint64), gauss], "numpy": np.random.get_state(legacy=False)}


def set_streams(found: dict[str, Any]) -> None:
    """Let them go on from there."""
    calque.set_rng_state(found["calque"])
    version, words, gauss = found["python"]
    random.setstate((version, tuple(int(word) for word in words), gauss))
    np.random.set_state(found["numpy"])
