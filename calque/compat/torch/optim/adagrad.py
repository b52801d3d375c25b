"""`torch.optim.adagrad`: the step as a function."""

from calque.compat.torch.optim._functional import adagrad

__all__ = ["adagrad"]
