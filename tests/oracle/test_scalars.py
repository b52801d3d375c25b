"""One value, a number or a 0-d tensor of any type, given to what writes it, scales by it or is bounded by it: PyTorch's results and refusals."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

DTYPES = ("bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64")
VALUES: dict[str, Callable[[Any], Any]] = {
    "tensor(-1.5)": lambda T: T.tensor(-1.5),
    "tensor(300.)": lambda T: T.tensor(300.0),
    "tensor(nan)": lambda T: T.tensor(float("nan")),
    "tensor(-1)": lambda T: T.tensor(-1),
    "tensor(300)": lambda T: T.tensor(300),
    "tensor(True)": lambda T: T.tensor(True),
    "tensor(1+2j)": lambda T: T.tensor(1 + 2j),
    "tensor(1+0j)": lambda T: T.tensor(1 + 0j),
    "tensor(2., float64)": lambda T: T.tensor(2.0, dtype=T.float64),
    "tensor(2, int32)": lambda T: T.tensor(2, dtype=T.int32),
    "-1.5": lambda T: -1.5,
    "0.1": lambda T: 0.1,
    "300": lambda T: 300,
    "-1": lambda T: -1,
    "True": lambda T: True,
    "1+2j": lambda T: 1 + 2j,
    "nan": lambda T: float("nan"),
    "1e300": lambda T: 1e300,
    "70000.0": lambda T: 70000.0,
}


def set_item(index: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Any]:
    def call(T: Any, x: Any, v: Any) -> Any:
        x[index(T)] = v
        return x

    return call


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fill_": lambda T, x, v: x.fill_(v),
    "fill_diagonal_": lambda T, x, v: x.repeat(3, 1).fill_diagonal_(v),
    "copy_": lambda T, x, v: x.copy_(v),
    "masked_fill": lambda T, x, v: x.masked_fill(T.tensor([True, False, True]), v),
    "masked_fill_": lambda T, x, v: x.masked_fill_(T.tensor([True, False, True]), v),
    "index_fill": lambda T, x, v: x.index_fill(0, T.tensor([0, 2]), v),
    "where": lambda T, x, v: T.where(T.tensor([True, False, True]), x, v),
    "full": lambda T, x, v: T.full((2,), v, dtype=x.dtype),
    "full of the value's type": lambda T, x, v: T.full((2,), v),
    "full_like": lambda T, x, v: T.full_like(x, v),
    "new_full": lambda T, x, v: x.new_full((2,), v),
    "clamp(min)": lambda T, x, v: T.clamp(x, v),
    "clamp_(max)": lambda T, x, v: x.clamp_(max=v),
    "x[1] =": set_item(lambda T: 1),
    "x[:] =": set_item(lambda T: slice(None)),
    "x[mask] =": set_item(lambda T: T.tensor([True, False, True])),
    "x[indices] =": set_item(lambda T: T.tensor([0, 2])),
    "scatter": lambda T, x, v: x.scatter(0, T.tensor([0, 2]), v),
    "scatter(reduce)": lambda T, x, v: x.scatter(0, T.tensor([0, 2]), v, reduce="multiply"),
    "pad": lambda T, x, v: T.constant_pad_nd(x, (1, 1), v),
    "add(alpha)": lambda T, x, v: T.add(x, x, alpha=v),
    "sub(alpha)": lambda T, x, v: T.sub(x, x, alpha=v),
    "addmm(beta)": lambda T, x, v: T.addmm(x[:, None], x[:, None], T.ones(1, 1, dtype=x.dtype), beta=v),
    "ldexp": lambda T, x, v: T.ldexp(x, v),
}


def outcome(T: Any, call: Callable[[Any, Any, Any], Any], dtype: str, value: Callable[[Any], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = call(T, T.tensor([1, 0, 3]).to(getattr(T, dtype)), value(T))
        except Exception as error:
            return error
        return str(found.dtype), tuple(found.shape), [repr(v) for v in found.flatten().tolist()]


def lenient(name: str, dtype: str, theirs: Any, value: str) -> bool:
    """Differences of docs/decisions/0014."""
    text = str(theirs)
    if name.endswith(("(alpha)", "(beta)")) and value in ("1e300", "70000.0", "nan"):
        return True  # an infinite or undefined product, which is refused in some types
    if isinstance(theirs, Exception) and ("not implemented for" in text or "must be Tensor, not" in text):
        return True
    # There is no complex32; complex numbers that are not finite are multiplied in another order.
    return "complex32" in text or dtype == "complex64" and ("nan" in text or "inf" in text)


@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_another_category(name: str) -> None:
    """`masked_fill` of uint8 by tensor(-1.5) gave 255; `copy_(0.1)` of float64 wrote float32's 0.1; ..."""
    wrong = []
    for dtype in DTYPES:
        for text, value in VALUES.items():
            theirs, mine = outcome(torch, CALLS[name], dtype, value), outcome(calque, CALLS[name], dtype, value)
            same = theirs == mine or isinstance(theirs, Exception) and isinstance(mine, Exception)
            if not same and not lenient(name, dtype, theirs, text):
                wrong.append(f"{dtype} {text}: {mine!s:.200} instead of {theirs!s:.200}")
    assert not wrong, "\n".join(wrong)


