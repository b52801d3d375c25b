"""Training on several devices of one process: meshes, pipelines, key-value stores, and the primitives of `calque.nn.parallel`."""

from calque.nn.parallel import DataParallel, data_parallel, gather, parallel_apply, replicate, scatter
from calque.parallel.pipeline import Pipeline, pipeline
from calque.parallel.sharding import Mesh, shard
from calque.parallel.store import KVStore, create
from calque.parallel.trainer import Trainer, split_and_load

__all__ = [
    "DataParallel", "KVStore", "Mesh", "Pipeline", "Trainer", "create", "data_parallel", "gather", "parallel_apply", "pipeline", "replicate",
    "scatter", "shard", "split_and_load",
]  # fmt: skip
