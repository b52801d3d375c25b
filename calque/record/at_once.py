"""Which operations are computed where they are written, instead of being recorded.

Recording and starting an operation takes about as long as computing a small one. So small operations (`run/estimate.py`) are computed at once
(`autograd/eager.py`), with their gradients, until a large one comes: that is recorded, and with it all that follows until the next flush, as in the
steps of most models. Everything is recorded where somebody wants to see or to repeat it, and where several devices work.

The rule looks at sizes. On paths that seldom come again (`trie.loosen`) it looks at what is known, too: a small operation that no path has is
computed behind recorded ones as well, and what was recorded before it runs then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.config import settings
from calque.base.device import InUse
from calque.observe import events
from calque.ops.opdef import OpDef
from calque.record.path import ALWAYS, Instead, Trace
from calque.record.state import State, local

ALL = 2  # of `settings.eager`: whatever is new is computed, also behind recorded operations, so that tests see it


class Computing:
    """What stands in the place of a thread's trace while operations are computed at once, set by `autograd/eager.py`: `make()` gives it; `small(op,
    operands, attrs, row_major)` says whether an operation would be computed there."""

    make: Callable[[], Instead] | None = None
    small: Callable[[OpDef, tuple[Any, ...], tuple[Any, ...], bool], bool]


def possible(state: State) -> bool:
    """Whether operations may be computed at once in the modes of a thread: nobody wants to see or to repeat what is recorded."""
    return bool(settings.eager) and (
        state.capture is None and state.device is None and state.plain and not state.nested and not InUse.elsewhere
        and events.active is None and not (settings.checked or settings.deterministic or settings.sync)
    )  # fmt: skip


def compute_at_once(
    trace: Trace | Instead, flush: Callable[[str], Any], op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...], row_major: bool
) -> Instead | None:
    """No edge is there for an operation: None if one is to be recorded, else what says what the operation means instead, here a frame of a transform
    or what computes it."""
    if trace.__class__ is not Trace:
        return trace  # type: ignore[return-value]  # what stands in the place of a trace
    if trace.recorded == ALWAYS or not settings.eager:
        return None
    if not trace.cur.loose and (trace.recorded or (trace.n and settings.eager != ALL)):
        return None
    state = local.state
    if not possible(state) or (trace.cur.loose and not Computing.small(op, operands, attrs, row_major)):
        return None
    return begin(state, flush)


def begin(state: State, flush: Callable[[str], Any]) -> Instead:
    """What was recorded so far runs, and what follows is computed."""
    loose = state.trace.cur.loose
    if state.trace.n:
        flush("new operations")
    if state.trace.__class__ is Trace and Computing.make is not None:
        state.trace = Computing.make()
    if state.trace.__class__ is not Trace:
        state.trace.loose = loose
    return state.trace  # type: ignore[no-any-return]


def fresh(state: State, trace: Trace | None, goes_on: bool) -> Trace | Instead | None:
    """What stands behind a flush in the place of `trace`, an empty one. `goes_on`: it is the same program that goes on there."""
    if goes_on or Computing.make is None or not possible(state):
        return trace
    return Computing.make()
