"""The extension `fft`: discrete Fourier transforms with the standard's names of arguments."""

from __future__ import annotations

from typing import Any

import calque.fft as _fft
from calque.array_api.helpers import checked, on, require
from calque.tensor import Tensor

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip


def _one(name: str) -> Any:
    function = getattr(_fft, name)

    def apply(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
        return function(require(name, x), n, axis, norm)  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`calque.fft.{name}` along an axis."
    return apply


def _several(name: str) -> Any:
    function = getattr(_fft, name)

    def apply(x: Tensor, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Tensor:
        return function(require(name, x), s, axes, norm)  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`calque.fft.{name}` along several axes."
    return apply


fft, ifft, rfft, irfft, hfft, ihfft = [_one(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")]
fftn, ifftn, rfftn, irfftn = [_several(name) for name in ("fftn", "ifftn", "rfftn", "irfftn")]


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """Frequencies of the results of `fft` for samples at distance d."""
    return _fft.fftfreq(n, d, dtype=checked("fftfreq", dtype), device=on(device, "fftfreq"))


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """Frequencies of the results of `rfft` for samples at distance d."""
    return _fft.rfftfreq(n, d, dtype=checked("rfftfreq", dtype), device=on(device, "rfftfreq"))


def fftshift(x: Tensor, /, *, axes: Any = None) -> Tensor:
    """The frequency 0 in the middle."""
    return _fft.fftshift(require("fftshift", x), axes)


def ifftshift(x: Tensor, /, *, axes: Any = None) -> Tensor:
    """The frequency 0 in front again."""
    return _fft.ifftshift(require("ifftshift", x), axes)
