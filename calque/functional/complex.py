"""Complex tensors: making them of real ones, their parts, conjugates and angles.

In memory a complex number is its real and its imaginary part side by side, so `real`, `imag`, `view_as_real` and `view_as_complex` are views.
Gradients are PyTorch's: that of a real function of z = x + iy is d/dx + i d/dy (docs/decisions/0062).
"""

from __future__ import annotations

import math
from typing import Any

from calque.base import dtypes as dt
from calque.base.errors import DTypeError, ShapeError
from calque.base.layout import Layout, layout
from calque.base.shapes import contiguous_strides
from calque.functional.common import attribute, cast, is_tensor, linked, prim, require_tensors
from calque.functional.creation import zeros_like
from calque.functional.declared import public
from calque.functional.elementary import _float, cos, sign, sin
from calque.functional.math import atan2, isnan, where
from calque.functional.placing import beside_input
from calque.functional.views import Entry, _matrix_transpose, _transpose_all, lookup, remember
from calque.tensor import Tensor, make_view

# ---------------------------------------------------------------------------------------------------------------------- views


def _dense_as(g: Tensor, shape: tuple[int, ...], dtype: dt.DType) -> Tensor:
    """The values of `g`, all of them, as elements of another type."""
    return prim("view_as", g, shape, contiguous_strides(shape), 0, dtype)


def _as_real(view: Layout) -> Entry:
    shape, kind = (*view.shape, 2), view.dtype
    steps = (*[2 * s for s in view.strides], 1)
    return layout(shape, steps, 2 * view.offset, kind.to_real(), view.device), lambda g: _dense_as(g, shape[:-1], kind)


