"""PyTorch's `torch.backends` names and the precision of products: settings that choose kernels there. All of Calque's kernels give the same
bits every time and compute float32 products in float32, so that settings which allow more are kept and change nothing.

>>> import calque
>>> calque.backends.cudnn.benchmark = True
>>> calque.backends.cudnn.is_available()
False
"""

from __future__ import annotations

from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import shown

__all__ = [
    "cuda", "cudnn", "get_float32_matmul_precision", "mkl", "mkldnn", "mps", "openmp", "set_float32_matmul_precision",
]  # fmt: skip

PRECISIONS = ("highest", "high", "medium")


class _Settings:
    """Named settings of something that is not there; other names are refused."""

    _name: str

    def __init__(self, name: str, **values: Any) -> None:
        self.__dict__.update(values, _name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__ or name.startswith("_"):
            known = [key for key in self.__dict__ if not key.startswith("_")]
            raise AttributeError(f"[backends.{self._name}] expected one of the settings {known}, got {shown(name)}")
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"<settings of backends.{self._name}>"

    def is_available(self) -> bool:
        """Whether it can be used."""
        return False

    is_built = is_available

    def version(self) -> None:
        """None: it is not there."""


cudnn = _Settings("cudnn", enabled=True, benchmark=False, deterministic=False, allow_tf32=True, benchmark_limit=10)
cuda = _Settings("cuda", matmul=_Settings("cuda.matmul", allow_tf32=False, allow_fp16_reduced_precision_reduction=True))
mps, mkl, openmp = _Settings("mps"), _Settings("mkl"), _Settings("openmp")
mkldnn = _Settings("mkldnn", enabled=True)


class _Chosen:
    """What was asked for, so that it can be asked back."""

    precision = PRECISIONS[0]


def set_float32_matmul_precision(precision: str) -> None:
    """Allow products of float32 to be computed with less than float32: "highest", "high" or "medium". They never are."""
    if precision not in PRECISIONS:
        raise ArgumentError(f"[set_float32_matmul_precision] expected one of {', '.join(map(repr, PRECISIONS))}, got {shown(precision)}")
    _Chosen.precision = precision


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was told last."""
    return _Chosen.precision
