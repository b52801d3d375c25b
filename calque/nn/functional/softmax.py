"""Softmax and its relatives, one pass each way: shifted by the row maximum, gradients from the result."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.autograd.superinstruction import superinstruction
from calque.base import dtypes as dt
from calque.base.cache import memoised
from calque.base.errors import no_tensor
from calque.functional.common import cast, require_fractions, row_major
from calque.functional.declared import public
from calque.nn.functional.rows import Dims, largest, one_dim, positions, powers, total, wide
from calque.nn.gradient import Saved, formula, with_gradient
from calque.observe.source import warn_user
from calque.tensor import Tensor


def _default_dim(name: str, ndim: int) -> int:
    warn_user(
        f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument."
    )
    return 0 if ndim in (0, 1, 3) else 1


def _prepared(name: str, input: Tensor, dim: int | None, dtype: Any) -> tuple[Tensor, int]:
    try:
        layout = input._layout
    except AttributeError as error:
        raise no_tensor(name, error) or error from None
    if dim is None:
        dim = _default_dim(name, layout.ndim)
    if dtype is not None:
        input = cast(input, dtype)
    elif layout.dtype.category < 2:
        require_fractions(name, input)
    return row_major(input), one_dim(input, dim, name)


@public(of="nn.functional")
def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`: (*) -> (*), values in (0, 1) that sum to 1.

    >>> import calque
    >>> calque.nn.functional.softmax(calque.zeros(4), dim=0)
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    input, d = _prepared("softmax", input, dim, dtype)
    out = _along(input, d)
    out._is_softmax = d  # type: ignore[attr-defined]
    return out


@superinstruction
def _along(input: Tensor, d: int) -> Tensor:
    forward, rule = _softmax((d,) if input._layout.ndim else (), input._layout.dtype)
    return with_gradient("SoftmaxBackward0", forward, rule, (input,), uses=(0,), reads=False)  # type: ignore[no-any-return]


@memoised("formulas of softmax", 1500, 1 / 1024)
def _softmax(dims: Dims, kind: dt.DType) -> tuple[Any, Any]:
    """(forward, rule of the gradient)."""

    def forward(x: Tensor) -> tuple[Any, ...]:
        x = wide(x)
        e = powers(x - largest(x, dims))
        return (cast(e * T.reciprocal(total(e, dims)), kind),)

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        y = wide(saved.values[0])
        gy = wide(g) * y
        return (cast(gy - y * total(gy, dims), kind),)

    return forward, formula(forward, backward)


@public(of="nn.functional", steps=True)
def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """log(softmax(x)) along `dim`, computed stably: (*) -> (*)."""
    input, d = _prepared("log_softmax", input, dim, dtype)
    forward, rule = _log_softmax((d,) if input._layout.ndim else (), input._layout.dtype)
    return with_gradient("LogSoftmaxBackward0", forward, rule, (input,), uses=(0,), reads=False)  # type: ignore[no-any-return]


@memoised("formulas of log_softmax", 1500, 1 / 1024)
def _log_softmax(dims: Dims, kind: dt.DType) -> tuple[Any, Any]:
    """(forward, rule of the gradient)."""

    def forward(x: Tensor) -> tuple[Any, ...]:
        x = wide(x)
        shifted = x - largest(x, dims)
        return (cast(shifted - T.log(total(powers(shifted), dims)), kind),)

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        g = wide(g)
        return (cast(g - powers(wide(saved.values[0])) * total(g, dims), kind),)

    return forward, formula(forward, backward)


@public(of="nn.functional", steps=True)
def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """softmax(-x) along `dim`."""
    if dim is None:
        dim = _default_dim("softmin", input._layout.ndim)
    return softmax(-input, dim, _stacklevel, dtype)


@public(of="nn.functional")
def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """Softmax of logits plus Gumbel noise at temperature `tau`; `hard` gives one-hot samples with the soft gradient.

    Source: Jang, Gu, Poole, "Categorical Reparameterization with Gumbel-Softmax" (2016).
    """
    uniform = T.rand_like(logits.detach())
    tiny = 1e-30 if logits._layout.dtype.itemsize >= 4 else 1e-7
    noise = -T.log(-T.log(uniform * (1.0 - 1e-7) + tiny))
    soft = softmax((logits + noise) / float(tau), dim)
    if not hard:
        return soft
    d = one_dim(logits, dim, "gumbel_softmax")
    index = T.argmax(soft.detach(), d, True)
    if not soft._layout.ndim:
        return T.ones_like(soft) - soft.detach() + soft
    steps = positions((soft._layout.shape[d],)).reshape([-1 if k == d else 1 for k in range(soft._layout.ndim)])
    chosen = cast(T.eq(steps, index), soft._layout.dtype)
    return chosen - soft.detach() + soft
