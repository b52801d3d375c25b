"""Streams of the package `datasets` of Hugging Face; it is not loaded here: who has a stream of it has loaded it.

Its `Dataset` needs nothing: it has an index, a length and `__getitems__`. Where `torch` means Calque, its streams are Calque's `IterableDataset` and
share themselves out among workers. Elsewhere they are a class of their own, or PyTorch's, which knows nothing of our workers.
"""

from __future__ import annotations

import sys
from typing import Any

from calque.data.dataset import IterableDataset
from calque.data.worker_info import get_worker_info


def is_stream(dataset: Any) -> bool:
    """Whether a loader reads it from the beginning to the end: an `IterableDataset` of ours, or of `datasets`.

    >>> is_stream(calque.data.ChainDataset([])), is_stream([1, 2])
    (True, False)
    """
    kind = getattr(sys.modules.get("datasets.iterable_dataset"), "IterableDataset", None)
    return isinstance(dataset, IterableDataset) or (isinstance(kind, type) and isinstance(dataset, kind))


def part_of_worker(dataset: Any) -> Any:
    """What this worker reads of a stream: of `datasets` its share of the files or pieces that the stream has; any other stream as it is."""
    info = get_worker_info()
    if info is None or isinstance(dataset, IterableDataset) or not is_stream(dataset):
        return dataset
    parts = min(info.num_workers, dataset.num_shards)
    return dataset.shard(num_shards=parts, index=info.id) if info.id < parts else ()
