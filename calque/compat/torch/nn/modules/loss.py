"""`torch.nn.modules.loss`: the classes that others are made from."""

from calque.nn.modules.loss import _Loss, _WeightedLoss

__all__ = ["_Loss", "_WeightedLoss"]
