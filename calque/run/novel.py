"""Which operations are computed where they are written, instead of being recorded.

A trie pays for what comes again. Where the programs that follow a flush keep being new, an operation that would need an edge of its own is computed
at once (`autograd/eager.py`), and so are those behind it, until the next value is read or the optimizer steps. Whether that is so follows from what
was recorded before alone:

- *Behind a flush of this line much was new in `SELDOM` more programs than not.* Where pieces of programs come back, the trie finds them.
- *Nobody has come to this place more than twice.* Where the same operation comes to the same place again, the path is prolonged instead, each time by
  as many operations as it has already: what does repeat is recorded whole after some turns, and what does not wastes no more than it has found.
- *The work is small*, see `autograd/eager.py`: what a large operation gains from being compiled is more than its planning costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.config import settings
from calque.base.device import InUse
from calque.run import trace as tracing
from calque.run.causes import ALWAYS, SELDOM
from calque.run.recorder import NOVEL, State, Trace, flush, local

ALL = 2  # of `settings.eager`: whatever is new is computed, so that tests see it
HEAVY = 64  # programs that are recorded all the same behind one that had a large operation
AGAIN = 2  # times that a place was met without being recorded, behind which it is
LEAST = 16  # operations by which a path that is met again is prolonged at least
MARKS = 64  # places behind one edge that are remembered as met once


class Computing:
    """`make()` gives what stands in the place of a thread's trace while operations are computed at once; `autograd/eager.py` sets it."""

    make: Callable[[], Any]
    times = 0  # that this began


def possible(state: State) -> bool:
    """Whether operations may be computed at once in the modes of a thread: nobody wants to see or to repeat what is recorded."""
    return (
        state.capture is None and state.device is None and state.plain and not state.nested and not InUse.several
        and tracing.active is None and not (settings.checked or settings.deterministic or settings.sync)
    )  # fmt: skip


def at_once(trace: Any, key: Any) -> Any:
    """No edge is there for an operation: None if one is to be recorded, else what says what the operation means instead, here a frame of a transform
    or what computes it. `key`: of the edge that is missing."""
    if trace.__class__ is not Trace:
        return trace
    if not settings.eager:
        return None
    room = trace.room
    if room > 0:
        trace.room = room - 1
        return None
    state = local.state
    if not possible(state):
        return None
    if settings.eager == ALL:
        return begin(state)
    novelty = state.novelty
    if room < 0:  # the first in this trace
        if novelty is None:
            trace.room = ALWAYS
            return None
        if novelty.new < SELDOM or novelty.heavy:
            novelty.heavy = max(0, novelty.heavy - 1)
            trace.room = ALWAYS
            return None
    cur, place = trace.cur, hash(key)
    met = cur.met
    if met is None:
        met = cur.met = {}
    times = met.get(place, 0)
    if times >= AGAIN:
        del met[place]
        trace.room = max(trace.n, LEAST)
        return None
    if len(met) >= MARKS:
        met.clear()
    met[place] = times + 1
    return begin(state)


def begin(state: State) -> Any:
    """What was recorded so far runs, and what follows is computed."""
    if state.trace.n:
        flush(NOVEL)
    Computing.times += 1
    state.trace = Computing.make()
    return state.trace
