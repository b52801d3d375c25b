"""Running a program again where it ran before: one native call looks whether everything stands as it did, and runs if so.

The argument words keep all addresses from one run to the next except those of arguments and results. Gradients and the like stay in the memory they
have, so nothing is allocated.
"""

from __future__ import annotations

import ctypes
from sys import getrefcount
from typing import Any

import numpy as np

from calque.backend.base import Argument, Standing
from calque.backend.cpu.team import callable as native_calls
from calque.backend.cpu.team.memory import poison
from calque.backend.cpu.team.place import HERE
from calque.backend.cpu.team.runtime import native
from calque.backend.cpu.team.same import Rows, slot_offset
from calque.backend.cpu.team.team import TEAM
from calque.backend.cpu.text.same_text import AGAIN, ARGUMENT_WORDS, INDEX_WORDS
from calque.base.config import settings


class Rerun:
    """See `Executable.standing`. `call(arguments)` tells whether everything stands as it did; `run(arguments, scalars)` also runs then.

    `alone`: the run keeps the interpreter's lock. Results alternate between two arrays of their own as long as nobody has the one that is due.
    `arena`: bytes of temporary memory that every run borrows from the pool, as the last of the objects.
    """

    def __init__(self, facts: Standing, words: Any, request: list[int], alone: bool, brief: bool, kept: list[Any], arena: int) -> None:
        """`brief`: see `Runtime.run`. `kept`: arrays that must not go while a run is without the interpreter's lock."""
        self._words, self._alone, self._brief, self._arena = words, alone, brief, arena
        rows = Rows()
        for what, held, detail in facts.rows:
            if what == "slots":
                rows.slots(held, **detail)
            elif what == "references":
                rows.references(held, detail)
            else:
                getattr(rows, what)(held)
        self._tables = {
            "rows": rows.table(),
            "arguments": _table([_argument(a) for a in facts.arguments], ARGUMENT_WORDS),
            "strangers": np.array([*(id(s) for s in facts.strangers), *[0] * len(facts.arguments)], np.int64),
            "indices": _table(facts.indices, INDEX_WORDS),
            "kept": np.array([id(array) for array in kept], np.int64),
        }
        self._held = (list(facts.arguments), list(facts.strangers))
        self.whole, self._kinds = rows.whole, facts.results
        self._spare = [[_fresh(*kind), _fresh(*kind)] for kind in facts.results]
        self._objects = np.array([*[0] * (len(facts.arguments) + len(facts.results)), *map(id, facts.fixed), *([0] if arena else [])], np.int64)
        self.request = np.array([*request, *self._own(facts)], np.int64)
        self.call = native_calls.bound(native().again, self.request)

    def _own(self, facts: Standing) -> list[int]:
        """The words of `AGAIN`."""
        handle, storage, buffer, task = facts.classes
        offsets = {
            "tensor_storage": slot_offset(handle, "_storage"), "tensor_layout": slot_offset(handle, "_layout"),
            "tensor_needs": slot_offset(handle, "_requires_grad"), "storage_trace": slot_offset(storage, "trace"),
            "storage_layout": slot_offset(storage, "layout"), "storage_buffer": slot_offset(storage, "buffer"),
            "buffer_array": slot_offset(buffer, "array"), "buffer_task": slot_offset(buffer, "task"),
            "buffer_owner": slot_offset(buffer, "owner"), "buffer_export": slot_offset(buffer, "export"),
            "task_done": slot_offset(task, "done"),
        }  # fmt: skip
        self.whole = self.whole and min(offsets.values()) > 0
        refer, drop = (ctypes.cast(f, ctypes.c_void_p).value for f in (ctypes.pythonapi.Py_IncRef, ctypes.pythonapi.Py_DecRef))
        values = {
            **offsets, **{name: table.ctypes.data for name, table in self._tables.items()},
            "row_count": len(self._tables["rows"]) // 2, "argument_count": len(facts.arguments), "stranger_count": len(facts.strangers),
            "index_count": len(facts.indices), "objects": self._objects.ctypes.data, "yes": id(True), "no": id(False), "refer": refer,
            "kept_count": len(self._tables["kept"]), "guest_count": 0 if self._alone else len(self._objects), "drop": drop,
            "none": id(None), "array_type": id(np.ndarray), "buffer_type": id(buffer), "task_type": id(task),
        }  # fmt: skip
        return [int(values[name]) for name in AGAIN]

    def results(self) -> list[Any]:
        """The arrays that the next run fills: nobody else has them."""
        found = []
        for kind, spare in zip(self._kinds, self._spare, strict=True):
            array = spare[0]
            if getrefcount(array) > 3:  # the list, the variable, the argument
                other = spare[1]
                if getrefcount(other) > 3:
                    other = _fresh(*kind)
                spare[:] = (other, array)
                array = other
            found.append(array)
            if settings.poison:
                poison(array)
        return found

    def run(self, arguments: tuple[Any, ...], scalars: list[Any], results: list[Any]) -> bool:
        """Run if everything stands as it did; else False, and nothing has happened."""
        if self._arena:
            arena = HERE.pool.arena(self._arena)  # alive as long as this function runs
            self._objects[-1] = id(arena)
        elif settings.poison and self._words[1].arena is not None:
            poison(self._words[1].arena)
        if self._alone:
            return self.call(arguments, scalars, results) is True
        return TEAM.runtime.step(self.call, self.request, False, self._brief, arguments, scalars, results) is True


def _table(rows: Any, width: int) -> Any:
    return np.array([list(row) for row in rows], np.int64).reshape(-1, width)


def _argument(a: Argument) -> tuple[int, int, int, int]:
    """Row of `arguments`."""
    return (0, id(a.layout), 0, 0) if a.kind is None else (id(a.kind), id(a.layout), id(a.needs), id(a.value))


def _fresh(count: int, dtype: np.dtype[Any]) -> Any:
    return HERE.pool.empty(count, dtype)
