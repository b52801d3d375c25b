"""Hybridized calls give what the same calls give as written: values, gradients, state, random numbers, errors; and nothing is frozen silently."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import AutogradError
from tests.hybrid.common import batch, counts, learned, perceptron, reasons, replays, same

# ------------------------------------------------------------------------------------------------------------- modules


def test_values_of_a_module_without_gradients() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    with calque.no_grad():
        for k in range(6):
            same(plain(batch(k)), hybrid(batch(k)))
        assert learned(lambda: hybrid(batch(9))) == 1


def test_gradients_of_a_module_and_of_its_input() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    for k in range(7):
        x, y = batch(k).requires_grad_(), batch(k).requires_grad_()
        (plain(x * 2.0) ** 2).sum().backward()
        (hybrid(y * 2.0) ** 2).sum().backward()
        same(x.grad, y.grad)
        for p, q in zip(plain.parameters(), hybrid.parameters(), strict=True):
            same(p.grad, q.grad)  # accumulated over the iterations
    assert learned(lambda: hybrid(batch(0).requires_grad_()).sum().backward()) == 2  # forward, and its gradient


def test_no_python_of_the_function_runs() -> None:
    runs = []

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            seen(x)
            return x * 3.0

    def seen(x: Any) -> None:
        note()

    def note() -> None:
        runs.append  # noqa: B018 - reached by the guards, changed by nobody
        sum(1 for _ in ())

    net = Net().hybridize()
    x = batch(0)
    learned(lambda: net(x))
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        net(x)
    finally:
        sys.setprofile(None)
    assert "forward" not in called and "seen" not in called


def test_switching_off_goes_back() -> None:
    net = perceptron().hybridize()
    for k in range(5):
        net(batch(k))
    net.hybridize(False)
    assert replays(lambda: net(batch(0))) == 0
    assert net._hybrid is None


def test_batch_norm_and_dropout_in_both_modes() -> None:
    def make() -> Any:
        calque.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))

    plain, hybrid = make(), make().hybridize()
    results = []
    for net in (plain, hybrid):
        calque.manual_seed(7)
        found = []
        for k in range(16):
            net.train(k % 4 != 3)
            y = net(batch(k))
            if k % 4 != 3:
                y.sum().backward()
            found.append(y.detach().numpy().copy())
        results.append((found, {name: v.numpy().copy() for name, v in net.state_dict().items()}, calque.rand(3).tolist()))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_array_equal(a, b)
    for name, value in results[0][1].items():
        np.testing.assert_array_equal(value, results[1][1][name])
    assert results[0][2] == results[1][2]  # the stream of random numbers moved as far
    assert learned(lambda: hybrid.train()(batch(1))) == 1


def test_new_values_in_parameters_are_seen() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    with calque.no_grad():
        for k in range(12):
            if k == 4:
                for net in (plain, hybrid):
                    net[0].weight.mul_(2.0)
                    net[2].bias[1] = 5.0
            if k == 6:
                other = perceptron()
                other[0].weight.fill_(0.25)
                for net in (plain, hybrid):
                    net.load_state_dict(other.state_dict())
            if k == 8:
                for net in (plain, hybrid):
                    net[0].weight = nn.Parameter(calque.full((8, 6), 0.125))
            if k == 10:
                for net in (plain, hybrid):
                    net[2].weight.data = calque.full((3, 8), 0.5)
            same(plain(batch(k)), hybrid(batch(k)))


def test_freezing_and_replacing_layers_is_seen() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    for k in range(14):
        if k == 5:
            for net in (plain, hybrid):
                net[0].requires_grad_(False)
        if k == 9:
            for net in (plain, hybrid):
                net[1] = nn.ReLU()
        plain.zero_grad()
        hybrid.zero_grad()
        plain(batch(k)).sum().backward()
        hybrid(batch(k)).sum().backward()
        for p, q in zip(plain.parameters(), hybrid.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                same(p.grad, q.grad)


def test_new_batch_sizes_and_dtypes() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    with calque.no_grad():
        for k in range(24):
            same(plain(batch(k, 1 + k % 3)), hybrid(batch(k, 1 + k % 3)))
        assert learned(lambda: [hybrid(batch(0, 1 + k)).tolist() for k in range(3)]) == 3
        plain.double()
        hybrid.double()
        for k in range(4):
            same(plain(batch(k).double()), hybrid(batch(k).double()))


def test_wrong_inputs_raise_the_same_errors() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    for k in range(5):
        hybrid(batch(k))
    for wrong in (calque.ones(4, 5), calque.ones(4, 6, dtype=calque.int64), "text", None):
        with pytest.raises(Exception) as first:
            plain(wrong)
        for _ in range(3):
            with pytest.raises(type(first.value)) as second:
                hybrid(wrong)
            assert str(second.value) == str(first.value)


def test_labels_out_of_range_are_refused_by_replays_too() -> None:
    table = nn.Embedding(5, 3).hybridize(fullgraph=True)

    @calque.compile
    def loss(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(x, y)

    scores = calque.ones(2, 4)
    assert learned(lambda: table(calque.tensor([0, 4]))) == 1
    assert learned(lambda: loss(scores, calque.tensor([0, 3]))) == 1
    with pytest.raises(IndexError):
        table(calque.tensor([0, 5]))
    with pytest.raises(IndexError):
        loss(scores, calque.tensor([0, 4]))
    assert loss(scores, calque.tensor([-100, 3])).item() == pytest.approx(np.log(4.0))
    assert learned(lambda: loss(scores, calque.tensor([1, 2]))) == 1


def test_inputs_that_are_pending_shared_or_views() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    memory = np.ones((4, 6), np.float32)
    with calque.no_grad():
        for k in range(8):
            memory[...] = k
            for make in (lambda: calque.from_numpy(memory), lambda: batch(1) * 2.0, lambda: calque.ones(6, 4).t(), lambda: batch(2, 8)[2:6]):
                same(plain(make()), hybrid(make()))
        shared = calque.from_numpy(memory)
        got = hybrid(shared)
        memory[...] = -100.0  # what the call read was read then
        memory[...] = 7.0
        same(got, plain(calque.full((4, 6), 7.0)))


# ------------------------------------------------------------------------------------------------------------ autograd


def test_two_calls_before_their_gradients() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    for k in range(6):
        for net in (plain, hybrid):
            net.zero_grad()
            first, second = net(batch(k)), net(batch(k + 50))
            (second.sum() * 3.0).backward()
            (first * first).sum().backward()
        for p, q in zip(plain.parameters(), hybrid.parameters(), strict=True):
            same(p.grad, q.grad)


def test_reading_the_loss_before_the_gradient() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    for k in range(6):
        for net in (plain, hybrid):
            net.zero_grad()
            loss = (net(batch(k)) ** 2).sum()
            loss.item()
            loss.backward()
        for p, q in zip(plain.parameters(), hybrid.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-6, atol=1e-7)


def test_the_graph_behaves_like_a_graph() -> None:
    hybrid = perceptron().hybridize()
    learned(lambda: hybrid(batch(0)).sum().backward())
    loss = hybrid(batch(0)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(AutogradError, match="a second time"):
        loss.backward()
    x = batch(0).requires_grad_()
    learned(lambda: hybrid(x))
    y = hybrid(x)
    assert "differentiated more than once" in reasons(lambda: calque.autograd.grad(y.sum(), x, create_graph=True))
    y = hybrid(x)
    with calque.no_grad():
        hybrid[2].weight.add_(1.0)
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        y.sum().backward()
    assert y.requires_grad and not y.is_leaf


def test_several_outputs_and_structures() -> None:
    def function(x: Any, y: Any, scale: float = 1.0) -> Any:
        return {"sum": x + y, "both": (x * scale, [y.exp(), x]), "shape": tuple(x.shape), "none": None}

    hybrid = calque.compile(function)
    for k in range(6):
        x, y = batch(k).requires_grad_(), batch(k + 9)
        expected, got = function(x, y, scale=3.0), hybrid(x, y, scale=3.0)
        same(expected["sum"], got["sum"])
        same(expected["both"][0], got["both"][0])
        same(expected["both"][1][0], got["both"][1][0])
        assert got["both"][1][1] is x and got["shape"] == (4, 6) and got["none"] is None
        (got["sum"].sum() + (got["both"][0] ** 2).sum()).backward()
        np.testing.assert_allclose(x.grad.numpy(), 1.0 + 18.0 * x.detach().numpy(), rtol=1e-5)
    assert counts()["replays"]


# ------------------------------------------------------------------------------------------------------- training steps


@pytest.mark.parametrize("kind", ["SGD", "momentum", "Adam", "AdamW"])
def test_a_whole_training_step(kind: str) -> None:
    def run(wrap: Callable[[Any], Any]) -> tuple[list[float], list[Any]]:
        net = perceptron()
        options: dict[str, Any] = {"momentum": 0.9} if kind == "momentum" else {"weight_decay": 0.1} if kind == "AdamW" else {}
        optimizer = getattr(calque.optim, "SGD" if kind == "momentum" else kind)(net.parameters(), lr=1.0, **options)
        schedule = calque.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        call, losses = wrap(step), []
        for k in range(9):
            losses.append(call(batch(k)).item())
            schedule.step()
            if k == 6:
                optimizer.param_groups[0]["lr"] = 0.123
        return losses, [p.detach().numpy().copy() for p in net.parameters()] + [p.grad.numpy().copy() for p in net.parameters()]

    expected = run(lambda f: f)
    before = counts()["replays"]
    got = run(calque.compile)
    assert got[0] == expected[0]
    for a, b in zip(expected[1], got[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert counts()["replays"] - before >= 5


def test_gradients_that_accumulate_inside_the_call() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        net = perceptron()

        def accumulate(x: Any) -> None:
            net(x).sum().backward()

        call = wrap(accumulate)
        held = []
        for k in range(12):
            call(batch(k))
            if k % 3 == 2:
                held.append(net[0].weight.grad.numpy().copy())
                net.zero_grad()
        return held

    for a, b in zip(run(lambda f: f), run(calque.compile), strict=True):
        np.testing.assert_array_equal(a, b)


def test_optimizer_state_that_is_loaded_is_used() -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        net = perceptron()
        optimizer = calque.optim.Adam(net.parameters(), lr=0.1)

        def step(x: Any) -> None:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

        call = wrap(step)
        for k in range(6):
            call(batch(k))
            if k == 1:
                saved = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(saved)
        for k in range(6):
            call(batch(k))
        return net[0].weight.detach().numpy().copy(), optimizer.state_dict()["state"][0]["step"].item()

    expected, got = run(lambda f: f), run(calque.compile)
    np.testing.assert_array_equal(expected[0], got[0])
    assert expected[1] == got[1] == 8
