"""Discrete Fourier transforms by NumPy (pocketfft): of complex numbers, of real ones to the half that says everything, and back.

None is normalised; `scale` multiplies the result. Extents are those of the operands: whoever wants others pads or cuts before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType
from calque.base.shapes import Shape
from calque.ops.opdef import Attrs, OpDef, Sample, Vjp, register
from calque.ops.rules import Array, floating, same_shape


def _half(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    shape, dim = shapes[0], attrs[0]
    return (*shape[:dim], shape[dim] // 2 + 1, *shape[dim + 1 :])


def _whole(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    shape, (dim, n) = shapes[0], attrs[:2]
    return (*shape[:dim], n, *shape[dim + 1 :])


def _to_complex(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    return floating("fft_r2c")(dtypes, attrs).to_complex()


def _to_real(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    return dtypes[0].to_real()


def loop_of(op: OpDef, attrs: Attrs, n: int) -> np.ufunc | None:
    """What NumPy has behind its functions for n numbers along one dim: (numbers, factor) -> numbers. None if that is kept elsewhere."""
    if op is _C2C:
        name = "ifft" if attrs[1] else "fft"
    else:
        name = "irfft" if op is _C2R else "rfft_n_odd" if n % 2 else "rfft_n_even"
    found = getattr(getattr(np.fft, "_pocketfft_umath", None), name, None)
    return found if isinstance(found, np.ufunc) else None


def _scaled(x: Array, scale: float) -> Array:
    return np.asarray(x) if scale == 1.0 else np.multiply(x, scale, dtype=x.dtype)


def _c2c(x: Array, dims: Shape, inverse: bool, scale: float) -> Array:
    if 0 in x.shape:
        return x.copy()
    found = np.fft.ifftn(x, axes=dims, norm="forward") if inverse else np.fft.fftn(x, axes=dims, norm="backward")
    return _scaled(found, scale)


def _r2c(x: Array, dim: int, scale: float) -> Array:
    if 0 in x.shape:
        return np.zeros(_half([x.shape], (dim,)), np.result_type(x.dtype, np.complex64))
    return _scaled(np.fft.rfft(x, axis=dim, norm="backward"), scale)


def _c2r(x: Array, dim: int, n: int, scale: float) -> Array:
    if 0 in x.shape:
        return np.zeros(_whole([x.shape], (dim, n)), x.real.dtype)
    return _scaled(np.fft.irfft(x, n, axis=dim, norm="forward"), scale)


def _weighted(F: Any, x: Any, dim: int, n: int, inner: float) -> Any:
    """Half a spectrum with the frequencies that stand for two multiplied by `inner`."""
    half = n // 2 + 1
    place = F.reshape(F.prim("iota", (half,), x.dtype.to_real()), (half,) + (1,) * (x.ndim - dim - 1))
    single = (place == 0) | (place * 2 == n)
    return x * F.where(single, 1.0, inner)


def _r2c_gradient(F: Any, g: Any, c: Any) -> Any:
    dim, scale = c.attrs
    n = c.shape(0)[dim]
    return F.prim("fft_c2r", _weighted(F, g, dim, n, 0.5), dim, n, scale)


def _c2r_gradient(F: Any, g: Any, c: Any) -> Any:
    dim, n, scale = c.attrs
    return _weighted(F, F.prim("fft_r2c", g, dim, scale), dim, n, 2.0)


_C2C = register(
    OpDef(
        "fft_c2c",
        "opaque",
        "Fourier transform over dims, with the exponent's sign + if `inverse`.",
        attrs=("dims", "inverse", "scale"),
        shape=same_shape,
        vjp=(Vjp(lambda F, g, c: F.prim("fft_c2c", g, c.attrs[0], not c.attrs[1], c.attrs[2])),),
        node="FftC2C",
        ref=_c2c,
        samples=(Sample(((3, 4),), ((1,), False, 1.0), differentiable=False), Sample(((3, 5),), ((0, 1), True, 0.5), differentiable=False)),
        dtypes=("complex64", "complex128"),
        complex="direct",
    )
)
_R2C = register(
    OpDef(
        "fft_r2c",
        "opaque",
        "The frequencies 0..n // 2 of the Fourier transform of real numbers along dim.",
        attrs=("dim", "scale"),
        shape=_half,
        dtype=_to_complex,
        vjp=(Vjp(_r2c_gradient),),
        node="FftR2C",
        ref=_r2c,
        samples=(Sample(((3, 4),), (1, 1.0), differentiable=False), Sample(((5, 2),), (0, 0.5), differentiable=False)),
        dtypes=("float64",),
    )
)
_C2R = register(
    OpDef(
        "fft_c2r",
        "opaque",
        "The n real numbers along dim whose inverse transform has these frequencies 0..n // 2.",
        attrs=("dim", "n", "scale"),
        shape=_whole,
        dtype=_to_real,
        vjp=(Vjp(_c2r_gradient),),
        node="FftC2R",
        ref=_c2r,
        samples=(Sample(((3, 4),), (1, 6, 1.0), differentiable=False), Sample(((3, 2),), (0, 5, 0.5), differentiable=False)),
        dtypes=("complex64", "complex128"),
        complex="direct",
    )
)
TRANSFORMS = (_C2C, _R2C, _C2R)
