"""Tables of what Python objects hold, which native code compares in one go (`same_text.py`).

A row is an address and the word that stood there: an attribute, a reference count, a length. Where CPython keeps those is not written down here: it
is tried with objects of the same class (`slot_offset`, `supported`), and without an answer there is no table and everything is compared by Python.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from calque.backend.cpu.team import callable as native_calls
from calque.backend.cpu.team.runtime import native
from calque.backend.cpu.text.same_text import SAME

COUNT, TYPE, LENGTH, FIRST = 0, 8, 16, 24  # where an object has its reference count, class, length and items
_WORD = 8
_DICTS = (id(dict), id(OrderedDict), id(defaultdict))
_HEADER = 4  # words before an object in which CPython may keep its dict and its weak references


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _hash_of(key: Any) -> Any:
    return type(key).__hash__


@lru_cache(maxsize=256)
def slot_offset(kind: Any, name: str) -> int:
    """Where objects of a class keep a slot, or -1."""
    probe: Any = object.__new__(kind)
    mark = object()
    setattr(probe, name, mark)
    found = [at for at in range(2 * _WORD, kind.__basicsize__, _WORD) if _word(id(probe) + at) == id(mark)]
    return found[0] if len(found) == 1 else -1


@lru_cache(maxsize=64)
def dict_offset(kind: Any) -> int:
    """Where objects of a class keep their `__dict__` once somebody has asked for it, or 0."""
    probe: Any = object.__new__(kind)
    held = id(probe.__dict__)
    places = [*range(-_HEADER * _WORD, -2 * _WORD, _WORD), *range(2 * _WORD, kind.__basicsize__, _WORD)]
    found = [at for at in places if _word(id(probe) + at) == held]
    return found[0] if len(found) == 1 else 0


@lru_cache(maxsize=1)
def _function_offsets() -> dict[str, int]:
    """Where functions keep their code and defaults; empty if that cannot be told."""

    def probe(a: int = 12345, *, b: int = 54321) -> None: ...

    found = {}
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        held = id(getattr(probe, name))
        places = [at for at in range(2 * _WORD, types.FunctionType.__basicsize__, _WORD) if _word(id(probe) + at) == held]
        if len(places) != 1:
            return {}
        found[name] = places[0]
    return found


@lru_cache(maxsize=1)
def supported() -> bool:
    """Whether dicts, lists, tuples, cells and mapping proxies look the way they are read here."""
    if not native_calls.supported() or not _function_offsets():
        return False
    kept, item = object(), object()
    mapping, items = {"a": kept, "b": 1, "c": 2}, [kept, item]
    ordered, pair, proxy = OrderedDict(mapping), (kept, item), types.MappingProxyType(mapping)

    def inner() -> Any:
        return kept

    assert inner.__closure__ is not None
    return (
        _word(id(mapping) + LENGTH) == 3 and _word(id(ordered) + LENGTH) == 3
        and _word(id(items) + LENGTH) == 2 and [_word(_word(id(items) + FIRST) + k * _WORD) for k in (0, 1)] == [id(kept), id(item)]
        and _word(id(pair) + LENGTH) == 2 and [_word(id(pair) + FIRST + k * _WORD) for k in (0, 1)] == [id(kept), id(item)]
        and _word(id(inner.__closure__[0]) + LENGTH) == id(kept)
        and _word(id(proxy) + LENGTH) == id(mapping)
        and _word(id(item) + TYPE) == id(object) and _word(id(item) + COUNT) == sys.getrefcount(item) - 1
    )  # fmt: skip


class Rows:
    """Rows under construction. Whoever uses the table keeps the objects alive that were not met in an earlier row."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.whole = True  # whether every row could be made

    def slot(self, held: Any, name: str, value: Any) -> None:
        """The object refers to `value` by a slot of its class."""
        offset = slot_offset(held.__class__, name)
        self.whole = self.whole and offset > 0
        self.words += (id(held) + offset, id(value))

    def slots(self, held: Any, **values: Any) -> None:
        """The same for several slots."""
        for name, value in values.items():
            self.slot(held, name, value)

    def kind(self, held: Any) -> None:
        """The object is of its class."""
        self.words += (id(held) + TYPE, id(type(held)))

    def references(self, held: Any, count: int) -> None:
        """So many others refer to the object."""
        self.words += (id(held) + COUNT, count)

    def unseen(self, held: Any) -> None:
        """The object has no weak references."""
        offset = type(held).__weakrefoffset__
        self.whole = self.whole and offset != 0
        self.words += (id(held) + offset, 0)

    def bare(self, held: Any) -> None:
        """The object has no attributes of the user's."""
        offset, attributes = dict_offset(held.__class__), held.__dict__
        self.whole = self.whole and offset != 0 and not attributes
        self.words += (id(held) + offset, id(attributes), id(attributes) + LENGTH, 0)

    def data(self, held: Any) -> None:
        """The data of the array start where they do."""
        self.words += (id(held) + 2 * _WORD, _word(id(held) + 2 * _WORD))

    def table(self) -> Any:
        """The rows as an array."""
        return np.array(self.words, np.int64)


