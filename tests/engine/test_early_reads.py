"""Reads that wait for their value alone: they return while the rest of the program runs, and find what the synchronous twin finds."""

from __future__ import annotations

import ctypes
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.backend.cpu.program import executable, linked
from calque.backend.cpu.team import progress
from calque.base.config import settings
from calque.run import dispatch, partial
from calque.run.engine import CPU_QUEUE
from tests.fuzz.check import forget

KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)


def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program is compiled and queued, and no value comes too late to be read early."""
    monkeypatch.setattr(settings, "threads", 2)
    monkeypatch.setattr(partial, "available_cores", lambda: 64)
    monkeypatch.setattr(progress, "SOON_WORK", 0)
    monkeypatch.setattr(linked, "SMALL_WORK", 0)
    for name in ("INTERPRET_WORK", "INLINE_WORK", "INLINE_READ_WORK", "INLINE_HABIT_WORK"):
        monkeypatch.setattr(dispatch, name, 0)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    always(monkeypatch)
    forget()  # what others have compiled
    yield
    calque.synchronize()
    forget()


class Gate:
    """Programs stop in front of their last launch, or behind their first, until somebody opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: bool = False) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        self.closed = False
        self._kept: list[Any] = []
        made = executable.CpuExecutable.__init__

        def init(form: Any, *arguments: Any) -> None:
            made(form, *arguments)
            if form.launches > 1:
                self._stop(form.linked.records, 1 if first else form.launches - 1)

        monkeypatch.setattr(executable.CpuExecutable, "__init__", init)

    def _stop(self, records: Any, number: int) -> None:
        kernel = KERNEL(int(records[number, 0]))

        def wait(thread: int, *rest: int) -> None:
            if thread == 0 and self.closed:
                self.reached.set()
                self.opened.wait()
            kernel(thread, *rest)

        native = KERNEL(wait)
        self._kept += [kernel, native]
        records[number - 1, 2] |= 1  # a barrier in front of it
        records[number, 0] = ctypes.cast(native, ctypes.c_void_p).value

    def close(self) -> None:
        """From the next program on."""
        calque.synchronize()
        self.opened.clear()
        self.reached.clear()
        self.closed = True

    def open(self) -> None:
        self.closed = False
        self.opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open()


class Loop:
    """A training loop on a perceptron."""

    def __init__(self, optimizer: str = "SGD", dropout: float = 0.0) -> None:
        calque.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Dropout(dropout), nn.Linear(40, 5))
        self.optimizer = getattr(calque.optim, optimizer)(self.model.parameters(), lr=0.1)
        rng = np.random.default_rng(0)
        self.x, self.y = calque.tensor(rng.standard_normal((16, 12), dtype=np.float32)), calque.tensor(rng.integers(0, 5, 16))

    def step(self) -> calque.Tensor:
        loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def state(self) -> list[bytes]:
        return [p.detach().numpy().tobytes() for p in self.model.parameters()]


