"""Names of `torch.utils` itself."""

from __future__ import annotations

from typing import Any

__all__ = ["cmake_prefix_path", "set_module", "swap_tensors"]

cmake_prefix_path = ""


def set_module(obj: Any, mod: Any) -> None:
    """Set the `__module__` of an object."""
    obj.__module__ = mod


_CONTENT = ("_storage", "_layout", "_requires_grad", "_grad_fn", "_grad", "_base", "_views", "_cache", "_hooks", "__class__", "__dict__")


def swap_tensors(t1: Any, t2: Any) -> None:
    """Let two tensors change places: whoever holds one holds the other's values, gradient, attributes and class afterwards."""
    for t in (t1, t2):
        if t._grad_fn is not None or t._base is not None or t._views:
            raise RuntimeError("[swap_tensors] expected tensors that are no views and no results with gradients, got one that is; clone() it")
    for name in _CONTENT:
        first, second = getattr(t1, name), getattr(t2, name)
        setattr(t1, name, second)
        setattr(t2, name, first)
