"""The place of `torch.distributed.fsdp` that libraries import from, to look whether a module is one of these: none is."""

from calque.compat.torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision
from calque.compat.torch.distributed.fsdp.api import BackwardPrefetch, FullStateDictConfig, ShardingStrategy, StateDictType

__all__ = ["BackwardPrefetch", "CPUOffload", "FullStateDictConfig", "FullyShardedDataParallel", "MixedPrecision", "ShardingStrategy", "StateDictType"]
