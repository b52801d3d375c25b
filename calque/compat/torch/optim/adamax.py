"""`torch.optim.adamax`: the step as a function."""

from calque.compat.torch.optim._functional import adamax

__all__ = ["adamax"]
