"""The loss of every step in a file of lines, which a full disk, a kill or a power failure may cut short but not tear."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calque.base.errors import CheckpointError
from calque.io.write import write_whole
from calque.observe.source import warn_user


class LossLog:
    """`losses.jsonl`: one line {"epoch", "step", "loss"} for each step.

    Lines that cannot be written (a full disk) stay in memory and are tried again with the next one, so the file is whole once there is room.
    """

    def __init__(self, path: Path | None) -> None:
        """`path`: None keeps nothing, on a rank that writes no files."""
        self.path: Any = path
        self._waiting: list[bytes] = []
        self._unsafe: list[bytes] = []  # a power failure may take them: all since the last fsync, those that wait included
        self._warned = False

    def append(self, epoch: int, step: int, loss: float) -> None:
        """Write the line of a step."""
        if self.path is None:
            return
        line = (json.dumps({"epoch": epoch, "step": step, "loss": loss}) + "\n").encode()
        self._waiting.append(line)
        self._unsafe.append(line)
        self.write()

    def unsafe(self) -> list[str]:
        """Lines that may not be in the file later, for a checkpoint: after `write(durable=True)` those that the disk did not take."""
        return [line.decode() for line in self._unsafe]

    def write(self, durable: bool = False) -> None:
        """Write what is waiting; `durable`: so that it survives a power failure, which a checkpoint of later steps relies on."""
        if self.path is None or (not self._waiting and not durable):
            return
        text = b"".join(self._waiting)
        try:
            with open(self.path, "ab", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    written = file.write(text)
                    if written != len(text):
                        raise OSError(f"{written} of {len(text)} bytes written")
                except OSError:
                    os.ftruncate(file.fileno(), end)  # no half line stands before those that come later
                    raise
                self._waiting.clear()
                if durable:
                    os.fsync(file.fileno())
                    self._unsafe.clear()
        except OSError as error:
            if not self._warned:
                warn_user(f"[Trainer] cannot write {str(self.path)!r}: {error.strerror or error}; training goes on, its lines are tried again")
            self._warned = True

    def trim(self, epoch: int, step: int, unsafe: Sequence[str] = ()) -> None:
        """Drop the lines of steps that will be done again; write those that were `unsafe` when the checkpoint was made."""
        if self.path is None:
            return
        lines_of = [line.encode() for line in unsafe]
        self._waiting, self._unsafe = list(lines_of), list(lines_of)
        for line in lines_of[:1]:
            epoch, step = min((epoch, step), _read(line) or (epoch, step))
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            lines = []
        kept = []
        for line in lines:
            entry = _read(line)
            if entry is None:  # cut short by a kill
                break
            if entry < (epoch, step):
                kept.append(line)
        if len(kept) < len(lines):
            text = b"".join(kept)
            try:
                write_whole(str(self.path), len(text), lambda file: _put(file, text))
            except CheckpointError as error:
                raise CheckpointError(f"{error}; the losses of steps that will be done again cannot be dropped from it") from error
        self.write()

    def clear(self) -> None:
        """Remove the file."""
        self._waiting.clear()
        self._unsafe.clear()
        self.path.unlink(missing_ok=True)


def _put(file: Any, text: bytes) -> None:
    file.write(text)


def _read(line: bytes) -> tuple[int, int] | None:
    """(epoch, step) of a line, None for what is none."""
    try:
        entry = json.loads(line)
        place = entry["epoch"], entry["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return place if line.endswith(b"\n") and all(isinstance(number, int) for number in place) else None
