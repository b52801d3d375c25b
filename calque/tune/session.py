"""What the function of a trial calls: `report`, `get_checkpoint`, `checkpoint_dir`."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from calque.base.errors import ArgumentError, DistributedError
from calque.base.text import shown, type_name
from calque.io import load, save

STATE = "state.calque"


class Checkpoint:
    """A folder with what a trial needs to go on: `from_directory(path)`, or `from_state(values)`, which `calque.save` writes.

    >>> import calque
    >>> from calque.tune import Checkpoint
    >>> Checkpoint.from_state({"epoch": 3, "weight": calque.ones(2)}).state()["epoch"]
    3
    """

    def __init__(self, path: Any) -> None:
        self.path = str(path)

    @classmethod
    def from_directory(cls, path: Any) -> Checkpoint:
        """A folder that exists; `report` copies it."""
        if not Path(path).is_dir():
            raise ArgumentError(f"[Checkpoint] expected a folder, got {shown(str(path))}, which is none")
        return cls(path)

    @classmethod
    def from_state(cls, values: Any) -> Checkpoint:
        """Numbers, strings, tensors, state dicts, ..: what `calque.save` takes."""
        folder = Path(mkdtemp(prefix="calque-checkpoint-"))
        save(values, folder / STATE)
        found = cls(folder)
        found.__dict__["_own"] = True  # `report` moves it instead of copying
        return found

    def state(self) -> Any:
        """What `from_state` was given."""
        return load(Path(self.path) / STATE)

    to_dict = state

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """The folder, for reading."""
        yield self.path

    to_directory = as_directory

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})"


def tell(connection: Any, *message: Any) -> None:
    """Send a message to the other end of a pipe: names, numbers and texts."""
    connection.send_bytes(json.dumps(message).encode())


def told(connection: Any) -> Any:
    """Receive one."""
    return json.loads(connection.recv_bytes())


class Stopped(BaseException):
    """The trial ends here, because nobody needs more of it."""


class Session:
    """One trial, seen from its process."""

    current: Session | None = None

    def __init__(self, trial: str, folder: Path, connection: Any, iteration: int, checkpoint: str | None, spent: float) -> None:
        self.trial, self.folder, self.connection = trial, folder, connection
        self.iteration, self.checkpoint, self.spent, self.start = iteration, checkpoint, spent, time.time()
        self.pending: str | None = None  # a checkpoint that the next result takes with it

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        """Tell the runner; end if it says so."""
        self.iteration += 1
        kept = self.pending if checkpoint is None else self.keep(checkpoint)
        self.pending = None
        self.send(metrics, kept)
        if kept is not None:
            self.checkpoint = kept

    def send(self, metrics: dict[str, Any], kept: str | None) -> None:
        """Give a result to who runs the search, and wait for the answer."""
        auto = {"training_iteration": self.iteration, "time_total_s": self.spent + time.time() - self.start, "trial_id": self.trial}
        tell(self.connection, "result", {**auto, **metrics}, kept)
        if not told(self.connection)[0]:
            raise Stopped

    def end(self, refused: str = "") -> None:
        """Say that the trial has ended, or why it does not start."""
        tell(self.connection, *(["refused", refused] if refused else ["done"]))

    def keep(self, checkpoint: Checkpoint) -> str:
        """Put a checkpoint where it stays; it is whole as soon as it has its name."""
        target = self.folder / f"checkpoint_{self.iteration:06d}"
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        if checkpoint.__dict__.get("_own"):
            shutil.move(checkpoint.path, partial)
        else:
            shutil.copytree(checkpoint.path, partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        return str(target)


def _session(what: str) -> Session:
    if Session.current is None:
        raise DistributedError(f"[{what}] expected to be called in a trial that tune.run has started, got no trial; pass the function to tune.run")
    return Session.current


def _plain(name: str, value: Any) -> Any:
    """Numbers of tensors and of NumPy become Python's."""
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ArgumentError(f"[report] expected numbers and strings as metrics, got {type_name(value)} for {name!r}; read it with .item()")
    return value


def report(metrics: dict[str, Any] | None = None, *, checkpoint: Checkpoint | None = None, **more: Any) -> None:
    """Tell how far a trial has come: `report({"loss": loss})` or `report(loss=loss)`. Does not return where the scheduler stops the trial (`finally`
    blocks run).

    checkpoint: what the trial goes on with if its process dies.
    """
    session = _session("report")
    if metrics is not None and not isinstance(metrics, dict):
        raise ArgumentError(f"[report] expected a dict of metrics, got {type_name(metrics)}")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise ArgumentError(f"[report] expected a Checkpoint, got {type_name(checkpoint)}; Checkpoint.from_state(values) makes one")
    session.report({name: _plain(name, value) for name, value in {**(metrics or {}), **more}.items()}, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """The checkpoint from which a trial goes on; None where it begins."""
    session = _session("get_checkpoint")
    return None if session.checkpoint is None else Checkpoint(session.checkpoint)


def get_trial_id() -> str:
    """The name of the trial."""
    return _session("get_trial_id").trial


@contextlib.contextmanager
def checkpoint_dir(step: int) -> Iterator[str]:
    """A folder to write a checkpoint to, which the next `report` takes with it."""
    session = _session("checkpoint_dir")
    folder = mkdtemp(prefix="calque-checkpoint-")
    yield folder
    found = Checkpoint(folder)
    found.__dict__["_own"] = True
    session.iteration += 1  # that of the result which comes
    session.pending = session.keep(found)
    session.iteration -= 1
