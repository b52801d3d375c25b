"""Names of `torch.utils.data` that share work among processes."""

from calque.compat.torch.utils.data.distributed import DistributedSampler

__all__ = ["DistributedSampler"]
