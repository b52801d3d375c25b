"""`vmap`, `calque.func` and forward mode: what they mean, by their definitions (loops over slices, differences), without another library."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
import calque.nn.functional as F
from calque import func, vmap
from calque.autograd import forward_ad
from calque.base.errors import ArgumentError, AutogradError, BatchError, ForwardModeError
from calque.record.path import Counters


@pytest.fixture(autouse=True)
def _double() -> Any:
    before = calque.get_default_dtype()
    calque.set_default_dtype(calque.float64)
    yield
    calque.set_default_dtype(before)


def near(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    assert tuple(got.shape) == tuple(want.shape)
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------------------------------------------- random programs

UNARY = [
    calque.sin, calque.tanh, calque.sigmoid, calque.exp, calque.neg, F.relu, F.gelu, F.softplus, lambda x: x.softmax(-1),
    lambda x: F.log_softmax(x, 0),
    lambda x: x.cumsum(0), lambda x: x.flip(0), lambda x: x.t().contiguous().t(), lambda x: x.roll(1, 1), lambda x: x.sort(0)[0],
    lambda x: x - x.mean(),
    lambda x: x / (x.norm() + 1), lambda x: x * x.amax(1, keepdim=True), lambda x: F.layer_norm(x, (x.shape[-1],)), lambda x: x.clamp(-1, 1),
    lambda x: x.masked_fill(x > 0.5, 0.25), lambda x: x[calque.arange(x.shape[0] - 1, -1, -1)], lambda x: x.expand(2, *x.shape).sum(0),
    lambda x: calque.cat([x[:1], x[1:]], 0), lambda x: x.clone().mul_(2).add_(1), lambda x: x.reshape(-1).view(x.shape),
    lambda x: x.gather(1, x.argsort(1)),
    lambda x: F.pad(x, (1, 0))[:, :-1], lambda x: x.logsumexp(0) + x, lambda x: x.var(0) * x, lambda x: calque.where(x > 0, x, x * 0.1),
]  # fmt: skip
BINARY = [
    calque.add, calque.mul, calque.sub, calque.maximum, lambda a, b: a @ b.t() @ b, lambda a, b: calque.einsum("ij,kj->ik", a, b) @ b,
    lambda a, b: calque.stack([a, b]).mean(0), lambda a, b: calque.atan2(a, b.abs() + 1), lambda a, b: F.mse_loss(a, b) + a,
    lambda a, b: calque.index_select(a, 1, b[0].argsort()), lambda a, b: a.scatter_add(1, b.argsort(1), b),
    lambda a, b: a.index_put((b[:, 0].argsort(),), b),
]  # fmt: skip
PROGRAMS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=7)


def program(steps: list[tuple[int, int, int, int]]) -> Any:
    """A function of two matrices of one shape."""

    def run(a: Any, b: Any) -> Any:
        values = [a, b]
        for kind, which, i, j in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[which % len(UNARY)](x) if kind == 0 else BINARY[which % len(BINARY)](x, y))
        return values[-1]

    return run


@settings(max_examples=60, deadline=None)
@given(steps=PROGRAMS, seed=st.integers(0, 1 << 20), mapped=st.sampled_from([(0, 0), (0, None), (None, 0), (1, 0), (-1, 2)]))
def test_vmap_of_random_programs_is_a_loop(steps: Any, seed: int, mapped: Any) -> None:
    calque.set_default_dtype(calque.float64)
    rng, run = np.random.default_rng(seed), program(steps)
    slices = [[calque.tensor(rng.normal(size=(3, 4))) for _ in range(3)] for _ in mapped]
    given_ = [s[0] if d is None else calque.stack(s, d) for s, d in zip(slices, mapped, strict=True)]
    rows = [[s[0] if d is None else s[k] for s, d in zip(slices, mapped, strict=True)] for k in range(3)]
    near(vmap(run, in_dims=mapped)(*given_), calque.stack([run(*row) for row in rows]), 1e-9)
    slope = func.grad(lambda a, b: run(a, b).sum())
    near(vmap(slope, in_dims=mapped)(*given_), calque.stack([slope(*row) for row in rows]), 1e-7)
    through = func.grad(lambda *xs: vmap(run, in_dims=mapped)(*xs).sum())(*given_)
    each = [slope(*row) for row in rows]
    near(through, sum(each[1:], each[0]) if mapped[0] is None else calque.stack(each, mapped[0]), 1e-7)


@settings(max_examples=60, deadline=None)
@given(steps=PROGRAMS, seed=st.integers(0, 1 << 20))
def test_tangents_of_random_programs(steps: Any, seed: int) -> None:
    """Forward mode against reverse mode by inner products, also inside `vmap`; it is linear, and what `linearize` gives."""
    calque.set_default_dtype(calque.float64)
    rng, run = np.random.default_rng(seed), program(steps)
    a, b, da, db = (calque.tensor(rng.normal(size=(3, 4))) for _ in range(4))
    value, moved = func.jvp(run, (a, b), (da, db))
    near(value, run(a, b))
    _, pull = func.vjp(run, a, b)
    weight = calque.tensor(rng.normal(size=tuple(value.shape)))
    ga, gb = pull(weight)
    assert float((moved * weight).sum()) == pytest.approx(float((ga * da).sum() + (gb * db).sum()), rel=1e-8, abs=1e-8)
    near(func.linearize(run, a, b)[1](da, db), moved, 1e-8)
    near(vmap(lambda t, u: func.jvp(run, (a, b), (t, u))[1])(calque.stack([da, 2 * da]), calque.stack([db, 2 * db]))[1], 2 * moved, 1e-8)


def test_jvp_is_the_limit_of_differences() -> None:
    x, t = calque.tensor([0.3, -1.2, 2.0]), calque.tensor([1.0, 0.5, -0.25])
    f = lambda x: (x.sin() * x.exp()).cumsum(0) / (1 + x * x)  # noqa: E731
    step = 1e-6
    near(func.jvp(f, (x,), (t,))[1], (f(x + step * t) - f(x - step * t)) / (2 * step), 1e-8)


# ------------------------------------------------------------------------------------------------------- per-sample gradients


class Network(calque.nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        nn = calque.nn
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, stride=2), nn.GroupNorm(2, 8))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(8 * 4, 16), nn.GELU(), nn.Linear(16, 5))

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).tanh())


def per_sample(batch: int) -> tuple[Any, tuple[Any, ...]]:
    calque.manual_seed(0)
    model = Network()
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(func.functional_call(model, weights, (x[None],)), y[None])

    return func.grad(loss), (weights, calque.randn(batch, 1, 10, 10), calque.arange(batch) % 5)


def test_gradients_of_every_sample_are_those_of_a_loop() -> None:
    one, (weights, x, y) = per_sample(6)
    every = vmap(one, in_dims=(None, 0, 0))(weights, x, y)
    for name in weights:
        near(every[name], calque.stack([one(weights, x[k], y[k])[name] for k in range(6)]))


def test_the_number_of_operations_does_not_depend_on_the_number_of_samples() -> None:
    def recorded(batch: int) -> int:
        one, given_ = per_sample(batch)
        calque.synchronize()
        start = Counters.edges
        vmap(one, in_dims=(None, 0, 0))(*given_)["head.1.weight"].sum().item()
        return Counters.edges - start

    counts = {recorded(7), recorded(11), recorded(23)}
    assert max(counts) - min(counts) <= 4 and 50 < max(counts) < 400


def test_an_ensemble_is_one_call() -> None:
    models = [Network() for _ in range(3)]
    weights, buffers = func.stack_module_state(models)
    x = calque.randn(2, 1, 10, 10)
    got = vmap(lambda p, b: func.functional_call(models[0], (p, b), (x,)))(weights, buffers)
    near(got, calque.stack([m(x) for m in models]))
    got.sum().backward()
    assert all(w.grad is not None and w.is_leaf for w in weights.values())


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str) -> None:
    layer = getattr(calque.nn, kind)(3, 5)
    x = calque.randn(4, 7, 3)
    run = lambda a: layer(a)[0]  # noqa: E731
    slope = func.grad(lambda a: run(a).pow(2).sum())
    near(vmap(run)(x), calque.stack([run(a) for a in x]))
    near(vmap(slope)(x), calque.stack([slope(a) for a in x]))
    near(func.grad(lambda x: vmap(run)(x).pow(2).sum())(x), calque.stack([slope(a) for a in x]))
    weights = {name: p.detach() for name, p in layer.named_parameters()}
    by_weight = func.grad(lambda w, a: func.functional_call(layer, w, (a,))[0].pow(2).sum())
    found = vmap(by_weight, in_dims=(None, 0))(weights, x)
    for name in weights:
        near(found[name], calque.stack([by_weight(weights, a)[name] for a in x]))


# --------------------------------------------------------------------------------------------------------------- randomness


def test_random_numbers_are_refused_shared_or_different() -> None:
    x = calque.zeros(5, 100)
    with pytest.raises(BatchError, match=r"\[vmap\] called random operation while in randomness error mode"):
        vmap(lambda a: F.dropout(a + 1))(x)
    same = vmap(lambda a: a + calque.rand(100), randomness="same")(x)
    assert all(calque.equal(same[0], row) for row in same)
    calque.manual_seed(3)
    different = vmap(lambda a: a + calque.rand(100), randomness="different")(x)
    assert len({tuple(row.tolist()) for row in different}) == 5 and 0.4 < float(different.mean()) < 0.6
    calque.manual_seed(3)
    assert calque.equal(different, vmap(lambda a: a + calque.rand(100), randomness="different")(x))
    after = calque.rand(500)
    assert not set(after.tolist()) & set(different.reshape(-1).tolist())
    nested = vmap(lambda a: vmap(lambda b: b + calque.randn(()), randomness="different")(a), randomness="different")(x[:, :3])
    assert len(set(nested.reshape(-1).tolist())) == 15


def test_dropout_with_different_masks() -> None:
    got = vmap(lambda a: F.dropout(a, 0.5), randomness="different")(calque.ones(8, 64))
    assert set(got.reshape(-1).tolist()) == {0.0, 2.0} and len({tuple(r.tolist()) for r in got}) == 8


# ------------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("decide", [lambda a: a.sum().item(), lambda a: float(a[0]), lambda a: bool(a[0] > 0), lambda a: a.tolist(),
                                    lambda a: a.numpy(),
                                    lambda a: a[a > 0], lambda a: list(range(int(a[0])))])  # fmt: skip
def test_what_depends_on_one_value_is_refused(decide: Any) -> None:
    with pytest.raises(BatchError, match=r"vmap: It looks like you're calling .* 3 values, one per slice; expected no data-dependent control flow"):
        vmap(decide)(calque.ones(3, 2))
    captured = calque.tensor(2.0)
    assert vmap(lambda a: a * captured.item())(calque.ones(3, 2)).tolist() == [[2.0, 2.0]] * 3


def test_writes_into_what_is_captured_are_refused() -> None:
    total, count = calque.zeros(2), calque.zeros(())
    with pytest.raises(BatchError, match=r"\[vmap\] vmap: inplace arithmetic is not possible: expected a value that is the same for all 3 slices"):
        vmap(lambda a: total.add_(a))(calque.ones(3, 2))
    vmap(lambda a: (count.add_(1), a * count)[1])(calque.ones(3, 2))
    assert total.tolist() == [0.0, 0.0] and count.item() == 1.0


def test_values_do_not_leave_vmap() -> None:
    kept: list[Any] = []
    vmap(lambda a: (kept.append(a * 2), a)[1])(calque.ones(3, 2))
    with pytest.raises(AutogradError, match=r"\[vmap\] expected values of a transform to be used inside it, got one of shape \(2,\) that escaped"):
        (kept[0] + 1).sum().item()
    leaf = calque.ones(3, 2, requires_grad=True)
    with pytest.raises(BatchError, match=r"\[vmap\] expected gradients inside vmap to be asked for by calque.func or autograd.grad"):
        vmap(lambda a: ((a * 2).sum().backward(), a)[1])(leaf)


def test_a_transform_that_failed_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        vmap(lambda a: func.jvp(lambda b: b / (1 // 0), (a,), (a,)))(calque.ones(3))
    assert (calque.ones(2) * 2).tolist() == [2.0, 2.0]
    assert func.grad(lambda x: x * x)(calque.tensor(3.0)).item() == 6.0


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: vmap(lambda a: a, in_dims=[0])(x), r"\[vmap\] expected in_dims as an int or a tuple with one entry per argument of .*, got \[0\]"),
        (lambda x: vmap(lambda a: a, in_dims=(0.0,))(x), r"\[vmap\] expected an int or None as in_dim of argument 0"),
        (lambda x: vmap(lambda a: 1)(x), r"must only return Tensors"),
        (lambda x: vmap(lambda a: a, out_dims=2)(x), r"\[vmap\] expected an out_dim of a 2-d result, got 2"),
        (lambda x: vmap(lambda a: a, out_dims=None)(x), r"\[vmap\] expected a result that is the same for all slices where out_dims is None"),
        (lambda x: vmap(lambda a: a, out_dims=("x",))(x), r"\[vmap\] expected (ints or None as out_dims|out_dims of the structure)"),
        (lambda x: vmap(lambda a, b: a)(x, calque.ones(4)), r"Expected all tensors to have the same size in the mapped dimension, got sizes"),
        (lambda x: func.vjp(lambda a: 3, x), r"\[vjp\] Expected the function to return only tensors, got int"),
        (lambda x: func.grad(lambda a: a.sum(), argnums=(0, 0))(x), r"\[grad\] expected distinct argnums"),
        (lambda x: func.grad(lambda a: a)("x"), r"\[grad\] expected Tensors, got str"),
        (lambda x: func.jvp(lambda a: a, (x,), (x[0],)), r"\[jvp\] expected a tangent of the primal's shape \(3, 2\), got \(2,\)"),
        (lambda x: func.jvp(lambda a: a, (x,), (x.float(),)), r"\[jvp\] expected a tangent of the primal's dtype"),
        (lambda x: func.jvp(lambda a: a, (x.long(),), (x,)), r"\[jvp\] Expected primal to be floating point or complex"),
        (lambda x: func.linearize(lambda a: a, x)[1](x[0]), r"\[linearize\] expected a tangent of shape \(3, 2\)"),
        (lambda x: forward_ad.make_dual(x, x), r"\[make_dual\] Trying to create a dual Tensor for forward AD but no level exists"),
        (lambda x: forward_ad.exit_dual_level(), r"\[exit_dual_level\] Trying to exit a forward AD level"),
    ],
)
def test_messages(call: Any, text: str) -> None:
    with pytest.raises((ArgumentError, AutogradError, ValueError, TypeError, RuntimeError), match=text):
        call(calque.ones(3, 2))


# --------------------------------------------------------------------------------------------------- composition, user code


class Cube(calque.autograd.Function):
    """x cubed, with rules of its own for everything, all of them wrong by a factor, so that it shows who is asked."""

    @staticmethod
    def forward(x: Any) -> Any:
        return calque.tensor(x.detach().numpy() ** 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 30 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return t * 300 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:
        assert info.batch_size == 3 and in_dims == (0,)
        return Cube.apply(x), 0


class Constant(calque.autograd.Function):
    """Numbers that do not depend on x, with a gradient that does."""

    @staticmethod
    def forward(x: Any) -> Any:
        return calque.zeros(3)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


def test_gradients_through_numbers_that_depend_on_no_slice() -> None:
    """Each slice has a history of its own behind them."""
    rows = calque.tensor([[0.3, 1.2, 2.2], [0.5, 2.0, 3.0]])

    def f(x: Any) -> Any:
        return Constant.apply(x) * 2 + x * x

    leaf, twin = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    (vmap(f)(leaf) * rows).sum().backward()
    (calque.stack([f(row) for row in twin]) * rows).sum().backward()
    near(leaf.grad, twin.grad)
    near(func.jacrev(vmap(f))(rows)[1, :, 1], calque.diag(4 * rows[1]))


def test_second_derivatives_of_what_has_a_gradient_of_zero() -> None:
    """The first gradient has zeros in it that depend, by the graph, on every slice of those that are asked for."""
    image = calque.arange(9.0).reshape(1, 1, 3, 3)

    def f(x: Any) -> Any:
        return F.grid_sample(image, x.reshape(1, 3, 1, 1).expand(1, 3, 1, 2) * 0.2, align_corners=False).reshape(3)

    x = calque.tensor([0.3, 1.2, 2.2])
    near(func.jacrev(func.jacrev(f))(x), calque.stack([func.hessian(lambda v, k=k: f(v)[k])(x) for k in range(3)]))
    near(vmap(func.jacrev(func.jacrev(f)))(x[None])[0], func.jacfwd(func.jacrev(f))(x))


class Straight(calque.autograd.Function):
    """The sign, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


