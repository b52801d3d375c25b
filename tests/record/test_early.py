"""Programs that begin while they are still recorded: the same bits as without, whatever the user's code does between the beginning and the flush."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.backend.cpu import early as native_early
from calque.backend.cpu import link
from calque.backend.cpu.runtime import RUNTIME
from calque.base.config import settings
from calque.base.errors import AutogradError
from calque.record import early, recorder
from calque.replay import stretches
from calque.run import dispatch

F = nn.functional
SIZES = [(784, 96, 10, 48), (33, 40, 7, 21), (130, 200, 3, 5)]


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every program runs where it is started once it is compiled, on all threads, and nothing is too small to begin early."""
    monkeypatch.setattr(settings, "threads", 2)
    monkeypatch.setattr(dispatch.Plan, "habitual", lambda plan: plan.compiled is not None)
    monkeypatch.setattr(link, "SMALL_WORK", 0)
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    monkeypatch.setattr(native_early, "LEAST_WORK", 0)
    monkeypatch.setattr(early, "SURE", 2)
    yield
    calque.synchronize()


class Begun:
    """Counts what is begun, and what of that a run has taken over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = self.used = 0
        begin, in_vain = early.begin, early.in_vain

        def counted(guess: Any, inputs: list[Any]) -> Any:
            found = begin(guess, inputs)
            self.begun += found is not None
            return found

        def ended(trace: Any) -> bool:
            vain = in_vain(trace)
            self.used += not vain
            return vain

        monkeypatch.setattr(stretches, "begin", counted)
        monkeypatch.setattr(recorder, "in_vain", ended)


class Loop:
    """A training loop on a perceptron that takes a turn of its own at some steps."""

    def __init__(self, sizes: tuple[int, int, int, int]) -> None:
        calque.manual_seed(0)
        inputs, hidden, classes, batch = sizes
        rng = np.random.default_rng(0)
        self.model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes))
        self.optimizer = calque.optim.Adam(self.model.parameters(), lr=1e-2)
        self.x = [calque.tensor(rng.standard_normal((batch, inputs), dtype=np.float32)) for _ in range(3)]
        self.y = calque.tensor(rng.integers(0, classes, batch))
        self.seen: list[Any] = []
        self.step_now = 0

    def step(self, k: int, turn: str = "") -> None:
        """One step; `turn`: what happens once the model has been called."""
        self.optimizer.zero_grad()
        x = self.x[k % 3]
        scores = self.model(x)
        getattr(self, turn or "nothing")(scores, x)
        loss = F.cross_entropy(scores, self.y)
        try:
            loss.backward()
        except AutogradError as error:
            self.seen.append(str(error))
            return
        self.optimizer.step()
        self.seen.append(loss.item())

    def nothing(self, scores: Any, x: Any) -> None:
        """As usual."""

    def read(self, scores: Any, x: Any) -> None:
        """Another program comes first."""
        self.seen.append(scores.sum().item())

    def other_loss(self, scores: Any, x: Any) -> None:
        """The rest of the step is another."""
        (scores * scores).mean().backward(retain_graph=True)

    def overwrite(self, scores: Any, x: Any) -> None:
        """What was read is written before the step is over, which `backward` finds, or behind its back."""
        (x if len(self.seen) % 2 else x.data).mul_(0.5)
        self.seen.append(x.sum().item())

    def through_numpy(self, scores: Any, x: Any) -> None:
        """The same, behind the library's back."""
        self.seen.append(float(scores.detach().numpy()[0, 0]))
        x.numpy()[0, 0] += 1.0

    def parameters_elsewhere(self, scores: Any, x: Any) -> None:
        """A parameter gets other values before the gradients are computed."""
        with calque.no_grad():
            self.model[0].weight.data = self.model[0].weight.data * 0.75

    def other_thread(self, scores: Any, x: Any) -> None:
        """Somebody else needs the threads."""
        found: list[float] = []
        thread = threading.Thread(target=lambda: found.append((calque.ones(64, 64) @ calque.ones(64, 64)).sum().item()))
        thread.start()
        thread.join()
        self.seen += found

    def threads(self, scores: Any, x: Any) -> None:
        """The number of threads changes."""
        settings.threads = 3 - settings.threads

    def result(self) -> list[Any]:
        """All that was seen, and the parameters."""
        return [*self.seen, *[p.detach().numpy().tobytes() for p in self.model.parameters()]]


TURNS = ["read", "other_loss", "overwrite", "through_numpy", "parameters_elsewhere", "other_thread", "threads"]


def _run(sizes: tuple[int, int, int, int], turns: list[str]) -> list[Any]:
    loop = Loop(sizes)
    for k, turn in enumerate(turns):
        loop.step(k, turn)
    return loop.result()


