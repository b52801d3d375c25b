"""Plans for all sizes (`kernel/sizes.py`) as bytes: a process reads what another one found out.

They hold numbers, texts and the names of a few classes of plain records, nothing that could run. A table of rows, each an atom or the name of what it
makes and the numbers of earlier rows; equal parts are one row. What cannot be written so is not kept, what cannot be read is as good as absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

import numpy as np

from calque.base.dtypes import DType, dtype_by_name
from calque.kernel import loops, memory, schedule, sizes
from calque.kernel.sizes import Assembly, Variant
from calque.ops import routines

_ATOMS = (int, str, bool, float, type(None))
_ROWS = ("fixed", "values", "varying", "first", "which")  # of a variant


def _records(*modules: ModuleType) -> dict[str, Any]:
    """Dataclasses that these modules define, by name."""
    return {
        kind.__name__: kind for module in modules for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
    }  # fmt: skip


RECORDS = _records(loops, memory, schedule, sizes, routines)
_NAMES = {kind: name for name, kind in RECORDS.items()}
_SPECIAL: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple, "list": list, "dict": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
    "dtype": lambda items: dtype_by_name(*items),
    "class": lambda items: {"tuple": tuple, "list": list}.get(items[0]) or RECORDS[items[0]],
}  # fmt: skip


class _Table:
    """Rows of what is written."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.known: dict[Any, int] = {}

    def add(self, x: Any) -> int:
        """The number of a value's row. Raises `TypeError` for what is no plain record."""
        kind: Any = type(x)
        if kind in _ATOMS:
            return self._row((kind, repr(x)), x)
        name, items = self._taken_apart(kind, x)
        row = [name, *map(self.add, items)]
        return self._row(tuple(row), row)

    def _taken_apart(self, kind: Any, x: Any) -> tuple[str, Any]:
        if kind in (tuple, list):
            return kind.__name__, x
        if kind is dict:
            return "dict", [part for item in x.items() for part in item]
        if kind is DType:
            return "dtype", [x.name]
        if kind in _NAMES:
            return _NAMES[kind], [getattr(x, f.name) for f in fields(kind) if f.init]
        if kind is type and (x in _NAMES or x in (tuple, list)):
            return "class", [x.__name__]
        raise TypeError(f"a {kind.__name__} is no plain record")

    def _row(self, key: Any, row: Any) -> int:
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = len(self.rows)
            self.rows.append(row)
        return found


def packed(variant: Variant) -> bytes | None:
    """The variant as bytes; None if it holds anything else than plain records."""
    table = _Table()
    try:
        table.add((*[getattr(variant, name).tolist() for name in _ROWS], variant.template.state()))
    except TypeError:
        return None
    return json.dumps(table.rows, separators=(",", ":")).encode()


def unpacked(data: bytes) -> Variant | None:
    """What `packed` was given; None if that is not what the bytes hold."""
    made: list[Any] = []
    at, append = made.__getitem__, made.append
    try:
        for row in json.loads(data):
            if type(row) is not list:
                append(row)
                continue
            items = [at(k) for k in row[1:]]
            special = _SPECIAL.get(row[0])
            append(special(items) if special is not None else RECORDS[row[0]](*items))
        *rows, state = made[-1]
        variant = Variant.__new__(Variant)
        for name, numbers in zip(_ROWS, rows, strict=True):
            setattr(variant, name, np.array(numbers, np.int64))
        variant.template, variant.serial, variant.bound = Assembly.of(state), next(sizes.SERIALS), len(variant.fixed) + len(variant.varying)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError):
        return None
    return variant


class Disk:
    """A `Shelf` of what `read` gives for a name, and `write` has put there."""

    def __init__(self, read: Callable[[bytes], bytes | None], write: Callable[[bytes, bytes], None]) -> None:
        self._read, self._write = read, write

    def get(self, structure: bytes, number: int) -> Variant | None:
        """One of the variants that were put there."""
        data = self._read(_name(structure, number))
        return unpacked(data) if data is not None else None

    def put(self, structure: bytes, number: int, variant: Variant) -> None:
        """Keep a variant, if it is one that can be."""
        data = packed(variant)
        if data is not None:
            self._write(_name(structure, number), data)


def _name(structure: bytes, number: int) -> bytes:
    return b"sizes %d of " % number + structure
