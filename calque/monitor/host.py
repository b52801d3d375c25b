"""Values of tensors for this layer: the only module of it that knows them."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.tensor import Tensor, read


def to_host(value: Any) -> Any:
    """Tensors, also inside lists, tuples and dicts, as NumPy copies (16-bit floats as float32); anything else unchanged."""
    if isinstance(value, Tensor):
        array = np.array(read(value))
        return array if array.dtype.kind in "biu" or array.dtype.itemsize > 2 else array.astype(np.float32)
    if isinstance(value, dict):
        return {key: to_host(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_host(item) for item in value)
    return value


def is_tensor(value: object) -> bool:
    """Whether reading the value may have to wait."""
    return isinstance(value, Tensor)


def detached(value: Any) -> Any:
    """The same number without the graph behind it, not read yet."""
    return value.detach()
