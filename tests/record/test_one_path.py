"""What varied at a place is a run-time argument there from then on: choices that change at every turn take one path, and one program."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import RepetitionWarning
from calque.record import trie
from calque.record.path import Counters
from calque.run import dispatch


def _episode(w: Any, picks: list[int], pick: Any) -> tuple[float, Any]:
    total = sum(-pick(calque.softmax(w * (1.0 + 0.1 * t), -1), a).log() for t, a in enumerate(picks))
    w.grad = None
    total.backward()
    return total.item(), w.grad.numpy().copy()


def _expected(w: np.ndarray[Any, Any], picks: list[int]) -> tuple[float, np.ndarray[Any, Any]]:
    loss, grad = 0.0, np.zeros_like(w)
    for t, a in enumerate(picks):
        scale = 1.0 + 0.1 * t
        e = np.exp(w * scale - (w * scale).max())
        p = e / e.sum()
        loss -= np.log(p[a])
        grad += scale * (p - np.eye(len(w))[a])
    return float(loss), grad


@pytest.mark.parametrize(
    "pick", [lambda p, a: p[a], lambda p, a: p[a : a + 1].sum(), lambda p, a: p.select(0, a), lambda p, a: p.narrow(0, a, 1).squeeze()]
)
def test_a_choice_at_every_turn_takes_one_path(pick: Any) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(3)
    w = calque.tensor(values, requires_grad=True)
    edges, programs = [], []
    for _ in range(12):
        picks = rng.integers(0, 3, 9).tolist()
        loss, grad = _episode(w, picks, pick)
        wanted = _expected(values, picks)
        np.testing.assert_allclose(loss, wanted[0], rtol=1e-12)
        np.testing.assert_allclose(grad, wanted[1], rtol=1e-10, atol=1e-12)
        edges.append(Counters.edges)
        programs.append(Counters.plan_misses)
    assert edges[6] == edges[-1]
    assert programs[6] == programs[-1]


def test_writes_at_varying_places_take_one_path() -> None:
    edges = []
    for place in (0, 1, 0, 3, 2, 0, 1):
        x = calque.zeros(4)
        x[place] = 1.0
        np.testing.assert_array_equal((x * 2).numpy(), np.eye(4)[place] * 2)
        edges.append(Counters.edges)
    assert edges[2] == edges[-1]


def test_second_gradients_through_a_varying_place() -> None:
    for place in (0, 2, 1, 0, 2):
        x = calque.arange(1.0, 4.0).double().requires_grad_(True)
        (first,) = calque.autograd.grad((x[place] ** 3).sum(), x, create_graph=True)
        (second,) = calque.autograd.grad(first[place] + first.sum(), x)
        wanted = np.zeros(3)
        wanted[place] = 2 * 6.0 * (place + 1)
        np.testing.assert_allclose(second.numpy(), wanted)


def test_an_offset_that_is_always_the_same_stays_known() -> None:
    x = calque.arange(6.0).reshape(3, 2)
    for _ in range(3):
        assert calque.stack([x[0], x[1], x[2]]).sum().item() == 15.0
    names = set()
    stack = list(trie.root().next.values())
    while stack:
        edge = stack.pop()
        names.add(edge.op.name)
        stack += edge.next.values()
    assert "view_at" not in names


def _tree_step(weights: list[Any], optimizer: Any, rng: np.random.Generator) -> float:
    """Another number of operations at every step; parameters are written in place."""
    x = calque.ones(4, 8)
    for _ in range(int(rng.integers(3, 40))):
        x = calque.tanh(x @ weights[int(rng.integers(0, 3))])
    loss = (x - 0.5).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.item())


def test_steps_that_never_repeat_compute_what_compiled_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for times in (16, 0):
        monkeypatch.setattr(dispatch, "INTERPRET_TIMES", times)
        trie.forget()
        calque.manual_seed(0)
        weights = [(0.4 * calque.randn(8, 8)).requires_grad_(True) for _ in range(3)]
        seen = weights[0].detach().numpy()  # memory that NumPy sees is written to as well
        optimizer = calque.optim.Adam(weights, lr=1e-2)
        rng = np.random.default_rng(1)
        compiled = calque.stats().compiled
        losses = [_tree_step(weights, optimizer, rng) for _ in range(12)]
        np.testing.assert_array_equal(seen, weights[0].detach().numpy())
        found.append((losses, [w.detach().numpy().copy() for w in weights], calque.stats().compiled - compiled))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    assert found[0][2] < found[1][2]


def test_equal_histories_give_equal_bits() -> None:
    """Which programs are interpreted follows from what was recorded, not from time."""
    found = []
    for _ in range(2):
        trie.forget()
        calque.manual_seed(0)
        weights = [(0.4 * calque.randn(8, 8)).requires_grad_(True) for _ in range(3)]
        optimizer = calque.optim.SGD(weights, lr=1e-2)
        rng = np.random.default_rng(2)
        found.append([_tree_step(weights, optimizer, rng) for _ in range(10)])
    assert found[0] == found[1]


def _branching(rng: np.random.Generator) -> float:
    """A loop of another length each time whose body has one of two forms."""
    weight = calque.full((4,), 0.5).requires_grad_(True)
    x = calque.ones(4)
    for _ in range(int(rng.integers(60, 90))):
        x = calque.tanh(x * weight) if rng.random() < 0.5 else calque.sigmoid(x + weight)
        for k in range(8):
            x = calque.sin(x) * weight if k % 2 else calque.cos(x) + weight
    x.sum().backward()
    assert weight.grad is not None
    return float(weight.grad.sum().item())


def test_long_programs_that_never_repeat_are_cut_into_pieces_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded is counted; compiling the pieces would take ten seconds more."""
    monkeypatch.setattr(dispatch, "INTERPRET_TIMES", 1000)
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 1 << 60)
    trie.forget()
    rng, new = np.random.default_rng(3), []
    for _ in range(24):
        before = Counters.edges
        _branching(rng)
        new.append(Counters.edges - before)
    assert sum(new[-8:]) < sum(new[:8]) // 10


def test_a_loop_that_does_not_repeat_is_told_of_once_and_counted() -> None:
    trie.forget()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in range(6):
            x = calque.ones(3, requires_grad=True)
            for k in range(100 + n):
                x = x * 1.01 if (k + n) % 7 else calque.sin(x)
            x.sum().backward()
            calque.ones(2).sum().item()
        for _ in range(20):
            (calque.ones(3) * 2.0).sum().item()
    assert [w.category for w in told] == [RepetitionWarning] and told[0].filename == __file__
    assert "new programs" in str(told[0].message)
    (causes,) = [causes for (_, line), causes in calque.stats().unrepeated.items() if Path(line.rsplit(":", 1)[0]) == Path(__file__)]
    assert sum(causes.values()) == 6
    assert "does not repeat" in repr(calque.stats())


def test_what_comes_again_and_was_not_kept_is_not_counted_as_new() -> None:
    trie.forget()

    def turn(n: int) -> None:
        x = calque.full((3,), 0.5)
        for k in range(20):
            x = calque.sin(x) if (n >> (k % 5)) & 1 else calque.cos(x)
        x.sum().item()

    for _ in range(3):
        for n in range(20):
            turn(n)
    found = [causes for (_, line), causes in calque.stats().unrepeated.items() if line.startswith(__file__)]
    assert [sum(causes.values()) for causes in found] == [20]
