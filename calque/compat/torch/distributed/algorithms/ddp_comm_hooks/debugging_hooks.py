"""`torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks`."""

from calque.distributed.hooks import noop_hook

__all__ = ["noop_hook"]
