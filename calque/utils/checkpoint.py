"""`torch.utils.checkpoint` names; see `calque.autograd`."""

from calque.autograd import checkpoint

__all__ = ["checkpoint"]
