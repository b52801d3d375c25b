"""Hybridized calls that move values between devices: the same bits, the same copies and the same programs as written, without running Python."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import calque
from calque import nn
from calque.functional.options import resolve_device
from calque.record import recorder
from calque.run.engine import Task
from calque.run.queues import queue_of

F = nn.functional
FIRST, SECOND = "cpu:0", "cpu:1"


@pytest.fixture(autouse=True)
def _counted(two_devices: None) -> None:
    calque.stats(reset=True)


def replays(first_calls: int = 1) -> int:
    """Replays since the last time, if nothing ran as written but first calls."""
    found = calque.stats(reset=True)["hybridize"]
    assert found["imperative"] == first_calls, found["reasons"]
    return int(found["replays"])


def bits(*tensors: Any) -> list[bytes]:
    return [t.detach().cpu().numpy().tobytes() for t in tensors]


class Halves(nn.Module):
    """Two parts on two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(7, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 32)).to(FIRST)
        self.second = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 3)).to(SECOND)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu().to(SECOND))


class OnTheHost(nn.Module):
    """The embedding on the CPU, the rest on a device, as in the sources."""

    def __init__(self) -> None:
        super().__init__(embedding=nn.Embedding(50, 7), rnn=nn.Linear(7, 3).to(SECOND))

    def forward(self, x: Any) -> Any:
        x = self.embedding((x.abs() * 10).long().cpu())
        x = x.to(SECOND).mean(1)
        return self.rnn(x)


class ThereAndBack(nn.Module):
    """Moves its argument, a parameter and its result."""

    def __init__(self) -> None:
        super().__init__(inner=nn.Linear(7, 3).to(SECOND), scale=nn.Linear(1, 1))

    def forward(self, x: Any) -> Any:
        there = x.to(SECOND)
        return (self.inner(there) * self.scale.weight.to(SECOND)).to(FIRST).to(SECOND)


MODELS: dict[str, Callable[[], Any]] = {
    "model parallel": Halves,
    "embedding on the host": OnTheHost,
    "there and back": ThereAndBack,
    "data parallel": lambda: nn.DataParallel(
        nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).to(FIRST), output_device=1
    ),
    "data parallel inside": lambda: nn.Sequential(nn.Linear(7, 8).to(FIRST), nn.DataParallel(nn.Linear(8, 3).to(FIRST), output_device=SECOND)),
    "pipeline": lambda: calque.parallel.pipeline(Halves(), 3),
}


def train(make: Callable[[], Any], style: str, sizes: list[int]) -> tuple[list[bytes], list[int]]:
    """What training leaves behind, and copies and new programs of the last steps."""
    calque.manual_seed(0)
    model = make()
    optimizer = calque.optim.Adam(model.parameters(), lr=0.05)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if style == "module":
        model.hybridize()
    elif style == "step":
        step = calque.compile(step)
    losses = []
    for k, size in enumerate(sizes):
        if k == len(sizes) - 3:
            calque.synchronize()
            calque.stats(reset=style == "written")
            start = calque.stats()
        x, y = calque.randn(size, 7, device=FIRST), calque.randn(size, 3, device=SECOND)
        losses.append(step(x, y))
    end = calque.stats()
    work = [end["copies"]["count"] - start["copies"]["count"], end["programs"] - start["programs"]]
    state = [v for group in optimizer.state.values() for v in group.values() if isinstance(v, calque.Tensor)]
    return bits(*losses, *model.parameters(), *model.buffers(), *state), work


@pytest.mark.parametrize("style", ["module", "step"])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_to_the_bit(name: str, style: str) -> None:
    sizes = [6] * 8
    expected, work = train(MODELS[name], "written", sizes)
    calque.stats(reset=True)
    found, replayed_work = train(MODELS[name], style, sizes)
    assert found == expected
    assert replays() >= 4
    assert replayed_work[0] == work[0]  # as many copies
    if style == "module" and name == "model parallel":
        assert replayed_work[1] == work[1] == 0  # and the same programs


def test_batches_of_other_sizes() -> None:
    """Uneven parts, and a batch that is too small for all devices."""
    sizes = [7] * 6 + [2] * 6 + [7] * 3 + [1] * 6
    make = lambda: nn.DataParallel(nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 3)).to(FIRST), output_device=SECOND)  # noqa: E731
    expected, _ = train(make, "written", sizes)
    calque.stats(reset=True)
    found, _ = train(make, "module", sizes)
    assert found == expected and replays(3) >= 12


