"""Functions written by hand whose outputs are no tensors, whose arguments have defaults, whose tangents are missing; derivatives that are zero."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque.autograd import Function, forward_ad, once_differentiable
from calque.base.errors import AutogradError


class Mixed(Function):
    """Outputs of all kinds; backward gets a gradient for each."""

    seen: list[Any] = []

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, scale: int) -> Any:
        ctx.scale = scale
        return scale, x * scale, None, y * 2, "text"

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        Mixed.seen = [g is None for g in grads]
        return grads[1] * ctx.scale, grads[3] * 2, None


def test_a_gradient_for_each_output() -> None:
    x, y = calque.ones(2, requires_grad=True), calque.ones(2, requires_grad=True)
    for _ in range(3):
        x.grad = y.grad = None
        out = Mixed.apply(x, y, 5)
        assert (out[0], out[2], out[4]) == (5, None, "text")
        (out[1].sum() + 3 * out[3].sum()).backward()
        assert Mixed.seen == [True, False, True, False, True]
        assert x.grad is not None
        assert y.grad is not None
        assert (x.grad.tolist(), y.grad.tolist()) == ([5, 5], [6, 6])


class Square(Function):
    """A number that backward needs is an output."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x**2, x.item() * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.two_x = output[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Any, _: Any) -> Any:
        return g * ctx.two_x


def test_a_number_as_output() -> None:
    x = calque.tensor(3.0, requires_grad=True)
    assert calque.autograd.grad(Square.apply(x)[0], x)[0].item() == 6


