"""`torch.distributions.kl`: its table, which libraries look at."""

from calque.distributions.kl import _FOUND as _KL_MEMOIZE
from calque.distributions.kl import _REGISTRY as _KL_REGISTRY

__all__ = ["_KL_MEMOIZE", "_KL_REGISTRY"]