def test_decisions_on_values_of_other_devices() -> None:
    """A branch on a value of another device; Python takes over where a way is new, and nothing is copied or computed twice."""
    state = calque.zeros(3, device=SECOND)

    def program(x: Any) -> Any:
        there = x.to(SECOND)
        state.add_(there)
        for _ in range(3):
            if state.sum().item() > 4:
                state.mul_(0.25)
            there = there * 2 - state
        return there.to(FIRST), state.clone()

    def results(function: Any) -> list[bytes]:
        calque.manual_seed(3)
        state.zero_()
        return [b for _ in range(60) for b in bits(*function(calque.randn(3, device=FIRST).abs()))]

    expected = results(program)
    assert results(calque.compile(program)) == expected
    found = calque.stats(reset=True)["hybridize"]
    assert found["imperative"] == 1 and found["continued"] and found["replays"] > 30, found


def test_an_argument_on_another_device_is_another_signature() -> None:
    double = calque.compile(lambda x: x.to(SECOND) * 2)
    for device in (FIRST, SECOND, "cpu") * 6:
        x = calque.randn(4, device=device)
        out = double(x)
        assert str(out.device) == SECOND and bits(out) == bits(x * 2)
    assert replays(3) == 9


def test_writes_between_devices() -> None:
    """`copy_` and `copyto` write what another device computes."""
    weights = [calque.zeros(4, device=d) for d in (FIRST, SECOND)]

    def program(x: Any) -> None:
        weights[0].add_(x)
        weights[0].copyto(weights[1])
        weights[1].mul_(2)
        weights[0].copy_(weights[1] + 1)

    compiled = calque.compile(program)
    expected = calque.zeros(4)
    for _ in range(8):
        x = calque.randn(4, device=FIRST)
        second = (expected + x.cpu()) * 2
        expected = second + 1
        compiled(x)
        assert bits(*weights) == bits(expected, second)
    assert replays() == 5


def test_the_devices_are_shared_out_anew() -> None:
    """What was recorded for two devices is not used for three or none."""
    model = nn.DataParallel(nn.Linear(7, 3))
    model.hybridize()
    x = calque.randn(6, 7)
    expected = bits(model(x))
    counts = []
    for devices in (2, 3, 1, 2):
        calque.set_logical_devices(devices)
        for _ in range(5):
            calque.stats(reset=True)
            assert bits(model(x)) == expected
        counts.append(calque.stats()["copies"]["count"])
    assert counts[2] == 0 and counts[0] == counts[3] > 0 and counts[1] > counts[0], counts


def test_the_other_device_is_down_when_a_value_cannot_be_computed() -> None:
    """An error in a replay keeps its type, and later calls are right."""
    table = calque.arange(4.0, device=SECOND)

    def program(x: Any) -> Any:
        return (table.index_select(0, x.to(SECOND)) * 2).to(FIRST)

    compiled = calque.compile(program)
    good = calque.tensor([0, 3], device=FIRST)
    for _ in range(5):
        assert compiled(good).tolist() == [0.0, 6.0]
    with pytest.raises(IndexError):
        compiled(calque.tensor([0, 9], device=FIRST)).tolist()
    assert compiled(good).tolist() == [0.0, 6.0]


