"""`torch.accelerator` beyond `calque.accelerator`."""

from __future__ import annotations

from typing import Any

import calque.accelerator
from calque.compat.missing import pytorch_has
from calque.compat.refused import refused

__all__ = ["find"]


def find(name: str, nothing: Any) -> Any:
    """The other functions of PyTorch's module: they say what to use when they are called."""
    if hasattr(calque.accelerator, name) or not pytorch_has("torch.accelerator", name):
        return nothing
    return refused(f"torch.accelerator.{name}")
