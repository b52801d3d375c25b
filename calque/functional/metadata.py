"""What a tensor says of its layout: shape, strides, offset, whether its elements lie in an order that somebody asks for."""

from __future__ import annotations

from typing import Any

from calque.base.errors import OutOfRangeError
from calque.base.shapes import normalize_dim
from calque.functional.common import attribute, method
from calque.functional.declared import public
from calque.tensor import Tensor


@method("size")
def size(input: Tensor, dim: int | None = None) -> Any:
    """Shape of the tensor, or its extent along `dim`.

    >>> import calque
    >>> calque.zeros(2, 3).size(), calque.zeros(2, 3).size(-1)
    (torch.Size([2, 3]), 3)
    """
    shape = input._layout.shape
    return shape if dim is None else shape[_own_dim(dim, len(shape), "size")]


def _own_dim(dim: int, ndim: int, op: str) -> int:
    """A dimension that the tensor has; elsewhere 0 and -1 do for a number, too."""
    if not ndim:
        raise OutOfRangeError(f"[{op}] expected a tensor with dimensions, got shape (): Dimension specified as {dim} but tensor has no dimensions")
    return normalize_dim(dim, ndim, op)


@method("stride")
def stride(input: Tensor, dim: int | None = None) -> Any:
    """Strides in elements, or the stride along `dim`."""
    strides = input._layout.strides
    return strides if dim is None else strides[_own_dim(dim, len(strides), "stride")]


@method("dim", "ndimension")
def dim(input: Tensor) -> int:
    """Number of dimensions."""
    return input._layout.ndim


@public()
@method("nelement")
def numel(input: Tensor) -> int:
    """Number of elements."""
    return input._layout.numel


@method("storage_offset")
def storage_offset(input: Tensor) -> int:
    """Position of the first element in the storage, in elements."""
    return input._layout.offset


@method("is_set_to")
def is_set_to(input: Tensor, tensor: Tensor) -> bool:
    """Whether both tensors are the same view of the same storage."""
    return input._storage is tensor._storage and input._layout is tensor._layout


attribute("shape", lambda self: self._layout.shape, "Shape of the tensor, a `Size`.")
attribute("ndim", lambda self: self._layout.ndim, "Number of dimensions.")
