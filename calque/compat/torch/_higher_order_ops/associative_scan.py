"""`torch._higher_order_ops.associative_scan`: running results of a function of two values, in as many steps as their number has digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import calque
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.compat.torch.utils._pytree import tree_flatten

__all__ = ["associative_scan"]


def associative_scan(combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    """At each place of `dim` what `combine_fn` makes of all values up to there. It has to be associative and to work element by element.

    xs: a tensor, or a container of tensors of one length along `dim`. reverse: begin at the end. combine_mode: either is computed the same way.
    Source: Hillis and Steele 1986, "Data Parallel Algorithms".
    """
    if combine_mode not in ("pointwise", "generic"):
        raise ArgumentError(f"[associative_scan] expected combine_mode 'pointwise' or 'generic', got {shown(combine_mode)}; pass 'pointwise'")
    leaves, spec = tree_flatten(xs)
    if not leaves or any(leaf.shape[dim] != leaves[0].shape[dim] for leaf in leaves):
        raise ArgumentError(f"[associative_scan] expected tensors of one length along dim {dim}, got {[tuple(x.shape) for x in leaves]}; cut them")
    values = [leaf.flip(dim) if reverse else leaf for leaf in leaves]
    length, distance = values[0].shape[dim], 1
    while distance < length:
        left = spec.unflatten([v.narrow(dim, 0, length - distance) for v in values])
        right = spec.unflatten([v.narrow(dim, distance, length - distance) for v in values])
        combined = tree_flatten(combine_fn(left, right))[0]
        values = [calque.cat([v.narrow(dim, 0, distance), new], dim) for v, new in zip(values, combined)]
        distance *= 2
    return spec.unflatten([v.flip(dim) if reverse else v for v in values])
