"""Where a contraction meets its epilogue: a loop that the launcher has set behind it runs on every part of the result that is complete.

The launcher (`runtime_text.py`) leaves words behind each thread's scratch memory. A path that can say when a part of the result, seen as
(batch, rows, columns), is complete calls :func:`begin` on every thread and then :func:`finish` for each part, once. Where no path has begun, the
launcher runs the loop as a launch of its own.
"""

from __future__ import annotations

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import SCRATCH_BYTES

FINISH, BEGUN, BATCH, ROW, COLUMN, WHOLE = 0, 3, 4, 5, 6, 7
"""Words: the function to call (0: no epilogue); whether the contraction takes care of it; where its caller stands in the result; whether the
result is the one that the launcher knows, as it stands (1), or seen in another way."""


def _slot(b: Builder, private: str) -> str:
    return b.byte_at(private, SCRATCH_BYTES)


def note(b: Builder, private: str, word: int, value: Value) -> None:
    """Set a word."""
    b.emit(f"store i64 {value}, ptr {b.byte_at(_slot(b, private), 8 * word)}, align 8")


def begin(b: Builder, private: str, row: Value = 0, column: Value = 0) -> None:
    """This path will finish all parts; those of this thread count from (row, column)."""
    slot = _slot(b, private)
    there = b.both(b.compare("ne", b.word(slot, FINISH), 0), b.compare("ne", b.word(slot, WHOLE), 0))
    with b.when(there):
        for word, value in ((BEGUN, 1), (ROW, row), (COLUMN, column)):
            note(b, private, word, value)


def finish(b: Builder, private: str, row: Value, rows: Value, column: Value, columns: Value, batch: Value | None = None) -> None:
    """A part of the result is complete (`batch`: as noted if not given)."""
    slot = _slot(b, private)
    with b.when(b.compare("ne", b.word(slot, BEGUN), 0)):
        if batch is None:
            batch = b.word(slot, BATCH)
        place = b.add(b.word(slot, ROW), row), b.add(b.word(slot, COLUMN), column)
        function = b.pointer_word(slot, FINISH)
        b.emit(f"call void {function}(ptr {slot}, i64 {batch}, i64 {place[0]}, i64 {rows}, i64 {place[1]}, i64 {columns})")
