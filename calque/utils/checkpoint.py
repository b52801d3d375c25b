"""`torch.utils.checkpoint` names; see `calque.autograd`."""

from calque.autograd.checkpoint import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
