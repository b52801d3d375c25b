"""`torch.optim.adamw`: the step as a function."""

from calque.compat.torch.optim._functional import adamw

__all__ = ["adamw"]