def test_ldexp_rounds_once() -> None:
    """0 * 2**300 is 0, and 1e-30 * 2**150 is no infinity: a power that a float does not hold is no result."""
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        values = [0.0, -0.0, 1.0, 1e-30, 3.7e-5, -1.5, float("inf"), 1e-40, 1e-7]
        for powers in (
            [0, 300, 200, 150, 3, -20, 5, 30, 7],
            [-14, -300, -149, -20, -3, 20, -5, 1, -18],
            [1100, 40, -1080, 1022, -1021, 700, 0, -700, 12],
        ):
            for kind in ("int64", "int32", "int16"):
                theirs = torch.ldexp(torch.tensor(values, dtype=getattr(torch, dtype)), torch.tensor(powers, dtype=getattr(torch, kind)))
                mine = calque.ldexp(calque.tensor(values, dtype=getattr(calque, dtype)), calque.tensor(powers, dtype=getattr(calque, kind)))
                assert str(mine.dtype) == str(theirs.dtype)
                assert [repr(v) for v in mine.tolist()] == [repr(v) for v in theirs.tolist()], (dtype, kind, powers)
    x = calque.tensor([1.0, 2.0], requires_grad=True)
    calque.ldexp(x, calque.tensor([3, 100])).sum().backward()
    assert x.grad.tolist() == [8.0, 2.0**100]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "bool"])
def test_ldexp_by_a_power_of_its_own_type(dtype: str) -> None:
    """PyTorch rounds 2**other in the type of `other`, or where that has no dims in the type of both."""
    for kind in ("float16", "bfloat16", "float32", "float64"):
        for value, power in itertools.product(([0.5, 1.0, -1.0], 0.7), ([-1.5], -1.3)):
            x, p = (torch.tensor(v).to(getattr(torch, d)) for v, d in ((value, dtype), (power, kind)))
            theirs = torch.ldexp(x, p)
            mine = calque.ldexp(calque.tensor(value).to(getattr(calque, dtype)), calque.tensor(power).to(getattr(calque, kind)))
            assert (str(mine.dtype), mine.tolist()) == (str(theirs.dtype), theirs.tolist()), (kind, value, power)


def test_a_bound_that_is_nan() -> None:
    for T in (torch, calque):
        x, bound = T.tensor([1.0, 2.0, float("nan")]), T.tensor([float("nan"), 1.0, 0.0])
        assert [repr(v) for v in T.clamp(x, bound).tolist()] == ["nan", "2.0", "nan"]
        assert [repr(v) for v in T.clamp(x, max=bound).tolist()] == ["nan", "1.0", "nan"]
        assert [repr(v) for v in T.nn.functional.hardtanh(x, -1.0, float("nan")).tolist()] == ["nan"] * 3
    scores = calque.ones(2, 2, requires_grad=True)
    value = calque.tensor(2.0, requires_grad=True)
    scores.masked_fill(calque.tensor([True, False]), value).sum().backward()
    assert value.grad.item() == 2.0
