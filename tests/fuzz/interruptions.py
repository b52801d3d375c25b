"""Signals at random moments of random training loops: `python -m tests.fuzz.interruptions --count 1000`.

Handlers that raise: the exception comes out, once, wherever it strikes; every parameter can be read afterwards and is what it was before or after a
step; a checkpoint that is saved in a `finally` is there and whole; and the loop goes on from a state that is set back, with the losses of a run that
nobody disturbed. Handlers, and `__del__` during collections, that read and record: they see right values and change nothing.
"""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque import nn
from calque.data import DataLoader, TensorDataset
from calque.optim.kept import held
from tests.fuzz.command import main

F = nn.functional
STEPS = 3
KINDS = ("plain", "module", "step", "looks", "inference", "unread", "loader", "workers", "profiled")


class Preempted(Exception):
    """What a program's own handler may raise."""


ERRORS: tuple[type[BaseException], ...] = (Preempted, TimeoutError, ValueError, KeyError, MemoryError, SystemExit, KeyboardInterrupt)


class Loop:
    """A small network that is trained (or used) for `STEPS` steps, in one of the ways a program may be written."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        calque.manual_seed(seed)
        self.kind = rng.choice(KINDS)
        width = rng.choice((4, 16, 48))
        layers = [nn.Linear(8, width), rng.choice((nn.ReLU, nn.Tanh, nn.GELU))()]
        layers += [nn.BatchNorm1d(width)] * rng.randint(0, 1) + [nn.Dropout(0.2)] * rng.randint(0, 1)
        self.net = nn.Sequential(*layers, nn.Linear(width, 3))
        parameters = self.net.parameters()
        # Gradients that are zero but for rounding, as in front of a batch norm, must stay small: programs may be interpreted at first.
        self.optimizer: Any = rng.choice(
            (
                lambda: calque.optim.SGD(parameters, lr=0.05),
                lambda: calque.optim.SGD(parameters, lr=0.05, momentum=0.9),
                lambda: calque.optim.Adam(parameters, lr=0.01, eps=1e-4),
                lambda: calque.optim.AdamW(parameters, lr=0.01, eps=1e-4),
            )
        )()
        self.batch = rng.choice((3, 16))
        self.x = calque.randn(self.batch * STEPS, 8)
        self.y = calque.arange(self.batch * STEPS) % 3
        if self.kind == "module":
            self.net.hybridize()
        self.step: Callable[[Any, Any], Any] = calque.compile(self._step) if self.kind in ("step", "looks") else self._step
        self.state: list[Any] = []
        for _ in range(rng.choice((2, 9))):
            self.run([])
        self.keep()
        self.values: list[list[Any]] = []
        self.losses = self.trajectory()

    def _step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        if self.kind == "looks" and loss.item() > 1.0:
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def batches(self) -> Iterator[Any]:
        if self.kind in ("loader", "workers"):
            yield from DataLoader(TensorDataset(self.x, self.y), batch_size=self.batch, num_workers=2 * (self.kind == "workers"))
        else:
            for k in range(STEPS):
                part = slice(k * self.batch, (k + 1) * self.batch)
                yield self.x[part], self.y[part]

    def run(self, losses: list[float], after: Callable[[], None] = lambda: None) -> None:
        """`STEPS` steps; the losses that are read are added to `losses`."""
        with calque.profiler.profile(profile_memory=True) if self.kind == "profiled" else contextlib.nullcontext():
            self.train(losses, after)

    def train(self, losses: list[float], after: Callable[[], None]) -> None:
        """The steps of `run`."""
        for x, y in self.batches():
            if self.kind == "inference":
                with calque.no_grad():
                    losses.append(self.net(x).square().sum().item())
            else:
                loss = self.step(x, y)
                if self.kind != "unread":
                    losses.append(loss.item())
            after()

    def tensors(self) -> list[Any]:
        held = [self.optimizer.state[p] for p in self.net.parameters()]
        return [*self.net.parameters(), *self.net.buffers(), *(t for state in held for t in state.values() if isinstance(t, calque.Tensor))]

    def keep(self) -> None:
        """What `restore` brings back."""
        calque.synchronize()
        self.state = [t.detach().clone().numpy() for t in self.tensors()]
        self.random = calque.get_rng_state()
        self.counts = [held(self.optimizer.state[p], "step") for p in self.net.parameters()]

    def restore(self) -> None:
        with calque.no_grad():
            for t, value in zip(self.tensors(), self.state, strict=True):
                t.copy_(calque.tensor(value))
        for p, count in zip(self.net.parameters(), self.counts, strict=True):
            p.grad = None
            if count is not None:
                self.optimizer.state[p]["step"] = count
        calque.set_rng_state(self.random)

    def trajectory(self) -> list[float]:
        """The losses of a run that nobody disturbs; `values`: the tensors before it and after each step."""
        losses: list[float] = []
        self.values = [[value] for value in self.state]
        self.restore()

        def look() -> None:
            for row, t in zip(self.values, self.tensors(), strict=True):
                row.append(t.detach().clone().numpy())

        self.run(losses, look)
        return losses

    def check_values(self, tensors: list[Any]) -> str:
        """What is wrong with tensors after an interrupt, if anything is."""
        for k, (row, t) in enumerate(zip(self.values, tensors, strict=False)):
            try:
                value = t.detach().numpy() if isinstance(t, calque.Tensor) else t
            except BaseException as error:
                return f"tensor {k} cannot be read: {error!r}"
            if not any(close(value, known) for known in row):
                return f"tensor {k} is neither what it was nor what it became"
        return ""

    def check_losses(self) -> str:
        """Whether a run from the beginning goes as ever."""
        self.restore()
        losses: list[float] = []
        self.run(losses)
        return "" if close(losses, self.losses) else f"losses {losses} instead of {self.losses}"


def close(a: Any, b: Any) -> bool:
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=1e-3, atol=1e-5))


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """SIGALRM is handled."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(1e-3)  # another thread may be about to get the last one, which Python complains of if nobody handles it any more
        signal.signal(signal.SIGALRM, before)


