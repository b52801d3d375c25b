"""`torch.distributed.fsdp`: modules whose parameters several processes share. Nothing is one."""

from calque.compat.refused import refused, refused_class

__all__ = [
    "CPUOffload", "CPUOffloadPolicy", "FSDPModule", "FullyShardedDataParallel", "MixedPrecision", "MixedPrecisionPolicy", "OffloadPolicy",
    "fully_shard",
]  # fmt: skip

FSDPModule, FullyShardedDataParallel = (refused_class(f"torch.distributed.fsdp.{name}") for name in __all__[2:4])
MixedPrecision, MixedPrecisionPolicy = (refused_class(f"torch.distributed.fsdp.{name}") for name in __all__[4:6])
CPUOffload, CPUOffloadPolicy, OffloadPolicy = (
    refused_class(f"torch.distributed.fsdp.{name}") for name in ("CPUOffload", "CPUOffloadPolicy", "OffloadPolicy")
)
fully_shard = refused("torch.distributed.fsdp.fully_shard")
