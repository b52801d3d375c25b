"""`torch.nn.parallel.distributed`."""

import calque
from calque.compat.refused import refused_class

__all__ = ["DistributedDataParallel"]

DistributedDataParallel = refused_class("torch.distributed.nn.DistributedDataParallel", calque.nn.Module)
DistributedDataParallel.__module__ = "torch.nn.parallel.distributed"