def raising(loop: Loop, moments: int, folder: str) -> str:
    """Interrupt the loop at random moments by a handler that raises; what went wrong, if anything did."""
    raised: list[BaseException] = []
    path = str(Path(folder) / "last.safetensors")
    kind = loop.rng.choice(ERRORS)

    ended: list[bool] = []  # whether the loop was over, and whether it was when the signal came: then the `finally` itself is interrupted

    def handler(number: int, frame: Any) -> None:
        ended.append(bool(ended))
        raised.append(kind("deadline"))
        raise raised[-1]

    start = time.perf_counter()
    loop.check_losses()
    seconds = time.perf_counter() - start
    with handling(handler):
        for moment in range(moments):
            loop.restore()
            raised.clear()
            ended.clear()
            Path(path).unlink(missing_ok=True)
            surfaced: list[BaseException] = []
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, loop.rng.uniform(1e-5, seconds))
                    loop.run([])
                finally:
                    ended.append(True)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    calque.save(loop.net.state_dict(), path)
            except BaseException as error:
                surfaced.append(error)
            where = f"{loop.kind}, {kind.__name__}, moment {moment}: "
            if surfaced != raised:
                return where + f"{raised!r} was raised, {surfaced!r} came out"
            if ended[0] and len(ended) > 1:
                continue
            saved = calque.load(path)
            names = [name for name, _ in (*loop.net.named_parameters(), *loop.net.named_buffers())]
            text = loop.check_values([saved[name] for name in names]) or loop.check_values(loop.tensors()) or loop.check_losses()
            if text:
                return where + text
    return ""


def twice(loop: Loop, moments: int) -> str:
    """Interrupt the loop by two signals in quick succession whose handler raises; what went wrong, if anything did."""
    raised: list[BaseException] = []

    def handler(number: int, frame: Any) -> None:
        error = loop.rng.choice(ERRORS)("deadline")
        raised.append(error)
        if len(raised) == 1:
            signal.setitimer(signal.ITIMER_REAL, loop.rng.choice((1e-5, 3e-5, 1e-4, 3e-4)))
        raise error

    start = time.perf_counter()
    loop.check_losses()
    seconds = time.perf_counter() - start
    for moment in range(moments):
        loop.restore()
        raised.clear()
        surfaced: BaseException | None = None
        with handling(handler):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, loop.rng.uniform(1e-5, seconds))
                    loop.run([])
                    while not raised:
                        pass
                finally:
                    while len(raised) < 2:
                        pass
            except BaseException as error:
                surfaced = error
        chain = [surfaced]
        while chain[-1] is not None:
            chain.append(chain[-1].__context__)
        where = f"{loop.kind}, two signals, moment {moment}: "
        if surfaced is not raised[-1] or (raised[0].__traceback__ is not None and raised[0] not in chain):  # without one: the second came before
            return where + f"{raised!r} were raised, {chain!r} came out"
        text = loop.check_values(loop.tensors()) or loop.check_losses()
        if text:
            return where + text
    return ""


