"""`torch.distributed.fsdp`: modules whose parameters several processes share."""

from calque.compat.refused import refused_class
from calque.compat.torch.distributed.fsdp.api import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from calque.compat.torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel
from calque.distributed import FSDPModule, fully_shard

__all__ = [
    "BackwardPrefetch", "CPUOffload", "CPUOffloadPolicy", "FSDPModule", "FullOptimStateDictConfig", "FullStateDictConfig",
    "FullyShardedDataParallel", "MixedPrecision", "MixedPrecisionPolicy", "OffloadPolicy", "ShardingStrategy", "StateDictType", "fully_shard",
]  # fmt: skip

CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy = (
    refused_class(f"torch.distributed.fsdp.{name}") for name in ("CPUOffloadPolicy", "MixedPrecisionPolicy", "OffloadPolicy")
)
