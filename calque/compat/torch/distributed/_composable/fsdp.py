"""The earlier place of `torch.distributed.fsdp`."""

from calque.compat.torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

__all__ = ["FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard"]
