"""gradcheck's modes: forward and batched derivatives beside differences, and rules that are wrong in one mode alone."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque.autograd import Function, gradcheck, gradgradcheck

EVERYTHING = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}


def doubles(*shape: int) -> Any:
    return calque.rand(*shape, dtype=calque.float64).requires_grad_()


@pytest.mark.parametrize("dtype", [calque.float64, calque.complex128])
def test_all_modes(dtype: Any) -> None:
    x = calque.rand(2, 3, dtype=dtype).requires_grad_()
    y = calque.rand(3, dtype=dtype).requires_grad_()
    assert gradcheck(lambda x, y: ((x * y).sin(), x.sum(0) * y, "text", x.detach()), (x, y), **EVERYTHING)
    assert gradcheck(lambda x, y: (x * x * y).sum(), (x, y), check_backward_ad=False, check_forward_ad=True)
    assert gradgradcheck(lambda x, y: x * x * y, (x, y), check_batched_grad=True, check_fwd_over_rev=True)
    assert gradgradcheck(lambda x, y: x * x * y, (x, y), check_rev_over_rev=False, check_fwd_over_rev=True)


class OneWrong(Function):
    """Right backward, wrong forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return t * 3


def test_a_wrong_tangent_is_found() -> None:
    x = doubles(2)
    assert gradcheck(OneWrong.apply, (x,))
    with pytest.raises(RuntimeError, match=r"\[gradcheck\] Jacobian mismatch .* forward mode"):
        gradcheck(OneWrong.apply, (x,), check_forward_ad=True)
    assert not gradcheck(OneWrong.apply, (x,), check_forward_ad=True, raise_exception=False)


def test_what_cannot_be_asked_for() -> None:
    x = doubles(2)
    with pytest.raises(ValueError, match="at least one of check_forward_ad or check_backward_ad"):
        gradcheck(lambda x: x, (x,), check_backward_ad=False)
    with pytest.raises(ValueError, match="the plain check beside the batched one"):
        gradcheck(lambda x: x, (x,), check_batched_forward_grad=True)
    with pytest.raises(ValueError, match="masked"):
        gradcheck(lambda x: x, (x,), masked=True)


def test_parameters_that_the_function_takes_from_elsewhere() -> None:
    """`gradcheck(lambda x, *parameters: module(x), (x, *module.parameters()))`, as PyTorch's users write it."""
    module = calque.nn.Sequential(calque.nn.Linear(3, 2), calque.nn.Tanh()).double()
    before = [p.tolist() for p in module.parameters()]
    assert gradcheck(lambda x, *_: module(x), (doubles(2, 3), *module.parameters()))
    assert gradgradcheck(lambda x, *_: module(x), (doubles(2, 3), *module.parameters()))
    assert [p.tolist() for p in module.parameters()] == before
    scale = doubles(3)
    assert not gradcheck(lambda x, s: x * scale.detach(), (doubles(3), scale), raise_exception=False)
