"""User-defined functions, checkpointing, anomaly mode, gradcheck and the functional interface."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque.autograd import Function, checkpoint, gradcheck, gradgradcheck, once_differentiable
from calque.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp
from calque.autograd.gradcheck import GradcheckError
from calque.base.errors import AutogradError, NonFiniteError, NotDense


def doubles(*values: float) -> Any:
    return calque.tensor(list(values), dtype=calque.float64, requires_grad=True)


class Sigmoid(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = 1.0 / (1.0 + (-x).exp())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Any) -> Any:
        (y,) = ctx.saved_tensors
        return grad_y * y * (1.0 - y)


def test_sigmoid_of_the_lecture_notes() -> None:
    x = doubles(-2.0, 0.0, 3.0)
    y = Sigmoid.apply(x)
    y.sum().backward()
    s = calque.sigmoid(x.detach())
    assert calque.allclose(y.detach(), s) and calque.allclose(x.grad, s * (1 - s))
    assert y.grad_fn.name() == "SigmoidBackward"
    assert gradcheck(Sigmoid.apply, (x,)) and gradgradcheck(Sigmoid.apply, (x,))


def test_several_arguments_and_outputs() -> None:
    class Pair(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float, y: Any, name: str) -> Any:
            ctx.save_for_backward(x, y)
            ctx.scale = scale
            assert ctx.needs_input_grad == (True, False, False, False) and name == "pair"
            return x * scale, x * y, 7

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any, third: Any) -> Any:
            assert third is None  # of the number
            _x, y = ctx.saved_tensors
            return first * ctx.scale + second * y, None, None, None

    x, y = doubles(1.0, 2.0), calque.tensor([3.0, 4.0], dtype=calque.float64)
    a, b, seven = Pair.apply(x, 10.0, y, "pair")
    assert seven == 7 and a.requires_grad and b.requires_grad and b.output_nr == 1
    b.sum().backward(retain_graph=True)  # the gradient of `a` is filled with zeros
    assert x.grad.tolist() == [3.0, 4.0]
    (a * 2 + b).sum().backward()
    assert x.grad.tolist() == [26.0, 28.0]


def test_gradients_may_stay_none() -> None:
    class First(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 1.0, x * 2.0

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any) -> Any:
            assert b is None
            return a

    x = doubles(1.0)
    First.apply(x)[0].sum().backward()
    assert x.grad.tolist() == [1.0]


def test_non_differentiable_output_and_setup_context() -> None:
    class Largest(Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x.amax(), x * 0.0

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Any, unused: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * (x == x.amax()).double()

    x = doubles(1.0, 5.0)
    top, other = Largest.apply(x)
    assert top.requires_grad and not other.requires_grad
    top.backward()
    assert x.grad.tolist() == [0.0, 1.0]


def test_in_place_function() -> None:
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(2.0)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2.0

    x = doubles(1.0)
    y = x * 3.0
    z = Double.apply(y)
    assert z is y
    z.sum().backward()
    assert x.grad.tolist() == [6.0]
    with pytest.raises(AutogradError, match="leaf Variable"):
        Double.apply(doubles(1.0))


def test_input_returned_unchanged() -> None:
    class Identity(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 3.0

    x = doubles(1.0)
    y = Identity.apply(x)
    assert y is not x
    y.sum().backward()
    assert x.grad.tolist() == [3.0]


def test_saved_value_changed_in_place() -> None:
    x = doubles(1.0)
    h = x * 2.0
    y = Sigmoid.apply(h)
    with calque.no_grad():
        y += 1.0
    with pytest.raises(AutogradError, match=r"SigmoidBackward.*modified by an inplace operation"):
        y.sum().backward()


def test_wrong_number_and_shape_of_gradients() -> None:
    class Bad(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    with pytest.raises(AutogradError, match=r"incorrect number of gradients \(expected 2, got 1\)"):
        Bad.apply(doubles(1.0), doubles(2.0)).sum().backward()

    class Shape(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return calque.ones(5, dtype=calque.float64)

    with pytest.raises(AutogradError, match=r"got \[5\] but expected shape compatible with \[2\]"):
        Shape.apply(doubles(1.0, 2.0)).backward()


def test_second_backward_and_missing_methods() -> None:
    x = doubles(1.0)
    y = Sigmoid.apply(x).sum()
    y.backward()
    with pytest.raises(AutogradError, match="second time"):
        y.backward()
    with pytest.raises(NotImplementedError, match="forward"):
        Function.apply(x)
    with pytest.raises(AutogradError, match="static"):
        Sigmoid()
    with pytest.raises(TypeError, match="save_for_backward"):
        type("Saver", (Function,), {"forward": staticmethod(lambda ctx, x: ctx.save_for_backward(3))}).apply(x)


def test_once_differentiable() -> None:
    class Square(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * ctx.saved_tensors[0]

    x = doubles(3.0)
    (g,) = calque.autograd.grad(
        Square.apply(x).sum(), x, calque.tensor(1.0, dtype=calque.float64, requires_grad=True), create_graph=True
    )
    assert g.tolist() == [6.0]
    with pytest.raises(AutogradError, match="once_differentiable"):
        g.sum().backward()


def test_no_history_without_gradients() -> None:
    with calque.no_grad():
        assert not Sigmoid.apply(doubles(1.0)).requires_grad
    assert not Sigmoid.apply(calque.ones(1)).requires_grad


# -------------------------------------------------------------------------------------------------- checkpoint


def test_checkpoint_gives_the_same_gradients_also_of_captured_tensors() -> None:
    w, x = doubles(0.5, -1.0), doubles(1.0, 2.0)
    scale = w * 2.0  # a captured tensor with history
    results = []
    for use in (False, True):
        x.grad = w.grad = None
        h = x * 3.0

        def body(t: Any, factor: float = 1.0) -> Any:
            return (t * scale).tanh() * w * factor

        out = checkpoint(body, h, factor=2.0) if use else body(h, factor=2.0)
        out.sum().backward(retain_graph=True)
        results.append((out.tolist(), x.grad.tolist(), w.grad.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("way", ["checkpoint", "hybridized"])
def test_hooks_outside_run_once(way: str, create: bool) -> None:
    """Of leaves, of an argument and of captured tensors: the gradients inside are computed by a backward pass of their own."""
    results = []
    for use in (False, True):
        w, x, calls = doubles(0.5, -1.0), doubles(1.0, 2.0), []

        def halve(g: Any, calls: list[Any] = calls) -> Any:
            calls.append(g.tolist())
            return g * 0.5

        h, scale = x * 3.0, w * 2.0
        for t in (w, x, h, scale):
            t.register_hook(halve)
        h.retain_grad()

        def body(t: Any, scale: Any = scale, w: Any = w) -> Any:
            return (t * scale).tanh() * w

        wrapped: Any = (lambda t, body=body: checkpoint(body, t)) if way == "checkpoint" else calque.compile(body)
        out = wrapped(h) if use else body(h)
        out.sum().backward(create_graph=create)
        results.append((calls, x.grad.tolist(), w.grad.tolist(), h.grad.tolist()))
    assert len(results[0][0]) == 4
    assert results[0] == results[1]


def test_checkpoint_runs_the_function_again_only_in_backward() -> None:
    calls = []

    def body(t: Any) -> Any:
        calls.append(calque.is_grad_enabled())
        return t.exp() * t, t.sin()

    x = doubles(1.0, 2.0)
    first, second = checkpoint(body, x)
    assert calls == [True]
    (first + second).sum().backward()
    assert calls == [True, True]
    assert gradcheck(lambda t: checkpoint(body, t), (x,)) and gradgradcheck(lambda t: checkpoint(body, t), (x,))


def test_checkpoint_does_not_run_again_for_other_losses() -> None:
    x, y = doubles(1.0), doubles(2.0)
    checkpoint(lambda t: t.exp(), x)
    (y * 2).sum().backward()
    assert x.grad is None and y.grad.tolist() == [2.0]


def test_checkpoint_repeats_random_numbers() -> None:
    x = doubles(*[1.0] * 64)
    out = checkpoint(lambda t: t * (calque.rand(64) > 0.5).double(), x)
    after = calque.rand(1)
    out.sum().backward()
    assert calque.equal(x.grad, out.detach())
    assert not calque.equal(after, calque.rand(1))


def test_checkpoint_without_gradients_and_in_sequence() -> None:
    with calque.no_grad():
        assert checkpoint(lambda t: t * 2, calque.ones(1)).tolist() == [2.0]
    x = doubles(0.3)
    out = calque.utils.checkpoint.checkpoint_sequential([calque.sin, calque.exp, calque.tanh, calque.cos], 2, x)
    out.backward()
    assert x.grad.item() == pytest.approx(calque.autograd.grad(x.sin().exp().tanh().cos().sum(), x)[0].item())


def test_checkpoint_detects_changed_inputs_and_outputs() -> None:
    x = doubles(1.0)
    h = x * 2
    out = checkpoint(lambda t: t.exp(), h)
    with calque.no_grad():
        h += 1
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        out.sum().backward()
    count = [1, 2]
    out = checkpoint(lambda t: tuple(t * 2 for _ in range(count.pop(0))), x)
    with pytest.raises(AutogradError, match="returned 1 outputs at first and 2"):
        out[0].sum().backward()


# -------------------------------------------------------------------------------------------- gradcheck, anomaly


def test_gradcheck_sees_a_wrong_gradient() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2.0

    x = doubles(3.0, 1.0)
    with pytest.raises(GradcheckError, match="Jacobian mismatch for output 0 with respect to input 0"):
        gradcheck(Wrong.apply, (x,))
    assert not gradcheck(Wrong.apply, (x,), raise_exception=False)


def test_gradcheck_needs_float64_inputs_with_gradients() -> None:
    with pytest.raises(ValueError, match="float64"):
        gradcheck(calque.sin, (calque.ones(1, requires_grad=True),))
    with pytest.raises(ValueError, match="at least one"):
        gradcheck(calque.sin, (calque.ones(1),))


def test_anomaly_mode_names_the_operation() -> None:
    x = doubles(0.0)
    with (
        calque.autograd.detect_anomaly(),
        pytest.raises(NonFiniteError, match=r"'SqrtBackward0' returned nan values in its 0th output") as caught,
    ):
        (x.sqrt() * 0.0).sum().backward()
    assert __file__ in str(caught.value) and isinstance(caught.value, RuntimeError)  # which is what PyTorch raises
    assert not calque.autograd.is_anomaly_enabled()
    with calque.autograd.set_detect_anomaly(True):
        assert calque.autograd.is_anomaly_enabled()
    (x.sqrt() * 0.0).sum().backward()


# ---------------------------------------------------------------------------------------------------- functional


def test_jacobian_and_products() -> None:
    x = calque.tensor([1.0, 2.0])

    def function(t: Any) -> Any:
        return t**2, t.sum() * t

    first, second = jacobian(function, x)
    assert first.tolist() == [[2.0, 0.0], [0.0, 4.0]] and second.tolist() == [[4.0, 1.0], [2.0, 5.0]]
    v = calque.tensor([1.0, -1.0])
    outputs, product = vjp(function, x, (v, v))
    assert outputs[0].tolist() == [1.0, 4.0] and product.tolist() == [2.0 + 2.0, -4.0 - 4.0]
    assert [p.tolist() for p in jvp(function, x, v)[1]] == [[2.0, -4.0], [3.0, -3.0]]


def test_jacobian_of_several_inputs() -> None:
    x, y = calque.tensor([1.0, 2.0]), calque.tensor([3.0])
    by_x, by_y = jacobian(lambda a, b: a * b, (x, y))
    assert by_x.tolist() == [[3.0, 0.0], [0.0, 3.0]] and by_y.tolist() == [[1.0], [2.0]]


def test_hessian_and_products() -> None:
    x = calque.tensor([1.0, 2.0])

    def function(t: Any) -> Any:
        return (t**3).sum() + t[0] * t[1]

    assert hessian(function, x).tolist() == [[6.0, 1.0], [1.0, 12.0]]
    v = calque.tensor([1.0, 1.0])
    assert hvp(function, x, v)[1].tolist() == [7.0, 13.0] and vhp(function, x, v)[1].tolist() == [7.0, 13.0]
    assert hessian(lambda t: t.sum(), x).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    with pytest.raises(ValueError, match="scalar"):
        hessian(lambda t: t * 2, x)


def test_functional_keeps_the_graph_on_request() -> None:
    x = doubles(2.0)
    matrix = jacobian(lambda t: t**3, x, create_graph=True)
    matrix.sum().backward()
    assert x.grad.tolist() == [12.0]
    assert not jacobian(lambda t: t**3, x).requires_grad


def test_sparse_tensors_are_arguments_and_are_saved() -> None:
    class Product(Function):
        @staticmethod
        def forward(ctx: Any, matrix: Any, dense: Any) -> Any:
            ctx.save_for_backward(matrix, dense)
            return calque.sparse.mm(matrix, dense)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            matrix, dense = ctx.saved_tensors
            assert matrix.is_sparse and not dense.is_sparse
            return None, calque.sparse.mm(matrix.t(), grad)

    matrix = calque.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3)).coalesce()
    dense = calque.ones(3, 2, requires_grad=True)
    out = Product.apply(matrix, dense)
    assert out.tolist() == [[3.0, 3.0], [4.0, 4.0]]
    out.sum().backward()
    assert dense.grad.tolist() == [[4.0, 4.0], [0.0, 0.0], [3.0, 3.0]]
    out = Product.apply(matrix, dense)
    with calque.no_grad():
        matrix.values().add_(1)
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        out.sum().backward()
    with pytest.raises(NotDense, match="Product"):
        Product.apply(matrix.clone().requires_grad_(), dense)


class Both(calque.autograd.Function):
    """(exp(x) y, x y), which keeps its tensors in another order for each mode."""

    @staticmethod
    def forward(x: calque.Tensor, y: calque.Tensor) -> tuple[calque.Tensor, calque.Tensor]:
        return x.exp() * y, x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[0], inputs[1], inputs[0])
        ctx.save_for_forward(inputs[1], inputs[0], output[0])

    @staticmethod
    def backward(ctx: Any, g: calque.Tensor, h: calque.Tensor) -> tuple[calque.Tensor, calque.Tensor]:
        e, y, x = ctx.saved_tensors
        return g * e + h * y, g * e / y + h * x

    @staticmethod
    def jvp(ctx: Any, tx: calque.Tensor, ty: calque.Tensor) -> tuple[calque.Tensor, calque.Tensor]:
        y, x, e = ctx.saved_tensors
        return e * tx + x.exp() * ty, tx * y + x * ty


def test_forward_over_reverse_mode_through_a_function_with_a_jvp() -> None:
    """`backward` sees what moves, too: the tangents of its gradients were zeros."""
    own = lambda a, b: (Both.apply(a, b)[0] * Both.apply(a * b, b)[1]).sum()  # noqa: E731
    plain = lambda a, b: (a.exp() * b * (a * b * b)).sum()  # noqa: E731
    x, y = calque.tensor([1.0, 0.5]), calque.tensor([2.0, 3.0])
    f = calque.func
    for derivative in (
        lambda g: f.grad(g)(x, y), lambda g: f.hessian(g)(x, y), lambda g: f.jacfwd(f.grad(g))(x, y), lambda g: f.jacrev(f.jacfwd(g))(x, y),
        lambda g: f.jvp(lambda a: f.grad(g, 1)(a, y), (x,), (y,))[1], lambda g: f.jacfwd(f.jacfwd(g))(x, y), lambda g: f.jvp(g, (x, y), (y, x))[1],
        lambda g: f.vmap(lambda a: f.jvp(lambda q: f.grad(g)(q, y), (a,), (y,))[1])(calque.stack([x, y])),
    ):  # fmt: skip
        calque.testing.assert_close(derivative(own), derivative(plain))
    with calque.autograd.forward_ad.dual_level():
        dual = calque.autograd.forward_ad.make_dual(x.clone().requires_grad_(), y)
        gradient = calque.autograd.grad(own(dual, y), dual, create_graph=True)[0]
        tangent = calque.autograd.forward_ad.unpack_dual(gradient).tangent
    calque.testing.assert_close(tangent, f.jvp(lambda a: f.grad(plain)(a, y), (x,), (y,))[1], check_dtype=True)
