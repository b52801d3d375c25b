"""`torch.nn.parallel.distributed`."""

from calque.distributed.ddp import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