@pytest.mark.parametrize("sizes", SIZES)
def test_a_loop_begins_early_and_computes_the_same(sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    count = Begun(monkeypatch)
    found = _run(sizes, [""] * 24)
    assert count.begun >= 12 and count.used == count.begun
    assert RUNTIME.early is None
    monkeypatch.setattr(early, "SURE", 1 << 30)
    assert _run(sizes, [""] * 24) == found


def test_programs_that_are_queued_were_expected_rightly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A habit is looked at again from time to time, and steps are queued meanwhile: the next that run at once begin early as before."""
    count = Begun(monkeypatch)
    loop = Loop(SIZES[0])
    queued: list[Any] = []

    def habitual(plan: Any) -> bool:
        if loop.step_now in range(12, 18) and plan.compiled is not None:
            queued.append(plan)
            return False
        return plan.compiled is not None

    monkeypatch.setattr(dispatch.Plan, "habitual", habitual)
    before = 0
    for loop.step_now in range(24):
        if loop.step_now == 18:
            before = count.begun
        loop.step(loop.step_now)
    assert len(queued) == 6 and len({id(plan) for plan in queued}) == 1
    assert count.begun - before == 6
    assert RUNTIME.early is None


@pytest.mark.parametrize("turn", TURNS)
def test_any_other_turn_computes_the_same(turn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [turn if k in (9, 10, 17) else "" for k in range(24)]
    count = Begun(monkeypatch)
    found = _run(SIZES[1], turns)
    assert count.begun >= 6
    assert RUNTIME.early is None
    monkeypatch.setattr(early, "SURE", 1 << 30)
    monkeypatch.setattr(settings, "threads", 2)
    assert _run(SIZES[1], turns) == found


def test_random_turns_compute_the_same(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [str(rng.choice(TURNS)) if rng.random() < 0.15 else "" for _ in range(120)]
    found = _run(SIZES[1], turns)
    monkeypatch.setattr(early, "SURE", 1 << 30)
    monkeypatch.setattr(settings, "threads", 2)
    assert _run(SIZES[1], turns) == found


def test_a_step_that_fails_half_way_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Begun(monkeypatch)
    loop = Loop(SIZES[1])
    for k in range(10):
        loop.step(k)
    loop.optimizer.zero_grad()
    scores = loop.model(loop.x[0])
    with pytest.raises(ValueError, match="cross_entropy"):
        F.cross_entropy(scores, calque.tensor(np.zeros((3, 3, 3), np.int64)))
    del scores
    for k in range(11, 20):
        loop.step(k)
    assert count.begun > 6
    assert RUNTIME.early is None


def test_what_mostly_comes_to_nothing_is_not_begun_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Begun(monkeypatch)
    monkeypatch.setattr(early, "SURE", 4)
    loop = Loop(SIZES[1])
    for k in range(200):
        loop.step(k, "read" if k > 20 and k % 3 == 0 else "")
    assert count.used > 6
    assert 1 <= count.begun - count.used <= 10


def test_large_launches_do_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    made = dispatch.Plan.__init__
    monkeypatch.setattr(dispatch.Plan, "__init__", lambda plan, *a, **b: (made(plan, *a, **b), plans.append(plan))[0])
    monkeypatch.setattr(native_early, "MOST_WORK", 1 << 15)
    x = calque.tensor(np.ones((150, 150), np.float32))
    (F.relu(x @ x) @ x).sum().item()
    (program,) = [p.compiled.executable for p in plans if p.compiled is not None]
    assert not program.leading and program.begin([x._storage.buffer.array]) is None  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(128, 512, 784), (7, 30, 64), (200, 16, 33), (1, 90, 300)])
def test_executables_go_on_with_what_was_begun(shape: tuple[int, int, int], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and loops behind them: begun, given up, overtaken by another run, or begun with other arrays, on 1 to 5 threads."""
    m, n, k = shape
    plans: list[Any] = []
    made = dispatch.Plan.__init__
    monkeypatch.setattr(dispatch.Plan, "__init__", lambda plan, *a, **b: (made(plan, *a, **b), plans.append(plan))[0])
    a, b, c = (calque.tensor(rng.standard_normal(size, dtype=np.float32)) for size in ((m, k), (k, n), (n, 4)))
    (F.relu(a @ b) @ c).sum().item()
    (program,) = [p.compiled.executable for p in plans if p.compiled is not None]
    assert program.leading >= 2
    inputs = [t._storage.buffer.array for t in (a, b, c)]  # type: ignore[union-attr]
    changed = [array * np.float32(0.5) for array in inputs]
    expected = {id(run): [v.tobytes() for v in program.run(run, [])] for run in (inputs, changed)}
    for threads in (1, 2, 3, 5):
        monkeypatch.setattr(settings, "threads", threads)
        program.run(inputs, [])
        for turn in rng.permutation(["run", "give up", "other run", "other inputs", "twice"] * 4):
            begun = program.begin(inputs)
            assert (begun is not None) is (threads > 1)
            if turn == "give up" and begun is not None:
                assert begun.give_up() and not begun.give_up()
            if turn == "other run":
                calque.ones(70, 80).matmul(calque.ones(80, 90)).sum().item()
            if turn == "twice":
                assert program.begin(changed) is None
            for run in (changed if turn == "other inputs" else inputs, inputs):
                assert [v.tobytes() for v in program.run(run, [])] == expected[id(run)]
            assert RUNTIME.early is None
            assert begun is None or not begun.give_up()
