"""`torch.distributed.tensor.parallel`: layers whose parameters several processes share. Nothing is one."""

from calque.compat.refused import refused, refused_class

__all__ = ["ColwiseParallel", "RowwiseParallel", "parallelize_module"]

ColwiseParallel = refused_class("torch.distributed.tensor.parallel.ColwiseParallel")
RowwiseParallel = refused_class("torch.distributed.tensor.parallel.RowwiseParallel")
parallelize_module = refused("torch.distributed.tensor.parallel.parallelize_module")
