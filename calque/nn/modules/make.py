"""New parameters of a layer: memory first, values by `reset_parameters`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.device import DEFAULT
from calque.base.errors import ArgumentError
from calque.nn.parameter import Parameter


def fresh(shape: tuple[int, ...], device: Any = None, dtype: Any = None) -> Parameter:
    """A parameter of zeros that `reset_parameters` will fill."""
    return Parameter(T.zeros(tuple(int(n) for n in shape), device=DEFAULT.device if device is None else device, dtype=dtype))


def positive(layer: str, **values: Any) -> None:
    """Raise unless all values are ints >= 1."""
    _at_least(1, layer, values)


def extents(layer: str, **values: Any) -> None:
    """Raise unless all values are ints >= 0."""
    _at_least(0, layer, values)


def _at_least(least: int, layer: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if not _is_int(value) or value < least:
            raise ArgumentError(f"[{layer}] expected {name} as an int >= {least}, got {value!r}{_hint(value)}")


def spread(layer: str, n: int, **values: Any) -> list[tuple[int, ...]]:
    """n ints for each setting, which is an int or a tuple of them."""
    for name, value in values.items():
        if not (_is_int(value) or (isinstance(value, Iterable) and not isinstance(value, str) and all(_is_int(v) for v in value))):
            raise ArgumentError(f"[{layer}] expected {name} as an int or a tuple of {n} ints, got {value!r}{_hint(value)}")
    return [(int(value),) * n if _is_int(value) else tuple(value) for value in values.values()]


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _hint(value: Any) -> str:
    """A size that was read from a file or the command line, or computed with `/`."""
    return "; convert it with int()" if isinstance(value, (str, float)) else ""