def test_functions_of_the_user_say_what_transforms_make_of_them() -> None:
    x = calque.tensor([1.0, 2.0, 3.0])
    assert vmap(Cube.apply)(x).tolist() == [1.0, 8.0, 27.0]
    assert vmap(func.grad(Cube.apply))(x).tolist() == [30.0, 120.0, 270.0]
    assert func.grad(lambda x: vmap(Cube.apply)(x).sum())(x).tolist() == [30.0, 120.0, 270.0]
    assert func.jvp(Cube.apply, (x,), (calque.ones(3),))[1].tolist() == [300.0, 1200.0, 2700.0]
    assert vmap(func.grad(lambda a: Straight.apply(a) * a))(x).tolist() == [2.0, 3.0, 4.0]
    assert func.grad(lambda x: vmap(lambda a: Straight.apply(a) * a)(x).sum())(x).tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(ForwardModeError, match="You must implement the jvp function for custom autograd.Function to use it with forward mode AD"):
        func.jvp(Straight.apply, (x,), (x,))


def test_gradients_through_vmap_follow_formulas_of_composites() -> None:
    """Second derivatives, through functions that have a gradient of their own, of all slices at once."""
    x = calque.randn(4, 6)
    run = lambda a: F.cross_entropy(F.layer_norm(a, (6,))[None], calque.tensor([2])) + F.gelu(a).logsumexp(0)  # noqa: E731
    near(func.hessian(lambda x: vmap(run)(x).sum())(x)[1, :, 1, :], func.hessian(run)(x[1]), 1e-9)
    near(vmap(func.hessian(run))(x), calque.stack([func.hessian(run)(a) for a in x]), 1e-9)
    near(func.jacrev(func.jacrev(run))(x[0]), func.jacfwd(func.jacfwd(run))(x[0]), 1e-9)


