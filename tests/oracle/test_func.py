"""Function transforms against `torch.func`: values, shapes and whether results require gradients, in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import calque

pytestmark = pytest.mark.oracle

CASES: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {}
_rng = np.random.default_rng(17)
ARRAYS: dict[str, Any] = {
    "v": _rng.normal(size=3), "x": _rng.normal(size=(4, 3)), "w": _rng.normal(size=(3, 5)), "X": _rng.normal(size=(4, 6, 8)),
    "M": _rng.normal(size=(4, 3, 3)) + 3 * np.eye(3), "i": np.array([[0, 2], [1, 1], [2, 0], [0, 1]]), "images": _rng.normal(size=(6, 3, 8, 8)),
    "k1": _rng.normal(size=(4, 3, 3, 3)), "k2": _rng.normal(size=(4, 2, 3, 3)), "l": _rng.normal(size=(5, 16)), "y": np.arange(6) % 5,
    "z": _rng.normal(size=(4, 3)) + 1j * _rng.normal(size=(4, 3)),
}  # fmt: skip


def case(*names: str) -> Any:
    """Register `function(t, F, f, *arrays)`: the library, its functions, its transforms."""

    def add(function: Any) -> Any:
        CASES[function.__name__] = (function, names)
        return function

    return add


def leaves(value: Any) -> list[Any]:
    """Tensors of nested containers, in order of their keys."""
    if isinstance(value, dict):
        return [leaf for k in sorted(value) for leaf in leaves(value[k])]
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, (tuple, list)) else [value]


def outcome(t: Any, function: Any, names: tuple[str, ...]) -> list[tuple[Any, bool]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = leaves(function(t, t.nn.functional, t.func, *[t.tensor(ARRAYS[n].copy()) for n in names]))
    return [(r.detach().numpy(), r.requires_grad) for r in found]


# ------------------------------------------------------------------------------------------------------------------- cases


@case("x", "w")
def vmap_of_grad(t, F, f, x, w):
    return t.vmap(f.grad(lambda a, w: (a @ w).tanh().sum()), (0, None))(x, w), t.vmap(f.grad(lambda w, a: (a @ w).tanh().sum()), (None, 0))(w, x)


@case("x", "w")
def grad_of_vmap(t, F, f, x, w):
    return f.grad(lambda w: t.vmap(lambda a: (a @ w).tanh().sum())(x).sum())(w)


@case("v")
def higher_orders(t, F, f, v):
    def g(a):
        return (a.sin() * a.roll(1)).prod()

    cube = f.grad(lambda a: f.grad(lambda b: (b**4).sum() * b[0])(a).sum())
    return cube(v), f.hessian(g)(v), f.jacrev(f.jacrev(g))(v), f.jacfwd(f.jacfwd(g))(v), f.jacrev(f.jacfwd(g))(v), f.jacfwd(f.jacrev(f.grad(g)))(v)


@case("x", "w")
def jacobians_of_containers(t, F, f, x, w):
    g = lambda a, b: {"p": F.log_softmax(a @ b, -1), "q": (a.sum(), b.prod())}  # noqa: E731
    return f.jacrev(g, argnums=(0, 1))(x, w), f.jacfwd(g, argnums=(0, 1))(x, w), f.jacrev(g, argnums=1, chunk_size=3)(x, w)


@case("x")
def with_aux(t, F, f, x):
    g = lambda a: (a.sin().sum(), {"twice": a * 2})  # noqa: E731
    return (
        f.grad(g, has_aux=True)(x), f.grad_and_value(g, has_aux=True)(x), f.jacrev(g, has_aux=True)(x), f.jacfwd(g, has_aux=True)(x),
        f.vjp(g, x, has_aux=True)[1](t.ones(())), f.jvp(g, (x,), (x,), has_aux=True),
    )  # fmt: skip


@case("x", "w")
def vmap_of_vmap(t, F, f, x, w):
    return t.vmap(t.vmap(lambda a, b: (a * b).sum(), (None, 1)), (0, None))(x, w), t.vmap(t.vmap(f.grad(lambda a: a**3)))(x)


@case("x")
def vmap_of_hessian(t, F, f, x):
    return t.vmap(f.hessian(lambda a: F.softplus(a).sum() * a.norm()))(x)


@case("x", "w")
def grad_of_jvp(t, F, f, x, w):
    g = lambda a: F.gelu(a @ w).cumsum(0).prod(1)  # noqa: E731
    return f.grad(lambda a: f.jvp(g, (a,), (a.sin(),))[1].sum())(x), f.jvp(f.grad(lambda a: g(a).sum()), (x,), (x.cos(),))


@case("x")
def linearize_and_vjp(t, F, f, x):
    g = lambda a: (a.sin().sum(0), a * a)  # noqa: E731
    value, push = f.linearize(g, x)
    out, pull = f.vjp(g, x)
    return value, push(x), push(x.cos()), out, pull((t.ones(3), x)), pull((t.zeros(3), x.sin()))


@case("x")
def dims_and_containers(t, F, f, x):
    return (
        t.vmap(lambda a: a.sort(descending=True)[0].cumsum(0) + a.argmax(), in_dims=1, out_dims=-1)(x),
        t.vmap(lambda d: {"a": d["x"] + d["y"][0]}, in_dims=({"x": 0, "y": (1,)},), out_dims={"a": 1})({"x": x, "y": (x.t(),)}),
        t.vmap(lambda a, b: (a + b[0], b[1].sum()), in_dims=(-1, (None, 1)))(x, (x[:, 0], x)),
        t.vmap(lambda a: a.add(1).mul_(2).add_(a), chunk_size=3)(x), t.vmap(lambda a: (a, x.sum()), out_dims=(1, 0))(x),
    )  # fmt: skip


@case("x")
def writes(t, F, f, x):
    y = x.clone()
    sums = t.vmap(lambda a: a.mul_(3).sum())(y)

    def g(a):
        b = a.clone()
        b[0] = a[1]
        b[1:] *= 2
        b[1:].view(-1).add_(a[0])
        return b

    def fill(a):
        out = t.zeros_like(a)
        out[0] = a.sum()
        out[1:] += a[:2]
        return out

    return (
        sums, y, t.vmap(g)(x), t.vmap(f.jacrev(g))(x), t.vmap(f.jacfwd(g))(x), f.jacrev(t.vmap(g))(x), t.vmap(fill)(x), f.jacfwd(fill)(x[0]),
        f.jacrev(t.vmap(fill))(x),
    )  # fmt: skip


@case("images", "k1", "k2", "l", "y")
def per_sample_gradients(t, F, f, images, k1, k2, last, y):
    def loss(k1, k2, last, x, y):
        h = F.max_pool2d(F.relu(F.conv2d(x[None], k1, padding=1)), 2)
        h = F.avg_pool2d(F.conv2d(h, k2, padding=1, groups=2).tanh(), 2)
        return F.cross_entropy(h.flatten(1) @ last.t(), y[None])

    return t.vmap(f.grad(loss, argnums=(0, 1, 2)), (None, None, None, 0, 0))(k1, k2, last, images, y), t.vmap(
        f.grad_and_value(loss), (None, None, None, 0, 0), out_dims=(1, 0)
    )(k1, k2, last, images, y)


@case("v", "x")
def autograd_functional(t, F, f, v, x):
    A, g, h = t.autograd.functional, lambda a: (a.sin() * a.roll(1)).prod(), lambda a, b: (a @ b.t(), (a * b).sum())
    fast = {"vectorize": True, "strategy": "forward-mode"}
    y = x.cos()
    return (
        A.jacobian(lambda a: a.sin() @ y.t(), x, **fast), A.jacobian(h, (x, y), **fast), A.jacobian(lambda a, b: a * b, (x, y), **fast),
        A.jacobian(h, (x, y), vectorize=True), A.jacobian(lambda a: (a, a.sum()), x, **fast),
        # PyTorch leaves a history on these.
        A.hessian(g, v, vectorize=True, outer_jacobian_strategy="forward-mode").detach(),
        [h.detach() for h in leaves(A.hessian(lambda a, b: (a * b).sum() ** 2, (v, v + 1), vectorize=True, outer_jacobian_strategy="forward-mode"))],
    )  # fmt: skip


def filled(model):
    rng = np.random.default_rng(5)
    for p in model.parameters():
        library = torch if isinstance(p, torch.Tensor) else calque
        p.data.copy_(library.tensor(rng.normal(size=tuple(p.shape)) * 0.3))
    return model


@case("X", "i", "x")
def modules(t, F, f, X, i, x):
    attention = filled(t.nn.MultiheadAttention(8, 2, batch_first=True))
    weights = {k: v.detach() for k, v in attention.named_parameters()}
    norm, words, line = filled(t.nn.GroupNorm(2, 6)), filled(t.nn.Embedding(5, 4)), filled(t.nn.Linear(3, 2))
    layer = filled(t.nn.LayerNorm(3))
    return (
        t.vmap(lambda a: attention(a, a, a, need_weights=False)[0])(X),
        t.vmap(f.grad(lambda p, a: f.functional_call(attention, p, (a, a, a))[0].pow(2).sum()), (None, 0))(weights, X),
        t.vmap(f.grad(lambda a: norm(a[None]).pow(3).sum()))(X), t.vmap(words)(i), t.vmap(line)(x), f.jvp(line, (x,), (x.sin(),)),
        t.vmap(f.hessian(lambda a: layer(a).pow(3).sum()))(x), t.vmap(lambda a: t.nn.BatchNorm1d(6).eval()(a[None])[0])(X),
    )  # fmt: skip


@case("x")
def ensembles(t, F, f, x):
    models = [filled(t.nn.Sequential(t.nn.Linear(3, 4), t.nn.Tanh(), t.nn.Linear(4, 1))) for _ in range(3)]
    weights, buffers = f.stack_module_state(models)
    call = lambda p, b, a: f.functional_call(models[0], (p, b), (a,))  # noqa: E731
    return t.vmap(call, (0, 0, None))(weights, buffers, x), t.vmap(f.grad(lambda p, b, a: call(p, b, a).sum()), (0, 0, None))(weights, buffers, x)


@case("M")
def factorizations(t, F, f, M):
    eye = t.eye(3)
    functions = [
        t.linalg.inv, t.linalg.det, lambda a: t.linalg.slogdet(a)[1], lambda a: t.linalg.cholesky(a @ a.mT + eye),
        lambda a: t.linalg.eigh(a + a.mT)[0], lambda a: t.linalg.svd(a)[1], lambda a: t.linalg.qr(a)[1].abs(), lambda a: t.linalg.solve(a, a[0]),
        t.linalg.matrix_exp,
    ]  # fmt: skip
    return [
        (t.vmap(g)(M), t.vmap(f.grad(lambda a, g=g: g(a).sum()))(M), f.jvp(g, (M[0],), (M[1],)), f.grad(lambda m, g=g: t.vmap(g)(m).sum())(M))
        for g in functions
    ]


@case("X", "i", "x")
def indices(t, F, f, X, i, x):
    return (
        t.vmap(lambda a, j: a[j])(X, i), t.vmap(lambda a, j: a[:, j], (0, None))(X, i[0]), t.vmap(lambda a, j: a[j, 1:3], (None, 0))(X[0], i),
        t.vmap(lambda a, j: a.clone().index_put((j,), t.ones(8)))(X, i), t.vmap(lambda a, j: a.gather(0, j))(x, i),
        t.vmap(lambda a, j: t.zeros(3).scatter_add(0, j, a[:2]))(x, i), t.vmap(lambda a, j: t.zeros(6, 8).index_add(0, j, a[:2]))(X, i),
        t.vmap(f.grad(lambda a, j: a[j].pow(2).sum()), (0, 0))(X, i), t.vmap(lambda a, j: a.index_select(1, j), (0, None))(X, i[1]),
        t.vmap(lambda a, j: a[j])(X, i[:, 0]), t.vmap(lambda a, j: a[j, 1:3], (None, 0))(X[0], i[0]), t.vmap(lambda a, j: a[1:, j[0]])(X, i),
        t.vmap(lambda a, j: a[j[0], j[1]])(X, i), t.vmap(lambda a: a[0, a[0].argmax()])(X),
        t.vmap(t.vmap(lambda a, j: a[j]))(X, X[:, :, 0].long() * 0 + 5),
    )  # fmt: skip


@case("X")
def reductions_and_shapes(t, F, f, X):
    def reduced(a):
        return (
            a.sum(), a.mean(0), a.var(1), a.std(), a.amax(0), a.logsumexp(1), a.prod(0), a.norm(), a.cumsum(1), a.cumprod(0), a.max(), a.min(1)[0],
            a.topk(2, 0)[0], a.sort(1)[0], a.median(), a.kthvalue(2, 0)[0], a.flip(0).roll(1, 1), a.argmin(1), (a > 0).any(1), (a > 0).sum(),
        )  # fmt: skip

    def moved(a):
        return (
            a.reshape(3, 16), a.t().contiguous(), a.view(-1), a.unfold(0, 2, 2), a.diagonal(), t.stack([a, a]), t.cat([a, a], 1), a.expand(2, 6, 8),
            a.split(2)[1], a.chunk(3)[2], a.tril(), a.unflatten(1, (2, 4)), a.repeat(2, 1), F.pad(a, (1, 1)), t.einsum("ij,kj->ik", a, X[0]),
            a.masked_fill(a > 0, -1.0).clamp(-2, 1) + t.where(a > 1, a, 0.0), F.interpolate(a[None, None], scale_factor=2.0, mode="bilinear"),
        )  # fmt: skip

    return t.vmap(reduced)(X), t.vmap(moved)(X), f.jvp(lambda a: reduced(a)[:12], (X[0],), (X[1],)), f.jvp(moved, (X[0],), (X[1],))


@case("X")
def losses_and_attention(t, F, f, X):
    def loss(a):
        return (
            F.mse_loss(a, a.roll(1)) + F.smooth_l1_loss(a, a * 2) + F.kl_div(a.log_softmax(0), a.softmax(0))
            + F.binary_cross_entropy_with_logits(a, a.sigmoid().detach())
        )  # fmt: skip

    def attended(a):
        return F.scaled_dot_product_attention(a[None], a[None], a[None], is_causal=True)

    return t.vmap(f.grad(loss))(X), f.jvp(loss, (X,), (X.sin(),)), t.vmap(attended)(X), t.vmap(f.grad(lambda a: attended(a).pow(2).sum()))(X)


@case("X", "x")
def what_stops_gradients(t, F, f, X, x):
    def without(a):
        with t.no_grad():
            b = a * 2
        return (b * a).sum()

    def stopped(a):
        return (a.detach() * a).sum()

    with t.no_grad():
        outside = f.grad(lambda a: (a * a).sum())(X)
    return (
        outside, f.grad(without)(X), t.vmap(f.grad(without))(X), f.grad(lambda a: t.vmap(without)(a).sum())(X), f.jvp(without, (X,), (X,)),
        f.grad(stopped)(X), f.jvp(stopped, (X,), (X,)), t.vmap(f.grad(stopped))(X), f.grad(lambda a: t.vmap(lambda b: (b * 0).norm())(a).sum())(X),
        f.vjp(lambda a: x, X)[1](x), f.jvp(lambda a: x, (X,), (X,)),
    )  # fmt: skip


@case("X")
def captured_tensors_keep_their_gradients(t, F, f, X):
    w = X[0].clone().requires_grad_()
    inner, outer = f.grad(lambda a: (a * w).pow(2).sum())(X[1]), t.vmap(lambda a: (a * w).sum())(X)
    both = t.vmap(f.grad(lambda a: (a * w).pow(2).sum()))(X)
    moved = f.jvp(lambda a: a * w, (X[1],), (X[2],))
    return inner, outer, both, moved, t.autograd.grad(inner.sum() + outer.sum() + both.sin().sum() + moved[1].sin().sum(), w)


@case("X")
def vmap_of_a_backward_pass(t, F, f, X):
    y = X[0].requires_grad_()
    out = y.sin() @ y.t()
    return t.vmap(lambda v: t.autograd.grad(out, y, v, retain_graph=True)[0])(t.eye(36).reshape(36, 6, 6))


@case("x", "z")
def complex_numbers(t, F, f, x, z):
    g = lambda a: t.view_as_real(t.complex(a, a * 2) * t.complex(a, -a))  # noqa: E731
    h = lambda a: t.fft.rfft(a).abs()  # noqa: E731
    return (
        t.vmap(g)(x), f.jvp(g, (x,), (x.sin(),)), t.vmap(h)(x), f.jvp(h, (x,), (x.sin(),)), t.vmap(f.grad(lambda a: h(a).sum()))(x),
        f.jvp(lambda a: (a.exp() * a.conj()).prod(1), (z,), (z.sin(),)), f.jvp(lambda a: (a.abs(), a.sgn(), a.real * a.imag), (z,), (z.cos(),)),
        t.vmap(lambda a: a.exp().sum())(z),
    )  # fmt: skip


@case("x", "v")
def dual_numbers(t, F, f, x, v):
    forward = __import__(f"{t.__name__}.autograd.forward_ad", fromlist=["x"])
    with forward.dual_level():
        dual = forward.make_dual(x, x.sin())
        out = (dual @ v).softmax(0) * dual[:, 0]
        buffer = t.zeros(4)
        buffer[1:] = out[:3]
        plain = forward.unpack_dual(x)
        assert plain.tangent is None
        found = [*forward.unpack_dual(out), *forward.unpack_dual(buffer), *forward.unpack_dual(dual.t())]
    assert forward.unpack_dual(out).tangent is None
    leaf = v.clone().requires_grad_()
    with forward.dual_level():
        tangent = forward.unpack_dual((forward.make_dual(leaf, v) ** 3).sum()).tangent
    return found, out + 1, tangent, t.autograd.grad(tangent, leaf)


@pytest.mark.parametrize("name", CASES)
def test_transforms_agree_with_torch_func(name: str) -> None:
    function, names = CASES[name]
    before, theirs_before = calque.get_default_dtype(), torch.get_default_dtype()
    calque.set_default_dtype(calque.float64), torch.set_default_dtype(torch.float64)
    try:
        ours, theirs = outcome(calque, function, names), outcome(torch, function, names)
    finally:
        calque.set_default_dtype(before), torch.set_default_dtype(theirs_before)
    assert len(ours) == len(theirs)
    for k, ((got, needs), (want, expected)) in enumerate(zip(ours, theirs, strict=True)):
        assert got.shape == want.shape and got.dtype == want.dtype, (k, got.shape, want.shape, got.dtype, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10, err_msg=f"result {k}")
        assert needs == expected, f"result {k}: requires_grad {needs}, PyTorch {expected}"


BAD: dict[str, Callable[..., Any]] = {
    "item": lambda t, x: t.vmap(lambda a: a.sum().item())(x),
    "branch": lambda t, x: t.vmap(lambda a: a if a.sum() > 0 else -a)(x),
    "no inputs": lambda t, x: t.vmap(lambda: x)(),
    "in_dims of another structure": lambda t, x: t.vmap(lambda a, b: a, in_dims=(0,))(x, x),
    "in_dim out of range": lambda t, x: t.vmap(lambda a: a, in_dims=2)(x),
    "nothing mapped": lambda t, x: t.vmap(lambda a: a, in_dims=None)(x),
    "in_dim of a number": lambda t, x: t.vmap(lambda a, b: a, in_dims=(0, 0))(x, 3.0),
    "sizes differ": lambda t, x: t.vmap(lambda a, b: a, in_dims=(0, 1))(x, x),
    "not a tensor": lambda t, x: t.vmap(lambda a: 3.0)(x),
    "out_dims of another structure": lambda t, x: t.vmap(lambda a: a, out_dims=(0, 0))(x),
    "randomness": lambda t, x: t.vmap(lambda a: a, randomness="some")(x),
    "random numbers": lambda t, x: t.vmap(lambda a: a + t.randn(3))(x),
    "chunk_size": lambda t, x: t.vmap(lambda a: a, chunk_size=0)(x),
    "write into what is captured": lambda t, x: t.vmap(t.zeros(3).add_)(x),
    "grad of a vector": lambda t, x: t.func.grad(lambda a: a)(x),
    "grad of a number": lambda t, x: t.func.grad(lambda a: 3.0)(x),
    "argnums": lambda t, x: t.func.grad(lambda a: a.sum(), argnums=1)(x),
    "aux": lambda t, x: t.func.grad(lambda a: a.sum(), has_aux=True)(x),
    "jvp structure": lambda t, x: t.func.jvp(lambda a: a, (x,), (x, x)),
    "jvp lists": lambda t, x: t.func.jvp(lambda a: a, x, x),
    "jvp strict": lambda t, x: t.func.jvp(lambda a: t.ones(1), (x,), (x,), strict=True),
    "cotangents": lambda t, x: t.func.vjp(lambda a: (a, a), x)[1](x),
    "functionalize": lambda t, x: t.func.functionalize(lambda a: a, remove="views")(x),
    "stack of nothing": lambda t, x: t.func.stack_module_state([]),
    "stack of two classes": lambda t, x: t.func.stack_module_state([t.nn.Linear(1, 1), t.nn.ReLU()]),
    "strategy": lambda t, x: t.autograd.functional.jacobian(lambda a: a, x, strategy="some"),
    "forward mode without vectorize": lambda t, x: t.autograd.functional.jacobian(lambda a: a, x, strategy="forward-mode"),
    "forward mode with a graph": lambda t, x: t.autograd.functional.jacobian(lambda a: a, x, True, vectorize=True, strategy="forward-mode"),
    "integers": lambda t, x: t.func.grad(lambda a: a.sum())(t.arange(3)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_torch_func_refuses_is_refused_by_the_same_class(name: str) -> None:
    with warnings.catch_warnings(), pytest.raises(Exception) as theirs:
        warnings.simplefilter("ignore")  # PyTorch says once that a part of it is old: whichever test comes first would take that for the refusal
        BAD[name](torch, torch.ones(4, 3))
    with pytest.raises(Exception, match=r"^\[\w+\] ") as ours:
        BAD[name](calque, calque.ones(4, 3))
    kind = next(k for k in theirs.type.__mro__ if k.__module__ == "builtins")
    assert isinstance(ours.value, kind), (ours.type, theirs.type)


@pytest.mark.parametrize("given", [
    {"x": [0.0, 0.0]}, {"extra": [2.0, 3.0]}, {"none": [1.0, 1.0]}, {"linear.bias": [1.0, 2.0]}, {"linear.extra": [1.0]}, {"b": [5.0]},
    {"x": [0.0, 0.0], "linear.weight": None},
])  # fmt: skip
def test_functional_call_reaches_every_attribute(given: dict[str, Any]) -> None:
    """Tensors that are no parameters or buffers too, and names that are not there; and what the call assigns is told."""
    results = []
    for m in (torch, calque):

        class Module(m.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.x, self.none = m.ones(2), None  # noqa: B023
                self.linear = m.nn.Linear(2, 2, bias=False)  # noqa: B023
                m.nn.init.ones_(self.linear.weight)  # noqa: B023
                self.register_buffer("b", m.zeros(1))  # noqa: B023

            def forward(self, i: Any) -> Any:
                self.b = self.b + 1
                out = i * self.x if self.linear.weight is None else self.linear(i) * self.x
                out = out + self.b + (0 if self.none is None else self.none)
                return out + self.extra if hasattr(self, "extra") else out

        module = Module()
        tensors = {name: None if v is None else m.tensor(v) for name, v in given.items()}
        out = m.func.functional_call(module, tensors, m.ones(2))
        told = {name: None if v is None else v.tolist() for name, v in tensors.items()}
        left = module.x.tolist(), module.none, module.b.tolist(), hasattr(module, "extra"), hasattr(module.linear, "extra"), module.linear.bias
        with pytest.raises(TypeError):
            m.func.functional_call(module, {"forward": m.ones(2)}, m.ones(2))
        results.append((out.tolist(), told, left))
    assert results[0] == results[1]
