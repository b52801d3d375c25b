"""New parameters of a layer: memory first, values by `reset_parameters`."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from calque import functional as T
from calque.base.device import DEFAULT
from calque.base.errors import ArgumentError
from calque.base.text import shown
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
        found = _int(value)
        if found is None or found < least:
            raise ArgumentError(f"[{layer}] expected {name} as an int >= {least}, got {shown(value)}{_hint(value)}")


def spread(layer: str, n: int, **values: Any) -> list[tuple[int, ...]]:
    """n ints for each setting, which is an int or several of them."""
    result = []
    for name, value in values.items():
        one = _int(value)
        found = [one] * n if one is not None else [_int(v) for v in value] if isinstance(value, Iterable) and not _is_text(value) else [None]
        if None in found:
            raise ArgumentError(f"[{layer}] expected {name} as an int or a tuple of {n} ints, got {shown(value)}{_hint(value)}")
        result.append(tuple(found))
    return result  # type: ignore[return-value]


def _int(value: Any) -> int | None:
    """An int, or a 0-d array or tensor of one; None for anything else."""
    try:
        return None if isinstance(value, bool) else index(value)
    except (TypeError, ValueError):
        return None


def _is_text(value: Any) -> bool:
    """What can be walked through and holds no sizes, or is a 0-d array or tensor."""
    return isinstance(value, (str, bytes)) or getattr(value, "ndim", 1) == 0


def _hint(value: Any) -> str:
    """A size that was read from a file or the command line, or computed with `/`."""
    return "; convert it with int()" if isinstance(value, (str, float)) else ""
