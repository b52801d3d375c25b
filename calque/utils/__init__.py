"""PyTorch's `torch.utils` names: `utils.data`, `utils.tensorboard`, `utils.checkpoint`."""
