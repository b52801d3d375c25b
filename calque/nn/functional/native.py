"""Names of PyTorch's kernels that programs meet in exported graphs and in the operator database: layers that also give their statistics, the gradient
of softmax from its result, indexing under a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError, ShapeError
from calque.functional.common import cast, is_tensor
from calque.functional.declared import takes_out
from calque.nn.functional.conv import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d
from calque.nn.functional.norm import batch_norm, group_norm, layer_norm
from calque.nn.functional.padding import pad
from calque.nn.functional.rows import wide
from calque.nn.functional.sampling import grid_sampler, grid_sampler_2d, grid_sampler_3d
from calque.nn.functional.vision import channel_shuffle
from calque.nn.functional.volumes import conv_transpose3d
from calque.tensor import Tensor

__all__ = [
    "_chunk_cat", "_convolution", "_native_batch_norm_legit", "_softmax_backward_data", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate",
    "constant_pad_nd", "convolution", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "native_batch_norm", "native_channel_shuffle",
    "native_group_norm", "native_layer_norm",
]  # fmt: skip


def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """`nn.functional.pad` with a constant: `pad` lists (before, after) of the last dim, then of the one before it, ..."""
    return _pad(input, pad, value=value)


_pad = pad


def _moments(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps), in the type of x."""
    given, x = x._layout.dtype, wide(x)
    centre = T.mean(x, dims, True)
    variance = T.mean((x - centre) * (x - centre), dims, True)
    return cast(centre, given), cast(T.rsqrt(variance + float(eps)), given)


def native_layer_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    """`layer_norm`, the means, and 1 / the standard deviations: (*, *s) -> (*, *s), (*, 1...), (*, 1...).

    >>> import calque
    >>> [part.shape for part in calque.native_layer_norm(calque.ones(2, 3), [3], None, None, 1e-5)]
    [torch.Size([2, 3]), torch.Size([2, 1]), torch.Size([2, 1])]
    """
    n, k = input._layout.ndim, len(tuple(normalized_shape))
    return layer_norm(input, tuple(normalized_shape), weight, bias, eps), *_moments(input.detach(), tuple(range(n - k, n)), eps)  # type: ignore[attr-defined]


def native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`group_norm` of (N, C, *) with HxW positions, the means, and 1 / the standard deviations: -> (N, C, *), (N, group), (N, group)."""
    centre, inverse = _moments(T.reshape(input, (N, group, C // group * HxW)), (2,), eps)
    return group_norm(input, group, weight, bias, eps), T.squeeze(centre, 2), T.squeeze(inverse, 2)


@takes_out
def native_batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`batch_norm`, and while training the batch's means and 1 / the standard deviations, else nothing: (N, C, *) -> (N, C, *), (C), (C)."""
    n = input._layout.ndim
    if training:
        dims = (0, *range(2, n))
        centre, inverse = (T.reshape(m, (-1,)) for m in _moments(input.detach(), dims, eps))  # type: ignore[attr-defined]
    else:
        centre = inverse = T.zeros((0,), dtype=input._layout.dtype, device=input._layout.device)
    return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps), centre, inverse


def _native_batch_norm_legit(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Any, running_var: Any, training: Any, momentum: Any, eps: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`native_batch_norm`; also without running statistics, which are then left out of the call."""
    if not is_tensor(running_mean) and eps is None:
        training, momentum, eps, running_mean, running_var = running_mean, running_var, training, None, None
    return native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def _softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any) -> Tensor:
    """The gradient of a softmax along `dim` from its result."""
    product = grad_output * output
    return cast(product - output * T.sum(product, dim, True), input_dtype)


def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """`conv1d`, `conv2d` or `conv3d`, or `conv_transpose1d` ... if `transposed`, by the dims of the weight."""
    name = f"conv{'_transpose' if transposed else ''}{weight._layout.ndim - 2}d"
    functions: dict[str, Any] = {f.__name__: f for f in (conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d)}
    if name not in functions:
        raise ShapeError(f"[convolution] expected a weight with 3 to 5 dims, got shape {tuple(weight._layout.shape)}")
    if transposed:
        return functions[name](input, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]
    return functions[name](input, weight, bias, stride, padding, dilation, groups)


def _convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, benchmark: bool, deterministic: bool, cudnn_enabled: bool, allow_tf32: bool = True,
) -> Tensor:  # fmt: skip
    """`convolution` with settings of a GPU's kernels, of which there are none."""
    return convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def native_channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """The same as `channel_shuffle`: (N, C, *) -> the same."""
    return channel_shuffle(input, groups)


def _inside(self: Tensor, mask: Tensor, indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([slice(None) if i is None else T.where(mask, i, 0) for i in indices])


def _unsafe_masked_index(self: Tensor, mask: Tensor, indices: Sequence[Any], fill: float) -> Tensor:
    """`self[indices]` where the mask holds, `fill` elsewhere, where the indices may lie outside."""
    found = self[_inside(self, mask, indices)]  # type: ignore[index]
    return T.where(mask, found, T.full((), fill, dtype=found._layout.dtype))  # type: ignore[no-any-return]


def _unsafe_masked_index_put_accumulate(self: Tensor, mask: Tensor, indices: Sequence[Any], values: Tensor) -> Tensor:
    """A copy of `self` with `values` added at the indices where the mask holds."""
    kept = T.where(mask, values, T.zeros((), dtype=values._layout.dtype))
    return T.index_put(self, _inside(self, mask, indices), kept, accumulate=True)


def _chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    """Each tensor padded along `dim` to a multiple of `num_chunks`, cut into so many parts and flattened behind it; the parts side by side:
    -> (*, num_chunks, sum of the sizes of a part)."""
    if not tensors or num_chunks < 1:
        raise ArgumentError(f"[_chunk_cat] expected tensors and num_chunks >= 1, got {len(tensors)} tensors and {num_chunks}")
    ndims = {x._layout.ndim for x in tensors}
    if not 0 <= dim < min(ndims) and (len(ndims) > 1 or not -min(ndims) <= dim < 0):
        raise ArgumentError(f"[_chunk_cat] expected a dim that all tensors have, not negative where they have different dims, got {dim}; "
                            f"tensors have {sorted(ndims)} dims")  # fmt: skip
    if not all(x._layout.numel for x in tensors):
        raise ArgumentError("[_chunk_cat] expected tensors with elements, got an empty one; leave it out")
    d = dim % tensors[0]._layout.ndim
    rows = []
    for x in tensors:
        size, n = x._layout.shape[d], x._layout.ndim
        missing = -size % num_chunks
        padded = _pad(x, [0, 0] * (n - 1 - d) + [0, missing]) if missing else x
        rows.append(T.reshape(padded, (*x._layout.shape[:d], num_chunks, -1)))
    return T.cat(rows, d + 1)
