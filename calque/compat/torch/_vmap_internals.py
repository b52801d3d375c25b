"""`torch._vmap_internals`: the `vmap` of before `torch.func`, which libraries still import for batches of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.errors import ArgumentError
from calque.func import vmap

__all__ = ["_vmap", "vmap"]


def _vmap(func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, allow_none_pass_through: bool = False) -> Callable[..., Any]:
    """`torch.func.vmap` in its old words; results that are None are not let through."""
    if allow_none_pass_through:
        raise ArgumentError("[_vmap] expected allow_none_pass_through=False, got True; give out_dims=None for results that are None")
    return vmap(func, in_dims, out_dims)  # type: ignore[no-any-return]
