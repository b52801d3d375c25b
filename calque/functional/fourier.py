"""Fourier transforms with the names of `torch.fft`, and the short-time transform.

Integers become the default floating type, real numbers complex ones where a transform of these is asked for. `norm` says where the factor goes:
"backward" (None) divides by n in the inverse transform, "forward" in the other, "ortho" by the root of n in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from calque.autograd.assign import without_base
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError, UnsupportedTypeError
from calque.base.shapes import Shape, contiguous_strides, normalize_dim
from calque.base.shapes import inverse as inverse_of
from calque.base.text import shown
from calque.functional.common import cast, prim, require_tensors
from calque.functional.complex import conj
from calque.functional.creation import arange
from calque.functional.declared import public
from calque.functional.joining import roll
from calque.functional.options import marked, resolve_dtype, written
from calque.functional.placing import placed
from calque.functional.precision import full_precision
from calque.functional.views import int_tuple, permute
from calque.functional.windows import narrow
from calque.record.recorder import local
from calque.tensor import Tensor

LAST_TWO = (-2, -1)


# -------------------------------------------------------------------------------------------------------------- arguments


def operand(op: str, x: Tensor, kind: str) -> Tensor:
    """x as "real" or "complex" numbers of a type that can be transformed; "any" leaves them."""
    require_tensors(op, x)
    dtype = x._layout.dtype
    if dtype.itemsize == 2 and dtype.category == 2:
        raise DTypeError(f"[{op}] Unsupported dtype {dtype!r}: expected float32, float64 or complex numbers; convert with .float()")
    if dtype.category < 2:
        x = cast(x, dt.get_default_dtype())
    if kind == "real" and x._layout.dtype.is_complex:
        raise DTypeError(f"[{op}] {op} expects a real input tensor, but got {dtype!r}; take .real, or transform it with fft()")
    return cast(x, x._layout.dtype.to_complex()) if kind == "complex" else x


def scale_of(op: str, norm: str | None, sizes: Sequence[int], forward: bool) -> float:
    """The factor of a transform over these extents."""
    count = math.prod(sizes)
    if norm is None or norm == "backward":
        return 1.0 if forward else 1.0 / count
    if norm == "forward":
        return 1.0 / count if forward else 1.0
    if norm != "ortho":
        raise ArgumentError(f"[{op}] Invalid normalization mode: {shown(norm)}; expected 'forward', 'backward' or 'ortho'")
    return 1.0 / math.sqrt(count)


def _points(op: str, n: int) -> int:
    if not isinstance(n, int) or n < 1:
        raise ArgumentError(f"[{op}] Invalid number of data points ({n}) specified; expected at least 1")
    return n


def fitted(x: Tensor, dim: int, n: int) -> Tensor:
    """x cut, or followed by zeros, to n elements along dim."""
    shape = tuple(x._layout.shape)
    if shape[dim] == n:
        return x
    if shape[dim] > n:
        return narrow(x, dim, 0, n)
    whole = (*shape[:dim], n, *shape[dim + 1 :])
    zeros = prim("full", (0, x._layout.dtype), whole)
    return prim("update", zeros, x, shape, contiguous_strides(whole), 0)


def _dims(op: str, x: Tensor, s: Any, dim: Any) -> tuple[Shape, list[int | None]]:
    """(dims to transform, wanted extent of each or None) of `s` and `dim`."""
    ndim = x._layout.ndim
    if not ndim and dim is not None:
        raise OutOfRangeError(f"[{op}] expected a tensor with dims, got shape () and dim={shown(dim)}: the tensor has no dimensions")
    sizes = None if s is None else list(int_tuple(op, (s,)))
    given = None if dim is None else list(int_tuple(op, (dim,)))
    if given is not None:
        dims = tuple(normalize_dim(d, ndim, op) for d in given)
        if len(set(dims)) < len(dims):
            raise ArgumentError(f"[{op}] FFT dims must be unique, got {tuple(given)}")
        if sizes is not None and len(sizes) != len(dims):
            raise ArgumentError(f"[{op}] When given, dim and shape arguments must have the same length, got s={tuple(sizes)} and dim={tuple(given)}")
    elif sizes is not None:
        if len(sizes) > ndim:
            raise ArgumentError(f"[{op}] Got shape with {len(sizes)} values but input tensor only has {ndim} dimensions.")
        dims = tuple(range(ndim - len(sizes), ndim))
    else:
        dims = tuple(range(ndim))
    wanted: list[int | None] = [None] * len(dims) if sizes is None else [None if n == -1 else n for n in sizes]
    return dims, wanted


def _fit_all(op: str, x: Tensor, dims: Shape, wanted: Sequence[int | None]) -> Tensor:
    for d, n in zip(dims, wanted, strict=True):
        x = fitted(x, d, _points(op, x._layout.shape[d] if n is None else n))
    return x


def _given(op: str, result: Tensor, out: Any) -> Tensor:
    if out is not None and out._layout.dtype.is_complex and not result._layout.dtype.is_complex:
        raise UnsupportedTypeError(f"[{op}] expected a floating point output tensor, got {out._layout.dtype!r}; the transform is real")
    return result if out is None else written(op, result, out)


# ------------------------------------------------------------------------------------------------------------- transforms


def _arranged(x: Tensor, dims: Sequence[int], work: Callable[[Tensor, Shape], Tensor]) -> Tensor:
    """`work` on the dims to transform behind all others, which are in the order of memory: so lies the result, as PyTorch's does."""
    strides, ndim = x._layout.strides, x._layout.ndim
    order = (*sorted((d for d in range(ndim) if d not in dims), key=lambda d: -strides[d]), *dims)
    if order == tuple(range(ndim)):
        return work(x, tuple(dims))
    found = permute(work(permute(x, order), tuple(range(ndim - len(dims), ndim))), inverse_of(order))
    return without_base(found, (x,))


