"""`torch.optim.sgd`: the step as a function."""

from calque.compat.torch.optim._functional import sgd

__all__ = ["sgd"]
