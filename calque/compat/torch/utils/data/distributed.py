"""`torch.utils.data.distributed`."""

from calque.distributed.sampler import DistributedSampler

__all__ = ["DistributedSampler"]
