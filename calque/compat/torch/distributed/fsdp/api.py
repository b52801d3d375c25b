"""`torch.distributed.fsdp.api`: how parameters that several processes share are shared out, and saved. None are."""

from calque.compat.refused import refused_class
from calque.compat.torch.distributed.fsdp import CPUOffload, MixedPrecision

__all__ = [
    "BackwardPrefetch", "CPUOffload", "FullOptimStateDictConfig", "FullStateDictConfig", "MixedPrecision", "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig", "ShardingStrategy", "StateDictType",
]  # fmt: skip

BackwardPrefetch, ShardingStrategy, StateDictType = (
    refused_class(f"torch.distributed.fsdp.{name}") for name in ("BackwardPrefetch", "ShardingStrategy", "StateDictType")
)
FullOptimStateDictConfig, FullStateDictConfig, ShardedOptimStateDictConfig, ShardedStateDictConfig = (
    refused_class(f"torch.distributed.fsdp.{name}")
    for name in ("FullOptimStateDictConfig", "FullStateDictConfig", "ShardedOptimStateDictConfig", "ShardedStateDictConfig")
)
