"""What a worker of a loader knows about itself."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker's number, how many there are, its seed (the loader's seed plus the number), and the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


class _Local(threading.local):
    info: WorkerInfo | None = None


_local = _Local()


def get_worker_info() -> WorkerInfo | None:
    """Inside a worker of a DataLoader: its number, the number of workers, its seed and the dataset; elsewhere None.

    >>> from calque.data import get_worker_info
    >>> get_worker_info() is None
    True
    """
    return _local.info


def set_worker_info(info: WorkerInfo | None) -> None:
    """Declare the current thread to be a worker."""
    _local.info = info
