"""`autograd.graph`: functions through which goes what is saved, hooks of several tensors, edges in the place of tensors."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque import nn
from calque.autograd import Function, grad
from calque.autograd.graph import (
    disable_saved_tensors_hooks,
    get_gradient_edge,
    increment_version,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)
from calque.base.config import settings
from calque.record.recorder import local


def same(t: Any) -> Any:
    return t


def numbers(*shape: int) -> calque.Tensor:
    count = calque.ones(shape).numel()
    return calque.linspace(-1.0, 1.5, count, dtype=calque.float64).view(shape)


class Times(Function):
    """A function of the user's, which saves operands and a result."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        out = x * y
        ctx.save_for_backward(x, y, out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y, out = ctx.saved_tensors
        return g * y + 0 * out, g * x


# What is computed -> operands. What is saved of each is of another kind: operands, results, both, contexts of formulas, tensors of a user's function.
FUNCTIONS: dict[str, Any] = {
    "mul": lambda x: x * x.sin(),
    "exp": lambda x: x.exp() / (1 + x.sigmoid()),
    "matmul": lambda x: (x @ x.t()).tanh(),
    "views": lambda x: x.t()[1:].reshape(-1).square().cumsum(0),
    "writes": lambda x: calque.zeros(3, 4, dtype=x.dtype).copy_(x * x).mul_(x).relu(),
    "softmax": lambda x: nn.functional.log_softmax(x, -1) * nn.functional.softmax(x, 0),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (4,)) ** 3,
    "conv": lambda x: nn.functional.conv2d(x.view(1, 1, 3, 4), x[:2, :2].reshape(1, 1, 2, 2)).exp(),
    "gelu": lambda x: nn.functional.gelu(x) * nn.functional.silu(x),
    "user": lambda x: Times.apply(x, x.cos()) * 2,
    "turned": lambda x: (x.t() * 2).exp() * x.t(),
    "where": lambda x: calque.where(x > 0, x * x, x.exp()).amax(0),
}


