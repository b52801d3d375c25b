"""The parts of `torch._C._functorch` that libraries name. What takes slices and levels by hand is refused: `vmap` here has no levels."""

from __future__ import annotations

from typing import Any

import calque
from calque.autograd.transform.batch import BatchFrame
from calque.compat.refused import refused

__all__ = [
    "_add_batch_dim", "_remove_batch_dim", "_vmap_decrement_nesting", "_vmap_increment_nesting", "get_unwrapped", "is_batchedtensor",
    "is_functorch_wrapped_tensor", "is_gradtrackingtensor", "maybe_get_bdim", "maybe_get_level",
]  # fmt: skip
_add_batch_dim, _remove_batch_dim, get_unwrapped, maybe_get_bdim, maybe_get_level = (
    refused(f"torch._C._functorch.{name}") for name in ("_add_batch_dim", "_remove_batch_dim", "get_unwrapped", "maybe_get_bdim", "maybe_get_level")
)
_vmap_increment_nesting, _vmap_decrement_nesting = (
    refused(f"torch._C._functorch.{name}") for name in ("_vmap_increment_nesting", "_vmap_decrement_nesting")
)


def is_batchedtensor(tensor: Any) -> bool:
    """Whether a tensor stands for all slices of a batch, inside `vmap`."""
    return isinstance(tensor, calque.Tensor) and isinstance(tensor._storage.trace, BatchFrame)


def is_functorch_wrapped_tensor(tensor: Any) -> bool:
    """The same: what gradients are taken of is a tensor like others here."""
    return is_batchedtensor(tensor)


def is_gradtrackingtensor(tensor: Any) -> bool:
    """False, see above."""
    return False
