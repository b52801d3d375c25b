"""What higher layers tell a capture: numbers that are others in the next call; changes of Python state, which a replay repeats with the numbers that
it reads; that gradients matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.record.live import LIVE, plain
from calque.record.recorder import local
from calque.replay.macro import Number


def numbers(source: Callable[[], list[Any]], needed: bool = True) -> list[Any]:
    """`source()`; under a capture as numbers that a replay asks `source` for again."""
    capture = local.state.capture
    return source() if capture is None else capture.numbers(source, needed)


def again(action: Callable[[], Any]) -> None:
    """Do something to Python state that a replay has to do as well."""
    state = local.state

    def act() -> list[Any]:
        held, state.capture = state.capture, None
        try:
            action()
        finally:
            state.capture = held
        return []

    numbers(act, False)


def gradients_matter(t: object = None) -> None:
    """Whoever looks for gradients of leaves, or gives them some, says so: which ones exist then decides what a call does. `t`: the one tensor whose
    gradient it is about."""
    capture = local.state.capture
    if capture is not None:
        capture.looked_at.add(id(t))


def told(action: Callable[..., None], *arguments: Any) -> None:
    """`action(*arguments)`, with live numbers as plain ones; replays do it again. Equal actions are the same (a bound method, not a closure)."""
    state = local.state
    capture = state.capture
    if capture is None:
        action(*arguments)
        return
    if capture.given:  # a replay has done it
        capture.given.pop(0)
    else:
        state.capture = None
        try:
            action(*[plain(a) for a in arguments])
        finally:
            state.capture = capture
    if capture.active:
        capture.used.update(a.index for a in arguments if a.__class__ in LIVE)
        capture.definitions.append(Number(action, 0, tuple(("live", a.index) if a.__class__ in LIVE else a for a in arguments)))
