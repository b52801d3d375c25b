"""Public functions with arguments that are huge, deep or hostile to look at: no message is long, and none fails because of what it shows.

    python -m tests.fuzz.messages --count 10000 [--seed 0] [--only view]

The calls are those of `tests.fuzz.arguments`; one argument or two are texts of megabytes, tables, deep lists, objects whose `repr` raises or lies.
"""

from __future__ import annotations

import contextlib
import random
import signal
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import calque
from calque import nn
from calque.base.errors import StateDictError
from tests.fuzz.arguments import Call, TooLong, _too_long, leak, put_back, short
from tests.fuzz.command import main
from tests.fuzz.values import Values

LONGEST = 1500  # characters that a message with its notes may have
SECONDS = 60  # of the processor that a call may take
LONG = "x" * 10_000_000


class Raises:
    """Cannot be shown, asked for a shape, or measured."""

    def __repr__(self) -> str:
        raise KeyError("repr")

    __str__ = __repr__

    @property
    def shape(self) -> Any:
        raise ZeroDivisionError("shape")


class Long:
    """Shows ten megabytes."""

    def __repr__(self) -> str:
        return LONG


class Lies:
    """Its `repr` is no text."""

    def __repr__(self) -> str:
        return 5  # type: ignore[return-value]


class Table:
    """A table of the kind that prints all of itself."""

    shape = (100_000, 30)
    columns = tuple("c" * 1000 + str(i) for i in range(30))

    def __repr__(self) -> str:
        return LONG

    def to_numpy(self) -> Any:
        return np.zeros(self.shape)


NAMED = type("N" * 10_000, (), {})
META: Any = type("Meta", (type,), {"__repr__": lambda cls: LONG})
SHOWY: Any = META("Showy", (), {})


def nested(depth: int, inner: Any = 1) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


def long_name(*args: Any, **keywords: Any) -> Any:
    """A function of the user's with a name of 10,000 characters."""
    return args[0] if args else None


long_name.__name__ = long_name.__qualname__ = "f" * 10_000

KINDS: list[Callable[[], Any]] = [
    lambda: LONG, lambda: LONG.encode(), lambda: "a b" * 100_000, lambda: "\n" * 1_000_000, lambda: "[" + LONG, lambda: 10**4000, lambda: -(10**4000),
    Raises, Long, Lies, Table, NAMED, lambda: NAMED, lambda: SHOWY, lambda: SHOWY(), lambda: long_name, lambda: nested(50), lambda: nested(500),
    lambda: nested(60, 1.5), lambda: [Raises()] * 5, lambda: {"k" * 100_000: Long()}, lambda: (Long(), Raises()), lambda: list(range(100_000)),
    lambda: {str(i): i for i in range(10_000)}, lambda: np.zeros((300, 300)), lambda: np.array([LONG]), lambda: np.full(5, Raises(), object),
    lambda: range(10**9), lambda: set(range(10_000)), lambda: bytearray(1_000_000), lambda: [LONG] * 3, lambda: slice(LONG, None), lambda: [[Long()]],
    lambda: ValueError(LONG), lambda: {Raises(): 1}, lambda: frozenset(["y" * 100_000]), lambda: (LONG, 1), lambda: complex(1e300, 1e300),
    lambda: calque.zeros(200, 200) + 1, lambda: [calque.zeros(100, 100)] * 50, lambda: np.timedelta64(5), lambda: memoryview(bytes(10**6)),
]  # fmt: skip


class Hostile(Values):
    """Arguments of which some are huge."""

    def wild(self) -> Any:
        return self.draw.choice(KINDS)() if self.draw.random() < 0.8 else super().wild()

    def by_name(self, parameter: Any) -> Any:
        return self.draw.choice(KINDS)() if self.draw.random() < 0.3 else super().by_name(parameter)


class HostileCall(Call):
    """A call of `tests.fuzz.arguments` with such values; now and then the name of an attribute is asked for instead."""

    def __init__(self, seed: int, only: str = "") -> None:
        super().__init__(seed, only)
        self.values = Hostile(self.draw)

    def choose(self) -> None:
        super().choose()
        if self.args and self.draw.random() < 0.5:
            k = self.draw.randrange(len(self.args))
            if k or self.target.kind != "method":
                self.args[k] = self.values.wild()

    def note(self, name: str, args: Any, keywords: Any) -> None:
        self.made.append(f"{name}({', '.join([said(a) for a in args] + [f'{k}={said(v)}' for k, v in keywords.items()])})")


def said(value: Any) -> str:
    """An argument in a few characters, whatever it does."""
    try:
        return short(value)[:100] if isinstance(value, calque.Tensor) else f"{type(value).__name__[:20]} {value!r:.60}"
    except Exception as error:
        return f"{type(value).__name__[:20]} ({type(error).__name__})"


OBJECTS: list[Callable[[], Any]] = [
    lambda: nn.Linear(2, 2), lambda: calque.stats(), lambda: nn.ModuleDict(), lambda: nn.ParameterDict(), lambda: nn.Sequential(nn.ReLU()),
]  # fmt: skip


def long_attribute(draw: random.Random) -> None:
    """Ask for what does not exist, by a name of 10,000 characters."""
    owner, name, layer = draw.choice(OBJECTS)(), "n" * 10_000, nn.Linear(2, 2)
    ways = [
        lambda: getattr(owner, name), lambda: nn.ModuleDict()[name], lambda: nn.ParameterDict()[name], lambda: layer.get_submodule(name),
        lambda: layer.get_parameter(name),
    ]  # fmt: skip
    draw.choice(ways)()


def full_text(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def wrong(error: BaseException, call: Call) -> str:
    """ "" if a user should see this error so, else why not."""
    text = full_text(error)
    if isinstance(error, OSError) and error.filename is not None:
        return ""  # the system's, of a file
    if len(text) > LONGEST and not isinstance(error, StateDictError):
        return f"{len(text)} characters"
    if isinstance(error, (KeyError, ZeroDivisionError)) and error.args and error.args[0] in ("repr", "shape"):
        return "the error of what was to be shown"
    if isinstance(error, TypeError) and "__repr__ returned non-string" in text:
        return "the error of what was to be shown"
    return "not in our words" if leak(error, call) and not isinstance(error, (MemoryError, RecursionError)) else ""


def finding(seed: int, only: str = "") -> str:
    """ "" if the call of this seed was answered well, else what it was and what came."""
    call = HostileCall(seed, only)
    signal.signal(signal.SIGALRM, _too_long)
    signal.signal(signal.SIGPROF, _too_long)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(10 * SECONDS)
            if call.draw.random() < 0.03 and not only:
                call.made.append("getattr")
                try:
                    long_attribute(call.draw)
                except (AttributeError, KeyError, TypeError) as error:
                    return f"seed {seed}: getattr: {len(full_text(error))} characters" if len(full_text(error)) > LONGEST else ""
                return ""
            call.choose()
            call.make()
        except (Exception, TooLong, SystemExit) as error:
            why = "takes too long" if isinstance(error, TooLong) else wrong(error, call)
            if why:
                return " ".join(f"seed {seed}: {call.text()[:1500]}: {why}: {type(error).__name__}: {said_text(error)}".split())
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            put_back()
    long = [w for w in heard if len(str(w.message)) > LONGEST]
    return f"seed {seed}: {call.text()[:1500]}: a warning of {len(str(long[0].message))} characters" if long else ""


def said_text(error: BaseException) -> str:
    return full_text(error)[:300]


if __name__ == "__main__":
    calque.set_logical_devices(2)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # what is called may write files of any name
        raise SystemExit(main("tests.fuzz.messages", __doc__, finding, only=""))
