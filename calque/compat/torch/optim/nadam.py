"""`torch.optim.nadam`: the step as a function."""

from calque.compat.torch.optim._functional import nadam

__all__ = ["nadam"]