def test_backward_through_vmap_reaches_leaves_and_captured_tensors() -> None:
    w, x = calque.randn(3, requires_grad=True), calque.randn(4, 3, requires_grad=True)
    vmap(lambda a: (a * w).tanh().sum() ** 2)(x).sum().backward()
    got = (w.grad, x.grad)
    w.grad = x.grad = None
    sum(((a * w).tanh().sum() ** 2 for a in x), calque.tensor(0.0)).backward()
    near(got[0], w.grad)
    near(got[1], x.grad)


def test_hybridized_calls_of_transforms() -> None:
    one, (weights, x, y) = per_sample(4)
    every = vmap(one, in_dims=(None, 0, 0))
    compiled = calque.compile(lambda w, x, y: every(w, x, y)["body.0.weight"])
    for k in range(6):
        near(compiled(weights, x + k, y), every(weights, x + k, y)["body.0.weight"])
    inner = calque.compile(lambda a: (a * 2).sin())
    near(vmap(inner)(x), (x * 2).sin())
    drawn = calque.compile(lambda x: vmap(lambda a: a + calque.rand(()), randomness="different")(x))
    assert len({tuple(drawn(calque.zeros(3)).tolist()) for _ in range(6)}) == 6


def test_checks_hold_for_every_slice() -> None:
    table, index = calque.randn(5, 2), calque.tensor([0, 4, 2]) + calque.tensor([0, 0, 1])
    near(vmap(lambda i: F.embedding(i, table))(index), table[index])
    bad = calque.tensor([0, 9, 2]) + calque.tensor([0, 0, 0])
    with pytest.raises(IndexError):
        vmap(lambda i: F.embedding(i, table))(bad).sum().item()


