"""Tensors to arrays and back: the only module of this layer that knows them."""

from __future__ import annotations

from typing import Any

from calque.base.dtypes import from_numpy_dtype
from calque.base.errors import DTypeError
from calque.base.layout import dense_layout
from calque.io.structure import Leaf, numpy_leaf
from calque.tensor import Tensor, from_array, read


def leaf_of(value: object) -> Leaf | None:
    """The array inside a tensor, a NumPy array or a NumPy scalar; None for anything else."""
    if isinstance(value, Tensor):
        return Leaf("tensor", read(value, "save"), requires_grad=bool(value.requires_grad))
    return numpy_leaf(value)


def value_of(leaf: Leaf, location: Any = None) -> object:
    """What a loaded array becomes; a tensor takes its memory over."""
    if leaf.kind != "tensor":
        return leaf.array[()] if leaf.kind == "scalar" else leaf.array
    dtype = from_numpy_dtype(leaf.array.dtype)
    if dtype is None:
        raise DTypeError(
            f"[load] expected an element type that Calque has, got {leaf.array.dtype} for tensor {leaf.name!r}; "
            "convert it with safetensors.numpy.load_file and astype"
        )
    tensor = from_array(leaf.array.reshape(-1), dense_layout(leaf.array.shape, dtype))
    if location is not None:
        tensor = tensor.to(location)
    return tensor.requires_grad_(True) if leaf.requires_grad else tensor
