"""`torch.distributed.algorithms.ddp_comm_hooks`."""

from calque.compat.torch.distributed.algorithms.ddp_comm_hooks import default_hooks

__all__ = ["default_hooks"]