def test_empty_batches_and_no_chunks() -> None:
    assert vmap(lambda a: a.sin().sum(0))(calque.ones(0, 3, 2)).shape == (0, 2)
    x = calque.randn(5, 3)
    for size in (1, 2, 5, 9):
        near(vmap(lambda a: a.cumsum(0), chunk_size=size)(x), x.cumsum(1))
    assert vmap(lambda a: {"s": a.sum(), "t": (a, a * 2)}, out_dims={"s": 0, "t": (1, 0)})(x)["t"][0].shape == (3, 5)


@pytest.mark.usefixtures("both_ways")
def test_forward_mode_levels() -> None:
    x, t = calque.tensor([1.0, 2.0]), calque.tensor([0.5, 0.25])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        assert forward_ad.unpack_dual(dual).tangent.tolist() == [0.5, 0.25] and dual.tolist() == [1.0, 2.0]
        with pytest.raises(AutogradError, match="Nested forward mode AD is not supported"):
            forward_ad.enter_dual_level()
        out = dual * dual if dual.sum() > 0 else dual
        assert forward_ad.unpack_dual(out).tangent.tolist() == [1.0, 1.0] and forward_ad.unpack_dual(x).tangent is None
        assert forward_ad.unpack_dual(dual.detach()).tangent is None
        buffer = calque.zeros(3)
        buffer[1:] = out
        assert forward_ad.unpack_dual(buffer.sum()).tangent.item() == 2.0
    assert (out + 1).tolist() == [2.0, 5.0] and buffer.tolist() == [0.0, 1.0, 4.0]
    assert forward_ad.unpack_dual(out) == (out, None)


