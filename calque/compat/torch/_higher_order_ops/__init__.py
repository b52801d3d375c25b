"""The parts of `torch._higher_order_ops` that libraries import."""

from calque.compat.torch import cond

__all__ = ["cond"]
