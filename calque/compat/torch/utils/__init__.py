"""Names of `torch.utils` itself."""

from __future__ import annotations

from typing import Any

__all__ = ["cmake_prefix_path", "set_module"]

cmake_prefix_path = ""


def set_module(obj: Any, mod: Any) -> None:
    """Set the `__module__` of an object."""
    obj.__module__ = mod