def test_how_values_look() -> None:
    seen: list[str] = []
    vmap(lambda a: (seen.append(repr(a)), a)[1])(calque.tensor([1.0, 2.0]))
    func.jvp(lambda a: (seen.append(repr(a)), a)[1], (calque.tensor(1.0),), (calque.tensor(2.0),))
    assert seen == ["<vmap: () of tensor([1., 2.])>", "<jvp: () of tensor(1.)>"]


def test_transforms_of_transforms_agree() -> None:
    """Every order of two Jacobians of a function of vectors, and of `vmap` around and inside."""
    f = lambda x: calque.stack([x[0] ** 2 * x[1], calque.sin(x[1]) * x[2], x.prod()])  # noqa: E731
    x = calque.tensor([0.5, -1.5, 2.0])
    found = [outer(inner(f))(x) for outer, inner in itertools.product((func.jacrev, func.jacfwd), repeat=2)]
    for other in found[1:]:
        near(other, found[0])
    xs = calque.stack([x, 2 * x])
    for jacobian in (func.jacrev, func.jacfwd):
        near(vmap(jacobian(f))(xs), calque.stack([jacobian(f)(a) for a in xs]))
        near(jacobian(vmap(f))(xs)[0, :, 0], jacobian(f)(x))
        assert float(jacobian(vmap(f))(xs)[0, :, 1].abs().max()) == 0.0
    assert math.isclose(float(func.grad(func.grad(func.grad(lambda x: x**5)))(calque.tensor(2.0))), 240.0)


