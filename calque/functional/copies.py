"""Copies under the names that PyTorch's exported graphs use for views that own their memory: `permute_copy` is `permute`, then `clone`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque.functional.common import is_tensor, method, prim
from calque.functional.complex import view_as_complex, view_as_real
from calque.functional.declared import takes_out
from calque.functional.joining import chunk, split, split_with_sizes, unbind
from calque.functional.views import detach, expand, permute, squeeze, t, transpose, unsqueeze, view
from calque.functional.windows import as_strided, diagonal, narrow, select, unfold
from calque.tensor import Tensor


def _own(found: Any) -> Any:
    return prim("copy", found) if is_tensor(found) else tuple([prim("copy", part) for part in found])


@takes_out
def alias_copy(input: Tensor) -> Tensor:
    """A copy: (*) -> (*).

    >>> import calque
    >>> calque.alias_copy(calque.tensor([1, 2]))
    tensor([1, 2])
    """
    return _own(input)  # type: ignore[no-any-return]


@takes_out
def detach_copy(input: Tensor) -> Tensor:
    """A copy without history: (*) -> (*)."""
    return _own(detach(input))  # type: ignore[no-any-return]


@takes_out
def as_strided_copy(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """`as_strided`, copied: (*) -> size."""
    return _own(as_strided(input, size, stride, storage_offset))  # type: ignore[no-any-return]


@takes_out
def diagonal_copy(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """`diagonal`, copied.

    >>> import calque
    >>> calque.diagonal_copy(calque.tensor([[1, 2], [3, 4]]))
    tensor([1, 4])
    """
    return _own(diagonal(input, offset, dim1, dim2))  # type: ignore[no-any-return]


@takes_out
def expand_copy(input: Tensor, size: Sequence[int], *, implicit: bool = False) -> Tensor:
    """`expand`, copied: (*) -> size."""
    return _own(expand(input, *size))  # type: ignore[no-any-return]


@method()
@takes_out
def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`narrow`, copied: `length` elements of a dim from `start` on.

    >>> import calque
    >>> calque.narrow_copy(calque.tensor([1, 2, 3]), 0, 1, 2)
    tensor([2, 3])
    """
    return _own(narrow(input, dim, start, length))  # type: ignore[no-any-return]


@takes_out
def permute_copy(input: Tensor, dims: Sequence[int]) -> Tensor:
    """`permute`, copied."""
    return _own(permute(input, *dims))  # type: ignore[no-any-return]


@takes_out
def select_copy(input: Tensor, dim: int, index: int) -> Tensor:
    """`select`, copied: the dim is gone."""
    return _own(select(input, dim, index))  # type: ignore[no-any-return]


@takes_out
def slice_copy(input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """`input[start:end:step]` along a dim, copied.

    >>> import calque
    >>> calque.slice_copy(calque.tensor([1, 2, 3, 4]), 0, 1, None, 2)
    tensor([2, 4])
    """
    axis = dim % input._layout.ndim if input._layout.ndim else dim
    return _own(input[(slice(None),) * axis + (slice(start, end, step),)])  # type: ignore[no-any-return]


@takes_out
def split_copy(input: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`split`, each part copied."""
    return _own(split(input, split_size, dim))  # type: ignore[no-any-return]


@takes_out
def split_with_sizes_copy(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """`split_with_sizes`, each part copied."""
    return _own(split_with_sizes(input, split_sizes, dim))  # type: ignore[no-any-return]


@method()
def unsafe_split(input: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`split`, each part with memory of its own."""
    return _own(split(input, split_size, dim))  # type: ignore[no-any-return]


@method()
def unsafe_split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """`split_with_sizes`, each part with memory of its own."""
    return _own(split_with_sizes(input, split_sizes, dim))  # type: ignore[no-any-return]


@method()
def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`chunk`, each part with memory of its own."""
    return _own(chunk(input, chunks, dim))  # type: ignore[no-any-return]


@takes_out
def squeeze_copy(input: Tensor, dim: Any = None) -> Tensor:
    """`squeeze`, copied."""
    return _own(squeeze(input) if dim is None else squeeze(input, dim))  # type: ignore[no-any-return]


@takes_out
def t_copy(input: Tensor) -> Tensor:
    """`t`, copied."""
    return _own(t(input))  # type: ignore[no-any-return]


@takes_out
def transpose_copy(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """`transpose`, copied."""
    return _own(transpose(input, dim0, dim1))  # type: ignore[no-any-return]


@takes_out
def unbind_copy(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """`unbind`, each part copied."""
    return _own(unbind(input, dim))  # type: ignore[no-any-return]


@takes_out
def unfold_copy(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """`Tensor.unfold`, copied."""
    return _own(unfold(input, dimension, size, step))  # type: ignore[no-any-return]


@takes_out
def unsqueeze_copy(input: Tensor, dim: int) -> Tensor:
    """`unsqueeze`, copied."""
    return _own(unsqueeze(input, dim))  # type: ignore[no-any-return]


@takes_out
def view_copy(input: Tensor, size: Any = None, *, dtype: Any = None) -> Tensor:
    """`view`, copied: in another shape, or as another dtype."""
    found = view(input, dtype) if dtype is not None else view(input, size)
    return _own(found)  # type: ignore[no-any-return]


@takes_out
def view_as_real_copy(input: Tensor) -> Tensor:
    """`view_as_real`, copied: (*) complex -> (*, 2).

    >>> import calque
    >>> calque.view_as_real_copy(calque.tensor([1 + 2j]))
    tensor([[1., 2.]])
    """
    return _own(view_as_real(input))  # type: ignore[no-any-return]


@takes_out
def view_as_complex_copy(input: Tensor) -> Tensor:
    """`view_as_complex`, copied: (*, 2) -> (*) complex."""
    return _own(view_as_complex(input))  # type: ignore[no-any-return]
