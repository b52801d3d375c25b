"""`torch.distributed.algorithms.join`: several objects that go along together. A model does by itself, with `model.join()`."""

from calque.compat.refused import refused_class

__all__ = ["Join", "JoinHook", "Joinable"]

Join, JoinHook, Joinable = (refused_class(f"torch.distributed.algorithms.join.{name}") for name in ("Join", "JoinHook", "Joinable"))