def test_a_value_that_moves_keeps_its_size() -> None:
    """Its tangent would be forgotten."""
    with pytest.raises(RuntimeError, match="cannot resize"):
        calque.func.jvp(lambda x: (x * 2).resize_(2, 2) * 3, (calque.arange(4.0),), (calque.ones(4),))


def test_out_dims_of_vmap() -> None:
    x = calque.arange(6.0).reshape(2, 3)
    assert calque.vmap(lambda v: v, out_dims=(1,))(x).tolist() == x.T.tolist()
    assert calque.vmap(lambda v: (v, "word"), out_dims=(0, None))(x)[1] == "word"
    assert calque.vmap(lambda v: (None, "word"), out_dims=(None, None))(x) == (None, "word")
    with pytest.raises(IndexError, match="expected an out_dim of a 2-d result, got 5"):
        calque.vmap(lambda v: v, out_dims=5)(x)
    with pytest.raises(ValueError, match="must only return Tensors"):
        calque.vmap(lambda v: "word")(x)
    with pytest.raises(ValueError, match="expected out_dims of the structure"):
        calque.vmap(lambda v: (v, v), out_dims=(1,))(x)


def test_an_index_of_every_slice() -> None:
    """A 0-d index that differs between slices gathers; its values are not read, also where another transform is between."""
    x, i = calque.arange(12.0).reshape(3, 4), calque.tensor([1, 3, 0])
    assert vmap(lambda a, j: a[j])(x, i).tolist() == [1.0, 7.0, 8.0]
    assert vmap(lambda a, j: a[j], (None, 0))(x, i % 3).tolist() == [x[1].tolist(), x[0].tolist(), x[0].tolist()]
    assert vmap(func.grad(lambda a, j: a[j] ** 2))(x, i).tolist() == [[0, 2, 0, 0], [0, 0, 0, 14], [16, 0, 0, 0]]
    values, tangents = vmap(lambda a: func.jvp(lambda b: b[(-b).argmax()] * b[b.argmax()], (a,), (calque.ones(4),)))(x)
    assert values.tolist() == [0.0, 28.0, 88.0] and tangents.tolist() == [3.0, 11.0, 19.0]
    with pytest.raises(BatchError, match=r"calling \.item\(\)"):
        vmap(lambda a, j: a * j.item())(x, i)


