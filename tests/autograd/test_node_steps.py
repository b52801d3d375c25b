"""Gradients of functions that superinstructions compute: those of the function itself, in every pass, with the same graph and the same refusals."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import calque
from calque.autograd import node_steps, superinstruction
from calque.base.native import hot
from calque.nn import functional as F
from calque.record.recorder import local
from tests.autograd.test_steps import SAMPLES, forgotten, inner, tensors  # noqa: F401
from tests.bad_input.calls import Sample

pytestmark = [
    pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler"),
    pytest.mark.usefixtures("as_users"), pytest.mark.filterwarnings("ignore:reduction"),
]  # fmt: skip


def wanting(x: Any) -> list[Any]:
    """The tensors among arguments that may have a gradient, which want one now."""
    for t in tensors(x):
        t.detach().numpy()  # nothing is pending: what follows is computed where it is written
    return [t.requires_grad_() for t in tensors(x) if t.dtype.is_floating_point]


def differentiated(function: Callable[..., Any], given: tuple[Any, ...], seed: int, twice: bool) -> list[Any]:
    """Gradients of a weighted sum of all results, with second ones if `twice`, as arrays; names of the graph's first nodes."""
    x, rng = wanting(given), np.random.default_rng(seed)
    out = [t for t in tensors(function(*given)) if t.requires_grad]
    names = [t.grad_fn.name() for t in out]
    if not out:
        return names
    weights = [calque.tensor(rng.standard_normal(tuple(t.shape)).astype(np.float32)).to(t.dtype) for t in out]
    first = calque.autograd.grad(out, x, weights, create_graph=twice, allow_unused=True)
    found = list(first)
    again = [g for g in first if g is not None and g.requires_grad]
    if twice and again:
        found += calque.autograd.grad(sum((g * g).sum() for g in again), x, allow_unused=True)
    return [*names, *[None if g is None else g.detach().numpy().copy() for g in found]]


def fits(sample: Sample) -> bool:
    """Whether it has a gradient."""
    try:
        given = sample.arguments(calque, 0)
        return bool(wanting(given)) and len(differentiated(sample.function(calque), given, 0, False)) > len(tensors(sample.function(calque)(*given)))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # it is refused
        return False


DIFFERENTIABLE = [sample for sample in SAMPLES if fits(sample)]


@pytest.mark.parametrize("when", ["once", "twice", "twice at last"])
@pytest.mark.parametrize("sample", DIFFERENTIABLE, ids=str)
def test_gradients_of_later_calls_are_those_of_the_function(sample: Sample, when: str) -> None:
    function = sample.function(calque)
    for seed in range(5):
        twice = when == "twice" or (when != "once" and seed == 4)
        found = differentiated(function, sample.arguments(calque, seed), seed, twice)
        wanted = differentiated(inner(function).__wrapped__, sample.arguments(calque, seed), seed, twice)
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            if isinstance(b, np.ndarray):
                np.testing.assert_allclose(a, b, 2e-5, 2e-5)  # sums of other layouts
            else:
                assert a == b


def test_most_have_nodes_with_steps_from_the_third_call_on() -> None:
    assert len(DIFFERENTIABLE) > 60
    left = []
    for sample in DIFFERENTIABLE:
        superinstruction._known.clear()
        for seed in range(3):
            given = sample.arguments(calque, seed)
            wanting(given)
            found = [t for t in tensors(sample.function(calque)(*given)) if t.requires_grad]
        if not any(isinstance(getattr(t._grad_fn, "backward", None), node_steps.NodeSteps) for t in found):
            left.append(str(sample))
    assert len(left) < 0.25 * len(DIFFERENTIABLE), left


def softmaxes(times: int, then: Callable[[Any, Any], None]) -> None:
    for _ in range(times):
        x = calque.randn(3, 4, dtype=calque.float64).requires_grad_()
        then(x, F.softmax(x, 1))


def test_what_the_rule_needs_may_not_be_written_and_what_it_does_not_need_may() -> None:
    def refused(x: Any, y: Any) -> None:
        y.mul_(2.0)
        with pytest.raises(RuntimeError, match=r"SoftmaxBackward0 \(recorded at .*_steps.py:\d+\) needs its result .* modified by an inplace"):
            y.sum().backward()

    def fine(x: Any, y: Any) -> None:
        with calque.no_grad():
            x.mul_(2.0)
        y.sum().backward()

    softmaxes(5, refused)
    softmaxes(5, fine)
    for _ in range(5):
        x = calque.randn(4).requires_grad_()
        z = x * 1.0
        y = F.elu(z)
        z.mul_(2.0)
        with pytest.raises(RuntimeError, match="EluBackward0 .* needs its operand 0 .* modified by an inplace operation"):
            y.sum().backward()


JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "stack": lambda a, b: calque.stack([a, b]),
    "cat": lambda a, b: calque.cat([a, b]),
    "vstack": lambda a, b: calque.vstack([a, b]),
    "where": lambda a, b: calque.where(b.detach() > 0, a, b * b),
    "tril": lambda a, b: calque.tril(a[None] * 1.0 + calque.stack([b, b])),
    "index_copy": lambda a, b: (b * b).index_copy(0, calque.tensor([0]), a[:1]),
    "lerp": lambda a, b: calque.lerp(a, b * b, 0.5),
    "addcmul": lambda a, b: calque.addcmul(a, b, b),
    "addmm": lambda a, b: calque.addmm(a, b[:, None], b[None]),
}


@pytest.mark.parametrize("name", JOINED)
def test_operands_that_no_rule_is_given_may_be_written_before_a_second_derivative(name: str) -> None:
    """Also in the first pass that is differentiated again: the function is run once more then, of operands as they are now."""
    for turn in range(6):
        a, x = calque.randn(3, dtype=calque.float64), calque.randn(3, dtype=calque.float64).requires_grad_()
        a.numpy(), x.detach().numpy()
        y, again = JOINED[name](a, x * x), JOINED[name](a, x * x)
        wanted = calque.autograd.grad(again.sum(), x)[0].numpy()
        a.add_(1.0)
        (found,) = calque.autograd.grad(y.sum(), x, create_graph=turn > 3)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-12)


def test_operands_that_a_rule_is_given_may_not() -> None:
    for turn in range(6):
        a, x = calque.randn(3, dtype=calque.float64), calque.randn(3, dtype=calque.float64).requires_grad_()
        a.numpy(), x.detach().numpy()
        y = calque.addcmul(x, a, x * x)
        a.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            calque.autograd.grad(y.sum(), x, create_graph=turn > 3)


@pytest.mark.parametrize("name", ["linear", "std"])
def test_transforms_where_no_gradient_is_wanted_run_the_function_again_with_its_graph(name: str) -> None:
    w, b = calque.randn(2, 5, dtype=calque.float64), calque.randn(2, dtype=calque.float64)
    functions = {"linear": lambda x: F.linear(x.view(4, 5) * 2, w, b), "std": lambda x: calque.std(x.view(4, 5) * 2, 1)}
    flat = calque.randn(20, dtype=calque.float64)
    wanted = calque.func.jacrev(functions[name])(flat).numpy()
    superinstruction._known.clear()
    for _ in range(5):
        x = flat.clone().requires_grad_()
        functions[name](x).sum().backward()
        x.grad.numpy()
    with calque.no_grad():
        found = calque.func.jacrev(functions[name])(flat)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


def test_a_graph_is_there_once_unless_it_is_kept() -> None:
    def freed(x: Any, y: Any) -> None:
        total = y.square().sum()
        total.backward(retain_graph=True)
        kept = x.grad.clone()
        total.backward()
        np.testing.assert_array_equal(x.grad.numpy(), 2 * kept.numpy())
        with pytest.raises(RuntimeError, match="a second time"):
            total.backward()
        with pytest.raises(RuntimeError, match=r"SoftmaxBackward0 .*was freed"):
            y.backward(calque.ones_like(y))

    softmaxes(5, freed)


def test_hooks_and_kept_gradients_of_results() -> None:
    def hooked(x: Any, y: Any) -> None:
        seen: list[Any] = []
        y.register_hook(lambda g: seen.append(g) or g * 2)
        y.retain_grad()
        y[:, 0].sum().backward()
        once = calque.autograd.grad(F.softmax(x, 1)[:, 0].sum(), x)[0]
        assert len(seen) == 1 and y.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), 2 * once.numpy(), rtol=1e-12)

    softmaxes(5, hooked)


def test_a_recorded_pass_runs_the_function_again() -> None:
    """A large product stands behind small operations: what the pass does from there on is recorded, with gradients that are not there yet."""
    w = calque.randn(4, 40_000, dtype=calque.float64)

    def large(x: Any, y: Any) -> None:
        ((y @ w) @ w.t()).sum().backward()
        g = ((calque.ones(3, 4, dtype=calque.float64) @ w) @ w.t()).numpy()
        s = y.detach().numpy()
        np.testing.assert_allclose(x.grad.numpy(), s * (g - (g * s).sum(1, keepdims=True)), rtol=1e-9, atol=1e-9)

    softmaxes(5, large)


