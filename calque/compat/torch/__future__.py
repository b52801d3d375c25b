"""`torch.__future__`: how modules convert their parameters. Here a parameter is the same object before and after, and there is no other way."""

from __future__ import annotations

from calque.compat.refused import no, refused

__all__ = [
    "get_overwrite_module_params_on_conversion", "get_swap_module_params_on_conversion", "set_overwrite_module_params_on_conversion",
    "set_swap_module_params_on_conversion",
]  # fmt: skip

get_overwrite_module_params_on_conversion = get_swap_module_params_on_conversion = no


def set_overwrite_module_params_on_conversion(value: bool) -> None:
    """`False` is how it is; `True` raises NotImplementedError."""
    if value:
        refused("torch.__future__.set_overwrite_module_params_on_conversion")()


def set_swap_module_params_on_conversion(value: bool) -> None:
    """`False` is how it is; `True` raises NotImplementedError."""
    if value:
        refused("torch.__future__.set_swap_module_params_on_conversion")()