def _by_stride(x: Tensor, dims: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda d: -x._layout.strides[d])


def _one_by_one(x: Tensor, dims: Sequence[int], inverse: bool, scale: float) -> Tensor:
    """Complex to complex; where it is computed at once over one dim after the other, as NumPy does, by kernels."""
    places = list(dims)
    if local.state.trace.eager and not x._requires_grad:
        while len(places) > 1:
            x = prim("fft_c2c", x, (places.pop(),), inverse, 1.0)
    return prim("fft_c2c", x, tuple(places), inverse, scale)


def _c2c(op: str, x: Tensor, dims: Shape, norm: str | None, inverse: bool, forward: bool | None = None) -> Tensor:
    """Complex to complex over dims whose extents are right. `forward`: which of the pair decides on the factor."""
    forward = not inverse if forward is None else forward
    scale = scale_of(op, norm, [x._layout.shape[d] for d in dims], forward)
    if not dims:
        return x
    return _arranged(x, _by_stride(x, dims), lambda y, places: _one_by_one(y, places, inverse, scale))


def _complex(op: str, input: Tensor, s: Any, dim: Any, norm: str | None, inverse: bool) -> Tensor:
    x = operand(op, input, "complex")
    dims, wanted = _dims(op, x, s, dim)
    return _c2c(op, _fit_all(op, x, dims, wanted), dims, norm, inverse)


def _one(op: str, input: Tensor, n: Any, dim: int) -> tuple[Any, int]:
    """(extents, dim) of a transform along one dim, checked where several dims mean something else."""
    require_tensors(op, input)
    if not input._layout.ndim:
        raise OutOfRangeError(f"[{op}] Dimension specified as {dim} but tensor has no dimensions; expected at least 1")
    return (None if n is None else (_points(op, n),)), dim


def _from_real(op: str, input: Tensor, s: Any, dim: Any, norm: str | None, forward: bool) -> Tensor:
    """Real to half a complex spectrum: along the last dim, then the others; conjugated if not `forward`."""
    x = operand(op, input, "real")
    dims, wanted = _dims(op, x, s, dim)
    if not dims:
        raise ArgumentError(f"[{op}] {op} must transform at least one axis, got none")
    x = _fit_all(op, x, dims, wanted)
    scale = scale_of(op, norm, [x._layout.shape[dims[-1]]], forward)
    others = scale_of(op, norm, [x._layout.shape[d] for d in dims[:-1]], forward)
    if not forward:
        found = _arranged(x, dims[-1:], lambda y, places: prim("fft_r2c", y, places[0], scale))
        return _c2c(op, conj(found), dims[:-1], norm, True, False)

    def work(y: Tensor, places: Shape) -> Tensor:
        half = prim("fft_r2c", y, places[-1], scale)
        return prim("fft_c2c", half, places[:-1], False, others) if places[:-1] else half

    return _arranged(x, [*_by_stride(x, dims[:-1]), dims[-1]], work)