class Reader:
    """Reads and records, as a handler and while it is collected."""

    def __init__(self, loop: Loop, folder: str) -> None:
        self.loop, self.wrong = loop, ""
        self.path = str(Path(folder) / "seen.safetensors")
        self.rng, self.depth = random.Random(loop.rng.random()), 0
        self.known = calque.arange(6.0)
        self.pending = self.known * 2.0
        self.kept: list[Any] = []
        self.call = calque.compile(lambda x: (x * 2.0 + 1.0).sum())
        self.acts = (self.look, self.look, self.show, self.save, self.differentiate, self.replay)
        for act in self.acts:
            act()
        self.kept.clear()

    def expect(self, found: Any, known: Any, what: str) -> None:
        if not close(found, known):
            self.wrong = self.wrong or f"{what}: {found} instead of {known}"

    def look(self) -> None:
        """Read and record."""
        weight = next(self.loop.net.parameters())
        self.wrong = self.wrong or self.loop.check_values([weight])
        self.kept.append((weight.detach() * 0.0 + self.pending.sum()).mean())
        self.expect((self.pending + 1.0).sum().item(), 36.0, "read")
        self.pending = self.known * 2.0

    def show(self) -> None:
        """Print."""
        if str(self.pending) != "tensor([ 0.,  2.,  4.,  6.,  8., 10.])" or "nan" in repr(list(self.loop.net.parameters())):
            self.wrong = self.wrong or f"printed {self.pending}"

    def save(self) -> None:
        """Save what is trained."""
        calque.save(self.loop.net.state_dict(), self.path)
        saved = calque.load(self.path)
        names = [name for name, _ in (*self.loop.net.named_parameters(), *self.loop.net.named_buffers())]
        self.wrong = self.wrong or self.loop.check_values([saved[name] for name in names])

    def differentiate(self) -> None:
        """A backward pass, wherever it comes."""
        with calque.enable_grad():
            leaf = (self.known + 1.0).requires_grad_()
            (leaf * leaf).sum().backward()
        self.expect(leaf.grad.tolist(), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0], "gradient")

    def replay(self) -> None:
        """A hybridized call."""
        self.expect(self.call(self.known).item(), 36.0, "hybridized")

    def handler(self, number: int, frame: Any) -> None:
        self.depth += 1
        try:
            if number and self.depth < 3 and self.rng.random() < 0.7:
                signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(1e-5, 1e-3))
            self.rng.choice(self.acts)()
        except BaseException as error:
            self.wrong = self.wrong or f"a handler got {error!r}"
        self.depth -= 1


class Garbage:
    """A cycle, which only the collector frees."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.me = reader, self

    def __del__(self) -> None:
        self.reader.handler(0, None)


def reading(loop: Loop, moments: int, folder: str, sort: str | None = None) -> str:
    """Read and record from handlers and from `__del__` at random moments of the loop; what went wrong, if anything did."""
    reader = Reader(loop, folder)
    by_collector = loop.rng.random() < 0.5 if sort is None else sort == "collector"
    start = time.perf_counter()
    loop.check_losses()
    seconds = time.perf_counter() - start
    before = gc.get_threshold()
    with handling(reader.handler):
        try:
            for moment in range(moments):
                loop.restore()
                if by_collector:
                    gc.set_threshold(loop.rng.randint(20, 400), 3, 3)
                    for _ in range(loop.rng.randint(1, 4)):
                        Garbage(reader)
                else:
                    signal.setitimer(signal.ITIMER_REAL, loop.rng.uniform(1e-5, seconds))
                losses: list[float] = []
                loop.run(losses)
                signal.setitimer(signal.ITIMER_REAL, 0)
                gc.set_threshold(*before)
                text = reader.wrong or ("" if close(losses, loop.losses) else f"losses {losses} instead of {loop.losses}")
                text = text or loop.check_values(loop.tensors())
                if not text and [round(t.item()) for t in reader.kept] != [30] * len(reader.kept):
                    text = "what was recorded is wrong"
                reader.kept.clear()
                if text:
                    return f"{loop.kind}, {'__del__' if by_collector else 'handler'}, moment {moment}: {text}"
        finally:
            gc.set_threshold(*before)
            gc.collect()  # what is left of the garbage must not be met by the signals of the next program: Python ignores errors in `__del__`
    return ""


def mismatch(seed: int, moments: int = 4, only: str = "") -> str:
    """What goes wrong in the program of this seed, if anything does."""
    loop, text = Loop(seed), ""
    with tempfile.TemporaryDirectory() as folder:
        if only in ("", "raising"):
            text = raising(loop, moments, folder)
        if only in ("", "twice"):
            text = text or twice(loop, moments)
        if only not in ("raising", "twice"):
            text = text or reading(loop, moments, folder, None if only in ("", "reading") else only)
    return text


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.interruptions", __doc__, mismatch, 200, moments=8, only=""))
