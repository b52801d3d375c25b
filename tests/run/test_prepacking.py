"""Weights that are laid out once: results stay the same to the bit, nobody can write to them unseen, and their memory comes back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.native import hot
from calque.run import prepacking
from calque.run.buffer import Buffer

F = nn.functional
RUNS = prepacking.AFTER + 3


class Net(nn.Module):
    """Convolutions of several ways, a product, a recurrence behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(8, 24, 3, padding=1), nn.Conv2d(24, 24, 3, groups=24, padding=1), nn.Conv2d(24, 48, 1)
        self.norm, self.out = nn.BatchNorm2d(48), nn.Linear(48 * 7 * 7, 40)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm(self.c(F.relu(self.b(F.relu(self.a(x)))))))
        return self.out(F.max_pool2d(y, 2).flatten(1))


@pytest.fixture(autouse=True)
def counters() -> Iterator[None]:
    gc.collect()
    prepacking.release_all()
    yield
    prepacking.release_all()


def made() -> tuple[Net, Any]:
    calque.manual_seed(0)
    return Net().eval(), calque.randn(30, 8, 14, 14)


def answers(call: Callable[[Any], Any], x: Any, times: int = RUNS) -> list[Any]:
    found = []
    for _ in range(times):
        with calque.no_grad():
            found.append(call(x).numpy().copy())
    return found


@pytest.mark.parametrize("hybridized", [False, True])
def test_results_are_the_same_to_the_bit(hybridized: bool) -> None:
    net, x = made()
    before = prepacking.Counters.packed
    call = calque.compile(net) if hybridized else net
    found = answers(call, x, RUNS + 6)
    assert prepacking.Counters.packed > before, "it was packed"
    assert prepacking.held_bytes() > 4 * sum(p.numel() for p in net.parameters() if p.ndim > 1) // 2
    for other in found[2:]:
        np.testing.assert_array_equal(other, found[1])


def _step(net: Net, x: Any) -> None:
    net.train()
    calque.optim.SGD(net.parameters(), lr=0.1).zero_grad()
    net(x).square().mean().backward()
    calque.optim.SGD(net.parameters(), lr=0.1).step()
    net.eval()


def _by_numpy(net: Net, x: Any) -> None:
    array = net.a.weight.detach().numpy()
    array *= 1.25


def _kept_array(net: Net, x: Any) -> None:
    """NumPy keeps the memory, and writes when everything has run again."""
    net.array = net.out.weight.detach().numpy()
    answers(net, x)
    net.array *= 1.25


def _other_values(net: Net, x: Any) -> None:
    net.load_state_dict({key: value * 1.25 if value.is_floating_point() else value for key, value in net.state_dict().items()})


def _no_grad(change: Callable[[Net], Any]) -> Callable[[Net, Any], None]:
    def write(net: Net, x: Any) -> None:
        with calque.no_grad():
            change(net)

    return write


WRITES: dict[str, Callable[[Net, Any], None]] = {
    "mul_": _no_grad(lambda net: net.a.weight.mul_(1.25)),
    "copy_": _no_grad(lambda net: net.out.weight.copy_(net.out.weight * 1.25)),
    "an element": _no_grad(lambda net: net.c.weight.__setitem__((0, 0, 0, 0), net.c.weight[0, 0, 0, 0] + 3.0)),
    "data.mul_": lambda net, x: net.b.weight.data.mul_(1.25),
    "data": lambda net, x: setattr(net.out.weight, "data", net.out.weight.data * 1.25),
    "a view": _no_grad(lambda net: net.out.weight.view(-1)[:100].add_(0.5)),
    "fill_": _no_grad(lambda net: net.b.weight.fill_(float(net.b.weight[0, 0, 0, 0]) + 1.0)),
    "an optimizer": _step,
    "NumPy": _by_numpy,
    "NumPy, later": _kept_array,
    "load_state_dict": _other_values,
    "an initialiser": lambda net, x: nn.init.normal_(net.c.weight),
}


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_nobody_writes_to_them_unseen(name: str, hybridized: bool) -> None:
    net, x = made()
    call = calque.compile(net) if hybridized else net
    answers(call, x, RUNS + 6)
    for _ in range(2):  # behind the first write other plans may run
        before = answers(call, x)[-1]
        WRITES[name](net, x)
        found = answers(call, x)
        fresh = Net().eval()
        fresh.load_state_dict({key: value.clone() for key, value in net.state_dict().items()})
        wanted = answers(fresh, x, 1)[0]
        assert np.abs(wanted - before).max() > 1e-3
        for other in found:
            np.testing.assert_allclose(other, wanted, rtol=2e-4, atol=2e-4)


def test_a_training_loop_packs_nothing() -> None:
    net, x = made()
    optimizer = calque.optim.SGD(net.parameters(), lr=0.01)
    before = prepacking.Counters.packed
    for _ in range(3 * RUNS):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.item()  # the forward pass is a program of its own, which writes nothing
        loss.backward()
        optimizer.step()
    assert prepacking.Counters.packed == before


