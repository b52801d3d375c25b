"""Updates that are recorded again without their Python do what updates as written do: the same edges and programs, the same bits."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn, optim
from calque.base.config import settings
from calque.record import recorder
from calque.record.recorder import Counters
from calque.replay.stretches import StretchCounts
from calque.run import dispatch

Make = Callable[[list[Any]], Any]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "sgd, a rate that is a constant": lambda p: optim.SGD(p, lr=0.5, momentum=0.5, weight_decay=0.5),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1, maximize=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.01, lr_decay=0.1),
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    recorder.flush("test")
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)  # programs met for the first time are not interpreted: both ways run the same code
    yield
    settings.macros = True
    calque.synchronize()


def network() -> Any:
    calque.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def batch(k: int) -> Any:
    return calque.tensor(np.random.default_rng(k).normal(size=(4, 5)).astype(np.float32))


def values(model: Any, optimizer: Any) -> list[np.ndarray]:
    held = [v for p in model.parameters() for v in optimizer.state.get(p, {}).values() if isinstance(v, calque.Tensor)]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [t.detach().numpy().copy() for t in (*model.parameters(), *held, *grads)]


def train(make: Make, change: Callable[[Any, Any, int], Any], steps: int = 12) -> list[np.ndarray]:
    model = network()
    optimizer = make(list(model.parameters()))
    losses = []
    for k in range(steps):
        optimizer.zero_grad()
        loss = (model(batch(k)) ** 2).mean()
        loss.backward()
        optimizer = change(model, optimizer, k) or optimizer
        optimizer.step()
        losses.append(loss.detach())
    return [np.array([loss.item() for loss in losses]), *values(model, optimizer)]


def compare(run: Callable[[], list[np.ndarray]], least: int) -> None:
    """Both ways, in this order: whatever the second way records must be in the trie already, and its programs must exist."""
    settings.macros = False
    expected = run()
    edges, programs, replays = Counters.edges, Counters.plan_misses, StretchCounts.replays
    settings.macros = True
    got = run()
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (Counters.edges, Counters.plan_misses) == (edges, programs)
    assert StretchCounts.replays - replays >= least


def nothing(model: Any, optimizer: Any, step: int) -> None:
    pass


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_replayed_updates_are_the_updates(name: str) -> None:
    compare(lambda: train(OPTIMIZERS[name], nothing), 9)


def rate(model: Any, optimizer: Any, step: int) -> None:
    optimizer.param_groups[0]["lr"] *= 0.9


def constant_rates(model: Any, optimizer: Any, step: int) -> None:
    optimizer.param_groups[0]["lr"] = (0.5, 0.25, 1, 0.3)[step // 5 % 4]


def more_decay(model: Any, optimizer: Any, step: int) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.0 if step < 6 else 0.1


def no_gradient(model: Any, optimizer: Any, step: int) -> None:
    if step % 3 == 2:
        model[0].weight.grad = None


def frozen(model: Any, optimizer: Any, step: int) -> None:
    model[0].weight.requires_grad_(step < 6)


def other_values(model: Any, optimizer: Any, step: int) -> None:
    if step in (5, 9):
        model[0].weight.data = calque.ones(7, 5)


def view_of_more(model: Any, optimizer: Any, step: int) -> None:
    if step == 5:
        model[0].weight.data = calque.ones(9, 5)[1:8]


def wide_state(model: Any, optimizer: Any, step: int) -> None:
    if step == 6:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def copied(model: Any, optimizer: Any, step: int) -> Any:
    if step == 6:
        other = type(optimizer)(list(model.parameters()))
        other.load_state_dict(optimizer.state_dict())
        return other
    return None


def gradients_in_place(model: Any, optimizer: Any, step: int) -> None:
    if step >= 4:
        model[0].weight.grad.mul_(0.5)


def clipped(model: Any, optimizer: Any, step: int) -> None:
    nn.utils.clip_grad_norm_(list(model.parameters()), 0.1)


def read_between(model: Any, optimizer: Any, step: int) -> None:
    if step % 2:
        model[0].weight.grad.sum().item()


def seen_by_numpy(model: Any, optimizer: Any, step: int) -> None:
    if step == 6:
        model.seen = model[0].weight.detach().numpy()
    if step == 8 and hasattr(model, "seen"):
        model.seen[0, 0] = 3.0


def shared(model: Any, optimizer: Any, step: int) -> None:
    model[0].bias.grad = calque.ones(7)
    if step > 3:
        model[0].weight.grad = model[0].weight.data


def two_steps(model: Any, optimizer: Any, step: int) -> None:
    if step > 5:
        optimizer.step()


def hooked(model: Any, optimizer: Any, step: int) -> None:
    if step == 4:
        optimizer.register_step_pre_hook(lambda o, args, kwargs: rate(None, o, 0))


CHANGES = [
    rate, constant_rates, more_decay, no_gradient, frozen, other_values, view_of_more, wide_state, copied, gradients_in_place, clipped, read_between,
    seen_by_numpy, shared, two_steps, hooked,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["sgd, a rate that is a constant", "adam"])
def test_what_happens_between_steps_is_seen(name: str, change: Any) -> None:
    compare(lambda: train(OPTIMIZERS[name], change, 20), 1)


def test_parameters_may_be_added_and_taken_away() -> None:
    def run() -> list[np.ndarray]:
        model = network()
        optimizer = optim.Adam(model[0].parameters(), lr=0.01)
        for k in range(18):
            if k == 6:
                optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.1, "betas": (0.8, 0.9)})
            if k == 12:
                optimizer.param_groups[0]["params"].pop()
            optimizer.zero_grad()
            (model(batch(k)) ** 2).mean().backward()
            optimizer.step()
        return values(model, optimizer)

    compare(run, 8)


def test_random_changes_between_steps(seed: int) -> None:
    def run() -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        found = []
        for name in ("momentum", "adamw", "rmsprop"):
            plan = [CHANGES[rng.integers(len(CHANGES))] if rng.random() < 0.3 else nothing for _ in range(30)]
            found += train(OPTIMIZERS[name], lambda model, optimizer, k, plan=plan: plan[k](model, optimizer, k), 30)
        return found

    compare(run, 5)


def test_an_update_of_the_users_own_runs_as_written() -> None:
    class Mine(optim.Adam):
        calls = 0

        def update_group(self, group: dict[str, Any]) -> None:
            Mine.calls += 1
            super().update_group(group)

    train(lambda p: Mine(p), nothing, 8)
    assert Mine.calls == 8
    patched: list[int] = []

    def patch(params: list[Any]) -> Any:
        optimizer = optim.SGD(params, lr=0.1)
        own = optimizer.update_group
        optimizer.update_group = lambda group: (patched.append(1), own(group))  # type: ignore[method-assign, assignment]
        return optimizer

    train(patch, nothing, 8)
    assert len(patched) == 8


def test_errors_of_options_come_where_they_came() -> None:
    model = network()
    optimizer = optim.Adam(model.parameters())
    for k in range(6):
        (model(batch(k)) ** 2).mean().backward()
        optimizer.step()
    optimizer.param_groups[0]["lr"] = "fast"
    with pytest.raises(ValueError, match="fast"):
        optimizer.step()


def test_nothing_is_kept_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        model = network()
        optimizer = optim.Adam(model.parameters())
        before = StretchCounts.replays
        for k in range(8):
            optimizer.zero_grad()
            (model(batch(k)) ** 2).mean().backward()
            optimizer.step()
        assert StretchCounts.replays > before
        state = optimizer.state[model[0].weight]["exp_avg"]
        refs = [weakref.ref(x) for x in (optimizer, state, state._storage, model[0].weight.grad, model[0].weight.grad._storage)]
        assert copy.deepcopy(optimizer)._updates is None
        recorder.flush("test")
        del state
        model.zero_grad()
        calque.synchronize()
        assert refs[3]() is None and refs[4]() is None
        del optimizer
        assert refs[0]() is None and refs[1]() is None and refs[2]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_behind_steps_that_never_repeat_an_update_is_a_program_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is one larger than the one before, so the trace of no step was met; the update is found again all the same, and is the same."""
    monkeypatch.setattr(settings, "eager", 0)

    def run(macros: bool) -> tuple[list[np.ndarray], int, int]:
        settings.macros = macros
        model = network()
        optimizer = OPTIMIZERS[name](list(model.parameters()))
        replays = planned = 0
        for k in range(16):
            before = StretchCounts.replays, Counters.plan_misses
            x = calque.tensor(np.random.default_rng(k).normal(size=(11 + k, 5)).astype(np.float32))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            calque.synchronize()
            if k >= 10:
                replays += StretchCounts.replays - before[0]
                planned += Counters.plan_misses - before[1]
        return values(model, optimizer), replays, planned

    found, replays, planned = run(True)
    wanted, none, whole = run(False)
    assert replays >= 6 and none == 0
    assert planned == 6 and whole == 6  # one new program for each of the last steps: that of its gradients
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_an_update_at_a_place_that_was_met_before_stays_part_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "eager", 0)
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)

    def step(rows: int) -> int:
        before = Counters.flushes
        optimizer.zero_grad()
        model(calque.zeros(rows, 5)).square().mean().backward()
        optimizer.step()
        return Counters.flushes - before

    alone = [step(rows) for rows in range(31, 41)]
    again = [step(40) for _ in range(4)]
    assert alone[-1] > alone[0] and again[-1] == alone[0]
