"""Tensors to arrays and back: the only module of this layer that knows them."""

from __future__ import annotations

from calque.io.structure import Leaf, numpy_leaf


def leaf_of(value: object) -> Leaf | None:
    """The array inside a tensor, a NumPy array or a NumPy scalar; None for anything else."""
    return numpy_leaf(value)


def value_of(leaf: Leaf) -> object:
    """What a loaded array becomes."""
    return leaf.array[()] if leaf.kind == "scalar" else leaf.array