def _to_real(op: str, input: Tensor, s: Any, dim: Any, norm: str | None, forward: bool) -> Tensor:
    """Half a complex spectrum to real numbers: over the other dims, then along the last; conjugated before if `forward`."""
    x = operand(op, input, "complex")
    dims, wanted = _dims(op, x, s, dim)
    if not dims:
        raise ArgumentError(f"[{op}] {op} must transform at least one axis, got none")
    last = wanted[-1]
    n = _points(op, 2 * (x._layout.shape[dims[-1]] - 1) if last is None else last)
    x = _fit_all(op, x, dims, [*wanted[:-1], n // 2 + 1])
    x = _c2c(op, x, dims[:-1], norm, not forward, forward)
    scale = scale_of(op, norm, [n], forward)
    return _arranged(conj(x) if forward else x, dims[-1:], lambda y, places: prim("fft_c2r", y, places[0], n, scale))


@public(of="fft", steps=True)
@full_precision
def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The discrete Fourier transform along `dim`, of n elements (cut, or filled up with zeros): (*) -> (*), complex.

    >>> import calque
    >>> calque.fft.fft(calque.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    """
    return _given("fft", _complex("fft", input, *_one("fft", input, n, dim), norm, False), out)


@public(of="fft", steps=True)
@full_precision
def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The inverse of `fft` along `dim`: (*) -> (*), complex."""
    return _given("ifft", _complex("ifft", input, *_one("ifft", input, n, dim), norm, True), out)


@public(of="fft", steps=True)
@full_precision
def fft2(input: Tensor, s: Any = None, dim: Any = LAST_TWO, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The Fourier transform over two dims, of extents `s`: (*) -> (*), complex."""
    return _given("fft2", _complex("fft2", input, s, dim, norm, False), out)


@public(of="fft", steps=True)
@full_precision
def ifft2(input: Tensor, s: Any = None, dim: Any = LAST_TWO, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The inverse of `fft2`: (*) -> (*), complex."""
    return _given("ifft2", _complex("ifft2", input, s, dim, norm, True), out)


@public(of="fft", steps=True)
@full_precision
def fftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The Fourier transform over `dim` (by default the last len(s), or all), of extents `s`: (*) -> (*), complex."""
    return _given("fftn", _complex("fftn", input, s, dim, norm, False), out)


@public(of="fft", steps=True)
@full_precision
def ifftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The inverse of `fftn`: (*) -> (*), complex."""
    return _given("ifftn", _complex("ifftn", input, s, dim, norm, True), out)


@public(of="fft", steps=True)
@full_precision
def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The frequencies 0..n // 2 of the transform of real numbers; the others are their conjugates: (*, n) -> (*, n // 2 + 1), complex.

    >>> import calque
    >>> calque.fft.rfft(calque.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([10.+0.j, -2.+2.j, -2.+0.j])
    """
    return _given("rfft", _from_real("rfft", input, *_one("rfft", input, n, dim), norm, True), out)


@public(of="fft", steps=True)
@full_precision
def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The inverse of `rfft`: (*, m) -> (*, n), real; n is 2 (m - 1) unless given. Imaginary parts of frequency 0 and n / 2 do not count."""
    return _given("irfft", _to_real("irfft", input, *_one("irfft", input, n, dim), norm, False), out)


@public(of="fft", steps=True)
@full_precision
def rfft2(input: Tensor, s: Any = None, dim: Any = LAST_TWO, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """`rfft` along the last of two dims, and `fft` along the other: (*) real -> (*) complex."""
    return _given("rfft2", _from_real("rfft2", input, s, dim, norm, True), out)


@public(of="fft", steps=True)
@full_precision
def irfft2(input: Tensor, s: Any = None, dim: Any = LAST_TWO, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The inverse of `rfft2`: (*) complex -> (*) real."""
    return _given("irfft2", _to_real("irfft2", input, s, dim, norm, False), out)


@public(of="fft", steps=True)
@full_precision
def rfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """`rfft` along the last of the dims, and `fft` along the others: (*) real -> (*) complex."""
    return _given("rfftn", _from_real("rfftn", input, s, dim, norm, True), out)


@public(of="fft", steps=True)
@full_precision
def irfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The inverse of `rfftn`: (*) complex -> (*) real."""
    return _given("irfftn", _to_real("irfftn", input, s, dim, norm, False), out)


@public(of="fft", steps=True)
@full_precision
def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The transform of a signal whose other half are the conjugates of this one: (*, m) complex -> (*, n) real, n = 2 (m - 1) unless given."""
    return _given("hfft", _to_real("hfft", input, *_one("hfft", input, n, dim), norm, True), out)


@public(of="fft", steps=True)
@full_precision
def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The inverse of `hfft`: (*, n) real -> (*, n // 2 + 1) complex."""
    return _given("ihfft", _from_real("ihfft", input, *_one("ihfft", input, n, dim), norm, False), out)


@public(of="fft", steps=True)
@full_precision
def hfft2(input: Tensor, s: Any = None, dim: Any = LAST_TWO, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """`hfft` along the last of two dims, and `fft` along the other: (*) complex -> (*) real."""
    return _given("hfft2", _to_real("hfft2", input, s, dim, norm, True), out)


@public(of="fft", steps=True)
@full_precision
def ihfft2(input: Tensor, s: Any = None, dim: Any = LAST_TWO, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The inverse of `hfft2`: (*) real -> (*) complex."""
    return _given("ihfft2", _from_real("ihfft2", input, s, dim, norm, False), out)


@public(of="fft", steps=True)
@full_precision
def hfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """`hfft` along the last of the dims, and `fft` along the others: (*) complex -> (*) real."""
    return _given("hfftn", _to_real("hfftn", input, s, dim, norm, True), out)


@public(of="fft", steps=True)
@full_precision
def ihfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """The inverse of `hfftn`: (*) real -> (*) complex."""
    return _given("ihfftn", _from_real("ihfftn", input, s, dim, norm, False), out)


# ------------------------------------------------------------------------------------------------------------- frequencies


def _frequencies(op: str, n: int, count: int, d: float, out: Any, dtype: Any, requires_grad: bool) -> Tensor:
    kind = resolve_dtype(dtype, dt.get_default_dtype(), op)
    if kind.category != 2:
        raise DTypeError(f"[{op}] {op} requires a floating point dtype, got {kind!r}")
    places = arange(count, dtype=dt.int64)
    if op == "fftfreq":
        places = roll(places - n // 2, -(n // 2)) if n else places  # type: ignore[operator]
    result = cast(places, kind) * (1.0 / (n * d) if n * d else math.inf)  # type: ignore[operator]
    return _given(op, marked(result, requires_grad, op), out)


@public(of="fft")
@placed
def fftfreq(n: int, d: float = 1.0, *, out: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The frequencies of `fft` of n elements at distance d: [0, 1, ..., -2, -1] / (n d).

    >>> import calque
    >>> calque.fft.fftfreq(4)
    tensor([ 0.0000,  0.2500, -0.5000, -0.2500])
    """
    return _frequencies("fftfreq", n, n, d, out, dtype, requires_grad)


@public(of="fft")
@placed
def rfftfreq(n: int, d: float = 1.0, *, out: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The frequencies of `rfft` of n elements at distance d: [0, 1, ..., n // 2] / (n d)."""
    return _frequencies("rfftfreq", n, n // 2 + 1, d, out, dtype, requires_grad)


def _shifted(op: str, input: Tensor, dim: Any, back: bool) -> Tensor:
    require_tensors(op, input)
    ndim = input._layout.ndim
    given = range(ndim) if dim is None else int_tuple(op, (dim,))
    dims = [normalize_dim(d, ndim, op) for d in given]
    if not dims:
        raise ArgumentError(f"[{op}] `shifts` required: expected a tensor with dims to shift along, got shape {tuple(input._layout.shape)}")
    shape = input._layout.shape
    return roll(input, [(shape[d] + back) // 2 for d in dims], dims)


@public(of="fft", steps=True)
def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """Frequency 0 in the middle, along `dim` (by default all): (*) -> (*).

    >>> import calque
    >>> calque.fft.fftshift(calque.fft.fftfreq(4))
    tensor([-0.5000, -0.2500,  0.0000,  0.2500])
    """
    return _shifted("fftshift", input, dim, False)


@public(of="fft", steps=True)
def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The inverse of `fftshift`: (*) -> (*)."""
    return _shifted("ifftshift", input, dim, True)
