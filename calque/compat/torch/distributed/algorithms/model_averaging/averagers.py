"""`torch.distributed.algorithms.model_averaging.averagers`: not offered; the names stand in annotations."""

from calque.compat.refused import refused_class

__all__ = ["ModelAverager", "PeriodicModelAverager"]

ModelAverager, PeriodicModelAverager = (refused_class(f"torch.distributed.algorithms.model_averaging.averagers.{name}") for name in __all__)
