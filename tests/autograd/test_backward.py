"""backward and grad: accumulation, graph lifetime, hooks, leaves, and every error message."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest

import calque
from calque import nn
from calque.autograd import engine
from calque.base.errors import AutogradError


def leaf(*values: float) -> Any:
    return calque.tensor(list(values), requires_grad=True)


def here() -> str:
    """The text `file:` that messages about this file contain."""
    return __file__ + ":"


# ------------------------------------------------------------------------------------------------------ values


def test_scalar_chain() -> None:
    w = calque.tensor(2.0, requires_grad=True)
    y = w**2
    z = 10 * y + 25
    z.backward()
    assert w.grad.item() == 40.0


def test_gradient_argument() -> None:
    a, b = leaf(2.0, 3.0), leaf(6.0, 4.0)
    q = 3 * a**3 - b**2
    q.backward(gradient=calque.tensor([1.0, 1.0]))
    assert a.grad.tolist() == [36.0, 81.0]
    assert b.grad.tolist() == [-12.0, -8.0]


def test_gradients_accumulate_until_zeroed() -> None:
    w = leaf(1.0)
    for expected in (3.0, 6.0):
        (w * 3).sum().backward()
        assert w.grad.tolist() == [expected]
    alias = w.grad
    w.grad.zero_()
    (w * 3).sum().backward()
    assert w.grad.tolist() == [3.0] and alias.tolist() == [3.0]  # accumulated in place


def test_two_leaves_do_not_share_their_gradient() -> None:
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (a + b).sum().backward()
    a.grad.mul_(5)
    assert b.grad.tolist() == [1.0, 1.0]


def test_only_leaves_that_require_gradients_get_them() -> None:
    w, x = leaf(1.0), calque.tensor([2.0])
    (w * x).sum().backward()
    assert x.grad is None and not x.requires_grad and x.is_leaf
    assert w.grad.tolist() == [2.0]


def test_update_under_no_grad() -> None:
    w = leaf(1.0, 2.0)
    (w * w).sum().backward()
    with calque.no_grad():
        w -= 0.1 * w.grad
    assert w.requires_grad and w.is_leaf
    assert calque.allclose(w.detach(), calque.tensor([0.8, 1.6]))


def test_diamond_and_reuse() -> None:
    x = leaf(3.0)
    y = x * x
    (y * y + y).sum().backward()
    assert x.grad.tolist() == [4 * 27.0 + 6.0]


def test_broadcast_operands_get_their_own_shape() -> None:
    a, b = calque.ones(2, 1, requires_grad=True), calque.ones(3, requires_grad=True)
    (a * b * 2).sum().backward()
    assert a.grad.tolist() == [[6.0], [6.0]] and b.grad.tolist() == [4.0, 4.0, 4.0]


def test_gradient_has_the_leaf_dtype() -> None:
    x = leaf(1.0, 2.0)
    (x.double() * 3).sum().backward()
    assert x.grad.dtype is calque.float32


def test_setting_requires_grad_on_a_result() -> None:
    total = calque.zeros(())
    loss = calque.tensor([1.0, 2.0]).mean()
    loss.requires_grad = True
    total = total + loss
    total.backward()
    assert loss.grad.item() == 1.0 and loss.is_leaf


# ------------------------------------------------------------------------------------------------- graph lifetime


def test_retain_graph() -> None:
    x = leaf(2.0)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad.tolist() == [8.0]


def test_second_backward_names_both_lines() -> None:
    x = leaf(2.0)
    loss = (x * x).sum()
    loss.backward()
    with pytest.raises(AutogradError, match="retain_graph=True") as caught:
        loss.backward()
    text = str(caught.value)
    assert "second time" in text and "MulBackward0" in text and text.count(here()) == 2


def test_graph_without_saved_values_may_run_twice() -> None:
    x = leaf(2.0)
    loss = (x + 1).sum()
    loss.backward()
    loss.backward()
    assert x.grad.tolist() == [2.0]


def test_the_graph_is_freed_with_its_result() -> None:
    x = leaf(2.0)
    y = x * 3.0
    node = weakref.ref(y._grad_fn)
    gc.disable()
    try:
        del y
        assert node() is None
    finally:
        gc.enable()


def test_an_operation_that_saves_its_result_makes_no_cycle() -> None:
    x = leaf(2.0)
    gc.disable()
    try:
        y = x.exp()
        node = weakref.ref(y._grad_fn)
        del y
        assert node() is None
    finally:
        gc.enable()


def test_deep_graphs_need_no_recursion() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y + 1.0
    y.sum().backward()
    assert x.grad.tolist() == [1.0]
    del y


def test_wide_graphs() -> None:
    x = leaf(1.0)
    sum((x * float(k) for k in range(300)), calque.zeros(1)).sum().backward()
    assert x.grad.tolist() == [float(sum(range(300)))]


# ------------------------------------------------------------------------------------------------------- errors


def test_non_scalar_without_gradient() -> None:
    with pytest.raises(AutogradError, match="grad can be implicitly created only for scalar outputs") as caught:
        (leaf(1.0, 2.0) * 2).backward()
    assert "(2,)" in str(caught.value) and "gradient=" in str(caught.value)


def test_no_gradient_anywhere_names_the_leaf() -> None:
    x = calque.ones(2, 3)
    with pytest.raises(AutogradError, match="does not require grad and does not have a grad_fn") as caught:
        (x * 2).sum().backward()
    text = str(caught.value)
    assert "a leaf of shape (2, 3) lacks requires_grad" in text and "no_grad()" in text and here() in text


def test_wrong_gradient_shape() -> None:
    with pytest.raises(ValueError, match="Mismatch in shape") as caught:
        (leaf(1.0, 2.0) * 2).backward(calque.ones(3))
    assert "(3,)" in str(caught.value) and "(2,)" in str(caught.value)


def test_gradient_must_be_a_tensor() -> None:
    with pytest.raises(TypeError, match="Tensors or None"):
        (leaf(1.0, 2.0) * 2).backward([1.0, 1.0][0])


def test_modified_saved_value_names_both_lines() -> None:
    x = leaf(1.0, 2.0)
    y = x * 3.0
    z = y * y
    y += 1.0
    with pytest.raises(AutogradError, match="modified by an inplace operation") as caught:
        z.sum().backward()
    text = str(caught.value)
    assert "MulBackward0" in text and text.count(here()) == 2 and "version 1" in text and "expected version 0" in text


def test_in_place_on_a_leaf() -> None:
    w = leaf(1.0)
    w._name = "weight"
    with pytest.raises(AutogradError, match="a leaf Variable that requires grad") as caught:
        w += 1.0
    assert "'weight'" in str(caught.value) and "no_grad()" in str(caught.value)
    assert w.tolist() == [1.0] and w._version == 0


def test_in_place_on_a_view_of_a_leaf() -> None:
    w = leaf(1.0, 2.0)
    with pytest.raises(AutogradError, match="a view of"):
        w[0] = 3.0


def test_requires_grad_on_integers() -> None:
    with pytest.raises(TypeError, match=r"torch.int64"):
        calque.tensor([1, 2]).requires_grad_()
    with pytest.raises(TypeError, match="floating point"):
        calque.tensor([1, 2], requires_grad=True)


def test_requires_grad_of_a_result_cannot_be_cleared() -> None:
    y = leaf(1.0) * 2
    with pytest.raises(AutogradError, match=r"leaf variables.*MulBackward0.*detach") as caught:
        y.requires_grad = False
    assert here() in str(caught.value)
    y.requires_grad = True
    assert y.requires_grad


def test_grad_assignment_is_checked() -> None:
    w = leaf(1.0, 2.0)
    with pytest.raises(TypeError, match="float"):
        w.grad = 1.0
    with pytest.raises(ValueError, match=r"expected \(2,\), got \(3,\)"):
        w.grad = calque.ones(3)
    with pytest.raises(TypeError, match="float64"):
        w.grad = calque.ones(2, dtype=calque.float64)
    w.grad = calque.ones(2)
    del w.grad
    assert w.grad is None


def test_reading_grad_of_a_result_warns() -> None:
    y = leaf(1.0) * 2
    with pytest.warns(UserWarning, match="not a leaf Tensor"):
        assert y.grad is None
    y.retain_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y.sum().backward()
        assert y.grad.tolist() == [1.0] and y.retains_grad


# --------------------------------------------------------------------------------------------------------- grad


def test_grad_leaves_grad_alone() -> None:
    x = leaf(3.0)
    (g,) = calque.autograd.grad((x**3).sum(), x)
    assert g.tolist() == [27.0] and x.grad is None


def test_grad_of_inner_tensors_and_second_order() -> None:
    x = leaf(2.0)
    y = x * x
    z = (y * y).sum()
    gy, gx = calque.autograd.grad(z, [y, x], create_graph=True)
    assert gy.tolist() == [8.0] and gx.tolist() == [32.0]
    (second,) = calque.autograd.grad(gx.sum(), x)
    assert second.tolist() == [48.0]


def test_gradient_penalty() -> None:
    x = leaf(1.0, 2.0)
    (g,) = calque.autograd.grad((x**3).sum(), x, create_graph=True)
    (g**2).sum().backward()
    assert x.grad.tolist() == [36.0, 288.0]


def test_unused_inputs() -> None:
    x, y = leaf(1.0), leaf(2.0)
    out = (x * 2).sum()
    with pytest.raises(AutogradError, match="allow_unused=True"):
        calque.autograd.grad(out, [x, y], retain_graph=True)
    assert calque.autograd.grad(out, [x, y], retain_graph=True, allow_unused=True)[1] is None
    assert calque.autograd.grad(out, [x, y], materialize_grads=True)[1].tolist() == [0.0]
    with pytest.raises(AutogradError, match="does not require grad"):
        calque.autograd.grad((x * 2).sum(), calque.ones(1))


def test_batched_gradients() -> None:
    x = leaf(1.0, 2.0)
    (g,) = calque.autograd.grad(x * x, x, calque.eye(2), is_grads_batched=True)
    assert g.tolist() == [[2.0, 0.0], [0.0, 4.0]]


def test_inputs_of_backward() -> None:
    x, y = leaf(1.0), leaf(2.0)
    h = x * 3.0
    (h * y).sum().backward(inputs=[x])
    assert x.grad.tolist() == [6.0] and y.grad is None
    h = x * 3.0
    h.retain_grad()
    (h * y).sum().backward(inputs=[y])
    assert y.grad.tolist() == [3.0] and x.grad.tolist() == [6.0]


def test_several_roots() -> None:
    x = leaf(1.0, 2.0)
    calque.autograd.backward([x * 2, x.sum()], [calque.ones(2), None])
    assert x.grad.tolist() == [3.0, 3.0]


# -------------------------------------------------------------------------------------------------------- hooks


def test_hooks_on_leaves_and_results() -> None:
    seen = []
    x = leaf(1.0)
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: seen.append(g.item()))
    y.sum().backward()
    assert x.grad.tolist() == [20.0] and seen == [20.0]
    handle.remove()
    handle.remove()
    with pytest.raises(AutogradError, match="doesn't require gradient"):
        calque.ones(1).register_hook(print)


@pytest.mark.parametrize("write", [lambda y: y.mul_(3.0), lambda y: y[1:].mul_(3.0), lambda y: y.fill_(1.0), lambda y: y.copy_(y * 2)])
def test_retained_gradient_is_that_of_the_last_value(write: Any) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    y.retain_grad()
    write(y)
    assert y.retains_grad
    (y * calque.tensor([5.0, 7.0])).sum().backward()
    assert y.grad.tolist() == [5.0, 7.0]


def test_a_copy_has_a_history_of_its_own() -> None:
    x = leaf(1.0, 2.0)
    z = x * 2
    y = calque.zeros(2).copy_(z)
    y.register_hook(lambda g: g * 10)
    y.retain_grad()
    z.retain_grad()
    (y * 3 + z).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist(), z.grad.tolist()) == ([62.0, 62.0], [30.0, 30.0], [31.0, 31.0])


def test_what_is_written_over_whole_has_a_gradient_of_zeros() -> None:
    """As in PyTorch: an optimizer goes on with its momentum where `.grad` is zero, and leaves alone where there is none."""
    value = calque.tensor([3.0, 4.0], requires_grad=True)
    writes = [lambda x: x.copy_(value), lambda x: x.copy_(value.detach()), lambda x: x.fill_(value[0]), lambda x: x.fill_(1.0), lambda x: x.zero_()]
    for write in writes:
        leaf = calque.tensor([1.0, 2.0], requires_grad=True)
        x = leaf * 2
        write(x)
        (x * 3).sum().backward()
        assert leaf.grad is not None and leaf.grad.tolist() == [0.0, 0.0]
    assert value.grad.tolist() == [3.0 + 6.0, 3.0]


@pytest.mark.parametrize("at_leaf", [True, False])
@pytest.mark.parametrize(
    ("result", "kind", "text"),
    [
        (lambda g: 3, TypeError, r"expected None or a Tensor from the hook .*<lambda> \(.*py:\d+\), got int 3; return the new gradient alone"),
        (lambda g: (g,), TypeError, r"expected None or a Tensor from the hook .*, got tuple"),
        (lambda g: calque.ones(1), RuntimeError, r"expected a gradient of shape \(2,\) from the hook .*, got \(1,\); a hook may not change the size"),
        (lambda g: g.double(), RuntimeError, r"expected a gradient of dtype torch.float32 from the hook .*, got torch.float64; convert it"),
    ],
)
def test_what_a_hook_may_return(result: Any, kind: type, text: str, at_leaf: bool) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    (x if at_leaf else y).register_hook(result)
    with pytest.raises(kind, match=r"\[register_hook\] " + text):
        y.sum().backward()


def test_a_hook_after_accumulation_returns_nothing() -> None:
    x = leaf(1.0, 2.0)
    x.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))
    with pytest.raises(RuntimeError, match=r"\[register_post_accumulate_grad_hook\] expected None from the hook .*<lambda> \(.*\), got a value"):
        x.sum().backward()


def test_post_accumulate_hook_runs_each_time() -> None:
    x = leaf(1.0)
    seen: list[float] = []
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.item()))
    for _ in range(2):
        (x * 2).sum().backward()
    assert seen == [2.0, 4.0]
    with pytest.raises(AutogradError, match="non-leaf"):
        (x * 2).register_post_accumulate_grad_hook(print)


# ------------------------------------------------------------------------------------------- leaves, data, detach


def test_names_of_nodes() -> None:
    x = leaf(1.0)
    y = x * 2 + 1
    assert y.grad_fn.name() == "AddBackward0"
    assert y.grad_fn.next_functions[0][0].name() == "MulBackward0"
    assert x.grad_fn is None and y.output_nr == 0


def test_detach_shares_memory() -> None:
    x = leaf(1.0, 2.0)
    d = x.detach()
    d[0] = 5.0
    assert x.tolist() == [5.0, 2.0] and not d.requires_grad
    x.data.add_(1.0)
    assert x.tolist() == [6.0, 3.0] and x.grad_fn is None
    x.data = calque.zeros(2)
    assert x.tolist() == [0.0, 0.0] and x.requires_grad


def test_operations_under_no_grad_have_no_history() -> None:
    x = leaf(1.0)
    with calque.no_grad():
        y = x * 2
        with calque.enable_grad():
            z = x * 2
    assert not y.requires_grad and z.requires_grad
    with calque.inference_mode():
        assert not (x * 2).requires_grad
    with calque.set_grad_enabled(False):
        assert not calque.is_grad_enabled()
    assert calque.is_grad_enabled()


def test_modes_around_functions_and_generators() -> None:
    @calque.inference_mode()
    def inferring() -> tuple[bool, bool]:
        return calque.is_grad_enabled(), calque.is_inference_mode_enabled()

    @calque.no_grad()
    def steps() -> Any:
        seen = [calque.is_grad_enabled()]
        try:
            yield seen
        except KeyError:
            seen.append(calque.is_grad_enabled())
            yield seen
        finally:
            seen.append(calque.is_grad_enabled())

    assert inferring() == (False, True) and calque.inference_mode(lambda: calque.is_inference_mode_enabled())()
    generator = steps()
    seen = next(generator)
    assert calque.is_grad_enabled()
    generator.throw(KeyError())
    assert calque.is_grad_enabled()
    generator.close()
    assert calque.is_grad_enabled() and seen == [False, False, False]
    with pytest.raises(ZeroDivisionError), calque.inference_mode():
        1 / 0  # noqa: B018
    assert calque.is_grad_enabled() and not calque.is_inference_mode_enabled()


def test_integer_results_have_no_history() -> None:
    x = leaf(1.0, 2.0)
    assert not (x > 1).requires_grad and not x.argmax().requires_grad and not x.long().requires_grad


def test_in_place_operations_keep_the_history_right() -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    y += x
    y[0] *= 3.0
    y.sum().backward()
    assert x.grad.tolist() == [9.0, 3.0]


def test_gradients_of_many_joined_tensors_ask_for_every_shape_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    original = engine.SavedContext.shape

    def shape(self: Any, position: int) -> Any:
        nonlocal asked
        asked += 1
        return original(self, position)

    monkeypatch.setattr(engine.SavedContext, "shape", shape)
    count = 300
    parts = [calque.ones(1 + k % 3).requires_grad_(True) for k in range(count)]
    joined = calque.cat(parts)
    joined.backward(calque.arange(float(joined.numel())))
    assert asked <= 4 * count
    assert [p.grad.tolist() for p in parts[:4]] == [[0.0], [1.0, 2.0], [3.0, 4.0, 5.0], [6.0]]


@pytest.mark.parametrize(("before", "now"), [((2, 1, 3), (2, 2, 3)), ((3,), (1, 3))])
def test_a_leaf_that_has_changed_its_shape_since_it_got_a_gradient(before: tuple[int, ...], now: tuple[int, ...]) -> None:
    """As in PyTorch: the sum would not fit into the gradient that is there. The other way round it is broadcast."""
    x = calque.ones(before).requires_grad_()
    (x * 2).sum().backward()
    x.data = calque.ones(now)
    with pytest.raises(RuntimeError, match=r"\[backward\] expected a gradient of the shape .* set its .grad to None first"):
        (x * 3).sum().backward()
    assert x.grad.tolist() == calque.full(before, 2.0).tolist()
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.tolist() == calque.full(now, 3.0).tolist()


def test_a_leaf_that_has_become_smaller_since_it_got_a_gradient() -> None:
    x = calque.ones(2, 3).requires_grad_()
    (x * 2).sum().backward()
    x.data = calque.ones(1, 3)
    (x * 3).sum().backward()
    assert x.grad.tolist() == [[5.0] * 3] * 2


def test_leaves_have_gradients_of_their_own_that_can_be_differentiated() -> None:
    """With create_graph=True the gradient of a sum is one value for both of its operands; a write to one of them is not seen in the other."""
    x, y = calque.tensor([1.0, 2.0], requires_grad=True), calque.tensor([3.0, 4.0], requires_grad=True)
    ((x + y) ** 2).sum().backward(create_graph=True)
    assert x.grad is not None and y.grad is not None
    x.grad.detach().zero_()
    assert x.grad.tolist() == [0, 0] and y.grad.tolist() == [8, 12]
    (again,) = calque.autograd.grad(y.grad.sum(), [x])
    assert again.tolist() == [2, 2]
    y.grad.detach_()
    assert not y.grad.requires_grad


def test_hooks_of_leaves_come_behind_all_others() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    seen: list[str] = []
    for name, layer in net.named_children():
        layer.register_full_backward_hook(lambda *_, name=name: seen.append(name))
    for name, p in net.named_parameters():
        p.register_hook(lambda _, name=name: seen.append(f"gradient {name}"))
        p.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(f"grad {name}"))
    net(calque.ones(1, 2, requires_grad=True)).sum().backward()
    leaves = [word for name in ("2.bias", "2.weight", "0.bias", "0.weight") for word in (f"gradient {name}", f"grad {name}")]
    assert seen == ["2", "1", "0", *leaves]


@pytest.mark.parametrize("size", [3, 300])
def test_a_leaf_that_is_frozen_before_the_backward_pass_gets_no_gradient(size: int) -> None:
    """Nor do its hooks behind the gradient run; those of the gradient do. Turned on again, it has gradients."""
    w, v = calque.ones(size, size, requires_grad=True), calque.ones(size, size, requires_grad=True)
    seen: list[str] = []
    for turn in range(8):
        if turn == 6:
            w.register_hook(lambda g: seen.append("hook"))
            w.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
        loss = (w * 2 + v).sum()
        w.requires_grad_(turn % 2 == 0)
        w.grad = v.grad = None
        loss.backward()
        assert v.grad[0, 0].item() == 1.0 and (w.grad is None if turn % 2 else w.grad[0, 0].item() == 2.0)
        w.requires_grad_(True)
    assert seen == ["hook", "after", "hook"]
