"""What an optimizer keeps of one parameter: tensors, and numbers that programs see as PyTorch has them, as 0-d float32 tensors.

A step that counts in tensors would read or compute one for each parameter, so optimizers count in Python. A number becomes a tensor when a program
asks for it by its name; what the program has made of that tensor is what the next step counts from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.tensor import Tensor, upload

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