class Power(Function):
    """An argument with a default."""

    @classmethod
    def forward(cls, x: Any, y: int = 3) -> Any:
        return x**y

    @classmethod
    def setup_context(cls, ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.y = inputs
        ctx.save_for_backward(x)

    @classmethod
    def backward(cls, ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.y * x ** (ctx.y - 1), None


def test_defaults() -> None:
    x = calque.tensor(2.0, requires_grad=True)
    assert calque.autograd.grad(Power.apply(x), x)[0].item() == 12
    assert calque.autograd.grad(Power.apply(x, 2), x)[0].item() == 4
    assert calque.func.grad(lambda x: Power.apply(x))(calque.tensor(2.0)).item() == 12
    with pytest.raises(TypeError, match="positional"):
        Power.apply(x, 2, 3)


class Product(Function):
    """Forward mode with a tangent for one argument only."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: float, y: Any) -> Any:
        ctx.save_for_forward(x, y)
        ctx.scale = scale
        return x * y * scale

    @staticmethod
    def jvp(ctx: Any, dx: Any, dscale: Any, dy: Any) -> Any:
        x, y = ctx.saved_tensors
        assert dscale is None
        return (dx * y + x * dy) * ctx.scale


def test_missing_tangents_are_zeros() -> None:
    x, y = calque.tensor(3.0), calque.tensor(5.0)
    with forward_ad.dual_level():
        out = Product.apply(forward_ad.make_dual(x, calque.tensor(1.0)), 2.0, y)
        assert forward_ad.unpack_dual(out).tangent.item() == 10
        out = Product.apply(x, 2.0, forward_ad.make_dual(y, calque.tensor(1.0)))
        assert forward_ad.unpack_dual(out).tangent.item() == 6


def test_backward_and_vjp() -> None:
    class Both(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

        @staticmethod
        def vjp(ctx: Any, g: Any) -> Any:
            return g

    with pytest.raises(RuntimeError, match="Implementing both 'backward' and 'vjp'"):
        Both.apply(calque.ones(1, requires_grad=True))


def test_zeros_that_were_made_can_be_differentiated() -> None:
    """Derivatives of any order in a loop: from some order on all of them are zero."""
    x = calque.tensor(0.5, requires_grad=True)
    derivative = x * calque.tensor(2.0, requires_grad=True)
    found = []
    for _ in range(4):
        (derivative,) = calque.autograd.grad(derivative, x, create_graph=True, materialize_grads=True)
        found.append(derivative.item())
    assert found == [2, 0, 0, 0]
    (plain,) = calque.autograd.grad(x * 2.0, calque.ones(1, requires_grad=True), materialize_grads=True, allow_unused=True)
    assert not plain.requires_grad
    with pytest.raises(ValueError, match="allow_unused"):
        calque.autograd.grad(x * 2.0, x, allow_unused=False, materialize_grads=True)


def test_numpy_inside_no_grad() -> None:
    x = calque.ones(2, requires_grad=True)
    with calque.no_grad():
        assert x.numpy().tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="requires grad"):
        x.numpy()


class Added(Function):
    """Adds to its first argument in place, with gradients that are its own."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, how: str) -> Any:
        ctx.mark_dirty(x)
        x.add_(y)
        return {"it": x, "both": (x, y * 1), "another": y * 1}[how]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2, grads[0] * 3, None


def test_a_write_into_a_view_reaches_its_base_and_other_views() -> None:
    """PyTorch 2.13 gives these numbers."""
    for needs in (True, False):
        a, b = calque.arange(6.0, requires_grad=needs), calque.ones(3, requires_grad=True)
        x = a.clone()
        view, other = x[:3], x[2:5]
        assert Added.apply(view, b, "it") is view
        weights = calque.arange(1.0, 7.0)
        (x * weights).sum().backward(retain_graph=True)
        assert b.grad is not None
        assert b.grad.tolist() == [3, 6, 9]
        assert a.grad is None if not needs else a.grad.tolist() == [2, 4, 6, 4, 5, 6]
        a.grad = b.grad = None
        (other * weights[:3]).sum().backward()
        assert b.grad is not None
        assert b.grad.tolist() == [0, 0, 3]
        assert a.grad is None if not needs else a.grad.tolist() == [0, 0, 2, 2, 3, 0]


def test_what_a_function_may_not_write() -> None:
    leaf, b = calque.ones(3, requires_grad=True), calque.ones(2)
    with pytest.raises(RuntimeError, match="a view of a leaf of shape .* is being used in an in-place operation"):
        Added.apply(leaf[:2], b, "it")
    with pytest.raises(RuntimeError, match=r"\[Added\] expected one output of a function that writes into a view .* got 2"):
        Added.apply((leaf * 1)[:2], b, "both")
    with pytest.raises(RuntimeError, match=r"\[Added\] expected every input that forward marks as dirty among its outputs"):
        Added.apply(b, b, "another")


class Summed(Function):
    """Its gradient has the dtype and shape of the class, whatever the argument has."""

    given: Any = None

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.real.sum()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return Summed.given * g.to(Summed.given.dtype)


class Twice(Function):
    """Two outputs."""

    shapes: list[Any] = []

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2, x.sum()

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> Any:
        Twice.shapes.append((tuple(first.shape), first.dtype, tuple(second.shape)))
        return first * 2 + second


def test_a_gradient_gets_the_dtype_of_its_argument() -> None:
    for made in (lambda x: x, lambda x: x * 3, lambda x: Twice.apply(x)[0], lambda x: x.split(3)[0], lambda x: x.view(1, 3).unbind(0)[0]):
        for given in (calque.ones(3, dtype=calque.float64), calque.ones(3, dtype=calque.int64), calque.ones(3, dtype=calque.float16)):
            x = calque.ones(3, requires_grad=True)
            Summed.given = given
            Summed.apply(made(x)).backward()
            assert x.grad is not None and (x.grad.dtype, x.grad.shape) == (calque.float32, (3,))
    z = calque.ones(3, dtype=calque.complex64, requires_grad=True)
    Summed.given = calque.ones(3)
    Summed.apply(z).backward()
    assert z.grad is not None and z.grad.dtype is calque.complex64
    Summed.given = calque.ones(3, dtype=calque.complex64)
    x = calque.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"expected a gradient 0 of dtype torch.float32, got torch.complex64; return .real"):
        Summed.apply(x).backward()
    Summed.given = calque.ones(3, dtype=calque.int64)
    with pytest.raises(RuntimeError, match=r"expected a gradient 0 of dtype torch.complex64, got torch.int64; return floats"):
        Summed.apply(z).backward()


def test_a_gradient_is_summed_to_the_shape_of_one_of_several_outputs() -> None:
    x = calque.ones(2, 3, requires_grad=True)
    Twice.shapes.clear()
    Summed.given = calque.ones(4, 2, 3, dtype=calque.float64)
    Summed.apply(Twice.apply(x)[0]).backward()
    assert Twice.shapes == [((2, 3), calque.float32, ())]
    assert x.grad is not None and x.grad.tolist() == [[8.0] * 3] * 2


class Given(Function):
    """Gives its argument back."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 3 * g


class Flat(Function):
    """Gives a view of its argument."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 3 * g.view(2, 2)


class Both(Function):
    """Gives two views of its argument."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view(-1), x[0]

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        return 3 * g.view(2, 2)


@pytest.mark.parametrize("function", [Given, Flat, Both])
def test_views_that_a_function_gives_are_not_written_with_a_gradient(function: Any) -> None:
    """Neither the gradient of the function nor that of the view would be right: the write is refused, or what follows a write to the base."""
    x = calque.ones(2, 2, requires_grad=True)
    for _ in range(3):
        y = x * 1
        found = function.apply(y)
        view = found[0] if function is Both else found
        assert view._is_view()
        with pytest.raises(AutogradError, match="Backward is a view and is being modified inplace"):
            view.mul_(2)
        used = (view * 5).sum()
        y.mul_(2)
        with pytest.raises(AutogradError, match="Backward is a view and its base or another view of its base has been modified inplace"):
            view.sum().backward()
        assert calque.autograd.grad(y.sum(), x, retain_graph=True)[0].tolist() == [[2, 2], [2, 2]]
        assert calque.autograd.grad(used, x)[0].tolist() == [[15, 15], [15, 15]]
        with calque.no_grad():
            function.apply(y)
            view.zero_()
        assert y.tolist() == [[0, 0], [0, 0]]


def test_what_a_function_gives_back_is_a_view_for_a_later_history_too() -> None:
    x, y = calque.ones(2, requires_grad=True), calque.zeros(2)
    Given.apply(y).add_(2 * x)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]
