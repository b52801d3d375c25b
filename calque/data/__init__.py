"""Datasets, samplers and the loader that turns them into batches; names as in `torch.utils.data`.

`dataset` and `sampler` say what there is and in which order, `collate` how samples become a batch, `fetch` loads one batch,
`workers` are threads that do so ahead of time, and `loader` puts these together. `random_source` and `convert` are the only doors
to random numbers and to tensors.
"""

from calque.data.collate import default_collate, default_convert
from calque.data.dataset import ChainDataset, ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, random_split
from calque.data.loader import DataLoader
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
