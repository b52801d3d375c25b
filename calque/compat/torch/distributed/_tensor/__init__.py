"""`torch.distributed._tensor`: the earlier place of `torch.distributed.tensor`."""

from calque.compat.torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_module, distribute_tensor

__all__ = ["DTensor", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor"]
