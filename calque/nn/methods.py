"""Functions of `nn.functional` that PyTorch also has as `torch.<name>` and as Tensor methods."""

from __future__ import annotations

from typing import Any

from calque.functional.common import method
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["log_softmax", "softmax"]


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
