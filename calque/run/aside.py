"""What the collector frees may run Python (`__del__`, callbacks) in the middle of anything: of recording an operation, of a flush, of a replay.

Such code works as another thread would, with a state and a trace of its own: what the thread has recorded stays as it was, and a value that is
needed of it is evaluated from a snapshot (see `others`). What such code has recorded is started before the thread goes on, which may overwrite what
it reads.
"""

from __future__ import annotations

import gc
from typing import Any

from calque.run.interrupt import whole
from calque.run.recorder import flush, local
from calque.run.trie import root


@whole  # what a signal handler raised here would be lost
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


_ROOT = root()


def keep_apart() -> None:
    """From now on, in all threads."""
    if _collecting not in gc.callbacks:
        gc.callbacks.insert(0, _collecting)
