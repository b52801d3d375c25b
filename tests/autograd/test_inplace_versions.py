"""Which in-place writes a backward pass minds: not those of the function itself, nor those through `.data`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque.base.errors import AutogradError
from calque.nn import functional as F
from calque.tensor import Tensor

ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(F, name)
    for name in ("relu", "relu6", "silu", "hardswish", "mish", "elu", "selu", "celu", "leaky_relu", "hardtanh", "hardsigmoid", "rrelu")
}
ACTIVATIONS["threshold"] = lambda x, inplace: F.threshold(x, 0.5, -1.0, inplace)
ACTIVATIONS["trained rrelu"] = lambda x, inplace: F.rrelu(x, training=True, inplace=inplace)
ACTIVATIONS["dropout"] = lambda x, inplace: F.dropout(x, 0.5, True, inplace)
ACTIVATIONS["alpha_dropout"] = lambda x, inplace: F.alpha_dropout(x, 0.5, True, inplace)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_in_place(name: str) -> None:
    found = []
    for inplace in (False, True):
        calque.manual_seed(5)
        x = calque.linspace(-4, 4, 9).requires_grad_()
        h = x * 1.5
        y = ACTIVATIONS[name](h, inplace=inplace)
        assert (y is h) is inplace
        (y * y).sum().backward()
        assert x.grad is not None
        found.append((y.tolist(), x.grad.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["elu", "selu", "celu"])
def test_gradients_at_zero_are_those_of_the_lower_branch(name: str) -> None:
    x = calque.zeros(1, requires_grad=True)
    getattr(F, name)(x).backward()
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(1.7580993408473766 if name == "selu" else 1.0)


def test_in_place_activations_refuse_memory_that_overlaps() -> None:
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        F.relu(calque.ones(1).expand(3), inplace=True)


def test_writes_through_data_do_not_count() -> None:
    p = calque.ones(3, requires_grad=True)
    loss = (p * p).sum()
    p.data.add_(1)
    p.data[:2].mul_(2)
    loss.backward()  # with the values of now, as in PyTorch
    assert p.grad is not None
    assert p.grad.tolist() == [8.0, 8.0, 4.0]
    assert p._version == 0


def test_other_writes_count() -> None:
    p = calque.ones(3, requires_grad=True)
    loss = (p * p).sum()
    p.data.add_(1)
    with calque.no_grad():
        p.add_(1)
    p.data.add_(1)
    assert p._version == 1
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        loss.backward()
    loss = (p * p).sum()
    p.data.add_(1)
    loss.backward()
    loss = (p * p).sum()
    p.detach().add_(1)
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        loss.backward()


def test_replays_write_through_data_as_well() -> None:
    p, average = calque.ones(2, requires_grad=True), calque.zeros(2)

    @calque.compile
    def update() -> None:
        average.data.mul_(0.5).add_(p.data)
        p.data.add_(1)

    for step in range(6):
        loss = (p * p).sum()
        update()
        p.grad = None
        loss.backward()
        assert p.grad is not None
        assert p.grad.tolist() == [2.0 * (step + 2)] * 2
    assert average.tolist() == [pytest.approx(sum((k + 1) * 0.5 ** (5 - k) for k in range(6)))] * 2


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm", "group_norm", "avg_pool1d", "function", "silu"])
def test_writing_a_part_of_a_result_keeps_the_gradient_of_the_rest(name: str) -> None:
    """Results of functions with a gradient formula of their own may be views of what only the function had."""

    class Doubled(calque.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return (x.reshape(-1) * 2).view(x.shape)

        @staticmethod
        def backward(ctx: object, g: Tensor) -> Tensor:
            return g * 2

    def function(x: Tensor) -> Tensor:
        if name == "batch_norm":
            return F.batch_norm(x[0], None, None, training=True)[None]
        if name == "function":
            return Doubled.apply(x)
        calls = {"instance_norm": F.instance_norm, "group_norm": lambda x: F.group_norm(x, 1), "avg_pool1d": lambda x: F.avg_pool1d(x, 2, 1, 1)}
        return calls.get(name, F.silu)(x)

    found = []
    for in_place in (True, False):
        calque.manual_seed(2)
        x = calque.randn(1, 4, 3, requires_grad=True)
        y = function(x)
        if in_place:
            y[:, :, 1:].mul_(3.0)
        else:
            y = calque.cat([y[:, :, :1], y[:, :, 1:] * 3.0], 2)
        (y * y).sum().backward()
        assert x.grad is not None
        found.append(x.grad)
    assert calque.allclose(*found, atol=1e-5)


def test_the_operand_of_exp2_may_be_written() -> None:
    x = calque.ones(2, requires_grad=True)
    u = x * 2
    y = u.exp2()
    u.add_(1)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([5.5451774] * 2)


class Cube(calque.autograd.Function):
    """x**3 with a gradient in plain operations, so that it has one too."""

    @staticmethod
    def forward(ctx, power, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**power

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return None, grad * 3.0 * x * x


SAVING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda x, w: w * x,
    "both": lambda x, w: w * x * x,
    "matmul": lambda x, w: w.view(1, -1) @ x.view(-1, 1),
    "composite": lambda x, w: F.layer_norm(x, (4,), w),
    "function": lambda x, w: Cube.apply(3, x) * w,
}


@pytest.mark.parametrize("name", SAVING)
@pytest.mark.parametrize("hybrid", [False, True])
def test_what_loses_its_history_after_it_was_saved_is_still_differentiated_twice(name: str, hybrid: bool) -> None:
    function = calque.compile(SAVING[name]) if hybrid else SAVING[name]
    w = calque.linspace(1.0, 2.0, 4).requires_grad_()

    def second(turn: int, forget: bool) -> list[float]:
        base = (calque.arange(4.0) * turn + 1.0).requires_grad_()
        x = base * 2.0
        y = function(x, w)
        if forget:
            x.detach_()
        (g,) = calque.autograd.grad((y * y).sum(), w, create_graph=True)
        (gg,) = calque.autograd.grad((g * g).sum(), base)
        return gg.tolist()

    for turn in range(1, 5):
        assert second(turn, True) == pytest.approx(second(turn, False), rel=1e-5)


@pytest.mark.parametrize("function", [calque.logit, calque.erfc])
def test_formulas_that_have_their_operand_at_hand_say_that_its_history_is_lost(function: Callable[[Tensor], Tensor]) -> None:
    base = (calque.eye(2) * 0.25 + 0.5).requires_grad_()
    x = base * 1.0
    y = function(x)
    x.detach_()
    calque.autograd.grad(y.sum(), base, retain_graph=True)
    with pytest.raises(AutogradError, match="detached in-place"):
        calque.autograd.grad(y.sum(), base, create_graph=True)


@pytest.mark.parametrize("function", [calque.linalg.det, calque.linalg.eigvalsh, calque.linalg.inv])
def test_formulas_that_keep_a_handle_of_their_own_are_still_differentiated_twice(function: Callable[[Tensor], Tensor]) -> None:
    found = []
    for forget in (False, True):
        base = (calque.eye(2) * 0.25 + 0.5).requires_grad_()
        x = base * base
        y = function(x)
        if forget:
            x.detach_()
        (g,) = calque.autograd.grad(y.sum(), base, create_graph=True)
        found.append(calque.autograd.grad((g * g).sum(), base)[0].tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [(3, 2), (300, 200)])
def test_a_saved_tensor_that_is_given_other_memory_has_changed(size: tuple[int, int]) -> None:
    """Small operands are computed with at once, large ones recorded. Before, the gradient was that of the new values."""
    for _ in range(3):
        x, w = calque.ones(*size) * 2, calque.ones(*size).requires_grad_()
        product = (x * w).sum()
        x.set_(x.detach() + 1)
        assert x._version == 1
        with pytest.raises(AutogradError, match="modified by an inplace operation"):
            product.backward()
        later = (x * w).sum()
        later.backward()
        assert w.grad is not None and float(w.grad[0, 0]) == 3.0


def test_the_memory_of_a_tensor_that_is_saved_may_be_given_to_others_that_are_younger() -> None:
    w, values = calque.ones(2, 3).requires_grad_(), calque.ones(2, 3)
    values.add_(1).add_(1)
    product = (values * w).sum()
    calque.empty(0).set_(values)
    product.backward()
    assert w.grad is not None and w.grad.tolist() == [[3.0] * 3] * 2
    values.set_(values)  # the same memory
    assert values._version == 2


WRITES: list[Callable[[Tensor, Tensor], Any]] = [
    lambda v, x: v.mul_(2), lambda v, x: v.mul_(x[0]), lambda v, x: v.copy_(x[1]), lambda v, x: v.__setitem__(0, 3.0), lambda v, x: v[:1].zero_()
]  # fmt: skip


@pytest.mark.parametrize("mode", [calque.no_grad, calque.inference_mode])
@pytest.mark.parametrize("write", WRITES)
def test_a_view_without_history_is_not_written_where_its_base_has_one(mode: Any, write: Callable[[Tensor, Tensor], Any]) -> None:
    """The gradient of the base would not know of the write."""
    x = calque.ones(2, 2, requires_grad=True)
    for base in (x * 1, (x * 1).view(4).view(2, 2)):
        with mode():
            view = base[0]
        with pytest.raises(AutogradError, match="A view was created in no_grad mode and is being modified inplace with grad mode enabled"):
            write(view, x)
        assert base.tolist() == [[1, 1], [1, 1]]
        with calque.no_grad():
            view.mul_(3)  # writes that nobody follows are allowed, as ever
        base.detach()[1].mul_(5)
        assert base.tolist() == [[3, 3], [5, 5]]


PLACES = calque.tensor([0, 0, 1, 1])
OF_THEIR_RESULT: dict[str, Callable[[Tensor], Tensor]] = {
    "max": calque.max, "min": calque.min, "median": calque.median, "nanmedian": calque.nanmedian, "softmax": lambda x: F.softmax(x, 0),
    "amax": lambda x: calque.scatter_reduce(calque.zeros(2), 0, PLACES, x, "amax"), "eigh": lambda x: calque.linalg.eigh(x.outer(x))[1],
    "prod": lambda x: calque.scatter_reduce(calque.ones(2), 0, PLACES, x, "prod"), "qr": lambda x: calque.linalg.qr(x.reshape(2, 2))[0],
}  # fmt: skip


@pytest.mark.parametrize("name", OF_THEIR_RESULT)
def test_a_result_that_the_gradient_reads_may_not_be_written(name: str) -> None:
    """At the first call, too: the gradient was that of another function."""
    for _ in range(4):
        x = calque.tensor([1.0, 5.0, 3.0, 5.5]).requires_grad_()
        result = OF_THEIR_RESULT[name](x)
        with calque.no_grad():
            result.mul_(0.5)
        with pytest.raises(AutogradError, match="needs its result"):
            result.sum().backward()


@pytest.mark.parametrize("moments", [calque.var_mean, calque.std_mean])
@pytest.mark.parametrize("keepdim", [False, True])
def test_a_mean_may_be_written_before_the_gradient_of_its_variance(moments: Callable[..., Any], keepdim: bool) -> None:
    for _ in range(4):
        x = calque.arange(12.0).reshape(3, 4).sin().requires_grad_()
        wanted = calque.autograd.grad(moments(x, 1, keepdim=keepdim)[0].sum(), x)[0].tolist()
        spread, mean = moments(x, 1, keepdim=keepdim)
        with calque.no_grad():
            mean.mul_(0.5)
        assert calque.autograd.grad(spread.sum(), x)[0].tolist() == wanted


def test_exponents_may_be_written_before_the_gradient_of_their_mantissas() -> None:
    x = calque.tensor([3.0, 0.25]).requires_grad_()
    mantissa, exponent = calque.frexp(x)
    exponent.zero_()
    mantissa.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.25, 2.0]


def test_what_was_counted_may_be_written_before_the_gradient_of_its_weights() -> None:
    weights, numbers = calque.ones(4).requires_grad_(), calque.tensor([0, 1, 1, 3])
    counts = calque.bincount(numbers, weights, 4)
    numbers.zero_()
    (counts * calque.arange(4.0)).sum().backward()
    assert weights.grad is not None and weights.grad.tolist() == [0.0, 1.0, 1.0, 3.0]


def test_matrices_may_be_written_before_the_gradient_of_a_solution() -> None:
    """As in PyTorch, which keeps factors and results."""
    for function in (calque.linalg.inv, calque.linalg.cholesky, calque.linalg.svdvals, calque.linalg.det, lambda m: calque.linalg.solve(m, m)):
        matrix = calque.tensor([[2.0, 0.5], [0.5, 1.0]]).requires_grad_()
        wanted = calque.autograd.grad(function(matrix).sum(), matrix)[0].tolist()
        result = function(matrix)
        with calque.no_grad():
            matrix.add_(1)
        assert calque.autograd.grad(result.sum(), matrix)[0].tolist() == wanted
