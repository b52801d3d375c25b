"""Hybridized calls that look at values: every branch is a recording of its own, nothing happens twice, and no value is frozen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from tests.hybrid.common import counts, reasons, replays


def vector(*values: float) -> Any:
    return calque.tensor(np.array(values, np.float32))


# ------------------------------------------------------------------------------------------------------------ branches


def test_a_loop_that_ends_on_a_value() -> None:
    def halve(x: Any) -> Any:
        steps = 0
        while x.abs().max() > 1.0:
            x = x * 0.5
            steps += 1
        return x, steps

    hybrid = calque.compile(halve)
    rng = np.random.default_rng(0)
    for k in range(60):
        x = vector(*(rng.standard_normal(3) * 2.0 ** rng.integers(0, 6)))
        expected, got = halve(x), hybrid(x)
        assert expected[0].tolist() == got[0].tolist() and expected[1] == got[1], k
    assert replays(lambda: [hybrid(vector(1.5 * 2.0**k, 0.0, 0.0)) for k in range(4)]) == 4


def test_a_number_that_is_read_stays_a_number() -> None:
    """One recording for all values: the number is read anew, whatever Python computes from it."""

    def normalise(x: Any) -> Any:
        norm = x.norm().item()
        return x / norm + (norm * 2.0 - 1.0) / 3, norm

    hybrid = calque.compile(normalise)
    for k in range(5):
        normalise(vector(k + 1.0, 0.25))
        hybrid(vector(k + 1.0, 0.25))

    def check() -> None:
        for k in range(9):
            expected, got = normalise(vector(k + 1.5, 0.75)), hybrid(vector(k + 1.5, 0.75))
            assert expected[0].tolist() == got[0].tolist()
            assert expected[1] == got[1] and type(got[1]) is float

    assert replays(check) == 9


def test_gradients_of_numbers_that_were_read() -> None:
    def scaled(w: Any, x: Any) -> Any:
        return (w * x * x.max().item()).sum() * (x.min().item() + 0.5)

    hybrid = calque.compile(scaled)
    rng = np.random.default_rng(0)
    for _ in range(12):
        x = vector(*rng.standard_normal(3))
        found = []
        for function in (scaled, hybrid):
            w = vector(1.0, 2.0, 3.0).requires_grad_()
            function(w * 2.0, x).backward()
            found.append(w.grad.tolist())
        assert found[0] == found[1]


def test_comparisons_of_a_number_are_branches() -> None:
    def early(x: Any) -> Any:
        level = x.mean().item()
        if level < 0.0:
            return -x
        if level * 2 > 3.0:
            return x * level
        return x + int(level * 4)

    hybrid = calque.compile(early)
    rng = np.random.default_rng(1)
    inputs = [vector(*rng.uniform(-2.0, 2.5, 2)) for _ in range(150)]
    for x in inputs:
        assert early(x).tolist() == hybrid(x).tolist()
    assert replays(lambda: [hybrid(x) for x in inputs]) > 140


@pytest.mark.parametrize("leak", ["math", "percent", "complex", "float", "str", "index", "dict", "type"])
def test_numbers_that_python_uses_without_operators(leak: str) -> None:
    table = [1.0, 2.0, 4.0, 8.0]
    named = {0.0: 3.0, 1.0: 5.0, 2.0: 7.0, 3.0: 9.0}
    functions: dict[str, Any] = {
        "math": lambda x: x * math.sqrt(x.sum().item()),
        "percent": lambda x: x * len("%.0f" % (10.0 ** x.sum().item())),
        "complex": lambda x: x * abs(1j * x.sum().item()),
        "float": lambda x: x * float(x.sum()),
        "str": lambda x: x * len(f"{10.0 ** x.sum().item():.0f}"),
        "index": lambda x: x * table[int(x.sum())],
        "dict": lambda x: x * named[x.sum().item()],
        "type": lambda x: x * (2.0 if type(x.sum().item()) is float else 3.0),
    }
    plain = functions[leak]
    hybrid = calque.compile(plain)
    for k in (0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 0, 2, 1, 1, 2, 3, 0):
        assert plain(vector(float(k))).tolist() == hybrid(vector(float(k))).tolist(), k


def test_values_read_as_lists() -> None:
    def weigh(x: Any, k: Any) -> Any:
        first, second = x[:2].tolist()
        for _ in range(k.tolist()[0]):
            x = x * first
        return x + second

    hybrid = calque.compile(weigh)
    rng = np.random.default_rng(2)
    for _ in range(40):
        x, k = vector(*rng.standard_normal(3)), calque.tensor([int(rng.integers(0, 4))])
        assert weigh(x, k).tolist() == hybrid(x, k).tolist()
    assert replays(lambda: hybrid(vector(1.0, 2.0, 3.0), calque.tensor([2]))) == 1


def test_errors_raised_for_a_value() -> None:
    @calque.compile
    def guarded(x: Any) -> Any:
        if x.sum() < 0:
            raise ValueError("negative")
        return x * 2.0

    for k in range(12):
        if k % 3 == 2:
            with pytest.raises(ValueError, match="negative"):
                guarded(vector(-1.0))
        else:
            assert guarded(vector(float(k))).tolist() == [2.0 * k]


# ----------------------------------------------------------------------------------------- nothing happens twice


def _stateful(seed: int) -> Any:
    """A model that writes statistics and draws random numbers before it looks at a value, and writes again after it."""
    calque.manual_seed(seed)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)
            self.register_buffer("seen", calque.zeros(()))
            self.register_buffer("cache", calque.zeros(4))

        def forward(self, x: Any) -> Any:
            h = self.drop(self.norm(self.first(x)))
            self.seen.add_(1.0)
            turns = 0
            while h.sum() > 0.0 and turns < 4:
                h = h - calque.rand(4)
                self.cache.mul_(0.5).add_(h.detach().mean(0))
                turns += 1
            if self.seen % 3 == 0:
                self.cache.mul_(0.9)
            return h.tanh()

    return Net()


@pytest.mark.parametrize("reads_between", [False, True])
def test_state_and_random_numbers_move_once(reads_between: bool) -> None:
    results = []
    for wrap in (False, True):
        net = _stateful(0)
        if wrap:
            net.hybridize()
        rng = np.random.default_rng(3)
        found: list[Any] = []
        for k in range(120):
            net.train(k % 5 != 4)
            x = calque.tensor(rng.standard_normal((3, 4), dtype=np.float32))
            y = net(x * 1.5)
            y.sum().backward()
            if k % 7 == 3:
                net.zero_grad()
            found.append(y)
            if reads_between:
                found[-1] = y.detach().tolist()
        values = [y if isinstance(y, list) else y.detach().tolist() for y in found]
        results.append((values, {n: v.tolist() for n, v in net.state_dict().items()}, calque.rand(2).tolist(), net.first.weight.grad.tolist()))
    assert results[0][2] == results[1][2]
    assert results[0][1] == results[1][1]
    assert results[0][0] == results[1][0]
    assert results[0][3] == results[1][3]
    assert counts()["continued"]


def test_a_training_step_that_reads_its_loss() -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        calque.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = calque.optim.Adam(net.parameters(), lr=0.02)
        skipped = calque.zeros(())

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            if loss.item() > 0.5:
                skipped.add_(1.0)
                return loss.item()
            loss.backward()
            total = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            if total.item() < 1.0:
                optimizer.step()
            return loss.item()

        call, rng, losses = wrap(step), np.random.default_rng(0), []
        for k in range(60):
            optimizer.param_groups[0]["lr"] *= 0.99
            losses.append(call(calque.tensor(rng.standard_normal((4, 6), dtype=np.float32) * (1.0 + k % 3))))
        return losses, [p.detach().tolist() for p in net.parameters()], skipped.item()

    expected = run(lambda f: f)
    before = counts()["replays"]
    got = run(calque.compile)
    assert expected == got
    assert all(type(x) is float for x in got[0])
    assert counts()["replays"] - before > 35


def test_a_way_never_seen_writes_into_no_state_twice() -> None:
    """The walk has run a program that counts when it comes to an unknown value; Python then goes on from there."""
    counter = calque.zeros(())
    seen: list[float] = []

    @calque.compile
    def count(x: Any) -> Any:
        counter.add_(1.0)
        kind = int(x.sum())
        counter.add_(10.0)
        return counter * kind

    total = 0.0
    for k in (1, 1, 1, 1, 2, 2, 3, 1, 2, 4, 5, 1, 6, 7, 7, 7):
        total += 11.0
        seen.append(count(vector(float(k))).item())
        assert seen[-1] == total * k
    assert counter.item() == total


def test_branches_inside_what_is_pending() -> None:
    """The call begins in the middle of a trace, and looks at values before and after writing."""

    def plain(x: Any, state: Any) -> Any:
        y = x * 2.0
        if x.sum() > 0:
            state.add_(y)
        else:
            state.sub_(1.0)
        if state.sum() > 4.0:
            state.mul_(0.25)
        return state * y

    hybrid = calque.compile(plain)
    rng = np.random.default_rng(5)
    states = [calque.zeros(2), calque.zeros(2)]
    for k in range(200):
        values = rng.standard_normal(2)
        found = []
        for function, state in zip((plain, hybrid), states, strict=True):
            x = vector(*values) + 0.125
            state.add_(x * 0.5)
            out = function(x, state)
            found.append((out + state).tolist() if k % 3 else out)
        if k % 3:
            assert found[0] == found[1], k
        else:
            assert found[0].tolist() == found[1].tolist(), k
    assert states[0].tolist() == states[1].tolist()


# ---------------------------------------------------------------------------------------------------- bounds and counts


def test_values_that_are_always_new_end_as_written_and_are_counted() -> None:
    @calque.compile
    def scale(x: Any) -> Any:
        return x * math.exp(x.sum().item())

    def check() -> None:
        for k in range(100):
            x = vector(k / 64.0)
            assert scale(x).item() == (x * math.exp(x.sum().item())).item()

    assert "goes another way at every call" in reasons(check)
    assert "test_tree.py" in reasons(lambda: scale(vector(0.25)))


def test_the_tree_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calque.hybrid.region.NODES", 40)

    @calque.compile
    def repeat(x: Any) -> Any:
        for _ in range(int(x)):
            x = x * 1.5
        return x

    def check() -> None:
        for k in [*range(30), *range(30)]:
            expected = vector(float(k))
            for _ in range(k):
                expected = expected * 1.5
            assert repeat(vector(float(k))[0]).item() == expected.item()

    before = counts()["stretches"]
    check()
    assert counts()["stretches"] - before <= 48
    assert replays(lambda: [repeat(vector(29.0)[0]) for _ in range(3)])


def test_many_elements_are_not_branches() -> None:
    hybrid = calque.compile(lambda x: x * len(x.tolist()))
    for _ in range(5):
        assert hybrid(calque.ones(500)).sum().item() == 250_000.0
    assert "reads many values" in reasons(lambda: hybrid(calque.ones(500)))


# ---------------------------------------------------------------------------------------------- gradients of gradients


class _Square(calque.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.factor = 2.0
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * x * ctx.factor


@pytest.mark.parametrize("kind", ["plain", "read", "norm", "function", "checkpoint"])
def test_gradients_of_gradients(kind: str) -> None:
    def make() -> Any:
        calque.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1))

    def penalty(net: Any, call: Callable[[Any], Any], x: Any) -> Any:
        net.zero_grad()
        y = call(x * 1.0)
        (g,) = calque.autograd.grad(y.sum(), x, create_graph=True)
        ((g * g).sum() + (y * y).sum()).backward()
        return [x.grad.tolist(), *(None if p.grad is None else p.grad.tolist() for p in net.parameters())]

    nets = [make(), make()]

    def function_of(net: Any) -> Callable[[Any], Any]:
        functions: dict[str, Callable[[Any], Any]] = {
            "plain": lambda x: net(x) ** 3,
            "read": lambda x: net(x) * net(x).sum().item() if net[3].bias.sum() < 1e9 else x,
            "norm": lambda x: nn.functional.normalize(net[0](x), dim=-1).exp().cumsum(0),
            "function": lambda x: _Square.apply(net(x)) * x,
            "checkpoint": lambda x: nn.functional.gelu(net[0](x)).logsumexp(-1) ** 2,
        }
        return functions[kind]

    calls = [function_of(nets[0]), calque.compile(function_of(nets[1]))]
    rng = np.random.default_rng(0)
    for k in range(8):
        values = rng.standard_normal((2, 3)).astype(np.float32)
        found = [penalty(net, call, calque.tensor(values).requires_grad_()) for net, call in zip(nets, calls, strict=True)]
        for a, b in zip(*found, strict=True):  # the sums over paths are taken in another order
            assert (a is None) == (b is None)
            np.testing.assert_allclose(np.array(a or 0.0), np.array(b or 0.0), rtol=1e-4, atol=1e-6, err_msg=str(k))
    assert replays(lambda: calls[1](calque.tensor(values).requires_grad_() * 1.0)) == 1


def test_the_gradient_of_a_call_whose_result_was_read_is_a_recording() -> None:
    calque.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).hybridize()

    def step(k: int) -> None:
        loss = net(vector(k + 1.0, 2.0, 3.0).reshape(1, 3)).sum()
        loss.item()
        loss.backward()

    for k in range(6):
        step(k)
    assert replays(lambda: step(7)) == 2


def test_recordings_are_text() -> None:
    """Every way that calls went, with what it reads, writes and makes; why there is none; and numbers that are asked again."""
    w = calque.ones(2, 2)

    def branching(x: Any) -> Any:
        y = x @ w * 0.5
        w.mul_(1.5)
        return y + 1 if y.sum() > 1 else y - 1

    call = calque.compile(branching)
    above, below = calque.tensor([[1.0, 1.0], [1.0, 1.0]]), calque.tensor([[-1.0, -1.0], [-1.0, -1.0]])
    for x in (above, above, above, below, below, below):
        call(x).sum().item()
    text = call.recordings()
    for line in ("matmul(%0, %1) : float32[2, 2]", "mul(%2, 0.5) : float32[2, 2]", "$1 becomes %4", "flush: bool", "read $3 as bool[] by <"):
        assert line in text
    assert "if it is True:\n  %0 = input($2) : float32[2, 2]\n  %1 = add(%0, 1.0)" in text and "if it is False:" in text
    printing = calque.compile(lambda x: print(x.item(), end=""))
    assert printing.recordings() == ""
    for _ in range(3):
        printing(calque.ones(()))
    assert printing.recordings() == "not recorded: calls print()"
    noisy = calque.compile(lambda x: nn.functional.dropout(x * x.sum().item(), 0.5))
    for _ in range(4):
        noisy(calque.ones(300, 300)).sum().item()
    assert ", as a number" in noisy.recordings() and "number(0)" in noisy.recordings()
