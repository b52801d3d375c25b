"""PyTorch's `torch.utils` names: `utils.data`, `utils.tensorboard`, `utils.checkpoint`."""

from calque.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
