"""PyTorch's `torch.utils` names: `utils.data`, `utils.tensorboard`, `utils.checkpoint`."""

from calque.utils import data

__all__ = ["data"]
