"""Figures in a file of comma-separated values."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calque.base.errors import CheckpointError
from calque.base.text import shown
from calque.monitor.logger import Logger, numbers
from calque.observe.source import warn_user


class CSVLogger(Logger):
    """Writes figures to a file of comma-separated values: a column "step", and one for each name. Spreadsheets and pandas read it.

    path: the file. One that is there is gone on with: a row of a step takes the place of those of this step and later ones, which a run that was
    stopped and resumed does again. A name that comes later gets a column, which is empty in the rows before. A row is in the file when `log`
    returns; one that cannot be written (a full disk) is a warning, and tried again with the next one.

    Raises CheckpointError for a file that is no such table: nothing of it is changed.

    >>> from calque.monitor import CSVLogger
    >>> with CSVLogger("figures.csv") as logger:
    ...     logger.log({"loss": calque.tensor(0.5)}, 1)
    ...     logger.log({"loss": 0.25, "accuracy": 0.9}, 2)
    >>> print(Path("figures.csv").read_text())
    step,loss,accuracy
    1,0.5,
    2,0.25,0.9
    <BLANKLINE>
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self._names: list[str] = []
        self._rows: list[tuple[int, dict[str, str]]] = []
        self._written = 0  # rows at the beginning of the file that are right; -1: the whole file has to be written
        self._warned = False
        if self.path.exists() and self.path.stat().st_size:
            self._read()

    def _read(self) -> None:
        text = self.path.read_bytes().decode(errors="replace")
        whole = text.endswith("\n")  # a kill may have cut off the last row
        table = list(csv.reader(io.StringIO(text)))
        head, rows = table[0], table[1:] if whole else table[1:-1]
        place = shown(str(self.path))
        if head[0] != "step" or not all(len(row) == len(head) and row[0].isdecimal() for row in rows):
            raise CheckpointError(f"[CSVLogger] expected a table whose first column is step in {place}, got something else; choose another path")
        self._names = head[1:]
        self._rows = [(int(row[0]), {name: cell for name, cell in zip(self._names, row[1:]) if cell}) for row in rows]
        self._written = len(rows) if whole else -1

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Add the row of a step; see `Logger.log`."""
        row = {name: repr(value) for name, value in numbers("CSVLogger", figures, step).items()}
        while self._rows and self._rows[-1][0] >= step:
            self._rows.pop()
            if len(self._rows) < self._written:
                self._written = -1
        new = [name for name in row if name not in self._names]
        if new or not self._rows:
            self._names, self._written = [*self._names, *new], -1
        self._rows.append((step, row))
        self._write()

    def close(self) -> None:
        """Try once more to write rows that could not be written."""
        if self._written != len(self._rows) and self._rows:
            self._write()

    def _write(self) -> None:
        """Bring the file up to what is in memory: rows at its end, or the whole of it in one step."""
        whole = self._written < 0
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        if whole:
            table.writerow(["step", *self._names])
        table.writerows([step, *(row.get(name, "") for name in self._names)] for step, row in self._rows[0 if whole else self._written :])
        try:
            if whole:
                part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
                try:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    part.write_text(text.getvalue())
                    os.replace(part, self.path)
                finally:
                    part.unlink(missing_ok=True)
            else:
                with open(self.path, "a") as file:
                    file.write(text.getvalue())
            self._written = len(self._rows)
        except OSError as error:
            self._written = -1  # half a row may stand there
            if not self._warned:
                warn_user(f"[CSVLogger] cannot write {str(self.path)!r}: {error.strerror or error}; its rows are kept and tried again")
            self._warned = True
