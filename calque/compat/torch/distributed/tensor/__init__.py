"""`torch.distributed.tensor`: tensors that several processes share. Nothing is one."""

from calque.compat.refused import refused, refused_class

__all__ = ["DTensor", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor"]

DTensor = refused_class("torch.distributed.tensor.DTensor")
Placement, Partial, Replicate, Shard = (refused_class(f"torch.distributed.tensor.{name}") for name in ("Placement", "Partial", "Replicate", "Shard"))
distribute_tensor, distribute_module = (refused(f"torch.distributed.tensor.{name}") for name in ("distribute_tensor", "distribute_module"))
