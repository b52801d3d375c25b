"""Power failures and faults of the disk while a run is saved: every state that a disk may be left in, and a fault at every call."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calque.io import write
from calque.train import Checkpoints, losses
from calque.train.losses import LossLog
from tests.train.test_trainer import Killed, loaders, trainer, values

Operation = tuple[Any, ...]


class Disk:
    """What a folder's files were asked to do, in order, and the states that a power failure may leave of it.

    The model: what was written to a file is safe after its fsync, before it any part of it may be missing or zero; a name that was made, moved or
    removed is safe after fsync of the folder, before it each such change may or may not be there, whichever order they came in.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.files, self.count = str(folder), [], {}, 0
        self.log: list[Operation]
        self.files: dict[int, int]  # descriptor -> number of the file; the folder itself is number 0

    @contextmanager
    def watched(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Note what happens inside."""
        real = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink", "close", "ftruncate")}
        written, raw_open = write._Complete.write, open

        def opened(path: Any, flags: int, *rest: Any, **keywords: Any) -> int:
            descriptor: int = real["open"](path, flags, *rest, **keywords)
            if os.fspath(path) == self.folder:
                self.files[descriptor] = 0
            elif flags & os.O_CREAT and os.path.dirname(os.fspath(path)) == self.folder:
                self.count += 1
                self.files[descriptor] = self.count
                self.log.append(("link", os.path.basename(os.fspath(path)), self.count))
            else:
                self.files.pop(descriptor, None)
            return descriptor

        def synced(descriptor: int) -> None:
            real["fsync"](descriptor)
            self.log.append(("fsync", self.files[descriptor]))

        def replaced(a: Any, b: Any) -> None:
            real["replace"](a, b)
            self.log.append(("rename", os.path.basename(a), os.path.basename(b)))

        def unlinked(path: Any, *rest: Any, **keywords: Any) -> None:
            real["unlink"](path, *rest, **keywords)
            self.log.append(("unlink", os.path.basename(os.fspath(path))))

        def put(file: Any, data: bytes) -> int:
            self.log.append(("write", self.files[file.fileno()], file.seek(0, os.SEEK_CUR), bytes(data)))
            return written(file, data)

        with patch.context() as inside:
            for name, function in (("open", opened), ("fsync", synced), ("replace", replaced), ("unlink", unlinked)):
                inside.setattr(os, name, function)
            inside.setattr(write._Complete, "write", put)
            yield
        assert raw_open is open

    def acknowledged(self, step: int) -> None:
        """`save` has returned for this step."""
        self.log.append(("done", step))

    def after(self, length: int, rng: np.random.Generator) -> tuple[dict[str, bytes], int]:
        """A state of the disk when the power failed after so many operations, and the newest step that was acknowledged by then."""
        safe: dict[int, bytearray] = {}
        names: dict[str, int] = {}  # safe ones
        pending: list[Operation] = []
        unsynced: dict[int, list[Operation]] = {}
        newest = -1
        for operation in self.log[:length]:
            kind = operation[0]
            if kind == "done":
                newest = operation[1]
            elif kind == "write":
                unsynced.setdefault(operation[1], []).append(operation)
            elif kind == "fsync" and operation[1] == 0:
                names, pending = _named(names, pending), []
            elif kind == "fsync":
                for entry in unsynced.pop(operation[1], []):
                    _apply(safe.setdefault(entry[1], bytearray()), entry[2], entry[3])
            else:
                pending.append(operation)
        found = _named(names, [p for p in pending if rng.random() < 0.6], dict(_links(self.log[:length])))
        for number, entries in unsynced.items():
            for _, _, place, data in entries:
                fate = rng.integers(4)
                if fate:
                    part = data[: int(rng.integers(len(data) + 1))] if fate == 1 else bytes(len(data)) if fate == 2 else data
                    _apply(safe.setdefault(number, bytearray()), place, part)
        return {name: bytes(safe.get(number, b"")) for name, number in found.items()}, newest


def _links(log: list[Operation]) -> Iterator[tuple[str, int]]:
    """Which file a temporary name stands for: such a name is made once."""
    return ((operation[1], operation[2]) for operation in log if operation[0] == "link")


def _named(names: dict[str, int], operations: list[Operation], links: dict[str, int] | None = None) -> dict[str, int]:
    """Names after some changes; one that needs an earlier change which is not there finds its file by number."""
    names = dict(names)
    for operation in operations:
        if operation[0] == "link":
            names[operation[1]] = operation[2]
        elif operation[0] == "unlink":
            names.pop(operation[1], None)
        else:
            number = names.pop(operation[1], None if links is None else links.get(operation[1]))
            if number is not None:
                names[operation[2]] = number
    return names


def _apply(content: bytearray, place: int, data: bytes) -> None:
    content.extend(bytes(max(0, place + len(data) - len(content))))
    content[place : place + len(data)] = data


@pytest.mark.parametrize("states", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_r2_every_state_that_a_power_failure_leaves_has_the_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, states: int
) -> None:
    folder, broken = tmp_path / "run", tmp_path / "after"
    found = Checkpoints(folder, keep=2, metric="loss")
    disk = Disk(folder)
    with disk.watched(monkeypatch):
        for step in range(8):
            found.save({"w": np.full(40, step, np.float64), "b": np.full(3, step, np.int8)}, step, step, (3.0, 1.0, 2.0)[step % 3])
            disk.acknowledged(step)
    assert len(disk.log) > 100
    broken.mkdir()
    for turn in range(states):
        files, newest = disk.after(turn % (len(disk.log) + 1), rng)
        for name, content in files.items():
            (broken / name).write_bytes(content)
        again = Checkpoints(broken, keep=2)
        if newest >= 0 or again.last is not None:
            state = again.load()  # a warning would be an error here: nothing damaged is named
            step = int(state["b"][0])
            assert newest <= step <= newest + 1 and (state["w"] == step).all() and (state["b"] == step).all()
        if turn % 16 == 0:
            again.save({"w": np.full(40, 99.0)}, 99, 99)
            assert not [name for name in os.listdir(broken) if name.startswith(".index") and ".tmp-" in name]
        for name in os.listdir(broken):
            (broken / name).unlink()


def test_the_model_of_the_disk_finds_a_save_that_does_not_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Without fsync of what is written, or of the folder, the states above do contain losses."""
    for number, skipped in enumerate((lambda n: n > 0, lambda n: n == 0)):
        folder = tmp_path / f"run{number}"
        found, disk, lost = Checkpoints(folder), Disk(folder), 0
        with disk.watched(monkeypatch):
            for step in range(4):
                found.save({"w": np.full(40, step)}, step, step)
                disk.acknowledged(step)
        disk.log = [entry for entry in disk.log if entry[0] != "fsync" or not skipped(entry[1])]
        for turn in range(150):
            files, newest = disk.after(turn % (len(disk.log) + 1), rng)
            broken = tmp_path / f"after{number}-{turn}"
            broken.mkdir()
            for name, content in files.items():
                (broken / name).write_bytes(content)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    lost += newest >= 0 and Checkpoints(broken).load()["w"][0].item() < newest
                except (UserWarning, OSError):
                    lost += 1
        assert lost > 0, number


def test_what_killed_saves_left_goes_with_the_next_one(tmp_path: Path) -> None:
    """Their step may have another name the next time, as its metric is in it, and files of a checkpoint in several always have."""
    part = "-0123456789ab-00001-of-00002.safetensors"
    last = "epoch003-step000030-loss4.calque"
    torn = tuple(f".{name}.tmp-0123456789ab" for name in (last, last + part, "index.json"))
    ended = (last + part, f"epoch002-step000020-loss4.calque{part}")
    others = (".epoch_notes", ".epoch003-step000030.tmp-notes", "epoch003-step000030.txt", "epoch002-step000020-loss4.calque.index.json")
    new = f"epoch004-step000040-loss4.calque{part}"  # may be of a process that goes on
    for name in (*torn, *ended, *others, new):
        (tmp_path / name).write_bytes(b"")
        if name != new:
            os.utime(tmp_path / name, (1, 1))
    with open(tmp_path / ".epoch005-step000050.calque.tmp-0123456789ab", "w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        found = Checkpoints(tmp_path)
        found.save({"w": np.ones(3)}, 4, 40, 1.5)
        left = {*others, new, ended[1], os.path.basename(busy.name), "index.json", "epoch004-step000040-loss1.5.calque"}
        assert set(os.listdir(tmp_path)) == left


class Faults:
    """The calls of the disk in a folder, of which number `first` and some after it fail."""

    def __init__(self, folder: Path, first: int, count: int, code: int) -> None:
        self.folder, self.first, self.count, self.code, self.calls = str(folder), first, count, code, 0
        self.paths: dict[int, str] = {}

    def _may(self) -> None:
        self.calls += 1
        if self.first < self.calls <= self.first + self.count:
            raise OSError(self.code, os.strerror(self.code))

    def __enter__(self) -> "Faults":
        self.patch = pytest.MonkeyPatch()
        real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink", "ftruncate")}
        written = write._Complete.write

        def failing(name: str) -> Callable[..., Any]:
            def call(*args: Any, **keywords: Any) -> Any:
                ours = not isinstance(args[0], int) and os.fspath(args[0]).startswith(self.folder)
                if ours or isinstance(args[0], int):
                    self._may()
                return real[name](*args, **keywords)

            return call

        for name in ("open", "fsync", "replace"):
            self.patch.setattr(os, name, failing(name))

        def put(file: Any, data: bytes) -> int:
            self._may()
            return written(file, data)

        def opened(path: Any, *args: Any, **keywords: Any) -> Any:
            return _Weak(open(path, *args, **keywords), self._may)

        self.patch.setattr(write._Complete, "write", put)
        self.patch.setattr(losses, "open", opened, raising=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


class _Weak:
    """A file that takes half of what is written when its disk is full."""

    def __init__(self, file: Any, may: Callable[[], None]) -> None:
        self.file, self.may = file, may
        self.seek, self.fileno = file.seek, file.fileno

    def __enter__(self) -> "_Weak":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        try:
            self.may()
        except OSError:
            self.file.write(data[: len(data) // 2])
            raise
        return int(self.file.write(data))


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_r3_a_fault_at_every_call_costs_no_checkpoint_and_not_the_run(tmp_path: Path, step: int) -> None:
    whole, plain = trainer(tmp_path / "whole", save_every=2), os.open
    with Faults(tmp_path / "whole", 0, 0, 0) as counted:
        whole.fit(*loaders(), epochs=2)
    assert counted.calls > 60
    for number, first in enumerate(range(1, counted.calls, step)):
        folder = tmp_path / f"r{first}"
        code = (errno.ENOSPC, errno.EIO, errno.EDQUOT)[number % 3]
        run, save, seen = trainer(folder, save_every=2), None, [-1]
        save = run.save

        def saved(*args: Any, run: Any = run, save: Any = save, seen: list[int] = seen, folder: Path = folder, **keywords: Any) -> None:
            save(*args, **keywords)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "open", plain)
                found = Checkpoints(folder)
                updates = -1 if found.last is None else found.load()["updates"]
            assert updates in (seen[0], run.updates)  # the one before it, or the new one
            seen[0] = updates

        run.save = saved
        with warnings.catch_warnings(record=True) as caught, Faults(folder, first, 1 + number % 7 * 3, code):
            warnings.simplefilter("always")
            run.fit(*loaders(), epochs=2)
        assert any(os.strerror(code) in str(w.message) and "training goes on" in str(w.message) for w in caught), first
        assert values(run.model) == values(whole.model)
        save()  # once there is room everything is as it would have been
        assert run.losses.read_text() == whole.losses.read_text() and Checkpoints(folder).load()["updates"] == whole.updates
        assert not [name for name in os.listdir(folder) if ".tmp-" in name]


def test_the_log_of_losses_is_never_torn(tmp_path: Path) -> None:
    log = LossLog(tmp_path / "losses.jsonl")
    log.append(0, 0, 1.0)
    with warnings.catch_warnings(record=True) as caught, Faults(tmp_path, 0, 2, errno.ENOSPC):
        warnings.simplefilter("always")
        log.append(0, 1, float("inf"))
        log.append(0, 2, 2.0)
        assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [0]
        log.append(0, 3, 3.0)
    assert len(caught) == 1 and "No space left on device; training goes on, its lines are tried again" in str(caught[0].message)
    assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [0, 1, 2, 3]
    with open(log.path, "ab") as file:
        file.write(b'{"epoch": 0, "step": 4, "lo')
    log.trim(0, 3)
    assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [0, 1, 2] and log.path.read_bytes().endswith(b"\n")
    log.trim(9, 9)
    log.append(1, 0, 4.0)
    assert len(log.path.read_text().splitlines()) == 4


def test_losses_that_the_disk_did_not_take_come_back_with_the_checkpoint(tmp_path: Path) -> None:
    """The lines could not be written, the checkpoint behind them could; then the process died."""
    whole = trainer(tmp_path / "whole", save_every=1)
    whole.fit(*loaders(), epochs=2)
    for cut, fault in ((3, "write"), (3, "fsync"), (5, "write"), (5, "later")):
        run = trainer(tmp_path / f"{cut}{fault}", save_every=1)
        update, steps, log = run._update, [0], run._log
        real = log.write

        def refused(durable: bool = False, fault: str = fault, real: Any = real, steps: Any = steps, cut: int = cut) -> None:
            if fault == "fsync" or (fault == "later" and steps[0] >= cut):
                real(False)  # in the file, and not safe there

        def dying(group: Any, update: Any = update, steps: Any = steps, cut: int = cut) -> Any:
            steps[0] += 1
            if steps[0] > cut:
                raise Killed
            return update(group)

        log.write, run._update = refused, dying
        with pytest.raises(Killed):
            run.fit(*loaders(), epochs=2)
        run = trainer(tmp_path / f"{cut}{fault}", save_every=1)
        assert run.resume() and run.updates == cut
        run.fit(*loaders(), epochs=2)
        assert run.losses.read_text() == whole.losses.read_text(), (cut, fault)
        assert values(run.model) == values(whole.model)
