"""Datasets, samplers and the loader that turns them into batches; names as in `torch.utils.data`.

`files` are data sets on files, `hugging_face` streams of the package `datasets`, `remote` the copies of files at addresses. `dataset` and `sampler`
say what there is and in which order, `collate` how samples become a batch, `fetch` loads one batch, and `loader` is what users see of a pass
(`passes`). Batches come ahead of time from threads (`workers`) or processes: `processes` is the side of the loader, `worker_process` the other side,
`payload` what goes there and `transport` how batches come back. `streams` are the random numbers of samples, `pace` what limits a loop.
`random_source` and `convert` are the only doors to other random numbers and to tensors.
"""

from calque.base.on_demand import on_first_use
from calque.data.collate import default_collate, default_convert
from calque.data.dataset import ChainDataset, ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, TensorDataset, random_split
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
from calque.functional.blame import publish

_OF_FEW = {"files": "ArraysDataset AudioFolder TableDataset TarShards TextLines read_wav", "payload": "SharedList", "remote": "local_copy"}
_part = on_first_use(__name__, _OF_FEW, publish)

__all__ = [
    "ArraysDataset",
    "AudioFolder",
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
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TableDataset",
    "TarShards",
    "TensorDataset",
    "TextLines",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "local_copy",
    "random_split",
    "read_wav",
]


def __getattr__(name: str) -> object:
    return _part(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
