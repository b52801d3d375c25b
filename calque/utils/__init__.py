"""PyTorch's `torch.utils` names: `utils.data`, `utils.tensorboard`, `utils.checkpoint`, `utils.dlpack`."""

from calque.utils import checkpoint, data, dlpack

__all__ = ["checkpoint", "data", "dlpack"]
