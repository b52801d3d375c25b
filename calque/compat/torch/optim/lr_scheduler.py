"""`torch.optim.lr_scheduler`: the older name of `LRScheduler`, which subclasses still use."""

from calque.optim.lr_scheduler import _LRScheduler

__all__ = ["_LRScheduler"]
