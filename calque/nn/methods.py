"""Functions of `nn.functional` that PyTorch has with other parameters as `torch.<name>`, and as methods. (Those with the same are declared there.)"""

from __future__ import annotations

from typing import Any

from calque.functional.declared import public
from calque.nn import functional as F
from calque.tensor import Tensor


@public(method=False)
def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`nn.functional.dropout` with PyTorch's names for `torch.dropout`."""
    return F.dropout(input, p, train)


@public(method=False)
def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`nn.functional.alpha_dropout` with PyTorch's names for `torch.alpha_dropout`."""
    return F.alpha_dropout(input, p, train)


@public(method=False)
def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`nn.functional.feature_alpha_dropout` with PyTorch's names for `torch.feature_alpha_dropout`."""
    return F.feature_alpha_dropout(input, p, train)


@public()
def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`: (*) -> (*).

    >>> import calque
    >>> calque.softmax(calque.zeros(4), 0)
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return F.softmax(input, dim, dtype=dtype)


@public()
def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """log(softmax(x)) along `dim`: (*) -> (*)."""
    return F.log_softmax(input, dim, dtype=dtype)
