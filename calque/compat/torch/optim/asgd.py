"""`torch.optim.asgd`: the step as a function."""

from calque.compat.torch.optim._functional import asgd

__all__ = ["asgd"]
