"""Names of `torch.utils.checkpoint` that libraries which do it by themselves import."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import calque
from calque.base.errors import DeviceError

__all__ = ["DefaultDeviceType", "check_backward_validity", "detach_variable", "get_device_states", "noop_context_fn", "set_device_states"]


def get_device_states(*args: Any) -> tuple[list[int], list[Any]]:
    """([], []): the states of the generators of GPUs."""
    return [], []


def set_device_states(devices: Any, states: Any, *, device_type: str | None = None) -> None:
    """Nothing, for no device."""
    if len(list(devices)):
        raise DeviceError(f"[set_device_states] expected no devices, got {list(devices)}: this version of Calque has no backend for them")


def check_backward_validity(inputs: Any) -> None:
    """Warn if no tensor among the inputs needs a gradient: the checkpoint will have none."""
    if not any(x.requires_grad for x in inputs if isinstance(x, calque.Tensor)):
        warnings.warn("None of the inputs have requires_grad=True. Gradients will be None", stacklevel=2)


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors without their history, which need a gradient where they did before."""
    return tuple(x.detach().requires_grad_(x.requires_grad) if isinstance(x, calque.Tensor) else x for x in inputs)


def noop_context_fn() -> tuple[Any, Any]:
    """Two blocks that change nothing."""
    return contextlib.nullcontext(), contextlib.nullcontext()


class DefaultDeviceType:
    """The kind of device of checkpoints that are given no tensor: kept, and without effect."""

    _kind = "cuda"

    @staticmethod
    def set_device_type(device: str = "cuda") -> None:
        """Keep a kind of device."""
        DefaultDeviceType._kind = device

    @staticmethod
    def get_device_type() -> str:
        """What was kept."""
        return DefaultDeviceType._kind
