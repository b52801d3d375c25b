"""`torch.accelerator`: there is none beside the processor."""

from __future__ import annotations

from typing import Any

from calque.compat.missing import pytorch_has
from calque.compat.refused import no, without_device

__all__ = ["current_accelerator", "device_count", "empty_cache", "find", "is_available"]

is_available = no


def device_count() -> int:
    """0."""
    return 0


def current_accelerator(check_available: bool = False) -> None:
    """None: there is no accelerator."""


def empty_cache() -> None:
    """Nothing: there is no accelerator."""


def find(name: str, nothing: Any) -> Any:
    """The other functions of PyTorch's module: they raise `DeviceError` when they are called."""
    return without_device(f"torch.accelerator.{name}", "accelerator") if pytorch_has("torch.accelerator", name) else nothing
