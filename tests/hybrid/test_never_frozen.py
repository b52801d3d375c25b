"""Nothing is frozen silently by a hybridized call: values that Python reads, side effects, random numbers, hooks, modes, copies, threads."""

from __future__ import annotations

import copy
import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.autograd.checkpoint import checkpoint
from calque.base.errors import AutogradError
from calque.hybrid import Refused
from calque.record import trie
from tests.hybrid.common import batch, learned, perceptron, reasons, replays, same

SCALE = 2.0


# ------------------------------------------------------------------------------------------------- what is never frozen


def test_a_branch_on_a_value_is_taken_anew_every_time() -> None:
    @calque.compile
    def function(x: Any) -> Any:
        if x.sum() > 0:
            return x * 2.0
        return x - 1.0

    def check() -> None:
        for k in range(12):
            sign = 1.0 if k % 2 else -1.0
            assert function(calque.full((2,), sign)).tolist() == ([2.0, 2.0] if k % 2 else [-2.0, -2.0])

    check()
    assert replays(check) == 12


@pytest.mark.parametrize("read", [lambda t: t.item(), float, lambda t: t.tolist()[0], lambda t: t.numpy()[0], lambda t: int(t), bool])
def test_values_that_python_reads_are_read_every_time(read: Callable[[Any], Any]) -> None:
    @calque.compile
    def function(x: Any) -> Any:
        return x + float(read(x))

    for k in range(8):
        assert function(calque.full((1,), float(k))).tolist() == [k + float(read(calque.full((1,), float(k))))]


