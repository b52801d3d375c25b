"""`torch.utils.data.dataloader`: classes of PyTorch's iterators, which libraries test for. Those of `calque.data` are generators."""

from collections.abc import Callable
from typing import Any

from calque.compat.refused import refused_class

__all__ = [
    "_BaseDataLoaderIter", "_DatasetKind", "_InfiniteConstantSampler", "_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter",
    "_collate_fn_t", "_worker_init_fn_t",
]  # fmt: skip

_BaseDataLoaderIter, _SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter, _InfiniteConstantSampler = (
    refused_class(f"torch.utils.data.dataloader.{name}")
    for name in ("_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter", "_InfiniteConstantSampler")
)


_collate_fn_t = Callable[[list[Any]], Any]  # annotations of programs name these
_worker_init_fn_t = Callable[[int], None]


class _DatasetKind:
    """What a data set is asked for: single samples, or a stream of them."""

    Map, Iterable = 0, 1
