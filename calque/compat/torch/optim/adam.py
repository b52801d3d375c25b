"""`torch.optim.adam`: the step as a function."""

from calque.compat.torch.optim._functional import adam

__all__ = ["adam"]
