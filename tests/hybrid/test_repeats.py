"""Calls that find everything as the call before left it are repeated; they differ in nothing from their twin, the ordinary replay."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.backend.cpu.program import executable, linked
from calque.base.native import hot
from calque.hybrid import call as hybrid_call
from calque.hybrid import repeat
from calque.observe.causes import flush_lines
from calque.record import recorder, trie
from calque.run import dispatch, prepacking

pytestmark = pytest.mark.skipif(hot is None, reason="calls are repeated by the compiled module")
F = nn.functional
NEVER = 1 << 40


class Job:
    """A model that learns words, its step as written, replayed and (with `repeats`) repeated."""

    def __init__(self, repeats: bool, hybrid: bool = True, momentum: float = 0.9) -> None:
        calque.manual_seed(3)
        self.table, self.layer, self.head = nn.Embedding(9, 4), nn.LSTM(4, 4), nn.Linear(4, 9)
        self.parameters = [*self.table.parameters(), *self.layer.parameters(), *self.head.parameters()]
        self.optimizer = calque.optim.SGD(self.parameters, lr=0.1, momentum=momentum)
        self.step: Any = self._step
        self.held: list[Any] = []
        if hybrid:
            self.step = hybrid_call.Hybridized(self._step)
            if not repeats:
                self.step.wait = NEVER

    def _step(self, words: Any, following: Any) -> Any:
        self.optimizer.zero_grad()
        scores = self.head(self.layer(self.table(words))[0])
        loss = F.cross_entropy(scores.reshape(-1, 9), following.reshape(-1))
        loss.backward()
        self.optimizer.step()
        return loss

    @property
    def hits(self) -> int:
        return 0 if self.step.repeat is None else self.step.repeat.hits

    def state(self) -> list[Any]:
        """Everything that can be seen, as copies that leave no traces."""
        found: list[Any] = []
        for p in self.parameters:
            g = p._grad
            found += [p._version, p._storage.buffer.wait().copy() if p._storage.buffer is not None else p.detach().clone().numpy()]
            if g is None:
                found.append(None)
                continue
            value = g._storage.buffer.wait().copy() if g._storage.buffer is not None else g.detach().clone().numpy()
            found += [value, g._version, g._requires_grad, g._grad_fn is None, g._hooks is None, g._grad is None, dict(g.__dict__)]
        return found


def words(k: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(k)
    return tuple(calque.tensor(rng.integers(0, 9, (5, 2))) for _ in range(2))  # type: ignore[return-value]


def _equal(a: list[Any], b: list[Any]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def _hold(job: Job) -> None:
    job.held.append(job.parameters[1].grad)


def _hold_view(job: Job) -> None:
    job.held.append(job.parameters[2].grad[0])


def _export(job: Job) -> None:
    job.held.append(job.parameters[3].grad.numpy())


def _export_parameter(job: Job) -> None:
    job.held.append(job.parameters[0].detach().numpy())


def _mark(job: Job) -> None:
    job.parameters[4].grad.mark = "seen"


def _scale(job: Job) -> None:
    job.parameters[1].grad.mul_(0.5)


def _drop(job: Job) -> None:
    job.parameters[1].grad = None


def _drop_all(job: Job) -> None:
    job.optimizer.zero_grad()


def _exchange(job: Job) -> None:
    job.parameters[5].grad = job.parameters[5].grad.clone()


def _other_storage(job: Job) -> None:
    with calque.no_grad():
        job.parameters[-1].data = job.parameters[-1].data + 0.25


def _write(job: Job) -> None:
    with calque.no_grad():
        job.parameters[-1].add_(0.125)


def _pending(job: Job) -> None:
    job.held.append(job.parameters[-1].detach() * 2.0)


def _watch(job: Job) -> None:
    job.held.append(weakref.ref(job.parameters[1].grad))


def _rate(job: Job) -> None:
    job.optimizer.param_groups[0]["lr"] *= 0.5


def _option(job: Job) -> None:
    job.optimizer.param_groups[0]["weight_decay"] += 0.01


def _differentiate(job: Job) -> None:
    job.parameters[2].grad.requires_grad_()


def _let_go(job: Job) -> None:
    job.held.clear()


def _collect(job: Job) -> None:
    gc.collect()


def _momentum(job: Job) -> None:
    for state in job.optimizer.state.values():
        state["momentum_buffer"].mul_(0.5)


def _forget_momentum(job: Job) -> None:
    state = job.optimizer.state[job.parameters[0]]
    state["momentum_buffer"] = state["momentum_buffer"].clone()


ACTS: list[Callable[[Job], None]] = [
    _hold, _hold_view, _export, _export_parameter, _mark, _scale, _drop, _drop_all, _exchange, _other_storage, _write, _pending, _watch, _rate,
    _differentiate, _let_go, _collect, _momentum, _forget_momentum, _option,
]  # fmt: skip


def _inputs(k: int, how: int) -> tuple[Any, Any]:
    """Arguments number k: of their own, parts of larger ones, seen by NumPy, or one storage twice."""
    a, b = words(k)
    if how == 1:
        return calque.cat([a, a])[:5], b
    if how == 2:
        return calque.from_numpy(a.numpy().copy()), b
    if how == 3:
        return a, a
    return (a + 0, b) if how == 4 else (a, b)  # `a + 0` is only recorded


def _history(rng: np.random.Generator) -> int:
    """Three jobs go through the same; how many of the calls were repeats."""
    jobs = [Job(True), Job(False), Job(False, False)]
    losses: list[list[Any]] = [[], [], []]
    hits, last = 0, 0
    for k in range(70):
        act = ACTS[rng.integers(len(ACTS))] if k > 20 and k % 7 == 0 else None
        how, kept = (int(rng.integers(5)) if k > 20 and k % 9 == 8 else 0), rng.random() < 0.3
        for job, found in zip(jobs, losses, strict=True):
            if act is not None:
                act(job)
            loss = job.step(*_inputs(k, how))
            calque.synchronize()
            if kept:
                found.append(loss.detach())
            found.append(loss.item())
            del loss
        hits += max(0, jobs[0].hits - last)
        last = jobs[0].hits
        states = [job.state() for job in jobs]
        _equal(states[0], states[1])
        _equal(states[0], states[2])
        for a, b in zip(jobs[0].held, jobs[2].held, strict=True):
            if isinstance(a, (np.ndarray, calque.Tensor)):
                np.testing.assert_array_equal(*(np.array(x.detach() if isinstance(x, calque.Tensor) else x) for x in (a, b)))
    for found in zip(*losses, strict=True):
        assert len({x.item() if isinstance(x, calque.Tensor) else x for x in found}) == 1
    return hits


def _run_as(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run alone with the interpreter's lock; by a team; as long ones, which run here by habit and borrow their arenas."""
    monkeypatch.setattr(linked, "SMALL_WORK", 1 << 60 if way == "alone" else 0)
    if way == "long":
        monkeypatch.setattr(dispatch, "AT_ONCE", 1e9)
        monkeypatch.setattr(executable, "KEPT_BYTES", 0)
        for module in (dispatch, repeat):
            monkeypatch.setattr(module, "INLINE_WORK", 0)


