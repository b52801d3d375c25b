"""`out=` of another dtype than the result's: taken, or an error, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

DTYPES = ("bool", "int8", "int64", "float32", "float64", "complex64", "complex128")
UNARY = (
    "abs", "neg", "floor", "ceil", "trunc", "round", "sign", "sgn", "frac", "conj_physical", "nan_to_num", "signbit", "isposinf", "isneginf", "exp",
    "sqrt", "square", "reciprocal", "logical_not", "angle", "bitwise_not", "norm", "alias_copy", "t_copy", "bernoulli",
)  # fmt: skip
CASES: dict[str, Callable[[Any, Any, Any], Any]] = {
    name: lambda T, x, out, name=name: getattr(T, name)(x, out=out) for name in UNARY
}
CASES |= {
    "isin": lambda T, x, out: T.isin(x, x, out=out),
    "heaviside": lambda T, x, out: T.heaviside(x, x, out=out),
    "nextafter": lambda T, x, out: T.nextafter(x, x, out=out),
    "float_power": lambda T, x, out: T.float_power(x, 2, out=out),
    "logcumsumexp": lambda T, x, out: T.logcumsumexp(x, 0, out=out),
    "renorm": lambda T, x, out: T.renorm(x.reshape(2, 1), 2, 0, 1.0, out=out),
    "index_reduce": lambda T, x, out: T.index_reduce(x, 0, T.tensor([0, 1]), x, "amax", out=out),
    "narrow_copy": lambda T, x, out: T.narrow_copy(x, 0, 0, 1, out=out),
    "vector_norm": lambda T, x, out: T.linalg.vector_norm(x, out=out),
    "det": lambda T, x, out: T.linalg.det(x.reshape(1, 2) * x.reshape(2, 1), out=out),
    "cholesky": lambda T, x, out: T.linalg.cholesky(T.eye(2, dtype=x.dtype), out=out),
    "vecdot": lambda T, x, out: T.linalg.vecdot(x, x, out=out),
    "cross": lambda T, x, out: T.linalg.cross(x[[0, 1, 0]], x[[0, 1, 0]], out=out),
    "solve_triangular": lambda T, x, out: T.linalg.solve_triangular(T.eye(2, dtype=x.dtype), x.reshape(2, 1), upper=True, out=out),
    "lu_solve": lambda T, x, out: T.linalg.lu_solve(T.eye(2, dtype=x.dtype), T.tensor([1, 2], dtype=T.int32), x.reshape(2, 1), out=out),
    "irfft": lambda T, x, out: T.fft.irfft(x, out=out),
    "fft": lambda T, x, out: T.fft.fft(x, out=out),
}
for _name in ("float32", "int64"):
    CASES |= {
        f"zeros of {_name}": lambda T, x, out, n=_name: T.zeros(2, dtype=getattr(T, n), out=out),
        f"full of {_name}": lambda T, x, out, n=_name: T.full((2,), 1, dtype=getattr(T, n), out=out),
        f"arange of {_name}": lambda T, x, out, n=_name: T.arange(2, dtype=getattr(T, n), out=out),
        f"linspace of {_name}": lambda T, x, out, n=_name: T.linspace(0, 1, 2, dtype=getattr(T, n), out=out),
        f"eye of {_name}": lambda T, x, out, n=_name: T.eye(2, dtype=getattr(T, n), out=out),
        f"sum of {_name}": lambda T, x, out, n=_name: T.sum(x, 0, dtype=getattr(T, n), out=out),
        f"prod of {_name}": lambda T, x, out, n=_name: T.prod(x, 0, dtype=getattr(T, n), out=out),
        f"cumsum of {_name}": lambda T, x, out, n=_name: T.cumsum(x, 0, dtype=getattr(T, n), out=out),
    }


def taken(T: Any, name: str, operand: str, target: str) -> str:
    """The dtype of what was written, or that there was an error."""
    try:
        return str(CASES[name](T, T.tensor([1, 0], dtype=getattr(T, operand)), T.empty(0, dtype=getattr(T, target))).dtype)
    except Exception:
        return "an error"


# Complex tensors take real results; of one precision in PyTorch, of all here.
WIDER = {("abs", "complex64"): ["complex128"], ("bernoulli", "float32"): ["complex64", "complex128"]}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("operand", ["bool", "int64", "float32", "complex64"])
def test_dtypes(name: str, operand: str) -> None:
    targets = [target for target in DTYPES if target not in WIDER.get((name, operand), [])]
    found = {target: (taken(calque, name, operand, target), taken(torch, name, operand, target)) for target in targets}
    if all(theirs == "an error" for _, theirs in found.values()):
        return  # not done with such operands at all
    assert {target: ours for target, (ours, _) in found.items()} == {target: theirs for target, (_, theirs) in found.items()}
