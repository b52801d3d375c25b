"""Recordings are written as text and read back: what is read is the same recording, and calls go on with it as with their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import calque
from calque import nn
from calque.base import config
from calque.record.recorder import flush, local
from calque.replay.macro import Macro
from calque.replay.macro_text import text_of, tree_of
from calque.tensor import wrap
from tests.hybrid.common import batch, counts, perceptron
from tests.hybrid.reading import read
from tests.hybrid.test_programs import blocks, check

pytestmark = pytest.mark.filterwarnings("ignore::calque.base.errors.NonFiniteWarning")  # random programs overflow now and then


@pytest.fixture
def _two_devices(_compiled: None) -> Iterator[None]:
    before = config.settings.logical_devices
    calque.set_logical_devices(2)
    yield
    calque.synchronize()
    config.settings.logical_devices = before


def carry(old: list[Macro], new: list[Macro]) -> None:
    """Compare recordings with those that were read, and give these what text does not say: what a caller makes of them, and how long ago they were
    used."""
    assert len(old) == len(new)
    for a, b in zip(old, new, strict=True):
        assert (b.order, b.ready, b.slots) == (a.order, a.ready, a.slots)
        assert b.end is a.end
        assert b.fingerprint() == a.fingerprint()
        assert all(x[4] is y[4] for x, y in zip(a.written, b.written, strict=True))
        b.result, b.used, b.print = a.result, a.used, a.print
        assert [*b.children] == [*a.children]
        for key, following in a.children.items():
            carry(following, b.children[key])


class Rereading:
    """`calque.compile` of a function whose recordings go through text every few calls."""

    def __init__(self, function: Any) -> None:
        self.call, self.count, self.places = calque.compile(function), 0, 0

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        if self.count % 5 == 0:
            self.reread()
        return self.call(*args)

    def reread(self) -> None:
        """Put what is read from their text in the place of all recordings."""
        for memory in [entry.memory for entries in self.call.entries.values() for entry in entries]:
            for (_, start), level in memory.roots.items():
                objects: list[Any] = []
                text = tree_of(level, objects)
                found = read(text, objects, start)
                assert tree_of(found) == text
                carry(level, found)
                level[:] = found
                self.places += 1
        self.call.repeat = None


@given(lines=blocks(), number=st.integers(0, 1000))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs(_two_devices: None, lines: list[str], number: int) -> None:
    """Replays of what was read do what the program does as it is written."""
    check(lines, number, Rereading)


PROGRAMS = {
    "every line of text": [
        "s.copy_(x.detach().to('cpu:1'))", "x = x * 1.5 + y", "v = x.sum().item()", "if v > 0.1:", "    y = y * calque.tensor([1.0, 2.0, -0.5])",
        "    x = x * v", "s[1] = v", "c.mul_(3)", "x = nn.functional.dropout(x, 0.5)", "s.data.mul_(0.5)", "y = y.flip(0)[::2].sum() + x[1:].sum()",
        "y = y + s[calque.tensor([0, 2])].sum()", "x = calque.cat([x, calque.full((3,), float('nan'))])[:3] + y",
    ],
    "complex and other numbers": [
        "z = (x * 1j + y).real + (x.to(calque.float64) ** 3).float()", "x = x.clamp(min=-0.0) + x.to(calque.int64) * 3",
        "y = calque.where(z > 0, z, -0.0)",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(_two_devices: None, name: str) -> None:
    """The same of known programs; most of their calls are replays, and all of these of text."""
    made: list[Rereading] = []

    def prepared(function: Any) -> Rereading:
        made.append(Rereading(function))
        return made[-1]

    before = counts()["replays"]
    check(PROGRAMS[name], 3, prepared)
    assert made[0].places > 2
    assert counts()["replays"] - before > 5


def train(optimizer: Any, hybridized: bool) -> list[Any]:
    """Losses and weights of some steps."""
    calque.manual_seed(1)
    model = perceptron()
    rule = optimizer(model.parameters())

    def step(x: Any) -> Any:
        rule.zero_grad()
        loss = nn.functional.dropout(model(x), 0.25).square().mean()
        loss.backward()
        rule.step()
        return loss

    call = calque.compile(step) if hybridized else step
    losses = [call(batch(k)).item() for k in range(8)]
    return [losses, *(p.tolist() for p in model.parameters())]


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_every_replay_from_text(name: str, hybridized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes, updates of optimizers and whole steps train alike when each stretch goes through text before it is replayed."""

    def optimizer(parameters: Any) -> Any:
        return getattr(calque.optim, name)(parameters, lr=0.05)

    expected = train(optimizer, hybridized)
    replay, texts = Macro.replay, set[str]()

    def through_text(self: Macro, *args: Any) -> Any:
        objects: list[Any] = []
        text = text_of(self, objects)
        (found,) = read(text, objects, self.start)
        assert found.stretch() == self.stretch()
        texts.add(text)
        return replay(found, *args)

    monkeypatch.setattr(Macro, "replay", through_text)
    monkeypatch.setattr(Macro, "start_directly", lambda *_: None)
    assert train(optimizer, hybridized) == expected
    assert texts


def test_a_recording_that_was_written_by_hand() -> None:
    """Text alone makes a recording: storages stand for its cells, and the same lines of Python then find the edges that it has made."""
    text = """
        expect $0 has a value, $1 has a value
        %0 = input($0) : float32[5, 2]
        %1 = input($1) : float32[2]
        %2 = mul(%0, scalar(0.75)) : float32[5, 2]
        %3 = view(%1, shape=(5, 2), strides=(0, 1), offset=0) : float32[5, 2]
        %4 = add(%2, %3) : float32[5, 2]
        %5 = sum(%4, dims=(0,), keepdim=False) : float32[2]
        $1 becomes %5
        new %4
    """
    (macro,) = read("\n".join(line.strip() for line in text.splitlines()))
    x, y = calque.ones(5, 2), calque.tensor([1.0, 2.0])
    flush("test")
    cells, trace = [x._storage, y._storage], local.state.trace
    assert macro.fits(trace, cells)
    (made,) = macro.replay(trace, cells, [])
    assert wrap(made, made.layout).tolist() == [[1.75, 2.75]] * 5
    assert y.tolist() == [8.75, 13.75]
    edges = calque.stats()["trie_edges"]
    z = x * 0.75 + y
    y.copy_(z.sum(0))
    assert z.tolist() == [[9.5, 14.5]] * 5
    assert y.tolist() == [47.5, 72.5]
    assert calque.stats()["trie_edges"] - edges < 6


@pytest.mark.parametrize(
    "line",
    ["%1 = mul(%0, scalar(0.75)) : float32[5, 3]", "%2 = neg(%0) : float32[5, 2]", "%1 = no(%0) : float32[5, 2]", "perhaps %0", "read $0 by <f>"],
)
def test_text_that_is_none(line: str) -> None:
    with pytest.raises((AssertionError, AttributeError, KeyError)):
        read(f"%0 = input($0) : float32[5, 2]\n{line}")