def test_what_is_watched_in_vain_is_no_part_of_a_program() -> None:
    """A layer whose product is large is recorded. Watching it, too, would make another program of its second call, and other bits."""
    layer, norm = calque.nn.Linear(40, 300), calque.nn.BatchNorm1d(300)
    x, labels = calque.randn(65, 40), calque.arange(65) % 8
    found = []
    for _ in range(4):
        for p in (*layer.parameters(), *norm.parameters()):
            p.grad = None
        x.numpy()
        F.cross_entropy(norm(layer(x))[:, :8], labels).backward()
        found.append([p.grad.numpy().copy() for p in (*layer.parameters(), *norm.parameters())])
    for again in found[1:]:
        for a, b in zip(again, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_one_tensor_in_two_places_and_one_that_wants_no_gradient() -> None:
    for _ in range(5):
        x = calque.randn(5, dtype=calque.float64).requires_grad_()
        calque.dot(x, x).backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * x.detach().numpy())
        x.grad = None
        F.mse_loss(x, x.detach() * 0.5, reduction="sum").backward()
        np.testing.assert_allclose(x.grad.numpy(), x.detach().numpy())
        assert not F.mse_loss(x.detach(), x.detach()).requires_grad
        target = (x.detach() * 0.5).requires_grad_()
        F.mse_loss(x.detach(), target, reduction="sum").backward()
        np.testing.assert_allclose(target.grad.numpy(), -x.detach().numpy())


def test_what_comes_before_the_operands_is_reached_twice() -> None:
    """A second derivative goes on through the history of the operands."""
    for _ in range(5):
        x = calque.randn(4, dtype=calque.float64).requires_grad_()
        (g,) = calque.autograd.grad(F.elu(x * x).sum(), x, create_graph=True)
        (h,) = calque.autograd.grad(g.sum(), x)
        np.testing.assert_allclose(h.numpy(), np.full(4, 2.0), rtol=1e-12)  # of x * x


def test_who_differentiates_twice_has_nodes_that_say_how() -> None:
    """A second derivative runs the function once more; from then on it makes the nodes itself, as a loop that does so does it at every turn."""
    kinds = []
    for _ in range(6):
        x = calque.randn(4, dtype=calque.float64).requires_grad_()
        x.detach().numpy()
        y = F.elu(x * x)
        kinds.append(y._grad_fn.backward.__class__ is node_steps.NodeSteps)
        (g,) = calque.autograd.grad(y.sum(), x, create_graph=True)
        (h,) = calque.autograd.grad(g.sum(), x)
        np.testing.assert_allclose(h.numpy(), np.full(4, 2.0), rtol=1e-12)
    assert kinds[0] is False and kinds.count(True) == 1 and kinds[-1] is False


@pytest.mark.parametrize("name", ["elu", "softmax", "std", "mean", "prod"])
def test_superinstructions_keep_no_memory_of_operands(name: str) -> None:
    x = calque.randn(3, 4)
    memory = x.numpy().copy()
    x = calque.from_numpy(memory)
    for _ in range(4):
        y = x.detach().requires_grad_()
        (F.softmax(y, 1) if name == "softmax" else F.elu(y) if name == "elu" else getattr(y, name)()).square().sum().backward()
        y.grad.numpy()
    buffer, array = weakref.ref(x._storage.buffer), weakref.ref(memory)
    del x, y, memory
    gc.collect()
    assert buffer() is None and array() is None


def test_functions_that_look_at_who_made_their_operands_say_so_at_every_call() -> None:
    """Warnings about probabilities in the place of their logarithms are no steps: they depend on the operand's history."""
    labels = calque.tensor([0, 1, 1])
    x = calque.randn(3, 4).requires_grad_()
    calque.nn.functional.cross_entropy(x, labels).backward()
    for _ in range(4):
        F.nll_loss(x, labels)
    told = import_module("calque.nn.functional.cross_entropy")._told
    before = set(told)
    told.clear()
    try:
        with pytest.warns(UserWarning, match="the input is the result of softmax"):
            F.nll_loss(F.softmax(x, 1), labels)
    finally:
        told |= before


@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("grad", [False, True])
def test_labels_within_the_classes_may_be_left_out(loss: str, grad: bool) -> None:
    """All labels lie within 0..C-1, one of which is `ignore_index`: nothing may be believed about who is left out."""
    scores = calque.randn(4, 3, dtype=calque.float64).log_softmax(1).numpy()
    function = getattr(F, loss)
    for kept in ([0, 1, 2, 3], [1, 2, 3], [0, 2, 3], [0], [3, 1], [1, 2, 3]):
        labels = np.array([k % 2 + 1 if k in kept else 0 for k in range(4)])
        x, target = calque.tensor(scores), calque.tensor(labels)
        x.detach().numpy(), target.numpy()
        found = function(x.requires_grad_(grad), target, ignore_index=0)
        assert found.item() == pytest.approx(-np.mean([scores[k, labels[k]] for k in kept]))
        if grad:
            found.backward()
            assert (np.abs(x.grad.numpy()).sum(1) > 0).tolist() == [k in kept for k in range(4)]


