"""`torch.optim.rprop`: the step as a function."""

from calque.compat.torch.optim._functional import rprop

__all__ = ["rprop"]