def test_python_values_that_the_function_reads() -> None:
    global SCALE
    offset, options, table = 1.0, {"power": 1}, [3.0]

    class Settings:
        bias = 0.5

        def __init__(self) -> None:
            self.extra = 0.0

    settings = Settings()

    def plain(x: Any) -> Any:
        return x * SCALE + offset + settings.bias + settings.extra + options["power"] + table[0]

    hybrid = calque.compile(plain)
    x = calque.ones(2)
    changes: list[Callable[[], Any]] = [
        lambda: options.update(power=2), lambda: table.__setitem__(0, 7.0), lambda: table.append(1.0), lambda: setattr(settings, "extra", 4.0),
        lambda: setattr(Settings, "bias", 0.75), lambda: options.update(new=1),
    ]  # fmt: skip
    try:
        for change in [lambda: None, *changes]:
            change()
            for _ in range(4):
                assert hybrid(x).tolist() == plain(x).tolist()
        for k in range(8):
            SCALE = 2.0 + k // 4
            offset = float(k // 2)
            assert hybrid(x).tolist() == plain(x).tolist()
    finally:
        SCALE = 2.0
    assert "changed" in reasons(lambda: (options.update(power=9), hybrid(x)))


def test_attributes_of_modules_that_forward_reads() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.inner = 1.0, nn.LeakyReLU(0.1)

        def forward(self, x: Any) -> Any:
            return self.inner(x) * self.scale

    net = Net().hybridize()
    x = calque.tensor([-1.0, 2.0])
    for k in range(12):
        net.scale = float(k // 4)
        net.inner.negative_slope = 0.1 * (k // 3)
        expected = np.where([True, False], np.float32(-1.0) * np.float32(net.inner.negative_slope), 2.0) * net.scale
        np.testing.assert_allclose(net(x).numpy(), expected, rtol=1e-6)


def test_side_effects_happen_at_every_call() -> None:
    seen: list[Any] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.last = 0, None

        def forward(self, x: Any) -> Any:
            self.calls += 1
            self.last = x * 2.0
            seen.append(self.last)
            return x + 1.0

    net = Net().hybridize()
    for k in range(10):
        net(calque.full((1,), float(k)))
        assert net.calls == k + 1 == len(seen)
        assert net.last.item() == 2.0 * k
    assert "changes what it reads" in reasons(lambda: net(calque.ones(1)))


@pytest.mark.parametrize("name", ["random", "numpy", "print", "iterator", "seed", "data"])
def test_what_a_recording_would_freeze_runs_as_written(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = iter(range(100))
    generator = np.random.default_rng(0)

    def draw(x: Any) -> Any:
        return x * random.random()

    def sample(x: Any) -> Any:
        return x * float(generator.random())

    def talk(x: Any) -> Any:
        print("called")
        return x * 1.5

    def count(x: Any) -> Any:
        return x * next(numbers)

    def seed(x: Any) -> Any:
        calque.manual_seed(3)
        return x + calque.rand(1)

    values = np.zeros(1, np.float32)

    def data(x: Any) -> Any:
        return x + calque.tensor(values)

    function = {"random": draw, "numpy": sample, "print": talk, "iterator": count, "seed": seed, "data": data}[name]
    hybrid = calque.compile(function)
    x = calque.ones(1)
    found = []
    for k in range(8):
        values[0] = k
        found.append(hybrid(x).item())
    if name == "print":
        assert capsys.readouterr().out.count("called") == 8
    elif name == "seed":
        assert len(set(found)) == 1
    else:
        assert len(set(found)) == 8
    assert replays(lambda: hybrid(x)) == 0


def test_random_numbers_are_new_at_every_call() -> None:
    def plain(x: Any) -> Any:
        return nn.functional.dropout(x, 0.5) + calque.randn(6)

    hybrid = calque.compile(plain)
    results = []
    for function in (plain, hybrid):
        calque.manual_seed(1)
        results.append([function(batch(0)).tolist() for _ in range(7)])
    assert results[0] == results[1]
    assert results[0][5] != results[0][6]


def test_arguments_that_share_memory() -> None:
    def plain(x: Any, y: Any) -> Any:
        x.add_(1.0)
        return x * y

    hybrid = calque.compile(plain)
    for k in range(10):
        a = calque.full((2,), float(k))
        b = a if k % 2 else calque.full((2,), 3.0)
        c = calque.full((2,), float(k))
        d = c if k % 2 else calque.full((2,), 3.0)
        assert plain(a, b).tolist() == hybrid(c, d).tolist()
        assert a.tolist() == c.tolist()


def test_in_place_changes_of_leaves_are_refused_as_ever() -> None:
    hybrid = calque.compile(lambda x: x.add_(1.0))
    for _ in range(4):
        with pytest.raises(AutogradError, match="leaf Variable"):
            hybrid(calque.ones(2, requires_grad=True))


def test_a_closed_over_tensor_is_read_where_it_is_now() -> None:
    state = calque.zeros(2)

    @calque.compile
    def function(x: Any) -> Any:
        state.mul_(0.5).add_(x)
        return state * 1.0

    expected = np.zeros(2, np.float32)
    for k in range(8):
        expected = expected * np.float32(0.5) + np.float32(k)
        assert function(calque.full((2,), float(k))).tolist() == expected.tolist()
        if k == 5:
            state.fill_(10.0)
            expected = np.full(2, 10.0, np.float32)
    assert state.tolist() == expected.tolist()


# ------------------------------------------------------------------------------------------------------------- and more


def test_options_of_compile() -> None:
    @calque.compile(fullgraph=True, dynamic=False, backend="inductor", mode="reduce-overhead", options={})
    def function(x: Any) -> Any:
        return x * 2.0

    assert [function(calque.ones(1)).item() for _ in range(5)] == [2.0] * 5
    reading = calque.compile(lambda x: x * random.random(), fullgraph=True)
    with pytest.raises(Refused, match="fullgraph=True"):
        for _ in range(6):
            reading(calque.ones(1))
    for options in ({"mode": "fast"}, {"backend": "other"}):
        with pytest.raises(ValueError, match=r"\[compile\] expected"):
            calque.compile(function, **options)
    with pytest.raises(ValueError, match="expected a function, a Module or a text"):
        calque.compile(3)
    assert calque.compile(perceptron(), disable=True)._hybrid is None


def test_copies_of_hybridized_modules_are_their_own() -> None:
    net = perceptron().hybridize()
    with calque.no_grad():
        for k in range(5):
            net(batch(k))
        twin = copy.deepcopy(net)
        twin[0].weight.zero_()
        assert not calque.equal(twin(batch(0)), net(batch(0)))
        for k in range(5):
            twin(batch(k))
        twin.hybridize(False)
        expected = twin(batch(3))
        twin.hybridize()
        for _ in range(5):
            got = twin(batch(3))
        same(expected, got)


def test_a_hybridized_module_inside_another() -> None:
    inner = perceptron().hybridize()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x) * 2.0

    outer, plain = Outer().hybridize(), perceptron()
    with calque.no_grad():
        for k in range(6):
            same(outer(batch(k)), plain(batch(k)) * 2.0)
        assert replays(lambda: outer(batch(0))) == 1


def test_hooks_run_at_every_call() -> None:
    net = perceptron().hybridize()
    for k in range(5):
        net(batch(k))
    called = []
    net[0].register_forward_hook(lambda *_: called.append(1))
    for k in range(5):
        net(batch(k))
    assert len(called) == 5


def test_threads_call_one_module() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    with calque.no_grad():
        expected = [plain(batch(k)).numpy().copy() for k in range(4)]
    wrong: list[int] = []

    def work(k: int) -> None:
        with calque.no_grad():
            for _ in range(60):
                if not np.array_equal(hybrid(batch(k)).numpy(), expected[k]):
                    wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("style", ["module", "step"])
def test_ten_thousand_calls_in_constant_memory(style: str) -> None:
    net = perceptron()
    optimizer = calque.optim.Adam(net.parameters(), lr=1e-3)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    call = calque.compile(step) if style == "step" else step
    if style == "module":
        net.hybridize()
    inputs = [batch(k) for k in range(4)]

    def run(times: int) -> tuple[int, int, int]:
        for k in range(times):
            loss = call(inputs[k % 4])
            if k % 100 == 0:
                loss.item()
        del loss
        calque.synchronize()
        gc.collect()
        stats = calque.stats()
        return stats["memory"]["in_use"], stats["trie_edges"], len(gc.get_objects())

    run(100)
    before = run(100)
    after = run(10_000 if style == "step" else 2_000)
    assert after[0] - before[0] < 1 << 14
    assert after[1] == before[1]
    assert after[2] - before[2] < 200


def test_hooks_on_leaves_run_once_per_gradient() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    seen: list[str] = []
    for k in range(12):
        if k == 4:
            for name, net in (("plain", plain), ("hybrid", hybrid)):
                net[0].weight.register_hook(lambda g, name=name: (seen.append(name), g * 2.0)[1])
        for net in (plain, hybrid):
            net.zero_grad()
            net(batch(k)).sum().item()
            net(batch(k)).sum().backward()
        same(plain[0].weight.grad, hybrid[0].weight.grad)
    assert seen.count("plain") == seen.count("hybrid") == 8


def test_hooks_inside_a_hybridized_step_run_at_every_call() -> None:
    net = perceptron()
    optimizer = calque.optim.SGD(net.parameters(), lr=0.1)
    seen: list[int] = []

    @calque.compile
    def step(x: Any) -> None:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    for k in range(12):
        if k == 6:
            net[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(1))
        step(batch(k))
    assert len(seen) == 6


def test_state_that_is_assigned_or_taken_out_is_noticed() -> None:
    plain, hybrid = perceptron(), perceptron().hybridize()
    with calque.no_grad():
        for k in range(16):
            if k == 5:
                other = {name: value * 2.0 for name, value in plain.state_dict().items()}
                for net in (plain, hybrid):
                    net.load_state_dict({name: value.clone() for name, value in other.items()}, assign=True)
            if k == 9:
                for net in (plain, hybrid):
                    net.double().float()
            if k == 12:
                for net in (plain, hybrid):
                    del net[1]
            same(plain(batch(k)), hybrid(batch(k)))


def test_modes_changed_inside_stay_changed() -> None:
    @calque.compile
    def function(x: Any) -> Any:
        calque.set_grad_enabled(False)
        return x * 2.0

    try:
        for _ in range(6):
            calque.set_grad_enabled(True)
            function(calque.ones(1))
            assert not calque.is_grad_enabled()
    finally:
        calque.set_grad_enabled(True)


def test_calls_that_are_never_alike_stop_being_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calque.hybrid.call.STRANGERS", 10)
    hybrid = calque.compile(lambda x, k: x * k)
    for k in range(30):
        assert hybrid(calque.ones(1), float(k)).item() == float(k)
    assert "never called twice alike" in reasons(lambda: hybrid(calque.ones(1), 99.0))


def test_eviction_of_the_trie_forgets_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    net = perceptron().hybridize()
    with calque.no_grad():
        expected = perceptron()(batch(0))
        assert learned(lambda: net(batch(0))) == 1
        trie.evict()
        for _ in range(5):
            same(net(batch(0)), expected)
        assert learned(lambda: net(batch(0))) == 1


class _Cube(calque.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * x * x * (3.0 * _Cube.factor)


def test_functions_with_gradients_of_the_users() -> None:
    hybrid = calque.compile(lambda x: _Cube.apply(x * 1.5))
    try:
        for k in range(14):
            _Cube.factor = 1.0 + k // 7
            x, y = batch(k).requires_grad_(), batch(k).requires_grad_()
            hybrid(x).sum().backward()
            _Cube.apply(y * 1.5).sum().backward()
            same(x.grad, y.grad)
    finally:
        _Cube.factor = 1.0


def test_checkpointed_parts() -> None:
    def make() -> Any:
        net = perceptron()

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: Any) -> Any:
                return checkpoint(self.net, x, use_reentrant=False).sum()

        return Net()

    plain, hybrid = make(), make().hybridize()
    for k in range(7):
        for net in (plain, hybrid):
            net.zero_grad()
            net(batch(k).requires_grad_()).backward()
        for p, q in zip(plain.parameters(), hybrid.parameters(), strict=True):
            same(p.grad, q.grad)


def test_steps_on_leaves_that_are_arguments() -> None:
    def plain(w: Any, x: Any) -> Any:
        loss = ((w * x) ** 2).sum()
        loss.backward()
        with calque.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
        return loss

    hybrid = calque.compile(plain)
    v, w = calque.ones(3, requires_grad=True), calque.ones(3, requires_grad=True)
    for k in range(8):
        x = calque.full((3,), 1.0 + k / 10)
        same(plain(v, x), hybrid(w, x))
        same(v, w)
        assert w.is_leaf and w.grad is None


def test_arguments_that_become_leaves_inside() -> None:
    def gradient(x: Any) -> Any:
        x.requires_grad_()
        (x**3).sum().backward()
        return x.grad

    hybrid = calque.compile(gradient)
    for k in range(8):
        x = calque.full((2,), float(k))
        got = hybrid(x)
        assert got.tolist() == [3.0 * k * k] * 2
        assert x.requires_grad and x.grad.tolist() == got.tolist()


def test_gradients_of_leaves_and_of_results_as_arguments() -> None:
    def plain(w: Any, h: Any, x: Any) -> Any:
        return (w * h).exp() * x

    hybrid = calque.compile(plain)
    for _ in range(8):
        found = []
        for function in (plain, hybrid):
            w, x = calque.full((3,), 0.5, requires_grad=True), calque.full((3,), 2.0)
            base = calque.full((3,), 0.25, requires_grad=True)
            function(w, base * 2.0, x).sum().backward()
            found.append((w.grad.tolist(), base.grad.tolist(), w.tolist()))
        assert found[0] == found[1]


def test_gradients_that_may_come_from_the_history_of_an_argument() -> None:
    """`w` is reached through the argument in some calls and not in others: what a call found there, or did not find, is no part of a recording."""
    w = calque.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def slopes(x: Any) -> Any:
        return calque.autograd.grad((x.sum() * w * w).sum(), w, create_graph=True)[0]

    def own(x: Any) -> Any:  # what is behind `x` does not matter to the gradient of `x`
        return calque.autograd.grad((x * x * w).sum(), x)[0]

    for function, refused in ((slopes, "in the history of an argument"), (own, "")):
        again, found = calque.compile(function), []

        def check(again: Any = again, function: Any = function, found: Any = found) -> None:
            for k in range(12):
                leaf = calque.full((3,), float(k), requires_grad=True)
                x = w * leaf if k % 4 == 3 else leaf * 1.0
                found.append((again(x).tolist(), function(x).tolist()))

        assert refused in reasons(check) and (replays(check) > 0) != bool(refused)
        assert all(a == b for a, b in found)


def test_a_sequence_whose_own_code_says_what_is_in_it_is_not_followed() -> None:
    """Its methods may raise, or say something else each time: the call runs as Python."""

    class Shy(tuple):  # type: ignore[type-arg]
        def __len__(self) -> int:
            raise NotImplementedError

    class Turning(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            self.reverse()
            return super().__iter__()

    for parts in (Shy((2.0, 3.0)), Turning([2.0, 3.0])):

        @calque.compile
        def scaled(x: Any, parts: Any = parts) -> Any:
            return x * 10.0 * parts[0] + next(iter(parts))

        wanted = [22.0] * 4 if isinstance(parts, Shy) else [23.0, 32.0] * 2
        assert [float(scaled(calque.ones(())).item()) for _ in range(4)] == wanted
