"""Functions without a derivative raise where PyTorch raises, in a backward pass, and those with a flat one give zeros."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = pytest.mark.oracle

CALLS = {
    "floor_divide": lambda t, x, y: t.floor_divide(x, y),
    "//": lambda t, x, y: x // y,
    "x // 2": lambda t, x, y: x // 2,
    "2 // y": lambda t, x, y: 2 // y,
    "floor_divide_": lambda t, x, y: (x * 1).floor_divide_(y),
    "heaviside": lambda t, x, y: t.heaviside(x, y),
    "heaviside of values": lambda t, x, y: t.heaviside(x.detach(), y),
    "heaviside_": lambda t, x, y: (x * 1).heaviside_(y),
    "detached": lambda t, x, y: x * (x.detach() // 2) + y * t.heaviside(x.detach(), y.detach()),
    "div": lambda t, x, y: t.div(x, y, rounding_mode="floor") * x,
    "div by 2": lambda t, x, y: t.div(x, 2, rounding_mode="floor") * y,
    "div_": lambda t, x, y: (x * 1).div_(y, rounding_mode="floor") + y,
    "remainder": lambda t, x, y: t.remainder(x, y) * x * y,
    "floor": lambda t, x, y: t.floor(x / y) * x,
}


def gradients(t: Any, call: Any, size: int) -> Any:
    x = t.linspace(-2.0, 2.5, size, dtype=t.float64).requires_grad_()
    y = t.full((size,), 1.3, dtype=t.float64).requires_grad_()
    out = call(t, x, y)
    try:
        first = t.autograd.grad((out * out).sum(), (x, y), create_graph=True, allow_unused=True)
        whole = sum((g * g).sum() for g in first if g is not None)
        second = t.autograd.grad(whole, (x, y), allow_unused=True) if whole.requires_grad else ()
    except RuntimeError:
        return out.requires_grad, "raises"
    return out.requires_grad, [None if g is None else g.detach().numpy().tolist() for g in (*first, *second)]


@pytest.mark.parametrize("size", [5, 20_000])
def test_gradients_are_refused_where_pytorch_refuses_them(size: int) -> None:
    raised = 0
    for name, call in CALLS.items():
        wanted = gradients(torch, call, size)
        raised += wanted[1] == "raises"
        for _ in range(3):
            found = gradients(calque, call, size)
            assert found[0] == wanted[0], name
            if wanted[1] == "raises":
                assert found[1] == "raises", name
                continue
            for mine, theirs in zip(found[1], wanted[1], strict=True):
                assert (mine is None) == (theirs is None), name
                assert mine is None or mine == pytest.approx(theirs, rel=1e-12, abs=1e-12), name
    assert raised == 8


def test_the_text_says_what_has_a_gradient() -> None:
    x = calque.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"\[floor_divide\] the derivative of floor_divide is not implemented.*div\(x, y, rounding_mode='floor'\)"):
        (x // 2).sum().backward()
    with pytest.raises(RuntimeError, match=r"\[heaviside\] the derivative of heaviside is not implemented.*detach\(\) them"):
        calque.heaviside(x, x).sum().backward()
