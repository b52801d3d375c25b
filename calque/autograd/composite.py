"""Composite functions of the library whose operations are recorded again without running them.

What such a function records is determined by its code, what it closes over and its operands. Like steps and backward passes (`run/stretches.py`):
the second call at a place of the trace is watched, later ones are replays, unless something is unusual.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from calque.autograd.facts import Facts, Unknown
from calque.base.config import settings
from calque.run.recorder import local
from calque.run.stretches import Stretch, StretchCounts, Stretches, possible, replay, verify, watch
from calque.tensor import TENSOR_TYPES, Tensor, wrap

PLACES = 4096
SHORT = 6  # operations, views and inputs that are recorded in the time in which a replay is found


class _Tables(threading.local):
    def __init__(self) -> None:
        self.calls = Stretches(PLACES)


_tables = _Tables()


def call(function: Callable[..., tuple[Any, ...]], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """`function(*inputs)`, recorded without autograd history: new tensors, numbers and None. It depends on nothing but its code, what it closes over
    and `inputs` (tensors, numbers or None), and changes nothing but tensors among these."""
    if local.state.grad or not possible() or not _tables.calls.met():
        return function(*inputs)
    facts = Facts()
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


def _record(stretch: Stretch, facts: Facts, function: Callable[..., tuple[Any, ...]], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    caches = facts.caches()
    place, first = facts.trace.cur, facts.trace.n
    values, macro, capture = watch(facts.cells, lambda: function(*inputs), False)
    if macro is not None and macro.slots - first <= SHORT:
        _tables.calls.leave(place)
    elif macro is not None and not macro.definitions and not capture.mixed:
        found = {id(st): k for k, st in enumerate(capture.storages)}
        results = [_result(value, found, facts) for value in values]
        made = [place for place, _, _ in results if place >= 0]
        if all(place >= -1 for place, _, _ in results) and len(set(made)) == len(made) == len(found):
            stretch.macro, stretch.result = macro, (results, facts.remembered(caches))
    capture.release()
    return values


def _result(value: Any, found: dict[int, int], facts: Facts) -> tuple[Any, Any, Any]:
    """Where a replay finds a value: (place among the new storages or -1, layout or the value itself, what the handle remembers); -2: nowhere."""
    if value.__class__ not in TENSOR_TYPES:
        plain = value is None or value.__class__ in (bool, int, float, str)
        return (-1 if plain else -2), value if plain else None, None
    cache = value._cache
    own = value.__class__ is Tensor and value._base is None and not value.__dict__ and not value._requires_grad
    if not own or (cache is not None and cache[0] is not facts.trace):
        return -2, None, None
    return found.get(id(value._storage), -2), value._layout, None if cache is None else cache[1:]


def _replay(stretch: Stretch, facts: Facts) -> tuple[Any, ...]:
    results, seen = stretch.result
    macro: Any = stretch.macro
    trace = facts.trace
    created = replay(macro, trace, facts.cells, [])
    if seen:
        facts.remember(seen)
    StretchCounts.replays += 1
    values = []
    for place, what, cache in results:
        if place < 0:
            values.append(what)
            continue
        made = wrap(created[place], what)
        if cache is not None:
            made._cache = (trace, *cache)
        values.append(made)
    return tuple(values)
