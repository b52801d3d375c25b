"""`torch.distributed.optim`."""

from calque.distributed.zero import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer"]
