"""The checkpoints of a run: the last ones to go on from, and the best ones by a metric. An index file says which they are; names are for people.

    index.json                                      what there is: the truth
    epoch003-step000120-val_loss0.1234.calque       one checkpoint, whole and checksummed, or not there at all

A new checkpoint is written first, then the index, and only then what the index does not name any more is removed: whenever the process is killed, the
index names files that are whole.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque.base.errors import ArgumentError, CheckpointError, DTypeError
from calque.base.text import shown
from calque.data.convert import copy_array
from calque.functional.kinds import is_int
from calque.io.shards import remove_orphans, remove_shards
from calque.io.write import remove_leftovers, write_whole
from calque.observe.source import warn_user
from calque.tensor import read

_BEGIN = r"epoch\d+-step\d+[^/]*"
_NAME = re.compile(r"epoch\d+-step(\d+)[^/]*\.calque(\.index\.json)?")
LAST = 2  # checkpoints to go on from; should the newest be damaged there is one before it


def snapshot(state: Any) -> Any:
    """A copy of a state. Values are copied at once: parameters that somebody else looks at could not be overwritten in place, which is another
    program, with other last bits."""
    if isinstance(state, calque.Tensor):
        return copy_array(read(state))
    if isinstance(state, dict):
        return {key: snapshot(item) for key, item in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(snapshot(item) for item in state)
    return state.copy() if isinstance(state, np.ndarray) else state


class Checkpoints:
    """The checkpoints in a folder.

    folder: is made if it is not there. keep: how many of the best ones by `metric` stay (mode: "min" or "max" is better); beside the last two. A
    metric that is not finite is never among the best. shard_size: bytes of a file at most; a checkpoint is then an index and several files.

    Raises CheckpointError if the folder cannot be written.

    >>> from calque.train import Checkpoints
    >>> found = Checkpoints("kept", keep=1, metric="val/accuracy", mode="max")
    >>> for epoch, value in enumerate((0.5, 0.9, 0.7)):
    ...     found.save({"weights": calque.ones(2) * epoch}, epoch, epoch * 10, value)
    >>> found.best.name, found.load()["weights"].tolist()
    ('epoch001-step000010-val_accuracy0.9.calque', [2.0, 2.0])
    """

    def __init__(
        self, folder: str | os.PathLike[str], keep: int = 3, metric: str = "loss", mode: str = "min",
        shard_size: int | None = None,
    ) -> None:  # fmt: skip
        if mode not in ("min", "max"):
            raise ArgumentError(f"[Checkpoints] expected mode to be 'min' or 'max', got {shown(mode)}")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
            raise ArgumentError(f"[Checkpoints] expected keep to be an integer >= 0, got {shown(keep)}")
        self.folder, self.keep, self.metric, self.sign = Path(folder), keep, metric, 1.0 if mode == "min" else -1.0
        if shard_size is not None and (isinstance(shard_size, bool) or not isinstance(shard_size, int) or shard_size < 1):
            raise ArgumentError(f"[Checkpoints] expected shard_size to be an integer >= 1, got {shown(shard_size)}")
        self.shard_size = shard_size
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # the latter: a name with a zero byte
            why = getattr(error, "strerror", error)
            raise CheckpointError(f"[Checkpoints] expected a folder that can be written, got {self.folder}: {why}; choose another") from error
        if not os.access(self.folder, os.W_OK):
            raise CheckpointError(f"[Checkpoints] expected a folder that can be written, got {self.folder}, which is protected; choose another")
        self.entries = self._read()
        self._writing: Future[None] | None = None

    @property
    def index(self) -> Path:
        """The index file."""
        return self.folder / "index.json"

    def _read(self) -> dict[str, list[dict[str, Any]]]:
        """The index. One that is damaged is made again from the names of the files, with a warning."""
        entries: dict[str, list[dict[str, Any]]]
        try:
            found = json.loads(self.index.read_text())
            entries = {kind: [self._entry(entry) for entry in found[kind]] for kind in ("last", "best")}
        except FileNotFoundError:
            return {"last": [], "best": []}
        except (OSError, ValueError, KeyError, TypeError) as error:
            names = sorted((n for n in os.listdir(self.folder) if _NAME.fullmatch(n)), key=lambda n: int(_NAME.fullmatch(n)[1]), reverse=True)  # type: ignore[index]
            warn_user(f"[Checkpoints] expected an index of checkpoints in {self.index}, got {error}; the {len(names)} files there are taken instead")
            entries = {"last": [{"file": name, "value": None, "epoch": 0, "step": 0} for name in names], "best": []}
        return entries

    @staticmethod
    def _entry(entry: dict[str, Any]) -> dict[str, Any]:
        """One line of the index, which may only name a file beside it."""
        file = entry["file"]
        if not isinstance(file, str) or os.path.basename(file) != file:
            raise ValueError(f"the file name {shown(file)}")
        return {"file": file, "value": entry["value"], "epoch": int(entry["epoch"]), "step": int(entry["step"])}

    def save(self, state: Any, epoch: int, step: int, value: float | None = None, wait: bool = True) -> None:
        """Write a checkpoint. Raises CheckpointError if that is not possible; those before it stay as they are.

        wait: False copies the state and writes it in another thread, while the caller goes on. One is written at a time; what goes wrong is raised
        by the next `save`, `load` or `wait`.
        """
        if not (is_int(epoch) and is_int(step)):
            raise DTypeError(f"[save] expected epoch and step as ints, got {shown(epoch)} and {shown(step)}")
        self.wait()
        if wait:
            self._save(state, epoch, step, value)
            return
        kept, done = snapshot(state), Future[None]()
        self._writing = done

        def write() -> None:
            try:
                self._save(kept, epoch, step, value)
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=write, name="calque-checkpoint").start()  # no daemon: the process ends when it is written

    def wait(self) -> None:
        """Wait until nothing is being written; raises what has gone wrong."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _save(self, state: Any, epoch: int, step: int, value: float | None) -> None:
        score = "" if value is None else f"-{re.sub(r'[^A-Za-z0-9_.]+', '_', self.metric)}{value:.6g}"
        entry: dict[str, Any] = {"file": f"epoch{epoch:03d}-step{step:06d}{score}.calque", "value": value, "epoch": epoch, "step": step}
        if self.shard_size is None:
            calque.save(state, self.folder / entry["file"])
        else:
            entry["file"] += ".index.json"
            calque.save(state, self.folder / entry["file"], shard_size=self.shard_size)
        before = self.entries
        others = {kind: [e for e in found if e["file"] != entry["file"]] for kind, found in before.items()}
        best = others["best"] + ([entry] if value is not None and math.isfinite(value) else [])
        best.sort(key=lambda e: self.sign * e["value"])
        self.entries = {"last": [entry, *others["last"]][:LAST], "best": best[: self.keep]}
        try:
            self._write()
        except CheckpointError:
            self.entries = before
            raise
        named = {e["file"] for found in self.entries.values() for e in found}
        for old in {e["file"] for found in before.values() for e in found} - named:
            self._remove(old)
        with contextlib.suppress(OSError):  # what is in the way of cleaning up is in nobody else's way
            remove_leftovers(str(self.folder), rf"\.{_BEGIN}\.tmp-[0-9a-f]{{12}}$")  # of steps that are not saved again under the same name
            remove_orphans(str(self.folder), rf"{_BEGIN}\.calque")

    def _remove(self, name: str) -> None:
        if name.endswith(".index.json"):
            remove_shards(str(self.folder / name))
        else:
            (self.folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove every checkpoint, the index first."""
        self.wait()
        names = {entry["file"] for found in self.entries.values() for entry in found}
        self.entries = {"last": [], "best": []}
        self.index.unlink(missing_ok=True)
        for name in names:
            self._remove(name)

    def _write(self) -> None:
        text = (json.dumps({"version": 1, "metric": self.metric, **self.entries}, indent=2) + "\n").encode()

        def content(file: Any) -> None:
            file.write(text)

        write_whole(str(self.index), len(text), content)

    @property
    def best(self) -> Path:
        """The best checkpoint. Raises CheckpointError if no checkpoint has a metric."""
        if not self.entries["best"]:
            raise CheckpointError(f"[Checkpoints] expected a checkpoint with a finite {self.metric}, got none in {self.folder}; save one with value=")
        return self.folder / self.entries["best"][0]["file"]

    @property
    def last(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return self.folder / self.entries["last"][0]["file"] if self.entries["last"] else None

    def load(self) -> Any:
        """The newest checkpoint that is whole, of the last ones and then of the best; a warning names those that are not. Raises CheckpointError if
        there is none."""
        self.wait()
        failures = []
        known = {entry["file"]: entry for kind in ("last", "best") for entry in self.entries[kind]}
        for entry in sorted(known.values(), key=lambda e: (e["epoch"], e["step"]), reverse=True):
            try:
                return calque.load(self.folder / entry["file"])
            except (CheckpointError, FileNotFoundError) as error:
                failures.append(str(error))
                warn_user(f"[Checkpoints] expected {entry['file']} to be whole ({error}); the checkpoint before it is taken")
        found = "; ".join(failures) or "an empty index"
        raise CheckpointError(f"[Checkpoints] expected a checkpoint in {self.folder}, got none that can be read: {found}")
