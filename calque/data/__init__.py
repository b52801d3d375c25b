"""Datasets, samplers and the loader that turns them into batches; names as in `torch.utils.data`.

`dataset` and `sampler` say what there is and in which order, `collate` how samples become a batch, `fetch` loads one batch, and `loader` is what
users see of a pass (`passes`). Batches come ahead of time from threads (`workers`) or processes: `processes` is the side of the loader,
`worker_process` the other side, `payload` what goes there and `transport` how batches come back. `streams` are the random numbers of samples, `pace`
what limits a loop. `random_source` and `convert` are the only doors to other random numbers and to tensors.
"""

from calque.data.collate import default_collate, default_convert
from calque.data.dataset import ChainDataset, ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, random_split
from calque.data.loader import DataLoader
from calque.data.payload import SharedList
from calque.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from calque.data.worker_info import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SharedList",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]
