"""`torch.distributed.algorithms.join`."""

from calque.distributed.join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]