def test_a_step_behind_an_evaluation_writes_where_the_weights_were() -> None:
    net, x = made()
    optimizer = calque.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    def places() -> list[int]:
        return [p._storage.buffer.array.ctypes.data for p in net.parameters()]

    for _ in range(5):
        step()
    for _ in range(3):
        calque.synchronize()
        before = places()
        answers(net, x, prepacking.AFTER + prepacking.WASTED + 3)
        assert prepacking.held_bytes() > 0
        step()
        calque.synchronize()
        assert places() == before
        assert prepacking.held_bytes() == 0
        step()


def test_memory_of_a_model_that_is_gone_comes_back() -> None:
    net, x = made()
    answers(net, x)
    assert prepacking.held_bytes() > 0
    del net
    gc.collect()
    prepacking.release_unused()
    assert prepacking.held_bytes() == 0


def test_weights_that_numpy_sees_are_not_packed() -> None:
    weight = np.ones((64, 64), np.float32)
    shared, x = calque.from_numpy(weight), calque.randn(300, 64)
    before = prepacking.Counters.packed
    answers(lambda x: x @ shared, x)
    weight[:] = 2.0
    np.testing.assert_allclose(answers(lambda x: x @ shared, x, 1)[0], x.numpy() @ weight, rtol=1e-4, atol=1e-4)
    assert prepacking.Counters.packed == before


def test_weights_that_are_other_ones_each_time_are_looked_at_no_more() -> None:
    x, before = calque.randn(200, 64), prepacking.Counters.packed
    for k in range(prepacking.CHANGES + 20):
        w = calque.randn(64, 96)
        w[0, 0] = k
        np.testing.assert_allclose((x @ w).numpy(), x.numpy() @ w.numpy(), rtol=1e-3, atol=1e-3)
    assert prepacking.Counters.packed == before


def test_arguments_of_a_hybridized_call_may_be_other_ones() -> None:
    call = calque.compile(lambda x, w: F.relu(x @ w))
    x, weights = calque.randn(300, 64), [calque.randn(64, 96) for _ in range(2)]
    for w in [weights[0]] * 20 + [weights[1]] * 3 + [weights[0]] * 12:
        with calque.no_grad():
            np.testing.assert_allclose(call(x, w).numpy(), np.maximum(x.numpy() @ w.numpy(), 0), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(hot is None, reason="repeats are made by the compiled module")
def test_what_repeats_a_call_stops_when_the_weights_are_let_go() -> None:
    net, x = made()
    call = calque.compile(net)
    answers(call, x, 30)
    prepacking.release_all()
    with calque.no_grad():
        net.out.weight.add_(1.0)
    np.testing.assert_allclose(answers(call, x, 1)[0], answers(net, x, 1)[0], rtol=2e-4, atol=2e-4)


def test_two_batch_sizes_and_two_threads_count() -> None:
    net, x = made()
    few = x[:3].clone()
    wanted = answers(net, x, 1)[0], answers(net, few, 1)[0]
    threads = calque.get_num_threads()
    try:
        for count in (1, 2, 1):
            calque.set_num_threads(count)
            for _ in range(RUNS):
                for given, result in zip((x, few), wanted, strict=True):
                    np.testing.assert_allclose(answers(net, given, 1)[0], result, rtol=2e-4, atol=2e-4)
    finally:
        calque.set_num_threads(threads)


def test_of_two_threads_that_pack_the_same_one_is_told_when_it_no_longer_holds() -> None:
    class Form:
        def __init__(self) -> None:
            self.executable = type("Executable", (), {"outdated": False, "packed_bytes": 8})()

    forms: list[Form] = []

    def make(weights: dict[int, Any]) -> Form:
        forms.append(form := Form())
        if len(forms) == 1:  # the second thread comes while the first packs
            both.of(buffers, True)
        return form

    buffers = [Buffer(np.ones(4, np.float32))]
    both = prepacking.Prepacking((0,), make)
    assert both.of(buffers, True) is forms[0] is both.form
    assert [form.executable.outdated for form in forms] == [False, True]
    both.release()
    assert forms[0].executable.outdated


def test_what_ran_before_keeps_no_memory_beside_what_is_packed() -> None:
    """A batch that is given again and again is packed as weights are; the program that ran until then kept the memory of its results."""
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer, x, y = calque.optim.SGD(model.parameters(), lr=0.01), calque.randn(128, 784), calque.randint(0, 10, (128,))
    held, packed = [], []
    for _ in range(RUNS + 9):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        calque.synchronize()
        gc.collect()
        memory = calque.stats()["memory"]
        packed.append(memory["packed"])
        held.append(memory["in_use"] - memory["packed"])
    assert packed[-1] > 0 and held[-1] <= held[packed.index(packed[-1]) - 1] + (1 << 18)  # its results are 1.5 MiB