@pytest.mark.parametrize("eager", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_computed_from_what_was_unpacked(name: str, eager: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first and second order. Nothing of what was packed is used instead: where it is overwritten, gradients are others."""
    monkeypatch.setattr(settings, "eager", eager)
    function = FUNCTIONS[name]

    def orders(pack: Any, unpack: Any) -> list[Any]:
        x = numbers(3, 4).requires_grad_()
        if pack is None:
            out = function(x)
        else:
            with saved_tensors_hooks(pack, unpack):
                out = function(x)
        (first,) = grad(out.sum(), x, create_graph=True)
        (second,) = grad(first.sin().sum(), x)
        return [out, first, second]

    packed: list[Any] = []
    for _ in range(3):
        plain = orders(None, None)
        packed.clear()
        for a, b in zip(plain, orders(lambda t: (packed.append(t), t.numpy().copy())[1], calque.tensor), strict=True):
            calque.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        assert packed
        assert not any(t.requires_grad for t in packed)
        wrong = orders(same, lambda t: t * 3 + 1 if t.is_floating_point() else t)
        assert calque.equal(plain[0], wrong[0])
        assert not calque.allclose(plain[1], wrong[1])


def test_the_innermost_block_counts_and_nothing_else_is_packed() -> None:
    log: list[str] = []
    a = calque.ones(2, requires_grad=True)

    def noted(name: str) -> Any:
        return saved_tensors_hooks(lambda t: (log.append(name), t)[1], same)

    with noted("outer"):
        calque.ones(2).exp()
        with calque.no_grad():
            a.exp()
        y = a.exp()
        with noted("inner"):
            z = y.exp()
        w = z.exp()
    w.exp().sum().backward()
    assert log == ["outer", "inner", "outer"]


def test_whole_steps_inside_of_a_block() -> None:
    """Backward passes, optimizers, reads, hybridized calls and vmap go on as they do without."""
    found = []
    for block in (False, True):
        weight, optimizer = nn.Parameter(numbers(4)), None
        optimizer = calque.optim.Adam([weight], lr=0.1)
        call = calque.compile(lambda w: (calque.func.vmap(lambda t: t * t)(w) * numbers(4)).sum())
        context = saved_tensors_hooks(lambda t: t.clone(), same) if block else calque.enable_grad()
        with context:
            for _ in range(5):
                optimizer.zero_grad()
                loss = call(weight)
                if loss.item() < 1e9:
                    loss.backward()
                optimizer.step()
        found.append(weight.tolist())
    assert found[0] == found[1]


def test_a_packed_graph_is_spent_by_a_pass() -> None:
    a = calque.ones(2, requires_grad=True)
    with saved_tensors_hooks(same, same):
        y = (a * a).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_what_the_functions_may_not_do() -> None:
    a = calque.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="pack hook is modifying its input in place"), saved_tensors_hooks(lambda t: t.mul_(2), same):
        (a * 1).exp()
    for wrong, error in (([], TypeError), (calque.ones(3), ValueError)):
        with saved_tensors_hooks(same, lambda _, wrong=wrong: wrong):
            y = a.exp()
        with pytest.raises(error, match=r"\[saved_tensors_hooks\]"):
            y.sum().backward()
    with saved_tensors_hooks(same, same), pytest.raises(NotImplementedError, match="got VarBackward0, whose formula keeps them to itself"):
        a.var()
    with saved_tensors_hooks(same, same):
        a.detach().var()
    with pytest.raises(RuntimeError, match="expected a block outside of transforms"):
        calque.func.vmap(lambda t: saved_tensors_hooks(same, same).__enter__())(a)
    with disable_saved_tensors_hooks("not now"), pytest.raises(RuntimeError, match="not now"), saved_tensors_hooks(same, same):
        pass
    with save_on_cpu():
        (a.exp().var() + a[0] ** 2).backward()
    assert a.grad is not None
    assert a.grad.tolist() == [2, 0]


def test_blocks_that_functions_of_the_user_open_and_close() -> None:
    """What ends is what began last, whoever asks; a thread is as it was when all have ended."""

    def closing(t: Any) -> Any:
        first.__exit__()
        return t

    def opening(t: Any) -> Any:
        third.__enter__()
        return t

    for kind in ("unpack", "pack"):
        first = saved_tensors_hooks(closing, same) if kind == "pack" else saved_tensors_hooks(same, closing)
        for _ in range(3):
            with saved_tensors_hooks(same, same):
                first.__enter__()
                x = calque.ones(3, requires_grad=True)
                x.sin().sum().backward()
                assert x.grad is not None
            (x * x).sum().backward()
        third = saved_tensors_hooks(same, same)
        with saved_tensors_hooks(opening, same) if kind == "pack" else saved_tensors_hooks(same, opening):
            x.sin().sum().backward()
        third.__exit__()
    with pytest.raises(RuntimeError, match="got one too many"):
        first.__exit__()
    assert not local.state.trace.transforms
    assert local.state.plain
    assert (calque.ones(2) * 2).tolist() == [2, 2]


def test_hooks_of_several_tensors() -> None:
    log: list[Any] = []
    a, b = calque.ones(2, requires_grad=True), calque.ones(2, requires_grad=True)
    c, d = a * b, a * b
    handle = register_multi_grad_hook([a, b, c, d], lambda found: log.append([g is not None for g in found]))
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=[a], retain_graph=True)
    (c + d).sum().backward(retain_graph=True)
    assert log == [[True, True, True, False], [True, False, True, False], [True] * 4]
    handle.remove()
    c.sum().backward(retain_graph=True)
    assert len(log) == 3
    with register_multi_grad_hook([c, d], lambda g: log.append(g.tolist()), mode="any"):
        (c * 2 + d).sum().backward()
    assert len(log) == 4
    with pytest.raises(ValueError, match="Expects mode to be one of"):
        register_multi_grad_hook([a], same, mode="some")
    with pytest.raises(TypeError, match="expected Tensors, got int"):
        register_multi_grad_hook([1], same)  # type: ignore[list-item]


def test_edges_in_the_place_of_tensors() -> None:
    a = calque.ones(2, requires_grad=True)
    c = a * 2
    first, second = c.split(1)
    edges = [get_gradient_edge(t) for t in (a, c, second)]
    total = get_gradient_edge((second * 3).sum())
    assert [e.output_nr for e in edges] == [0, 0, 1]
    assert [g.tolist() for g in grad([total], edges, retain_graph=True)] == [[0, 6], [0, 3], [3]]
    (given,) = grad(edges[1], edges[0], calque.tensor([3.0, 4.0]), retain_graph=True)
    assert given.tolist() == [6, 8]
    (nothing,) = grad(first.sum(), edges[2], retain_graph=True, allow_unused=True)
    assert nothing is None
    calque.autograd.backward(second.sum(), inputs=[edges[0]])
    assert a.grad is not None
    assert a.grad.tolist() == [0, 2]
    (a * 2).sum().backward(inputs=edges[0])
    assert a.grad.tolist() == [2, 4]
    calque.autograd.backward(c.sum(), inputs=[edges[1]])  # a node keeps no gradient
    assert a.grad.tolist() == [2, 4]
    with pytest.raises(RuntimeError, match="does not require gradients"):
        get_gradient_edge(calque.ones(1))


def test_a_counted_write_is_noticed() -> None:
    a = calque.ones(2, requires_grad=True)
    b = a * 1
    y = b.exp() * b
    increment_version(b)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
