"""`torch.utils._foreach_utils`: which lists of tensors go together. Every update is one program here, so no device has kernels for lists."""

from __future__ import annotations

from typing import Any

from calque.optim.optimizer import Optimizer
from calque.tensor import Tensor

__all__ = [
    "_device_has_foreach_support", "_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices",
    "_foreach_supported_types", "_group_tensors_by_device_and_dtype", "_has_foreach_support",
]  # fmt: skip

_foreach_supported_types = [Tensor]
_group_tensors_by_device_and_dtype = Optimizer._group_tensors_by_device_and_dtype


def _get_foreach_kernels_supported_devices() -> list[str]:
    return []


def _get_fused_kernels_supported_devices() -> list[str]:
    return []


def _device_has_foreach_support(device: Any) -> bool:
    return False


def _has_foreach_support(tensors: Any, device: Any) -> bool:
    return False
