"""Names of `torch.nn.parallel` that need several processes."""

from calque.distributed.ddp import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
