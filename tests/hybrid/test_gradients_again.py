"""Replayed steps put new gradients where nobody has the old ones any more; whoever has one, or a part of it, keeps what it was."""

from __future__ import annotations

import signal
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.config import settings
from calque.hybrid import call
from calque.record.trie import forget
from calque.run import dispatch


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is interpreted, so equal means equal to the bit."""
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)


def _job(wrap: Callable[[Any], Any], recurrent: bool = False) -> tuple[nn.Module, Callable[[], Any]]:
    calque.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    x = calque.randn(6, 5)
    if recurrent:  # two biases whose gradients are one value
        model, x = nn.LSTM(5, 4), calque.randn(3, 2, 5)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: calque.Tensor) -> calque.Tensor:
        optimizer.zero_grad()
        out = model(x)
        loss = ((out[0] if recurrent else out) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    return model, lambda: run(x)


def _values(model: nn.Module) -> list[Any]:
    return [a.copy() for p in model.parameters() for a in (p.detach().numpy(), p.grad.detach().numpy())]


@pytest.mark.parametrize("recurrent", [False, True])
def test_state_and_gradients_are_those_of_the_step_as_written(recurrent: bool) -> None:
    plain, written = _job(lambda f: f, recurrent)
    model, replayed = _job(calque.compile, recurrent)
    before = calque.stats()["hybridize"]["replays"]
    for _ in range(60):
        assert written().item() == replayed().item()
        for a, b in zip(_values(plain), _values(model), strict=True):
            np.testing.assert_array_equal(a, b)
    assert calque.stats()["hybridize"]["replays"] - before > 40


def test_gradients_are_written_where_the_old_ones_were() -> None:
    model, step = _job(calque.compile)
    for _ in range(60):
        step()
    calque.synchronize()
    parameters = list(model.parameters())
    handles, storages = ([id(f(p.grad)) for p in parameters] for f in (lambda g: g, lambda g: g._storage))
    step()
    assert [id(p.grad) for p in parameters] == handles and [id(p.grad._storage) for p in parameters] == storages


@pytest.mark.parametrize(
    "hold",
    [lambda g: g, lambda g: g[0], lambda g: g.detach(), lambda g: g.numpy(), lambda g: g.numpy().reshape(-1)[1:], lambda g: g * 1.0, lambda g: [g]],
)
def test_what_somebody_has_stays(hold: Callable[[Any], Any]) -> None:
    model, step = _job(calque.compile)
    for _ in range(60):
        step()
    for _ in range(4):
        parameters = list(model.parameters())
        expected = [np.array(p.grad.numpy()) for p in parameters]
        held = [hold(p.grad) for p in parameters]
        shown = [np.array(hold(calque.tensor(e))[0] if isinstance(h, list) else hold(calque.tensor(e))) for e, h in zip(expected, held, strict=True)]
        step()
        step()
        for h, e in zip(held, shown, strict=True):
            np.testing.assert_array_equal(np.array(h[0] if isinstance(h, list) else h), e)


def test_what_was_done_to_an_old_gradient_does_not_show_in_the_new_one() -> None:
    plain, written = _job(lambda f: f)
    model, replayed = _job(calque.compile)
    for k in range(80):
        written()
        replayed()
        for p in (*plain.parameters(), *model.parameters()):
            g = p.grad
            assert not g.requires_grad and g.grad_fn is None and g._version == 0 and not g.__dict__
            if k % 5 == 1:
                g.mul_(0.5)
            elif k % 5 == 2:
                g.requires_grad_()
                g.register_hook(lambda found: found)
                (g * 2.0).sum().backward()
            elif k % 5 == 3:
                g.mark = "seen"
            elif k % 5 == 4:
                p.grad = g.reshape(-1).reshape(g.shape) + 0.0
        for a, b in zip(_values(plain), _values(model), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_weak_reference_to_an_old_gradient_dies() -> None:
    model, step = _job(calque.compile)
    for _ in range(60):
        step()
    p = next(iter(model.parameters()))
    seen = [weakref.ref(p.grad), weakref.ref(p.grad._storage)]
    step()
    assert [r() for r in seen] == [None, None]


def _stop_inside(function: Any, number: int) -> Callable[[Any, str, Any], None]:
    """For `sys.setprofile`: a KeyboardInterrupt at the n-th call or return inside a function; not before a builtin function is called: no signal is
    handled there, and a lock whose release is kept from running stays locked."""
    left, inside = number, False

    def seen(frame: Any, event: str, arg: Any) -> None:
        nonlocal left, inside
        if frame.f_code is function.__code__ and event in ("call", "return"):
            inside = event == "call"
        left -= inside and event != "c_call"
        if left == 0:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)  # not raised here: where signals are held off Ctrl-C comes later

    return seen


def test_an_interrupted_replay_leaves_gradients_whole_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "repeat_of", lambda *call: None)
    model, step = _job(calque.compile)
    for _ in range(20):
        step()
    number, missing, stopped = 0, 0, True
    while stopped:
        number, stopped = number + 1, False
        sys.setprofile(_stop_inside(call._replayed, number))
        try:
            step()
        except KeyboardInterrupt:
            stopped = True
        finally:
            sys.setprofile(None)
        missing += any(p.grad is None for p in model.parameters())
        assert all(calque.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        for _ in range(3):
            step()
            assert all(calque.isfinite(p.grad).all() and calque.isfinite(p).all() for p in model.parameters())
    assert missing > 5 and number > 20


def _totals(wrap: Callable[[Any], Any]) -> list[float]:
    """Gradients of a call that differentiates inside, differentiated twice by a pass of its own, with nothing read meanwhile."""
    w, c = calque.tensor([1.0], dtype=calque.float64).requires_grad_(), calque.tensor([-1.0], dtype=calque.float64)
    doubled = wrap(lambda a: a * 2)

    def f(x: calque.Tensor) -> Any:
        v = calque.autograd.grad((x.sum() * w * w).sum(), w, create_graph=True)[0]
        return v.sum(-1), v, c.expand(2, 1), doubled(v)

    compiled_f, seen = wrap(f), []
    for n in range(6):
        outs = compiled_f(calque.tensor([float((7 * n + 3) % 5 - 2)], dtype=calque.float64))
        for _ in range(2):
            sum((k + 2) * t.sum() for k, t in enumerate(outs) if t.requires_grad).backward(retain_graph=True)
        seen.append(w.grad.clone())
    return [g.item() for g in seen]


def test_pending_work_may_be_cut_anywhere_in_the_gradient_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template's storage that an earlier call had only read stood for a value of this one: its value was lost where a program began just then."""
    wanted = _totals(lambda f: f)
    for limit in range(6, 70):
        monkeypatch.setattr(settings, "max_pending_ops", limit)
        forget()
        assert _totals(calque.compile) == wanted, limit
