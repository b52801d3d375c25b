"""What an optimizer keeps of one parameter: tensors, and numbers that programs see as PyTorch has them, as 0-d float32 tensors.

A step that counts in tensors would read or compute one for each parameter, so optimizers count in Python. A number becomes a tensor when a program
asks for it by its name; what the program has made of that tensor is what the next step counts from.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.device import Device
from calque.tensor import Tensor, upload, wrap

held = dict.get  # an entry as the optimizer keeps it


class ParameterState(dict[str, Any]):
    """The state of one parameter of an optimizer of this package."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        value = dict.__getitem__(self, name)
        if type(value) is int or type(value) is float:  # while a step is exported, it is what only looks like one
            value = self[name] = upload(np.asarray(value, np.float32), dt.float32)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """As `dict.get`."""
        try:
            return self[name]
        except KeyError:
            return default

    def pop(self, name: str, *default: Any) -> Any:
        """As `dict.pop`."""
        found = self.get(name, *default)
        dict.pop(self, name, *default)
        return found


def count_of(state: dict[str, Any]) -> int:
    """How many steps were counted."""
    count = held(state, "step", 0)
    return int(count) if isinstance(count, Tensor) else count  # type: ignore[no-any-return]


def number_of(state: dict[str, Any], name: str, first: float) -> float:
    """A number that is kept in float32."""
    value = held(state, name, first)
    return float(value) if isinstance(value, Tensor) else value  # type: ignore[no-any-return]


def copied(value: Any, memory: dict[int, Any], kind: dt.DType | None = None, device: Device | None = None) -> Any:
    """A copy that shares no memory with the original, with tensors of this dtype on this device; but a count of steps stays what it is and where it
    is. Tensors that share memory with each other do so in the copy, if their dtype and device are those that are wanted: a program may write to a
    part of what it keeps. `memory`: the copies of storages so far, by the id of the original, which is kept beside it."""
    if isinstance(value, Tensor):
        value = value.detach()  # type: ignore[attr-defined]
        if (kind is not None and value.dtype is not kind) or (device is not None and value._layout.device is not device):
            return value.to(value._layout.device if device is None else device, value.dtype if kind is None else kind)
        if hasattr(value, "_elements"):  # of a sparse tensor
            return value.clone()
        storage = value._storage
        if id(storage) not in memory:
            memory[id(storage)] = storage, wrap(storage, storage.layout).clone()._storage  # type: ignore[attr-defined]
        return wrap(memory[id(storage)][1], value._layout, type(value))
    if isinstance(value, dict):
        return {k: copied(v, memory) if k == "step" else copied(v, memory, kind, device) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(v, memory, kind, device) for v in value)
    return deepcopy(value)
