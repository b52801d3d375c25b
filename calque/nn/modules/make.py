"""New parameters of a layer: memory first, values by `reset_parameters`."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque import functional as T
from calque.base.errors import ArgumentError
from calque.nn.parameter import Parameter


def fresh(shape: tuple[int, ...], device: Any = None, dtype: Any = None) -> Parameter:
    """A parameter of zeros that `reset_parameters` will fill."""
    return Parameter(T.zeros(tuple(int(n) for n in shape), device=device, dtype=dtype))


def positive(layer: str, **values: Any) -> None:
    """Raise unless all values are ints >= 1."""
    for name, value in values.items():
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise ArgumentError(f"[{layer}] expected {name} as an int >= 1, got {value!r}")


def spread(value: Any, n: int) -> tuple[Any, ...]:
    """n values from one or n."""
    return (int(value),) * n if isinstance(value, (int, np.integer)) else tuple(value)
