"""Names of `torch.nn.parallel` that need several processes."""

from calque.compat.torch.nn.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