def _expected(steps: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[list[float], list[bytes]]:
    with monkeypatch.context() as patch:
        patch.setattr(settings, "sync", True)
        twin = Loop(**options)
        return [twin.step().item() for _ in range(steps)], twin.state()


@pytest.mark.parametrize("options", [{}, {"optimizer": "Adam"}, {"dropout": 0.3}], ids=["sgd", "adam", "dropout"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_loss_is_there_before_its_step_has_ended(threads: int, options: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "threads", threads)
    losses, state = _expected(6, monkeypatch, **options)
    loop = Loop(**options)
    found = [loop.step().item() for _ in range(3)]  # compiled
    calque.synchronize()
    for _ in range(3):
        gate.close()
        loss = loop.step()
        found.append(loss.item())
        assert not CPU_QUEUE.idle()  # the step stands in front of its last launch
        assert loss.item() == found[-1] and loss.tolist() == found[-1]  # read again meanwhile
        assert float(np.array(loss.detach())) == found[-1]
        gate.open()
        calque.synchronize()
        assert loss.item() == found[-1]
    assert found == losses
    assert loop.state() == state


def test_without_early_reads_the_whole_program_is_waited_for(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "early_reads", False)
    loop = Loop()
    for _ in range(3):
        loop.step().item()
    gate.close()
    loss = loop.step()
    assert gate.reached.wait(300)
    reader = threading.Thread(target=loss.item)
    reader.start()
    reader.join(0.2)
    assert reader.is_alive()
    gate.open()
    reader.join(300)
    assert not reader.is_alive()
    until = time.monotonic() + 300
    while not CPU_QUEUE.idle() and time.monotonic() < until:  # who waits is woken before the queue has put the program away
        time.sleep(0.001)
    assert CPU_QUEUE.idle()


def test_memory_shared_with_numpy_waits_for_everything(gate: Gate) -> None:
    """The program may still read what the user may write to."""
    loop = Loop()
    for _ in range(3):
        loop.step().item()
    gate.close()
    loss = loop.step()
    loss.item()
    threading.Timer(0.1, gate.open).start()
    loss.detach().numpy()
    assert CPU_QUEUE.idle()


def test_a_value_that_the_last_launch_writes_is_not_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    x, y = calque.ones(64, 64), calque.ones(64)

    def program() -> tuple[calque.Tensor, calque.Tensor]:
        product = x @ x
        y.add_(product.sum(0))
        return product, y

    for _ in range(3):
        program()[1].sum().item()
    calque.synchronize()
    gate.close()
    product, total = program()
    threading.Timer(0.1, gate.open).start()
    values = np.array(total)  # in place, by the last launch
    assert values.tolist() == [64.0 * 64 * 4 + 1] * 64
    assert np.array(product).tolist() == [[64.0] * 64] * 64


def test_others_wait_as_well(gate: Gate) -> None:
    """Several threads for several values, and one for the end."""
    loop = Loop()
    for _ in range(3):
        loop.step().item()
    calque.synchronize()
    gate.close()
    loss = loop.step()
    found: list[Any] = []
    readers = [threading.Thread(target=lambda: found.append(loss.item())) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(300)
    assert len(found) == 4 and len(set(found)) == 1 and not CPU_QUEUE.idle()
    last = threading.Thread(target=calque.synchronize)
    last.start()
    gate.open()
    last.join(300)
    assert not last.is_alive() and CPU_QUEUE.idle()


def test_a_program_that_cannot_begin_is_an_error_of_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    for _ in range(3):
        loop.step().item()
    calque.synchronize()

    def failing(form: Any, *arguments: Any) -> Any:
        raise MemoryError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(executable.CpuExecutable, "run", failing)
        loss = loop.step()
        with pytest.raises(MemoryError, match="on purpose") as caught:
            loss.item()
    assert any("test_early_reads.py" in text for text in (str(caught.value), *getattr(caught.value, "__notes__", ())))
    assert np.isfinite(loop.step().item())


def test_a_wrong_label_is_an_error_of_the_read() -> None:
    """Checks come first: nothing of such a program is read."""
    loop = Loop()
    for _ in range(3):
        loop.step().item()
    table = calque.ones(10, 4)

    def program(row: int) -> calque.Tensor:
        chosen = nn.functional.embedding(calque.tensor([1, row]) + calque.tensor([0, 0]), table)  # not known when it is recorded
        total = chosen.sum()
        table.add_(total)
        return total

    for _ in range(3):
        program(2).item()
    wrong = program(10)
    with pytest.raises(IndexError):
        wrong.item()
    assert np.isfinite(loop.step().item())


def test_ctrl_c_reaches_a_thread_that_waits_for_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, first=True)
    loop = Loop()
    for _ in range(3):
        loop.step().item()
    calque.synchronize()
    gate.close()
    loss = loop.step()

    def interrupt() -> None:
        gate.reached.wait(300)
        time.sleep(0.05)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            loss.item()
    finally:
        signal.signal(signal.SIGINT, before)
    sender.join()
    assert not CPU_QUEUE.idle()
    gate.open()
    assert np.isfinite(loss.item())


def test_who_stays_away_for_long_is_let_go_although_all_cores_are_busy(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "available_cores", lambda: 2)
    clock = [0.0]
    monkeypatch.setattr(partial.events, "clock", lambda: clock[0])
    loop = Loop()

    def read(away: float, opens: float = 0.1) -> bool:
        """Whether a read returns before the end, which comes after `opens` seconds: a busy machine needs more for one that does not wait for it."""
        clock[0] += away
        gate.close()
        loss = loop.step()
        opener = threading.Timer(opens, gate.open)
        opener.start()
        loss.item()
        early = not gate.opened.is_set()
        opener.cancel()
        gate.open()
        opener.join()
        calque.synchronize()
        return early

    assert not any(read(0.001) for _ in range(5))
    assert not any(read(0.1) for _ in range(partial.TIMES - 1))
    assert read(0.1, opens=60.0)
    assert not read(0.001)


# ------------------------------------------------------- forks, ends and interrupts while a program runs behind an early read


def _left_running(gate: Gate, loop: Loop) -> float:
    """The loss of a step that stands in front of its last launch."""
    for _ in range(3):
        loop.step().item()
    gate.close()
    found: float = loop.step().item()
    assert not CPU_QUEUE.idle()
    return found


def test_a_process_forked_while_a_program_runs(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has all values, and both go on."""
    losses, state = _expected(6, monkeypatch)
    loop = Loop()
    assert _left_running(gate, loop) == losses[3]
    opener = threading.Timer(0.1, gate.open)
    opener.start()

    def goes_on() -> None:
        assert [loop.step().item() for _ in range(2)] == losses[4:]
        assert loop.state() == state

    child = get_context("fork").Process(target=goes_on)
    child.start()
    goes_on()
    child.join(300)
    opener.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("dies", [False, True])
def test_a_thread_that_ends_while_its_program_runs(dies: bool, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, state = _expected(6, monkeypatch)
    loop, seen, errors = Loop(), [], []
    monkeypatch.setattr(threading, "excepthook", lambda args: errors.append(args.exc_type))

    def work() -> None:
        seen.append(_left_running(gate, loop))
        loop.model(loop.x).sum()  # recorded, and nobody's
        if dies:
            raise ZeroDivisionError

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(300)
    assert not thread.is_alive() and seen == [losses[3]] and errors == [ZeroDivisionError] * dies
    gate.open()
    assert [loop.step().item() for _ in range(2)] == losses[4:]
    assert loop.state() == state


WAITS: dict[str, Callable[[Loop], Any]] = {
    "waitall": lambda loop: calque.waitall(),
    "synchronize": lambda loop: calque.synchronize(),
    "numpy": lambda loop: loop.model[0].weight.detach().numpy(),
    "tolist": lambda loop: loop.model[0].weight.tolist(),
    "flush": lambda loop: (loop.model[0].weight + 1.0).sum().item(),
}


@pytest.mark.parametrize("how", WAITS)
def test_ctrl_c_while_somebody_waits_for_the_end_of_a_program(how: str, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, state = _expected(6, monkeypatch)
    loop = Loop()
    assert _left_running(gate, loop) == losses[3]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sender = threading.Timer(0.2, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            WAITS[how](loop)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    sender.join()
    assert not CPU_QUEUE.idle()
    gate.open()
    assert [loop.step().item() for _ in range(2)] == losses[4:]
    assert loop.state() == state


END = """
import atexit, signal, sys, threading
import numpy as np
sys.path.insert(0, {root!r})
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
atexit.register(lambda: print("end", CPU_QUEUE.idle(), bool(np.isfinite(weight.array).all())))  # runs behind what is registered later
import pytest
from tests.engine.test_early_reads import CPU_QUEUE, Gate, Loop, always
patch = pytest.MonkeyPatch()
always(patch)
gate, loop = Gate(patch), Loop()
for _ in range(3):
    loop.step().item()
gate.close()
loss = loop.step().item()
assert not CPU_QUEUE.idle()
weight = loop.model[0].weight._storage.buffer
opener = threading.Timer(0.3, gate.open)
opener.daemon = True
opener.start()
print("loss", loss, flush=True)
{end}
"""


ENDS = {"": 0, "raise SystemExit(3)": 3, "1 / 0": 1, "signal.raise_signal(signal.SIGINT)": -signal.SIGINT}


@pytest.mark.parametrize(("end", "status"), ENDS.items())
def test_an_interpreter_that_ends_while_a_program_runs(end: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, _ = _expected(4, monkeypatch)
    script = END.format(root=str(Path(__file__).parents[2]), end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    assert done.stdout.split("\n")[:2] == [f"loss {losses[3]}", "end True True"], done.stdout + done.stderr
    assert not done.stderr or "ZeroDivisionError" in done.stderr or "KeyboardInterrupt" in done.stderr, done.stderr


# ------------------------------------------------------------------------------------------------------ random programs

ROWS, COLUMNS = 6, 18


def _operation(rng: random.Random) -> Callable[[list[calque.Tensor]], Any]:
    """One of some operations that make a value, or write to one, or look at one."""
    a, b, c = (rng.randrange(4) for _ in range(3))
    factor = rng.choice([0.5, -0.25, 0.75])

    def made(values: list[calque.Tensor], value: calque.Tensor) -> None:
        values[c] = value

    return rng.choice([
        lambda v: made(v, v[a] * factor + v[b]),
        lambda v: made(v, (v[a] - v[b]).abs()),
        lambda v: made(v, v[a] - v[a].mean(1, keepdim=True)),
        lambda v: made(v, (v[a] @ v[b].t()) @ v[b] * 0.01),
        lambda v: made(v, calque.softmax(v[a], 1)),
        lambda v: made(v, v[a]),
        lambda v: v[a].add_(v[b], alpha=factor),
        lambda v: v[a][1:3].mul_(factor),
        lambda v: v[a].t()[2].copy_(v[b][:, 3]),
        lambda v: v[a].sum().item(),
        lambda v: v[a][a, b].item(),
        lambda v: v[a].tolist(),
        lambda v: float(v[b].mean()),
        lambda v: np.array(v[a]),
        lambda v: calque.synchronize(),
    ])  # fmt: skip


def _program(seed: int) -> list[Any]:
    """What a random program reads, several times with other values."""
    rng = random.Random(seed)
    operations = [_operation(rng) for _ in range(4 + seed % 9)]
    start = np.random.default_rng(seed)
    values = [calque.tensor(start.standard_normal((ROWS, COLUMNS), dtype=np.float32)) for _ in range(4)]
    found: list[Any] = []
    for _ in range(3):
        seen = [run(values) for run in operations]
        found += [value.tolist() if isinstance(value, np.ndarray) else value for value in seen if isinstance(value, float | list | np.ndarray)]
        found.append([v.tolist() for v in values] if rng.random() < 0.5 else values[0].sum().item())
    return [*found, [v.tolist() for v in values]]


@pytest.mark.parametrize("programs", [60, pytest.param(3400, marks=pytest.mark.slow)])
def test_random_programs_read_what_the_synchronous_twin_reads(programs: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is run three times with other values: more than 10^4 in the slow form."""
    early = [0]
    wait = progress.LaunchProgress.wait

    def counted(self: progress.LaunchProgress, number: int) -> Any:
        found = wait(self, number)
        early[0] += found is not None
        return found

    monkeypatch.setattr(progress.LaunchProgress, "wait", counted)
    for k in range(seed, seed + programs):
        settings.sync = True
        try:
            expected = _program(k)
        finally:
            settings.sync = False
        assert _program(k) == expected, k
    assert early[0] > 4 * programs