@pytest.mark.parametrize("f", [
    lambda x, w: (x * w).prod(), lambda x, w: (x @ w.T).cumprod(1).sum(), lambda x, w: calque.fft.rfft(x * w).abs().pow(3).sum(),
    lambda x, w: calque.linalg.inv(x @ w.T + 3 * calque.eye(2)).square().sum(), lambda x, w: F.max_pool1d((x * w)[None], 2).pow(3).sum(),
    lambda x, w: (x * w).softmax(1).square().sum(),
], ids=["prod", "cumprod", "rfft", "inv", "max_pool1d", "softmax"])  # fmt: skip
def test_transforms_ask_for_gradients_where_none_are_wanted(f: Any) -> None:
    """`no_grad` around a transform leaves results without a history; inside, what is the same for all slices has one all the same."""
    x, w = calque.randn(2, 3), calque.randn(2, 3).requires_grad_()
    weights = calque.tensor([1.0, -2.0])

    def found() -> list[Any]:
        of_x = functools.partial(f, w=w)
        return [
            *[outer(inner(of_x))(x) for outer, inner in itertools.product((func.jacrev, func.jacfwd), repeat=2)],
            vmap(lambda a: func.grad(lambda v: f(v, w) * a)(x))(weights), vmap(lambda a: func.grad(of_x)(x) * a)(weights),
            vmap(lambda a: func.jvp(of_x, (x,), (a * x,))[1])(weights), func.jvp(of_x, (x,), (x,))[1],
            vmap(lambda a: func.grad(lambda v: f(x * a, v))(w))(weights),
        ]  # fmt: skip

    wanted = found()
    with calque.no_grad():
        quiet = found()
    for a, b in zip(quiet, wanted, strict=True):
        assert not a.requires_grad and bool(b.detach().abs().max() > 1e-6)
        near(a, b, 1e-8)
    for a, b in itertools.combinations(quiet[:4], 2):  # second derivatives, in four ways
        near(a, b, 1e-8)


@pytest.mark.parametrize("f", [lambda x: x.cumprod(0).sum(), lambda x: calque.fft.rfft(x).abs().pow(3).sum()], ids=["cumprod", "rfft"])
def test_forward_mode_inside_of_a_level_where_no_gradient_is_wanted(f: Any) -> None:
    x, v, w = calque.randn(4), calque.randn(4), calque.randn(4).requires_grad_()
    found = []
    for wanted in (True, False):
        with calque.set_grad_enabled(wanted), forward_ad.dual_level():
            moved = func.jvp(f, (forward_ad.make_dual(x, v),), (v,))[1]
            found.append(forward_ad.unpack_dual(moved).tangent)
            assert forward_ad.unpack_dual(forward_ad.make_dual(x, v) * w).tangent.requires_grad is wanted
    near(found[1], found[0])
    near(found[1], v @ func.hessian(f)(x) @ v, 1e-8)


