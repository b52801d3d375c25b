"""`torch.distributed.tensor.placement_types`: how several processes share a tensor. None does."""

from calque.compat.refused import refused_class
from calque.compat.torch.distributed.tensor import Partial, Placement, Replicate, Shard

__all__ = ["Partial", "Placement", "Replicate", "Shard", "_StridedShard"]

_StridedShard = refused_class("torch.distributed.tensor.placement_types._StridedShard")
