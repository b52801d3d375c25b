"""`torch.optim.adadelta`: the step as a function."""

from calque.compat.torch.optim._functional import adadelta

__all__ = ["adadelta"]