@pytest.mark.parametrize("way", ["alone", "team", "long"])
def test_repeats_do_what_replays_and_python_do(seed: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _run_as(way, monkeypatch)
    rng = np.random.default_rng(seed)
    assert sum(_history(rng) for _ in range(2)) > 20


@pytest.mark.parametrize("act", ACTS)
def test_one_change_at_a_time(act: Callable[[Job], None]) -> None:
    """Between repeats, so that each is met by one."""
    job, twin = Job(True), Job(False, False)
    for k in range(56):
        if job.hits > 8 and k % 16 == 0:
            act(job)
            act(twin)
        found = [j.step(*words(k)).item() for j in (job, twin)]
        assert found[0] == found[1]
        _equal(job.state(), twin.state())
    assert job.hits or job.step.pause > repeat.FIRST


def _repeating(job: Job) -> None:
    for k in range(40):
        job.step(*words(k))
        calque.synchronize()
    assert job.hits > 3


def test_what_somebody_has_is_not_the_next_result() -> None:
    job, twin = Job(True), Job(False, False)
    _repeating(job)
    for k in range(40):
        twin.step(*words(k))
    kept = [(job.step(*words(k)), twin.step(*words(k)).item()) for k in range(20)]
    arrays = [loss.detach().numpy() for loss, _ in kept[::3]]
    del kept[1::2]
    for k in range(20):
        assert job.step(*words(k)).item() == twin.step(*words(k)).item()
    assert [loss.item() for loss, _ in kept] == [value for _, value in kept]
    assert len({float(a) for a in arrays}) == len(arrays)
    assert job.hits > 20


def test_models_of_one_kind_share_a_program_but_no_memory() -> None:
    jobs = [Job(True), Job(True)]
    twins = [Job(False, False), Job(False, False)]
    for k in range(80):
        for n, (job, twin) in enumerate(zip(jobs, twins, strict=True)):
            assert job.step(*words(k + n)).item() == twin.step(*words(k + n)).item()
        for job, twin in zip(jobs, twins, strict=True):
            _equal(job.state(), twin.state())
    assert all(job.hits > 10 for job in jobs)


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1"])
def test_steps_on_a_logical_device(device: str, two_devices: None) -> None:
    jobs = []
    for repeats in (True, False):
        calque.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(device)
        optimizer = calque.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        jobs.append((model, hybrid_call.Hybridized(step) if repeats else step))
    for k in range(60):
        x = calque.tensor(np.random.default_rng(k).standard_normal((6, 5), dtype=np.float32)).to(device)
        calque.synchronize()
        found = [job[1](x) for job in jobs]
        assert found[0].device == found[1].device and found[0].item() == found[1].item()
        for a, b in zip(*(job[0].parameters() for job in jobs), strict=True):
            np.testing.assert_array_equal(a.detach().clone().numpy(), b.detach().clone().numpy())
    assert jobs[0][1].repeat.hits > 10  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["alone", "team", "long"])
