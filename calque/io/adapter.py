"""Tensors to arrays and back: the only module of this layer that knows them."""

from __future__ import annotations

import numpy as np

from calque.base.asked import ordinary
from calque.base.dtypes import complex128, from_numpy_dtype
from calque.base.errors import DTypeError
from calque.base.layout import dense_layout
from calque.io.structure import Leaf, numpy_leaf
from calque.tensor import Tensor, from_array, read


def leaf_of(value: object) -> Leaf | None:
    """The array inside a tensor, a NumPy array or a NumPy scalar; None for anything else."""
    if isinstance(value, Tensor):
        value = ordinary(value)
        array, kind = read(value, "save"), "tensor"
        if value._layout.dtype is complex128:
            array, kind = np.ascontiguousarray(array).reshape(-1, 1).view(np.float64).reshape(*array.shape, 2), "pairs"
        return Leaf(kind, array, requires_grad=bool(value.requires_grad))
    return numpy_leaf(value)


def value_of(leaf: Leaf) -> object:
    """What a loaded array becomes; a tensor takes its memory over."""
    if leaf.kind == "pairs":
        values = np.ascontiguousarray(leaf.array).reshape(-1).view(complex128.np)
        made: Tensor = from_array(values, dense_layout(leaf.array.shape[:-1], complex128))
        return made.requires_grad_(True) if leaf.requires_grad else made
    if leaf.kind != "tensor":
        return leaf.array[()] if leaf.kind == "scalar" else leaf.array
    dtype = from_numpy_dtype(leaf.array.dtype)
    if dtype is None:
        raise DTypeError(
            f"[load] expected an element type that Calque has, got {leaf.array.dtype} for tensor {leaf.name!r}; "
            "convert it with safetensors.numpy.load_file and astype"
        )
    tensor = from_array(leaf.array.reshape(-1), dense_layout(leaf.array.shape, dtype))
    return tensor.requires_grad_(True) if leaf.requires_grad else tensor
