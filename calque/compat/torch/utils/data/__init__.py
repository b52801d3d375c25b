"""Names of `torch.utils.data` that share work among processes."""

from calque.distributed.sampler import DistributedSampler

__all__ = ["DistributedSampler"]
