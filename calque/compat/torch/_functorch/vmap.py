"""`torch._functorch.vmap`: `vmap`, and helpers that libraries import beside it."""

from __future__ import annotations

from typing import Any

import calque
from calque.base.text import function_name
from calque.compat.refused import refused
from calque.compat.torch._C._functorch import _add_batch_dim, _remove_batch_dim, is_batchedtensor
from calque.compat.torch.utils._pytree import TreeSpec, _broadcast_to_and_flatten, tree_flatten, tree_map_, tree_unflatten

__all__ = [
    "Tensor", "TreeSpec", "_add_batch_dim", "_broadcast_to_and_flatten", "_get_name", "_maybe_remove_batch_dim", "_remove_batch_dim", "in_dims_t",
    "is_batchedtensor", "out_dims_t", "tree_flatten", "tree_map_", "tree_unflatten", "vmap",
]  # fmt: skip
Tensor, vmap = calque.Tensor, calque.func.vmap
in_dims_t, out_dims_t = int | tuple[Any, ...], int | tuple[int, ...]
_maybe_remove_batch_dim = refused("torch._functorch.vmap._maybe_remove_batch_dim")


def _get_name(func: Any) -> str:
    return function_name(func)