def test_hybridized_networks_and_a_trainer() -> None:
    """Gluon's loop over copies of a network."""

    def run(hybridize: bool) -> list[bytes]:
        calque.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
        nets = [net] + [nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(1)]
        nets = [n.to(d) for n, d in zip(nets, (FIRST, SECOND), strict=True)]
        for n in nets if hybridize else ():
            n.hybridize()
        trainer = calque.parallel.Trainer(nets, "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        kv = calque.kvstore.create("device")
        kv.init("loss", calque.zeros(()))
        for _ in range(6):
            parts = calque.parallel.split_and_load(calque.randn(8, 5), [FIRST, SECOND])
            losses = [n(part).square().sum() for n, part in zip(nets, parts, strict=True)]
            for loss in losses:
                loss.backward()
            trainer.step(8)
            kv.push("loss", [loss.detach() for loss in losses])
        total = calque.zeros(())
        kv.pull("loss", total)
        return bits(total, *[p for n in nets for p in n.parameters()])

    expected = run(False)
    calque.stats(reset=True)
    assert run(True) == expected
    assert replays(2) >= 8


@contextlib.contextmanager
def busy(device: str) -> Iterator[threading.Event]:
    """A device whose queue stands still until the block is left (or 30 seconds are over, then the event is set)."""
    gate, late = threading.Event(), threading.Event()

    def stand_still() -> None:
        if not gate.wait(300):
            late.set()

    with recorder.LOCK:
        queue_of(resolve_device(device, "test")).submit(Task(stand_still), [], [])
    try:
        yield late
    finally:
        gate.set()


@pytest.mark.parametrize("hybridized", [False, True])
def test_branches_on_two_devices_do_not_wait_for_each_other(hybridized: bool) -> None:
    """What was recorded serially for the second device is finished while the first stands still; what joins them is not."""
    weights = {d: calque.randn(64, 64, device=d) * 0.1 for d in (FIRST, SECOND)}

    def program(x: Any) -> Any:
        a = x * 2.0
        there = a.to(SECOND)
        b, c = a + 1.0, there + 2.0
        for _ in range(3):
            b = (b @ weights[FIRST]).tanh()
            c = (c @ weights[SECOND]).tanh()
        return b, c, b * c.to(FIRST)

    call = calque.compile(program) if hybridized else program
    x = calque.randn(64, 64, device=SECOND).to(FIRST)
    for _ in range(5):
        expected = bits(*program(x))
        assert bits(*call(x)) == expected
    calque.waitall()

    def apart(x: Any, y: Any) -> Any:
        return (x @ weights[FIRST]).tanh() @ weights[FIRST], (y @ weights[SECOND]).tanh() @ weights[SECOND]

    call = calque.compile(apart) if hybridized else apart
    y = calque.randn(64, 64, device=SECOND)
    for _ in range(5):
        expected = [t.tolist() for t in call(x, y)]
    calque.waitall()
    with busy(FIRST) as late:
        first, second = call(x, y)
        recorder.flush("test")
        found = second.tolist()  # (`numpy()` would wait for all devices: nobody may write to the memory later)
        assert not late.is_set() and first._storage.buffer.array is None
    assert [first.tolist(), found] == expected
    if hybridized:
        assert replays(2) >= 4


def test_the_two_device_network_of_the_sources() -> None:
    """The hand-written two-layer network on two devices with its weights on the CPU, statement by statement, as written and hybridized."""
    lr, label = 0.1, calque.randn(100, 2)
    data = calque.randn(100, 6)
    rows = {FIRST: slice(0, 50), SECOND: slice(50, 100)}

    def forward(x: Any, weight: Any) -> Any:
        return x @ weight

    def backward(ograd: Any, x: Any, weight: Any) -> Any:
        return ograd @ weight.t(), x.t() @ ograd

    def run(hybridized: bool) -> list[bytes]:
        calque.manual_seed(0)
        start = [calque.randn(6, 8), calque.randn(8, 2)]
        weight = {d: [w.to(d) if d != "cpu" else w.clone() for w in start] for d in ("cpu", FIRST, SECOND)}

        def step(batch: Any, wanted: Any) -> None:
            wgrad = {}
            for d in (FIRST, SECOND):
                x, y = batch[rows[d]].to(d), wanted[rows[d]].to(d)
                fc1 = forward(x, weight[d][0])
                fc2 = forward(fc1, weight[d][1])
                fc2_ograd = (fc2 - y) / 100
                fc1_ograd, fc2_wgrad = backward(fc2_ograd, fc1, weight[d][1])
                _, fc1_wgrad = backward(fc1_ograd, x, weight[d][0])
                wgrad[d] = fc1_wgrad, fc2_wgrad
            for k in (0, 1):
                weight["cpu"][k] -= lr * (wgrad[FIRST][k].to("cpu") + wgrad[SECOND][k].to("cpu"))
                weight["cpu"][k].copyto(weight[FIRST][k], weight[SECOND][k])

        call = calque.compile(step) if hybridized else step
        for _ in range(8):
            call(data, label)
        return [b for d in ("cpu", FIRST, SECOND) for b in bits(*weight[d])]

    expected = run(False)
    assert expected[:2] == expected[2:4] == expected[4:]
    calque.stats(reset=True)
    assert run(True) == expected
    assert replays() >= 5


def test_a_step_on_meta_is_replayed_while_a_profile_is_taken() -> None:
    """It is started without a trace, and what is started there is not one program but a `Split`, as meta tensors have none."""
    weight, x = (calque.zeros(300, 300, device="meta") for _ in range(2))
    weight = nn.Parameter(weight)
    optimizer = calque.optim.SGD([weight], lr=0.1)

    @calque.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (weight * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(5):
        step(x)
    with calque.profiler.profile() as p:
        step(x)
    assert replays() == 3
    assert [e.facts["slots"] for e in p.events() if e.name == "replay: optimizer.step"]
