"""`torch.distributed.nn.functional`: collectives with gradients."""

from calque.distributed.functional import all_gather, all_reduce

__all__ = ["all_gather", "all_reduce"]