def test_threads_that_call_one_function(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps on the same words with two threads, begun from nothing: as many steps as with one, each with its own loss."""
    _run_as(way, monkeypatch)
    recorder.flush("test")
    calque.synchronize()
    trie.forget()
    _call_from_two_threads()


def _call_from_two_threads() -> None:
    before = sys.getswitchinterval()
    job, twin = Job(True, momentum=0.0), Job(False, False, momentum=0.0)
    for _ in range(30):
        job.step(*words(0))
        twin.step(*words(0))
        calque.synchronize()
    losses: list[list[Any]] = [[], []]
    args = [[words(0) for _ in range(100)] for _ in range(2)]

    def work(n: int) -> None:
        for a in args[n]:
            losses[n].append(job.step(*a).detach())

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    expected = [twin.step(*words(0)).item() for _ in range(200)]
    assert sorted(loss.item() for found in losses for loss in found) == sorted(expected)
    _equal(job.state()[1::2][:1], twin.state()[1::2][:1])


def _stop_inside(function: Any, number: int) -> Callable[[Any, str, Any], None]:
    """For `sys.setprofile`: a KeyboardInterrupt at the n-th call or return inside a function and what it calls; not before a builtin function is
    called: no signal is handled there, and a lock whose release is kept from running stays locked."""
    left, depth = number, 0

    def seen(frame: Any, event: str, arg: Any) -> None:
        nonlocal left, depth
        if frame.f_code is function.__code__ and event in ("call", "return"):
            depth += 1 if event == "call" else -1
        left -= depth > 0 and event != "c_call"
        if left == 0:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)  # not raised here: where signals are held off Ctrl-C comes later

    return seen


def test_an_interrupted_call_has_taken_the_step_or_not() -> None:
    """Wherever Python would handle a signal."""
    job, twin = Job(True), Job(False, False)
    for _ in range(40):
        job.step(*words(0))
        twin.step(*words(0))
        calque.synchronize()
    number, stopped, taken = 0, True, 0

    def values(found: Job) -> list[Any]:
        return [a for a in found.state() if isinstance(a, np.ndarray)]

    while stopped:
        number, stopped = number + 1, False
        sys.setprofile(_stop_inside(hybrid_call.Hybridized.__call__, number))
        try:
            job.step(*words(0))
        except KeyboardInterrupt:
            stopped = True
        finally:
            sys.setprofile(None)
        if any((a != b).any() for a, b in zip(values(job), values(twin), strict=True)):
            twin.step(*words(0))
            taken += stopped
        _equal(values(job), values(twin))
        for _ in range(2):
            assert job.step(*words(0)).item() == twin.step(*words(0)).item()
        assert job.hits
    assert number > 20 and taken > 3


def test_errors_are_raised_at_the_line_of_the_user() -> None:
    job = Job(True)
    _repeating(job)
    good, following = words(0)
    bad = good.clone()
    bad[0, 0] = 9
    calque.synchronize()  # what a program makes is looked at where it is used once it is known, not once it is there
    before = [p.detach().clone().numpy() for p in job.parameters]
    with pytest.raises(IndexError, match="got 9 at position"):
        job.step(bad, following)
    _equal([p.detach().clone().numpy() for p in job.parameters], before)
    for k in range(20):
        job.step(*words(k))
    assert job.hits > 3


def test_statistics_count_repeats_like_replays() -> None:
    counted = []
    for repeats in (True, False):
        job = Job(repeats)
        for k in range(30):
            job.step(*words(k))
            calque.synchronize()
        before, flushes, hits, lines = calque.stats()["hybridize"]["replays"], recorder.Counters.flushes, recorder.Counters.plan_hits, flush_lines()
        args = [words(k) for k in range(20)]
        for a in args:
            job.step(*a)
        now = flush_lines()
        counted.append((
            calque.stats()["hybridize"]["replays"] - before, recorder.Counters.flushes - flushes, recorder.Counters.plan_hits - hits,
            {line: n - lines.get(line, 0) for line, n in now.items() if n != lines.get(line, 0)},
        ))  # fmt: skip
        assert job.hits > 15 or not repeats
    assert counted[0] == counted[1]


def test_a_function_that_reaches_itself_is_replayed() -> None:
    """What a wrapper notes about its calls is nothing that they depend on."""
    before = calque.stats()["hybridize"]["replays"]
    job = Job(False)
    for k in range(10):
        job.step(*words(k))
    assert calque.stats()["hybridize"]["replays"] - before >= 6


def test_nothing_outlives_the_model() -> None:
    job = Job(True)
    _repeating(job)
    seen = [weakref.ref(p) for p in job.parameters]
    del job
    gc.collect()
    assert [r() for r in seen] == [None] * len(seen)


def test_long_programs_are_repeated_while_somebody_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts count down the habit, which has to be shown again by a queued one; memory for temporaries goes back to the pool after each."""
    monkeypatch.setattr(prepacking, "AFTER", 1 << 30)  # `x` is always the same here: what is queued would multiply by it packed, and keep memory, too
    layer = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8))
    optimizer = calque.optim.Adam(layer.parameters(), lr=1e-3)
    x, y = calque.randn(64, 256), calque.randn(64, 8)

    def train(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(layer(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = hybrid_call.Hybridized(train)
    monkeypatch.setattr(dispatch, "AT_ONCE", 1e9)
    losses = [step(x, y).item() for _ in range(200)]
    monkeypatch.undo()
    found = step.repeat
    assert found is not None and found.long is not None and found.rerun._arena > executable.KEPT_BYTES
    assert 16 < found.hits < 200
    assert losses[-1] < losses[0]
    hits, before = found.hits, calque.stats()["memory"]["in_use"]
    for _ in range(300):  # nobody waits: they are queued, as they would be without repeats
        loss = step(x, y)
    assert found.hits - hits <= dispatch.TRUSTED
    del loss
    calque.synchronize()
    assert calque.stats()["memory"]["in_use"] < before + found.rerun._arena
