"""PyTorch's module of this name."""

from calque.distributions.distribution import ExponentialFamily

__all__ = ["ExponentialFamily"]
