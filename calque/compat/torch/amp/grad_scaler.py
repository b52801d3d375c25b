"""`torch.amp.grad_scaler`: the scaler and its states, as libraries take them from PyTorch's file."""

from calque.amp import GradScaler, OptState

__all__ = ["GradScaler", "OptState"]
