"""Functions of `nn.functional` that PyTorch has with other parameters as `torch.<name>`, and as methods. (Those with the same are declared there.)"""

from __future__ import annotations

from typing import Any

from calque.functional.declared import public
from calque.nn.functional.dropout import alpha_dropout as _alpha_dropout
from calque.nn.functional.dropout import dropout as _dropout
from calque.nn.functional.dropout import feature_alpha_dropout as _feature_alpha_dropout
from calque.nn.functional.softmax import log_softmax as _log_softmax
from calque.nn.functional.softmax import softmax as _softmax
from calque.tensor import Tensor


@public(method=False)
def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`nn.functional.dropout` with PyTorch's names for `torch.dropout`."""
    return _dropout(input, p, train)


@public(method=False)
def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`nn.functional.alpha_dropout` with PyTorch's names for `torch.alpha_dropout`."""
    return _alpha_dropout(input, p, train)


@public(method=False)
def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`nn.functional.feature_alpha_dropout` with PyTorch's names for `torch.feature_alpha_dropout`."""
    return _feature_alpha_dropout(input, p, train)


@public(out="exact", steps=True)
def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`: (*) -> (*).

    >>> import calque
    >>> calque.softmax(calque.zeros(4), 0)
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return _softmax(input, dim, dtype=dtype)


@public(out="exact", steps=True)
def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """log(softmax(x)) along `dim`: (*) -> (*)."""
    return _log_softmax(input, dim, dtype=dtype)
