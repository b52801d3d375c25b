"""Methods of Tensor that few programs call: on Python values, on shapes and on the order of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque.base.layout import MemoryFormat, channels_last, channels_last_3d, contiguous_format
from calque.functional.common import method
from calque.functional.formats import is_contiguous
from calque.functional.views import expand
from calque.functional.writing import write_back
from calque.tensor import Tensor, read, upload


@method()
def apply_(input: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Every element replaced by callable(element), on Python numbers. Reads the values; without gradient.

    >>> import calque
    >>> calque.tensor([1.0, 4.0]).apply_(lambda v: v + 1)
    tensor([2., 5.])
    """
    values = read(input, "apply_")
    found = np.array([callable(v) for v in values.reshape(-1).tolist()]).reshape(values.shape).astype(input._layout.dtype.np)
    return write_back("apply_", input, upload(found, input._layout.dtype))


@method()
def map2_(input: Tensor, x: Tensor, y: Tensor, callable: Callable[[Any, Any, Any], Any]) -> Tensor:
    """Every element replaced by callable(own, that of x, that of y), on Python numbers. Reads the values; without gradient."""
    shape = tuple(input._layout.shape)
    rows = [read(t, "map2_").reshape(-1).tolist() for t in (input, expand(x, shape), expand(y, shape))]
    found = np.array([callable(*v) for v in zip(*rows, strict=True)]).reshape(shape).astype(input._layout.dtype.np)
    return write_back("map2_", input, upload(found, input._layout.dtype))


@method()
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether both tensors have the same shape."""
    return tuple(input._layout.shape) == tuple(other._layout.shape)


@method()
def dim_order(input: Tensor, *, ambiguity_check: bool | list[MemoryFormat] = False) -> tuple[int, ...]:
    """The dims in the order in which memory holds them, the outermost first. ambiguity_check: raise where several orders describe the memory (True),
    or several of the given formats.

    >>> import calque
    >>> calque.empty(2, 3, 5, 7).to(memory_format=calque.channels_last).dim_order()
    (0, 2, 3, 1)
    """
    view = input._layout
    if ambiguity_check:
        known = [f for f in (contiguous_format, channels_last, channels_last_3d) if f.order is None or len(f.order) == view.ndim]
        asked = known if ambiguity_check is True else list(ambiguity_check)
        fitting = [f for f in asked if is_contiguous(input, f)]
        if len(fitting) > 1 or ambiguity_check is True and 1 in view.shape:
            raise RuntimeError(f"[dim_order] The tensor does not have unique dim order: expected one, got several for shape {tuple(view.shape)}")
    return tuple(sorted(range(view.ndim), key=lambda d: (-view.strides[d], d)))
