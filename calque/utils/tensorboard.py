"""`torch.utils.tensorboard` names; see `calque.monitor`."""

from calque.monitor import SummaryWriter

__all__ = ["SummaryWriter"]
