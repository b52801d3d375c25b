"""`torch.utils.data._utils.worker`: what workers of a loader ask."""

from __future__ import annotations

import numpy as np

from calque.compat.refused import refused_class
from calque.data import get_worker_info

__all__ = ["WorkerInfo", "_generate_state", "get_worker_info"]
WorkerInfo = refused_class("torch.utils.data._utils.worker.WorkerInfo")


def _generate_state(base_seed: int, worker_id: int) -> list[int]:
    """Four words to seed another generator with, for the worker of a loader whose seed is `base_seed`."""
    words = (worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0)
    return [int(word) for word in np.random.SeedSequence(words).generate_state(4)]
