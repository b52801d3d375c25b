"""Python that runs in the middle of anything, of recording an operation, of a flush, of a replay: signal handlers, and what the collector frees
(`__del__`, callbacks).

Such code works as another thread would, with a state and a trace of its own: what the thread has recorded stays as it was, and a value that is
needed of it is evaluated from a snapshot (see `threads`). What such code has recorded is started before the thread goes on, which may overwrite what
it reads.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from signal import default_int_handler
from types import FrameType
from typing import Any

from calque.base.unbroken import unbroken
from calque.record.recorder import State, flush, local
from calque.record.trie import root
from calque.run.interrupt import SHIELD


@unbroken  # what a signal handler raised here would be lost
def _collecting(phase: str, info: dict[str, Any]) -> None:
    state, aside = local.state, local.aside
    if phase == "start":
        aside.grad, aside.inference, aside.autocast, aside.device = state.grad, state.inference, state.autocast, state.device
        local.state, local.aside = aside, state
    elif state.nested:
        try:
            if state.trace.cur is not _ROOT:
                flush("collector")
        finally:
            state.seen = None
            local.state, local.aside = aside, state


def _handling(handler: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None) -> None:
    """Call a signal handler. The modes that it sets stay; those that a backward pass has set for itself are not its own."""
    if handler is default_int_handler:  # which raises KeyboardInterrupt, and nothing else
        handler(number, frame)
    state, aside = local.state, State(True)
    grad = state.grad or bool(state.started)
    modes = aside.grad, aside.inference, aside.autocast, aside.device = grad, state.inference, state.autocast, state.device
    try:
        local.state = aside
        try:
            handler(number, frame)
        finally:
            if aside.trace.cur is not _ROOT:
                flush("signal handler")
    finally:
        local.state = state
        for name, before in zip(_MODES, modes, strict=True):
            mode = getattr(aside, name)
            if mode is not before:
                setattr(state, name, mode)


_ROOT = root()
_MODES = ("grad", "inference", "autocast", "device")


def keep_apart() -> None:
    """From now on, in all threads."""
    SHIELD.call = _handling
    if _collecting not in gc.callbacks:
        gc.callbacks.insert(0, _collecting)