KINDS = {
    "grad": lambda x, b: func.grad(lambda w: (w * w * b).sum())(x).sum(), "jvp": lambda x, b: func.jvp(lambda w: w * w * b, (x,), (x,))[1].sum(),
    "vjp": lambda x, b: func.vjp(lambda w: w * w * b, x)[1](x)[0].sum(), "jacrev": lambda x, b: func.jacrev(lambda w: w * w * b)(x).sum(),
    "jacfwd": lambda x, b: func.jacfwd(lambda w: w * w * b)(x).sum(), "linearize": lambda x, b: func.linearize(lambda w: w * w * b, x)[1](x).sum(),
    "value": lambda x, b: func.vjp(lambda w: w * w * b, x)[0].sum(), "hessian": lambda x, b: func.hessian(lambda w: (w**3 * b).sum())(x).sum(),
}  # fmt: skip


def _kept_value(h: Any, kept: list[Any]) -> None:
    kept.append(h * 2)


def _kept_view(h: Any, kept: list[Any]) -> None:
    kept.append((h * 2).view(3))


def _written_buffer(h: Any, kept: list[Any]) -> None:
    kept.append(calque.zeros(3))
    kept[0].copy_(h)
    kept[0][1:].mul_(h[:2])


@pytest.mark.parametrize("keep", [_kept_value, _kept_view, _written_buffer])
@pytest.mark.parametrize("kind", KINDS)
def test_what_has_come_out_of_a_transform_is_an_argument_like_others(kind: str, keep: Any) -> None:
    """Its history leads to a handle that nobody asks for any more; transforms inside of the next one keep what leads to the handle on it."""
    kept: list[Any] = []
    x = calque.tensor([0.3, -0.7, 0.9])
    func.grad(lambda h: (keep(h, kept), (h * h).sum())[1])(x)
    (b,) = kept
    for transform in (func.grad, func.jacrev, func.jacfwd):
        near(transform(lambda b: KINDS[kind](x, b))(b), transform(lambda b: KINDS[kind](x, b))(b.detach().clone()))
        assert bool(transform(lambda b: KINDS[kind](x, b))(b).detach().abs().min() > 1e-3)


@pytest.mark.parametrize("write", [lambda v: v.mul_(2), lambda v: v[1:].mul_(2), lambda v: v.view(3).mul_(2), lambda v: v.__setitem__(0, 1.0)])
def test_writing_to_a_handle_on_a_tensor_with_a_history(write: Any) -> None:
    """It is a leaf to the function, on each level: the gradient would be that of what was written."""

    def inner(v: Any) -> Any:
        write(v)
        return (v * v * v).sum()

    x = calque.tensor([0.3, -0.7, 0.9])
    for around in (lambda x: x, lambda x: x * 1):
        with pytest.raises(AutogradError, match=r"\[in-place\] (a view of )?a leaf of shape \(3,\) is a leaf Variable that requires grad"):
            func.grad(lambda x, around=around: func.grad(inner)(around(x)).sum())(x)
    with calque.no_grad():
        near(func.grad(lambda v: (v * v).sum())(x), 2 * x)


@pytest.mark.parametrize("name", ["grad", "jacrev", "vjp"])
def test_gradients_of_what_does_not_move_where_none_is_wanted(name: str) -> None:
    """Inside of forward mode that was entered under no_grad: what does not move is what is differentiated."""
    x, p, w = calque.tensor([0.3, -0.7, 0.9]), calque.tensor([0.5, -0.2, 1.1]), calque.tensor([1.0, 2.0, 3.0], requires_grad=True)
    inner = {
        "grad": lambda x: func.grad(lambda v: (v.sin() * w * x).sum())(p), "jacrev": lambda x: func.jacrev(lambda v: v.sin() * w * x)(p).sum(0),
        "vjp": lambda x: func.vjp(lambda v: v.sin() * w * x, p)[1](calque.ones(3))[0],
    }[name]  # fmt: skip
    expected = func.jvp(inner, (x,), (p,))
    with calque.no_grad():
        found = func.jvp(inner, (x,), (p,))
        left = func.jvp(lambda x: (x * w, (p * w, (p * w)[1:])), (x,), (p,), has_aux=True)
    for a, b in zip(found, expected, strict=True):
        assert not a.requires_grad and bool(a.abs().min() > 1e-3)
        near(a, b)
    assert not any(t.requires_grad for t in (*left[:2], *left[2]))
