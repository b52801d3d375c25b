"""`torch.utils.data._utils.pin_memory`: memory that a device reads, of which there is none without one; XLA moves values by itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from calque.tensor import Tensor

__all__ = ["pin_memory"]


def pin_memory(data: Any, device: Any = None) -> Any:
    """The batch in new containers, as PyTorch gives it: tensors are as they are, objects with a method `pin_memory` what that gives."""
    if isinstance(data, Tensor):
        return data.pin_memory(device)  # type: ignore[attr-defined]
    if hasattr(data, "pin_memory"):
        return data.pin_memory()
    if isinstance(data, (str, bytes)):
        return data
    if isinstance(data, Mapping):
        return _mapping(data, {key: pin_memory(value, device) for key, value in data.items()})
    if isinstance(data, Sequence):
        return _sequence(data, [pin_memory(value, device) for value in data])
    return data


def _mapping(data: Any, pinned: dict[Any, Any]) -> Any:
    try:
        if not isinstance(data, MutableMapping):
            return type(data)(pinned)  # type: ignore[call-arg]
        made = copy.copy(data)  # whatever else it has stays with it
        made.update(pinned)
        return made
    except TypeError:  # a class that can neither be copied nor be made of a dict
        return pinned


def _sequence(data: Any, pinned: list[Any]) -> Any:
    if hasattr(data, "_fields"):
        return type(data)(*pinned)
    try:
        if isinstance(data, tuple) or not isinstance(data, MutableSequence):
            return type(data)(pinned)
        made = copy.copy(data)
        for k, value in enumerate(pinned):
            made[k] = value  # type: ignore[index]
        return made
    except TypeError:  # such as a range
        return pinned