def _as_complex(view: Layout) -> Entry:
    shape, kind = tuple(view.shape), view.dtype
    if kind not in (dt.float32, dt.float64):
        raise DTypeError(f"[view_as_complex] view_as_complex is only supported for float and double tensors, got {kind!r}; convert with .float()")
    if not shape or shape[-1] != 2:
        raise ShapeError(f"[view_as_complex] Tensor must have a last dimension of size 2, got shape {shape}; stack the parts along the last dim")
    if view.strides[-1] != 1:
        raise ShapeError(f"[view_as_complex] Tensor must have a last dimension with stride 1, got strides {view.strides}; use .contiguous() first")
    if any(s % 2 for s, extent in zip(view.strides[:-1], shape, strict=False) if extent > 1):
        raise ShapeError(f"[view_as_complex] Tensor must have a stride divisible by 2 for all but last dimension, got strides {view.strides}")
    if view.offset % 2:
        raise ShapeError(f"[view_as_complex] Tensor must have a storage_offset divisible by 2, got {view.offset}; use .clone() first")
    steps = tuple(s // 2 for s in view.strides[:-1])
    return layout(shape[:-1], steps, view.offset // 2, kind.to_complex(), view.device), lambda g: _dense_as(g, shape, kind)


def _part(view: Layout, place: int) -> Entry:
    kind = view.dtype
    found = layout(tuple(view.shape), tuple(2 * s for s in view.strides), 2 * view.offset + place, kind.to_real(), view.device)
    if place:
        return found, lambda g: prim("complex", zeros_like(g), g)
    return found, lambda g: cast(g, kind)


def _viewed(name: str, input: Tensor, label: str, make: Any, *arguments: Any) -> Tensor:
    key = (name, input._layout)
    found = lookup(key)
    if found is None:
        found = remember(key, make(input._layout, *arguments))
    return make_view(input, found, label)


@public(method=False)
def view_as_real(input: Tensor) -> Tensor:
    """A complex tensor seen as real numbers with a last dim of real and imaginary parts: (*) -> (*, 2). Shares memory.

    >>> import calque
    >>> calque.view_as_real(calque.tensor([1 + 2j]))
    tensor([[1., 2.]])
    """
    if not input._layout.dtype.is_complex:
        raise DTypeError(f"[view_as_real] view_as_real is only supported for complex tensors, got {input._layout.dtype!r}")
    return _viewed("view_as_real", input, "ViewAsRealBackward0", _as_real)


@public(method=False)
def view_as_complex(input: Tensor) -> Tensor:
    """Real numbers with a last dim of size 2 seen as complex ones: (*, 2) -> (*). Shares memory; the last dim must have stride 1.

    >>> import calque
    >>> calque.view_as_complex(calque.tensor([[1.0, 2.0]]))
    tensor([1.+2.j])
    """
    return _viewed("view_as_complex", input, "ViewAsComplexBackward0", _as_complex)


@public(method=False)
def real(input: Tensor) -> Tensor:
    """The real parts, a view: (*) -> (*). A real tensor itself."""
    require_tensors("real", input)
    return _viewed("real", input, "RealBackward0", _part, 0) if input._layout.dtype.is_complex else input


@public(method=False)
def imag(input: Tensor) -> Tensor:
    """The imaginary parts of a complex tensor, a view: (*) -> (*)."""
    require_tensors("imag", input)
    if not input._layout.dtype.is_complex:
        raise DTypeError(f"[imag] imag is not implemented for tensors with non-complex dtypes, got {input._layout.dtype!r}; they have none")
    return _viewed("imag", input, "ImagBackward0", _part, 1)


def _set_real(self: Tensor, value: Any) -> None:
    real(self).copy_(value)  # type: ignore[attr-defined]


def _set_imag(self: Tensor, value: Any) -> None:
    imag(self).copy_(value)  # type: ignore[attr-defined]


attribute("real", real, "The real parts of a complex tensor, as a view that can be written; a real tensor itself.", _set_real)
attribute("imag", imag, "The imaginary parts of a complex tensor, as a view that can be written.", _set_imag)


# ------------------------------------------------------------------------------------------------------------------- making


@public(method=False)
def complex(real: Tensor, imag: Tensor, *, out: Any = None) -> Tensor:
    """`real + i imag` of two float32 or two float64 tensors, broadcast: (*), (*) -> (*).

    >>> import calque
    >>> calque.complex(calque.tensor([1.0, 2.0]), calque.tensor([3.0, 4.0]))
    tensor([1.+3.j, 2.+4.j])
    """
    require_tensors("complex", real, imag)
    return _given("complex", prim("complex", real, imag), out)


@public(method=False)
def polar(abs: Tensor, angle: Tensor, *, out: Any = None) -> Tensor:
    """The complex numbers of these distances from 0 and angles in radians, broadcast: (*), (*) -> (*).

    >>> import calque
    >>> calque.polar(calque.tensor([2.0]), calque.tensor([0.0]))
    tensor([2.+0.j])
    """
    require_tensors("polar", abs, angle)
    kinds = abs._layout.dtype, angle._layout.dtype
    if kinds[0] is not kinds[1] or kinds[0] not in (dt.float32, dt.float64):
        raise DTypeError(f"[polar] expected both inputs to be Float or Double tensors of one dtype, got {kinds[0]!r} and {kinds[1]!r}")
    return _given("polar", prim("complex", abs * cos(angle), abs * sin(angle)), out)  # type: ignore[operator]


def _given(op: str, result: Tensor, out: Any) -> Tensor:
    if out is None:
        return result
    if not is_tensor(out) or out._layout.dtype is not result._layout.dtype:
        raise DTypeError(f"[{op}] expected out of dtype {result._layout.dtype!r}, got {out._layout.dtype if is_tensor(out) else out!r}")
    if out._layout.shape != result._layout.shape:
        out.resize_(tuple(result._layout.shape))
    return out.copy_(result)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------- conjugates and angles


@public()
def conj(input: Tensor) -> Tensor:
    """The conjugate numbers: (*) -> (*). Computed when it is asked for, so it has memory of its own; a real tensor itself.

    >>> import calque
    >>> calque.tensor([1 + 2j]).conj()
    tensor([1.-2.j])
    """
    require_tensors("conj", input)
    return prim("conj", input) if input._layout.dtype.is_complex else input


@public(out="exact")
def conj_physical(input: Tensor) -> Tensor:
    """`conj`, with memory of its own as there: (*) -> (*)."""
    require_tensors("conj_physical", input)
    return conj(input)


@public()
def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: conjugates are computed at once here."""
    require_tensors("resolve_conj", input)
    return input


@public()
def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself: negatives are computed at once here."""
    require_tensors("resolve_neg", input)
    return input


@public()
def is_conj(input: Tensor) -> bool:
    """False: no tensor waits for being conjugated."""
    require_tensors("is_conj", input)
    return False


@public()
def is_neg(input: Tensor) -> bool:
    """False: no tensor waits for being negated."""
    require_tensors("is_neg", input)
    return False


@public()
def is_complex(input: Tensor) -> bool:
    """Whether the dtype is a complex type."""
    require_tensors("is_complex", input)
    return input._layout.dtype.is_complex


@public()
@beside_input
def isreal(input: Tensor) -> Tensor:
    """Whether the imaginary part of each element is 0: (*) -> (*) bool; True for real dtypes."""
    if input._layout.dtype.is_complex:
        return imag(input) == 0  # type: ignore[return-value]
    return prim("full", (True, dt.bool_), tuple(input._layout.shape))


@public(out=True, steps=True)
def angle(input: Tensor) -> Tensor:
    """The angle in radians, in (-pi, pi]: (*) -> (*), real. Of a negative real number pi; of NaN, NaN.

    >>> import calque
    >>> calque.angle(calque.tensor([1j, -1.0]))
    tensor([1.5708, 3.1416])
    """
    if input._layout.dtype.is_complex:
        return atan2(imag(input), real(input))
    x = _float(input)
    return where(isnan(x), x, where(x < 0, math.pi, linked(zeros_like(x), x)))  # type: ignore[operator,no-any-return]


@public(in_place="method", out="exact")
def sgn(input: Tensor) -> Tensor:
    """z / |z|, and 0 where z = 0: (*) -> (*); the sign of real numbers.

    >>> import calque
    >>> calque.sgn(calque.tensor([3 + 4j]))
    tensor([0.6000+0.8000j])
    """
    return prim("sgn", input) if input._layout.dtype.is_complex else sign(input)


# ------------------------------------------------------------------------------------------------------ conjugate transposes


@public()
def adjoint(input: Tensor) -> Tensor:
    """The conjugate transpose of the last two dims: (*, N, M) -> (*, M, N); a view of a real tensor."""
    return conj(_matrix_transpose(input))


def _matrix(self: Tensor) -> Tensor:
    if self._layout.ndim not in (0, 2):
        raise ShapeError(f"[H] expected 2 dimensions, got shape {tuple(self._layout.shape)}; use .mH for batches of matrices")
    return conj(_transpose_all(self))


attribute("mH", adjoint, "The last two dimensions exchanged, and conjugated.")
attribute("H", _matrix, "The conjugate transpose of a matrix.")
