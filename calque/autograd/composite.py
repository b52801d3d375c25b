"""Composite functions of the library whose operations are recorded again without running them.

What such a function records is determined by its code, what it closes over and its operands. Like steps and backward passes (`replay/stretches.py`):
the second call at a place of the trace is watched, later ones are replays, unless something is unusual.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from calque.autograd.dependencies import Dependencies, Unknown
from calque.base.config import settings
from calque.record.recorder import local
from calque.replay.stretches import Stretch, StretchCounts, Stretches, possible, verify, watch
from calque.tensor import Tensor

PLACES = 4096
SHORT = 8  # operations, views and inputs that are recorded in the time in which a replay is found


def without_base(out: Tensor, inputs: Sequence[Any]) -> Tensor:
    """A result that gets a history of its own. If it is a view of what only its function had, it is no view any more: a write to a part of it would
    ask its base for the history of the rest, and the base has none."""
    base = out._base
    if base is not None and all(getattr(getattr(x, "_elements", x), "_storage", None) is not out._storage for x in inputs):
        out._base = None
    return out


class _Tables(threading.local):
    def __init__(self) -> None:
        self.calls = Stretches(PLACES)


_tables = _Tables()


def call(function: Callable[..., tuple[Any, ...]], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """`function(*inputs)`, recorded without autograd history: new tensors, numbers and None. It depends on nothing but its code, what it closes over
    and `inputs` (tensors, numbers or None), and changes nothing but tensors among these."""
    if local.state.grad or not possible() or not _tables.calls.met():
        return function(*inputs)
    facts = Dependencies()
    try:
        facts.value(function)
        facts.values(inputs)
    except Unknown:
        return function(*inputs)
    stretch = _tables.calls.here(facts.parts, 1)
    if stretch.macro is not None and stretch.macro.fits(facts.trace, facts.cells):
        if settings.verify:
            name = getattr(function, "__qualname__", type(function).__name__)
            return verify(stretch.macro, facts.cells, lambda: function(*inputs), False, name)  # type: ignore[no-any-return]
        return _replay(stretch, facts)
    return _record(stretch, facts, function, inputs) if stretch.due() else function(*inputs)


def _record(stretch: Stretch, facts: Dependencies, function: Callable[..., tuple[Any, ...]], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    caches = facts.caches()
    place, first = facts.trace.cur, facts.trace.n
    values, macro, capture = watch(facts.cells, lambda: function(*inputs), False)
    if macro is not None and macro.slots - first <= SHORT:
        _tables.calls.leave(place)
    elif macro is not None and not macro.definitions:
        results = facts.results(values, capture.storages)
        if results is not None:
            stretch.macro, stretch.result = macro, (results, facts.remembered(caches))
    capture.release()
    return values


def _replay(stretch: Stretch, facts: Dependencies) -> tuple[Any, ...]:
    results, seen = stretch.result
    macro: Any = stretch.macro
    created = macro.replay(facts.trace, facts.cells, [])
    if seen:
        facts.remember(seen)
    StretchCounts.replays += 1
    return facts.results_of(results, created)
