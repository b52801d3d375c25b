"""`torch.optim.rmsprop`: the step as a function."""

from calque.compat.torch.optim._functional import rmsprop

__all__ = ["rmsprop"]
