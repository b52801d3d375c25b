"""Training on several devices of one process: pipelines, key-value stores, and the primitives of `calque.nn.parallel`."""

from calque.nn.parallel import DataParallel, data_parallel, gather, parallel_apply, replicate, scatter
from calque.parallel.pipeline import Pipeline, pipeline
from calque.parallel.store import KVStore, create
from calque.parallel.trainer import Trainer, split_and_load

__all__ = [
    "DataParallel", "KVStore", "Pipeline", "Trainer", "create", "data_parallel", "gather", "parallel_apply", "pipeline", "replicate", "scatter",
    "split_and_load",
]  # fmt: skip
