"""Orthogonal polynomials of an order that is a number or differs from element to element.

The Chebyshev polynomials have closed forms; the others come from their recurrences, up to the largest order, which is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.arithmetic import abs as magnitude
from calque.functional.arithmetic import float_result
from calque.functional.common import Operand, cast, is_tensor, number, prim, require_operands, require_some_tensor
from calque.functional.declared import public
from calque.functional.elementary import acos, cos, sin
from calque.functional.math import as_tensor_of, clamp, where, widened
from calque.functional.views import broadcast_tensors
from calque.tensor import Tensor, read_number

Step = Callable[[int, Any, Any, Any], Any]

MOST = 100_000  # an order above it would take minutes, and its steps round the result away
CLOSED = 6  # the largest order for which a Chebyshev polynomial comes from its recurrence


def _operands(name: str, input: Any, n: Any) -> tuple[Tensor, Any, Any]:
    """The argument in the type it is computed in, the order (an int, or a Tensor of whole numbers), and the dtype of the result."""
    require_operands(name, input, n)
    require_some_tensor(name, input, n)
    dtype = float_result(input, n)
    x = widened(as_tensor_of(input, dtype))
    if not is_tensor(n):
        return x, int(number(n)), dtype
    x, order = broadcast_tensors(x, prim("trunc", cast(n.detach(), x._layout.dtype)))
    return x, order, dtype


def _largest(order: Any) -> int:
    if not is_tensor(order):
        return int(order)
    return read_number(order, "order", lambda found: int(found.max()) if found.size else 0)  # type: ignore[no-any-return]


def _recurrence(x: Tensor, order: Any, second: Tensor, step: Step, last: int) -> Tensor:
    """p_0 = 1, p_1 = second, p_k+1 = step(k, x, p_k, p_k-1) up to `last`; 0 for negative orders."""
    one = x * 0.0 + 1.0
    if not is_tensor(order):
        if order < 1:
            return x * 0.0 if order < 0 else one
        before, now = one, second
        for k in range(1, min(order, last)):
            before, now = now, step(k, x, now, before)
        return now
    found = where(order < 0, 0.0, one)
    before, now = one, second
    for k in range(1, last + 1):
        found = where(order == k, now, found)
        before, now = now, step(k, x, now, before)
    return found


def _doubled(k: int, x: Any, now: Any, before: Any) -> Any:
    return x * 2.0 * now - before


def _chebyshev(name: str, input: Any, n: Any, second: Callable[[Tensor], Tensor], kind: str, shifted: bool = False) -> Tensor:
    x, order, dtype = _operands(name, input, n)
    if shifted:
        x = x * 2.0 - 1.0
    most = _largest(order)
    low = _recurrence(x, order, second(x), _doubled, min(most, CLOSED))
    if most > CLOSED:
        low = where(order > CLOSED, _closed(x, order, kind), low) if is_tensor(order) else _closed(x, order, kind)
    return cast(low, dtype)


def _closed(x: Tensor, order: Any, kind: str) -> Tensor:
    """Sines and cosines of multiples of an angle inside of [-1, 1], powers outside, in float64."""
    given, x = x._layout.dtype, cast(x, dt.float64)
    order = cast(order, dt.float64) if is_tensor(order) else float(order)
    odd = order - (order * 0.5).floor() * 2.0 if is_tensor(order) else order % 2.0
    size = clamp(magnitude(x), 1.0, None)
    root = (size * size - 1.0).sqrt()  # type: ignore[attr-defined]
    rate = (size + root).log()
    angle = acos(clamp(x, -1.0, 1.0))
    turn = where(x < 0, 1.0 - odd * 2.0, 1.0)  # the sign of T_n and U_n of a negative argument
    up, down = (rate * order).exp(), (rate * -order).exp()
    steep = rate.exp()
    if kind == "t":
        inside, outside = cos(angle * order), (up + down) * 0.5 * turn
    elif kind == "u":
        top = where(x < 0, turn, 1.0)
        inside = where(magnitude(x) == 1.0, (order + 1.0) * top, _ratio(sin(angle * (order + 1.0)), sin(angle)))
        outside = _ratio(up * steep - down / steep, root * 2.0) * turn
    else:  # V_n(x) = (-1)**n W_n(-x)
        mirrored = (x < 0) if kind == "w" else (x >= 0)
        half = (rate * 0.5).exp()
        plus, minus = (up * half + down / half) / (half + 1.0 / half), _ratio(up * half - down / half, half - 1.0 / half)
        inside_cos, inside_sin = _ratio(cos(angle * (order + 0.5)), cos(angle * 0.5)), _ratio(sin(angle * (order + 0.5)), sin(angle * 0.5))
        ends = where(mirrored, 1.0, order * 2.0 + 1.0)
        inside = where(magnitude(x) == 1.0, ends * turn, inside_cos if kind == "v" else inside_sin)
        outside = where(mirrored, plus, minus) * turn
    return cast(where(magnitude(x) <= 1.0, inside, outside), given)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return a / where(b == 0, 1.0, b)


@public(of="special", out=True)
def chebyshev_polynomial_t(input: Operand, n: Operand) -> Tensor:
    """Chebyshev polynomial of the first kind T_n(x), 0 for a negative order: (*), (*) -> (*), broadcast.

    >>> import calque
    >>> calque.special.chebyshev_polynomial_t(calque.tensor([0.5, 2.0]), 2)
    tensor([-0.5000,  7.0000])
    """
    return _chebyshev("chebyshev_polynomial_t", input, n, lambda x: x, "t")


@public(of="special", out=True)
def chebyshev_polynomial_u(input: Operand, n: Operand) -> Tensor:
    """Chebyshev polynomial of the second kind U_n(x), 0 for a negative order: (*), (*) -> (*), broadcast."""
    return _chebyshev("chebyshev_polynomial_u", input, n, lambda x: x * 2.0, "u")


@public(of="special", out=True)
def chebyshev_polynomial_v(input: Operand, n: Operand) -> Tensor:
    """Chebyshev polynomial of the third kind V_n(x), 0 for a negative order: (*), (*) -> (*), broadcast."""
    return _chebyshev("chebyshev_polynomial_v", input, n, lambda x: x * 2.0 - 1.0, "v")


@public(of="special", out=True)
def chebyshev_polynomial_w(input: Operand, n: Operand) -> Tensor:
    """Chebyshev polynomial of the fourth kind W_n(x), 0 for a negative order: (*), (*) -> (*), broadcast."""
    return _chebyshev("chebyshev_polynomial_w", input, n, lambda x: x * 2.0 + 1.0, "w")


@public(of="special", out=True)
def shifted_chebyshev_polynomial_t(input: Operand, n: Operand) -> Tensor:
    """`chebyshev_polynomial_t(2 x - 1, n)`: (*), (*) -> (*), broadcast."""
    return _chebyshev("shifted_chebyshev_polynomial_t", input, n, lambda x: x, "t", True)


@public(of="special", out=True)
def shifted_chebyshev_polynomial_u(input: Operand, n: Operand) -> Tensor:
    """`chebyshev_polynomial_u(2 x - 1, n)`: (*), (*) -> (*), broadcast."""
    return _chebyshev("shifted_chebyshev_polynomial_u", input, n, lambda x: x * 2.0, "u", True)


@public(of="special", out=True)
def shifted_chebyshev_polynomial_v(input: Operand, n: Operand) -> Tensor:
    """`chebyshev_polynomial_v(2 x - 1, n)`: (*), (*) -> (*), broadcast."""
    return _chebyshev("shifted_chebyshev_polynomial_v", input, n, lambda x: x * 2.0 - 1.0, "v", True)


@public(of="special", out=True)
def shifted_chebyshev_polynomial_w(input: Operand, n: Operand) -> Tensor:
    """`chebyshev_polynomial_w(2 x - 1, n)`: (*), (*) -> (*), broadcast."""
    return _chebyshev("shifted_chebyshev_polynomial_w", input, n, lambda x: x * 2.0 + 1.0, "w", True)


def _plain(name: str, input: Any, n: Any, second: Callable[[Tensor], Tensor], step: Step) -> tuple[Tensor, Any, dt.DType]:
    x, order, dtype = _operands(name, input, n)
    if _largest(order) > MOST:
        raise ArgumentError(f"[{name}] expected an order of at most {MOST}, one step of its recurrence each, got {shown(_largest(order))}")
    return _recurrence(x, order, second(x), step, max(_largest(order), 0)), order, dtype


def _hermite(name: str, input: Any, n: Any, second: Callable[[Tensor], Tensor], step: Step) -> Tensor:
    """NaN for orders whose values no number holds, as PyTorch: 128 and more (512 in float64)."""
    dtype = float_result(input, n)
    limit = 512 if dtype is dt.float64 else 128
    if is_tensor(n):
        found, order, dtype = _plain(name, input, clamp(n.detach(), None, limit), second, step)  # type: ignore[attr-defined]
        return cast(where(order >= limit, math.nan, found), dtype)
    if number(n) >= limit:
        return cast(as_tensor_of(input, dtype) * 0.0 + math.nan, dtype)
    found, _, dtype = _plain(name, input, n, second, step)
    return cast(found, dtype)


@public(of="special", out=True)
def hermite_polynomial_h(input: Operand, n: Operand) -> Tensor:
    """Hermite polynomial of physicists H_n(x), 0 for a negative order: (*), (*) -> (*), broadcast.

    >>> import calque
    >>> calque.special.hermite_polynomial_h(calque.tensor([0.5, 2.0]), 3)
    tensor([-5., 40.])
    """
    return _hermite("hermite_polynomial_h", input, n, lambda x: x * 2.0, lambda k, x, now, before: (x * now - before * float(k)) * 2.0)


@public(of="special", out=True)
def hermite_polynomial_he(input: Operand, n: Operand) -> Tensor:
    """Hermite polynomial of probabilists He_n(x), 0 for a negative order: (*), (*) -> (*), broadcast."""
    return _hermite("hermite_polynomial_he", input, n, lambda x: x, lambda k, x, now, before: x * now - before * float(k))


@public(of="special", out=True)
def laguerre_polynomial_l(input: Operand, n: Operand) -> Tensor:
    """Laguerre polynomial L_n(x), 0 for a negative order: (*), (*) -> (*), broadcast."""

    def step(k: int, x: Any, now: Any, before: Any) -> Any:
        return ((2.0 * k + 1.0 - x) * now - before * float(k)) / float(k + 1)

    found, _, dtype = _plain("laguerre_polynomial_l", input, n, lambda x: 1.0 - x, step)
    return cast(found, dtype)


@public(of="special", out=True)
def legendre_polynomial_p(input: Operand, n: Operand) -> Tensor:
    """Legendre polynomial P_n(x), 0 for a negative order: (*), (*) -> (*), broadcast."""

    def step(k: int, x: Any, now: Any, before: Any) -> Any:
        return (x * (2.0 * k + 1.0) * now - before * float(k)) / float(k + 1)

    found, _, dtype = _plain("legendre_polynomial_p", input, n, lambda x: x, step)
    return cast(found, dtype)
