"""Functions of `nn.functional` that PyTorch also has as `torch.<name>` and as Tensor methods."""

from __future__ import annotations

from typing import Any

from calque.functional.common import method
from calque.nn import functional as F
from calque.nn.functional import (
    adaptive_avg_pool1d,
    adaptive_max_pool1d,
    avg_pool1d,
    bilinear,
    celu,
    celu_,
    channel_shuffle,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    cosine_similarity,
    group_norm,
    hardshrink,
    layer_norm,
    max_pool1d,
    max_pool2d,
    pdist,
    pixel_shuffle,
    pixel_unshuffle,
    prelu,
    rms_norm,
    rrelu,
    rrelu_,
    selu,
    selu_,
    threshold,
    threshold_,
)  # fmt: skip
from calque.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d", "adaptive_max_pool1d", "alpha_dropout", "avg_pool1d", "bilinear", "celu", "celu_", "channel_shuffle",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "cosine_similarity", "dropout", "feature_alpha_dropout",
    "group_norm", "hardshrink", "layer_norm", "log_softmax", "max_pool1d", "max_pool2d", "pdist", "pixel_shuffle", "pixel_unshuffle",
    "prelu", "rms_norm", "rrelu", "rrelu_", "selu", "selu_", "softmax", "threshold", "threshold_",
]  # fmt: skip

method()(hardshrink)
method()(prelu)


def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`nn.functional.dropout` with PyTorch's names for `torch.dropout`."""
    return F.dropout(input, p, train)


def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`nn.functional.alpha_dropout` with PyTorch's names for `torch.alpha_dropout`."""
    return F.alpha_dropout(input, p, train)


def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`nn.functional.feature_alpha_dropout` with PyTorch's names for `torch.feature_alpha_dropout`."""
    return F.feature_alpha_dropout(input, p, train)


@method()
def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`: (*) -> (*).

    >>> import calque
    >>> calque.softmax(calque.zeros(4), 0)
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return F.softmax(input, dim, dtype=dtype)


@method()
def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """log(softmax(x)) along `dim`: (*) -> (*)."""
    return F.log_softmax(input, dim, dtype=dtype)
