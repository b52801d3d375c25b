"""Starting a program about which everything is known, without a trace."""

from __future__ import annotations

from typing import Any

from calque.backend.base import Scalar
from calque.observe import events
from calque.observe.source import user_line
from calque.record.path import Counters, Edge
from calque.record.places import Split
from calque.record.recorder import count_flush, local
from calque.record.threads import LOCK
from calque.record.trie import root
from calque.run.buffer import Buffer
from calque.run.dispatch import Plan, dispatch
from calque.run.interrupt import SHIELD


def start_plan(
    edge: Edge, plan: Plan | Split, reason: str, inputs: list[Buffer], scalars: list[Scalar], outputs: list[Buffer], errors: list[Any],
    awaited: bool = False,
) -> None:  # fmt: skip
    """What a flush at `edge` comes down to when everything about it is known: start the program."""
    count_flush(edge, reason, 5)  # this, `Macro.start_directly` and the two that lead there
    Counters.plan_hits += 1
    local.state.trace.cur = root(reason)  # nothing is recorded: what comes next begins there
    session = events.active
    start = session.begin() if session is not None else 0.0
    flow = session.flow() if session is not None else 0
    held = SHIELD.hold()
    try:
        with LOCK:
            if plan.__class__ is Split:
                plan.start(inputs, scalars, outputs, errors, ())
            else:
                dispatch(plan, inputs, scalars, outputs, errors, (), awaited)  # type: ignore[arg-type]  # `isinstance` is slower
    finally:
        if held:
            SHIELD.release()
        if session is not None:
            session.end(f"replay: {reason}", start, flow, slots=edge.depth, line=user_line())