@pytest.mark.parametrize("write", ["data", "no_grad"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_what_becomes_of_operands_is_nothing_to_a_pass_that_is_recorded(name: str, write: str) -> None:
    """A gradient that is not there yet goes through a node whose operand has been written since, of which it needs the result alone."""
    big = calque.ones(400, 400, dtype=calque.float64)
    rng = np.random.default_rng(3)
    for _ in range(6):
        x = calque.tensor(rng.standard_normal((3, 4))).requires_grad_()
        y, again = getattr(F, name)(x, 1), getattr(F, name)(x, 1)
        g = calque.tensor(rng.standard_normal(tuple(y.shape)))
        (wanted,) = calque.autograd.grad(again, x, g)
        if write == "data":
            x.data.mul_(3.0)
        else:
            with calque.no_grad():
                x.mul_(3.0)
        (found,) = calque.autograd.grad(y, x, g + (big @ big).sum() * 0.0)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-12)


def test_gradients_of_more_layouts_than_are_known() -> None:
    for k in range(node_steps.KINDS + 4):
        x = calque.randn(3, 4, dtype=calque.float64).requires_grad_()
        y, again = F.softmax(x, 1), F.softmax(x, 1)
        g = calque.randn(3, 4 * (k + 2), dtype=calque.float64)[:, :: k + 2]
        g.numpy()
        with calque.no_grad():
            x.mul_(3.0)
        found, wanted = calque.autograd.grad(y, x, g)[0].numpy(), calque.autograd.grad(again, x, g.clone())[0].numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_operands_that_want_no_gradient_any_more() -> None:
    for _ in range(5):
        x, w = calque.randn(3, 4).requires_grad_(), calque.randn(4).requires_grad_()
        y, z = F.layer_norm(x, (4,), w), F.elu(x)
        x.requires_grad_(False)
        z.square().sum().backward(create_graph=True)
        (g,) = calque.autograd.grad((y**3).sum(), w, create_graph=True)
        assert x.grad is None
        np.testing.assert_allclose(g.detach().numpy(), (3 * y * y * F.layer_norm(x, (4,))).sum(0).detach().numpy(), rtol=1e-4, atol=1e-4)


def test_operands_keep_their_memory_while_steps_run() -> None:
    """A routine of NumPy's lets other threads run, which may give an operand other values meanwhile."""
    x = calque.full((7000,), 1.0)
    x.numpy()
    for _ in range(4):
        x.cummax(0)
    trace = local.state.trace
    before, junk = trace.quietly, []

    def meanwhile(function: Any, *given: Any) -> Any:
        found = before(function, *given)
        x.data = calque.full((7000,), 2.0)
        junk.extend(np.full(7000, -7.0, np.float32) for _ in range(4))
        return found

    trace.quietly = meanwhile
    try:
        values, indices = x.cummax(0)
    finally:
        trace.quietly = before
    assert junk and (values.numpy() == 1.0).all() and (indices.numpy() == np.arange(7000)).all()


def test_a_kept_gradient_of_an_earlier_pass_stays_as_it_is() -> None:
    """Passes through one graph add to the gradient that a result keeps, not into what somebody holds of it."""
    x = calque.tensor([1.0, 2.0]).requires_grad_()
    y = x * 3.0
    y.retain_grad()
    total = y.square().sum()
    total.backward(retain_graph=True)
    first = y.grad
    total.backward()
    np.testing.assert_array_equal(first.numpy(), [6.0, 12.0])
    np.testing.assert_array_equal(y.grad.numpy(), [12.0, 24.0])


@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
def test_labels_and_weights_that_the_gradient_needs_may_not_be_written(loss: str) -> None:
    """From the first call on: the formula of the gradient reads them, not only the loss."""
    for _ in range(5):
        x, labels = calque.randn(4, 3).requires_grad_(), calque.tensor([0, 1, 2, 1])
        labels.numpy()
        found = getattr(F, loss)(x, labels)
        labels.zero_()
        with pytest.raises(RuntimeError, match=r"NllLossBackward0 .* needs its operand 1 .* modified by an inplace operation"):
            found.backward()
        if loss == "cross_entropy":
            labels, weight = calque.tensor([0, 1, 2, 1]), calque.rand(3)
            found = F.cross_entropy(x, labels, weight, label_smoothing=0.1)
            weight.mul_(2.0)
            with pytest.raises(RuntimeError, match=r"NllLossBackward0 .* modified by an inplace operation"):
                found.backward()