class Same:
    """Whether what guards compare is the same, object by object; see `Backend.same`. `whole`: whether everything could be put into the table. The
    caller keeps all objects alive."""

    def __init__(
        self, entries: Iterable[tuple[Any, Any, Any]], lists: Iterable[tuple[Any, Iterable[Any]]], cells: Iterable[tuple[Any, Any]],
        sizes: Iterable[tuple[Any, int]], functions: Iterable[tuple[Any, Any, Any, Any]], slots: Iterable[tuple[Any, dict[str, Any]]],
    ) -> None:  # fmt: skip
        rows, self.whole = Rows(), True
        self._items: list[Any] = []
        for held, values in slots:
            rows.slots(held, **values)
        for cell, value in cells:
            rows.words += (id(cell) + LENGTH, id(value))
        for function, *parts in functions:
            for offset, part in zip(_function_offsets().values(), parts, strict=True):
                rows.words += (id(function) + offset, 0 if part is None else id(part))
        for sized, length in sizes:
            self.whole = self.whole and sized.__class__ in (dict, OrderedDict, defaultdict, list)
            rows.words += (id(sized) + LENGTH, length)
        self._rows, self._entries = rows.table(), np.array([self._entry(*entry) for entry in entries], np.int64)
        self._lists = np.array([self._list(*held) for held in lists], np.int64)
        self.whole = self.whole and rows.whole
        lookup, refer = (ctypes.cast(f, ctypes.c_void_p).value for f in (ctypes.pythonapi.PyDict_GetItem, ctypes.pythonapi.Py_IncRef))
        values = {
            "rows": self._rows.ctypes.data, "row_count": len(self._rows) // 2, "entries": self._entries.ctypes.data,
            "entry_count": len(self._entries), "lists": self._lists.ctypes.data, "list_count": len(self._lists), "lookup": lookup, "yes": id(True),
            "no": id(False), "refer": refer,
        }  # fmt: skip
        request = np.array([values[name] for name in SAME], np.int64)
        self.hold: Callable[[], bool] = native_calls.bound(native().same, request)

    def _entry(self, mapping: Any, key: Any, value: Any) -> tuple[int, int, int]:
        held = _word(id(mapping) + LENGTH) if mapping.__class__ is types.MappingProxyType else id(mapping)
        exact = _word(held + TYPE) in _DICTS  # looking things up there runs no code of the user's, and nor does comparing such keys
        self.whole = self.whole and exact and (key.__class__ in (str, int) or _hash_of(key) is object.__hash__)
        return (held, id(key), id(value))

    def _list(self, held: Any, items: Iterable[Any]) -> tuple[int, int, int]:
        addresses = np.array([id(item) for item in items], np.int64)
        self.whole = self.whole and held.__class__ is list
        self._items.append(addresses)
        return (id(held), len(addresses), addresses.ctypes.data)
