"""`torch.utils.tensorboard.writer`: where PyTorch defines its writer, and from where some libraries take it."""

from calque.monitor import SummaryWriter

__all__ = ["SummaryWriter"]
