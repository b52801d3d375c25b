"""`torch.mtia` without a device: see `torch.cuda`."""

from __future__ import annotations

from typing import Any

from calque.compat.missing import pytorch_has
from calque.compat.refused import no, nothing, without_device

__all__ = ["device_count", "find", "is_available", "is_initialized", "manual_seed", "manual_seed_all"]

is_available = is_initialized = no
manual_seed = manual_seed_all = nothing


def device_count() -> int:
    """0."""
    return 0


def find(name: str, nothing: Any) -> Any:
    """The other functions and classes of PyTorch's module: they raise `DeviceError` when they are called."""
    return without_device(f"torch.mtia.{name}", "MTIA") if pytorch_has("torch.mtia", name) else nothing
