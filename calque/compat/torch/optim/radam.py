"""`torch.optim.radam`: the step as a function."""

from calque.compat.torch.optim._functional import radam

__all__ = ["radam"]
