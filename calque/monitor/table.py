"""Plain text tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described, shown

_WIDTH = 12


def table_row(*cells: object, width: int = _WIDTH) -> str:
    """One row of a table that is printed line by line: cells right-aligned in columns of `width` characters.

    >>> from calque.monitor import table_row
    >>> table_row("epoch", 0.5, width=8)
    '   epoch      0.5'
    """
    if not isinstance(width, int) or width < 0:
        raise ArgumentError(f"[table_row] expected width as an int of at least 0, got {shown(width)}")
    return " ".join(f"{cell_text(cell):>{int(width)}}" for cell in cells)


def format_table(header: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A table with columns as wide as they need to be: text to the left, numbers to the right.

    >>> from calque.monitor import format_table
    >>> print(format_table(["layer", "parameters"], [["conv", 640], ["linear", 1290]]))
    layer   parameters
    ------  ----------
    conv           640
    linear        1290
    """
    for number, row in enumerate(rows):
        if not isinstance(row, (tuple, list)):
            raise DTypeError(f"[format_table] expected rows as tuples or lists of cells, got {described(row)} as row {number}")
        if len(row) != len(header):
            raise ArgumentError(f"[format_table] expected {len(header)} cells in every row, got {len(row)} in row {number}")
    texts = [[cell_text(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts)]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    texts.insert(1, ["-" * width for width in widths])
    lines = ("  ".join(f"{t:>{w}}" if r else f"{t:<{w}}" for t, w, r in zip(row, widths, right)).rstrip() for row in texts)
    return "\n".join(lines)


def print_table(header: Sequence[object], rows: Sequence[Sequence[object]], file: TextIO | None = None) -> None:
    """Print `format_table(header, rows)` to `file` (default: standard output)."""
    print(format_table(header, rows), file=file or sys.stdout)


def cell_text(cell: object) -> str:
    """A cell as text: floats with four significant digits."""
    try:
        return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
    except Exception:  # a table is printed while something else is at work, which a cell that cannot be shown should not end
        return shown(cell)
