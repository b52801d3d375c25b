"""`torch.distributed.fsdp.api`: how parameters that several processes share are shared out, and saved."""

from __future__ import annotations

import enum

from calque.base.dataclass import dataclass
from calque.compat.refused import refused_class

__all__ = [
    "BackwardPrefetch", "CPUOffload", "FullOptimStateDictConfig", "FullStateDictConfig", "MixedPrecision", "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig", "ShardingStrategy", "StateDictType",
]  # fmt: skip


class ShardingStrategy(enum.Enum):
    """What is shared out: parameters always, or only outside of a step; within a machine alone is not offered."""

    FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, _HYBRID_SHARD_ZERO2 = range(1, 6)


class BackwardPrefetch(enum.Enum):
    """When parameters are fetched; changes nothing here."""

    BACKWARD_PRE, BACKWARD_POST = range(1, 3)


class StateDictType(enum.Enum):
    """What a state dict holds; here always everything."""

    FULL_STATE_DICT, LOCAL_STATE_DICT, SHARDED_STATE_DICT = range(1, 4)


@dataclass
class FullStateDictConfig:
    """Of state dicts that hold everything. All ranks get it; where it lies is not a question on CPUs."""

    offload_to_cpu: bool = False
    rank0_only: bool = False


@dataclass
class FullOptimStateDictConfig(FullStateDictConfig):
    """The same for optimizers."""


CPUOffload, MixedPrecision = (refused_class(f"torch.distributed.fsdp.{name}") for name in ("CPUOffload", "MixedPrecision"))
ShardedOptimStateDictConfig, ShardedStateDictConfig = (
    refused_class(f"torch.distributed.fsdp.{name}") for name in ("ShardedOptimStateDictConfig", "ShardedStateDictConfig")
)
