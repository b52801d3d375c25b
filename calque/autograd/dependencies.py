"""What library code depends on, as a flat list that is compared with that of an earlier call: see `replay/stretches.py`.

Tensors stand in the list by layout and by the number of their storage among the `cells`; how those stand in the trace is checked by the macro. Code
stands for functions, with what they close over; objects of ours that functions use say what they depend on (`facts`, plain values, and `held`,
tensors). Whatever else comes up is `Unknown`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import FunctionType, MethodType
from typing import Any

from calque.base.device import Device
from calque.base.dtypes import DType, get_default_dtype
from calque.base.layout import Layout
from calque.ops.opdef import OpDef
from calque.record.recorder import Storage, Trace, local
from calque.tensor import TENSOR_TYPES, Tensor, wrap

_PLAIN = (bool, int, str, type(None), Layout, DType, Device, OpDef)
_DEPTH = 8


class Unknown(Exception):
    """Something is not understood."""


class Dependencies:
    """`parts` are compared, `cells` are the storages, `views` handles that may remember their slot in the trace."""

    __slots__ = ("parts", "cells", "places", "views", "trace")

    def __init__(self) -> None:
        state = local.state
        self.trace: Trace = state.trace
        self.parts: list[Any] = [state.autocast, state.device, get_default_dtype()]
        self.cells: list[Any] = []
        self.places: dict[int, int] = {}
        self.views: list[Tensor] = []

    def values(self, values: Collection[Any]) -> None:
        """Add what tells values from others, tensors first of all."""
        parts, places = self.parts, self.places
        parts.append(len(values))
        for value in values:
            if value is None:
                parts.append(None)
            elif value.__class__ in TENSOR_TYPES:
                storage, view = value._storage, value._layout
                number = places.get(id(storage))
                if number is None:
                    number = places[id(storage)] = len(self.cells)
                    self.cells.append(storage)
                if view is storage.layout:
                    parts += (number, view)
                else:
                    self._view(number, value)
            else:
                self.value(value)

    def cell(self, storage: Storage) -> int:
        """The number of a storage among the cells."""
        number = self.places.setdefault(id(storage), len(self.cells))
        if number == len(self.cells):
            self.cells.append(storage)
        return number

    def _view(self, number: int, t: Tensor) -> None:
        storage, cache, trace = t._storage, t._cache, self.trace
        current = cache is not None and cache[0] is trace and storage.trace is trace and cache[1] == storage.slot
        self.parts += (number, t._layout, storage.layout, cache[2] if current else -1)
        self.views.append(t)

    def value(self, value: Any, depth: int = 0) -> None:
        """Add what tells a value from others."""
        kind = value.__class__
        parts = self.parts
        parts.append(kind)
        if kind in TENSOR_TYPES:
            self.values((value,))
        elif kind in _PLAIN:
            parts.append(value)
        elif kind is float:
            parts.append(value or str(value))  # the zeros differ
        elif kind is Storage:
            parts.append(self.cell(value))
        elif depth > _DEPTH:
            raise Unknown
        elif kind is tuple or kind is list:
            parts.append(len(value))
            for item in value:
                self.value(item, depth + 1)
        elif kind is FunctionType:
            self._function(value, depth)
        elif kind is MethodType:
            parts.append(value.__func__)
            self._object(value.__self__)
        else:
            self._object(value)

    def _function(self, function: FunctionType, depth: int) -> None:
        if not str(function.__module__).startswith("calque.") or function.__kwdefaults__ is not None:
            raise Unknown
        self.parts.append(function.__code__)
        for content in function.__defaults__ or ():
            self.value(content, depth + 1)
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                raise Unknown from None
            self.value(content, depth + 1)

    def _object(self, value: Any) -> None:
        """An object of ours that says what it depends on: `facts` are plain, `held` tensors."""
        facts = getattr(value, "facts", None) if str(value.__class__.__module__).startswith("calque.") else None
        if facts.__class__ is not tuple:
            raise Unknown
        self.parts.append(facts)
        if value.held:
            self.values(value.held)

    def caches(self) -> list[Any]:
        """What the views remember now."""
        return [t._cache for t in self.views]

    def remembered(self, before: list[Any]) -> list[tuple[int, int, int]]:
        """(view, base slot, slot) of those that remember something else than `before`."""
        return [(k, *t._cache[1:]) for k, (t, old) in enumerate(zip(self.views, before, strict=True)) if t._cache is not old]

    def remember(self, found: list[tuple[int, int, int]]) -> None:
        """Let views remember what they did when the call was recorded."""
        for k, base, slot in found:
            self.views[k]._cache = (self.trace, base, slot)

    def results(self, values: Sequence[Any], storages: list[Storage]) -> list[tuple[int, Any, Any]] | None:
        """Where a replay that makes `storages` finds values: (place among them or -1, layout or the value itself, what the handle remembers); None if
        it cannot make them all. They may be views of tensors that nobody has."""
        found = {id(st): k for k, st in enumerate(storages)}
        results = [self._result(value, found) for value in values]
        made = [place for place, _, _ in results if place >= 0]
        return results if all(place >= -1 for place, _, _ in results) and len(set(made)) == len(made) == len(found) else None

    def _result(self, value: Any, found: dict[int, int]) -> tuple[int, Any, Any]:
        if value.__class__ not in TENSOR_TYPES:
            plain = value is None or value.__class__ in (bool, int, float, str)
            return (-1 if plain else -2), value if plain else None, None
        cache = value._cache
        own = value.__class__ is Tensor and not value.__dict__ and not value._requires_grad
        if not own or (cache is not None and cache[0] is not self.trace):
            return -2, None, None
        return found.get(id(value._storage), -2), value._layout, None if cache is None else cache[1:]

    def results_of(self, results: list[tuple[int, Any, Any]], created: list[Storage]) -> tuple[Any, ...]:
        """The values that `results` tells of, from the storages of a replay."""
        values = []
        for place, what, cache in results:
            if place < 0:
                values.append(what)
                continue
            value = wrap(created[place], what)
            if cache is not None:
                value._cache = (self.trace, *cache)
            values.append(value)
        return tuple(values)
