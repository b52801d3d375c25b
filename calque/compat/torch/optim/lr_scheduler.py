"""`torch.optim.lr_scheduler`: the older name of `LRScheduler`, which subclasses still use, and the warning about `step(epoch)`."""

from calque.optim.lr_scheduler import _LRScheduler
from calque.optim.schedule import STEP_WITH_EPOCH as EPOCH_DEPRECATION_WARNING

__all__ = ["EPOCH_DEPRECATION_WARNING", "_LRScheduler"]
