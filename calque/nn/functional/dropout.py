"""Dropout: elements or whole channels set to zero at random while training, the rest scaled up so that the mean stays.

Source: Srivastava et al., "Dropout" (2014); Tompson et al. (2015) for channels; Klambauer et al. (2017) for the alpha variants.
"""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError, ShapeError
from calque.functional.common import require_real
from calque.functional.declared import public
from calque.functional.writing import write_back
from calque.nn.functional.rows import choose
from calque.observe.source import warn_user
from calque.tensor import Tensor

_ALPHA = -1.7580993408473766  # -scale * alpha of SELU: what its inputs saturate to


def _check(op: str, p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"[{op}] dropout probability has to be between 0 and 1, but got {p}")


def _kept(x: Tensor, shape: Any, p: float) -> Tensor:
    """True with probability 1 - p."""
    return T.ge(T.rand(tuple(shape)), float(p))


def _drop(op: str, x: Tensor, shape: Any, p: float, inplace: bool) -> Tensor:
    require_real(op, x)
    if p == 0.0:
        return x
    kind = x._layout.dtype
    y = x * 0.0 if p == 1.0 else choose(_kept(x, shape, p), x * (1.0 / (1.0 - p)), 0.0, kind)
    return write_back(op, x, y) if inplace else y


@public(of="nn.functional")
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element becomes 0 with probability p, else x / (1 - p): (*) -> (*)."""
    _check("dropout", p)
    return _drop("dropout", input, input._layout.shape, p, inplace) if training else input


def _channels(op: str, n: int, input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    """Dropout of whole channels. Other numbers of dims than those of n-dimensional images are what PyTorch makes of them, with its warning: programs
    hand rows of features to `Dropout2d`."""
    _check(op, p)
    shape = tuple(input._layout.shape)
    count = len(shape)
    if count < (1 if n == 3 else 2) or n == 1 and count > 3:
        raise ShapeError(f"[{op}] expected an input with {n + 1} or {n + 2} dims, got shape {shape}")
    if count not in (n + 1, n + 2):
        warn_user(f"[{op}] expected an input with {n + 1} or {n + 2} dims, got shape {shape}; use dropout, which does the same here")
    elif n == 2 and count == 3:
        warn_user(f"[{op}] expected (N, C, H, W), got shape {shape}, which is taken as (N, C, L); use dropout1d")
    lead = count - 1 if n == 1 else 2 if n == 2 or count == 5 else 1
    return _drop(op, input, (*shape[:lead], *(1,) * (count - lead)), p, inplace) if training else input


@public(of="nn.functional")
def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels become 0: (N, C, L) -> the same."""
    return _channels("dropout1d", 1, input, p, training, inplace)


@public(of="nn.functional")
def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels become 0: (N, C, H, W), or as in PyTorch (N, C, L) and (N, C), with a warning -> the same."""
    return _channels("dropout2d", 2, input, p, training, inplace)


@public(of="nn.functional")
def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels become 0: (N, C, D, H, W) -> the same."""
    return _channels("dropout3d", 3, input, p, training, inplace)


def _alpha(op: str, input: Tensor, shape: Any, p: float, training: bool, inplace: bool) -> Tensor:
    _check(op, p)
    if not training or p == 0.0:
        return input
    require_real(op, input)
    if p == 1.0:
        return write_back(op, input, input * 0.0) if inplace else input * 0.0
    a = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * _ALPHA**2))
    b = -a * p * _ALPHA
    y = choose(_kept(input, shape, p), input * a + b, a * _ALPHA + b, input._layout.dtype)
    return write_back(op, input, y) if inplace else y


@public(of="nn.functional")
def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean and variance of SELU networks."""
    return _alpha("alpha_dropout", input, input._layout.shape, p, training, inplace)


@public(of="nn.functional")
def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels: (N, C, *) -> the same."""
    shape = tuple(input._layout.shape)
    if len(shape) < 2 and training and p:
        raise ShapeError(f"[feature_alpha_dropout] expected an input (N, C, *) with at least 2 dims, got shape {shape}; use alpha_dropout")
    return _alpha("feature_alpha_dropout", input, (*shape[:2], *(1,) * (len(shape) - 2)), p, training, inplace)
