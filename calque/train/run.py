"""The folder of one training run: checkpoints, the loss log, early stopping and resuming.

    last.calque                          everything needed to continue, written at the end of every epoch and on Ctrl-C
    best-epoch012-accuracy0.9912.calque  the best model so far (the index file, not the name, says which one is current)
    losses.jsonl                         one line per step: epoch, step, loss (exact)
    index.json                           best checkpoint, its metric, configuration
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calque import io
from calque.base.errors import CheckpointError


@dataclass(slots=True)
class Progress:
    """Where training stands; saved with every checkpoint."""

    epoch: int = 0
    step: int = 0  # steps already done in this epoch
    best: float = -1.0
    best_epoch: int = -1
    best_file: str = ""
    history: list[dict[str, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of this epoch
    finished: bool = False


class RunFolder:
    """Files of one run. Raises `CheckpointError` before training if the folder cannot be written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path):
                pass
        except OSError as error:
            message = f"[train] expected a writable output folder, got {self.path}: {error.strerror}; choose another with --out"
            raise CheckpointError(message) from error

    @property
    def last(self) -> Path:
        """The checkpoint to continue from."""
        return self.path / "last.calque"

    def save(self, progress: Progress, model: Any, optimizer: Any, scheduler: Any, config: dict[str, Any]) -> None:
        """Write `last.calque` atomically."""
        io.save(
            {
                "progress": {name: getattr(progress, name) for name in Progress.__slots__},
                "model_state_dict": model.state_dict(),
                "optimizer_state_dict": optimizer.state_dict(),
                "scheduler_state_dict": scheduler.state_dict(),
                "config": config,
            },
            self.last,
        )

    def load(self, path: Path, model: Any, optimizer: Any, scheduler: Any, config: dict[str, Any]) -> Progress:
        """Restore a run; refuses a checkpoint of another configuration."""
        data = io.load(path)
        if not isinstance(data, dict) or "progress" not in data:
            raise CheckpointError(f"[resume] expected a training checkpoint, got {path}, which holds {type(data).__name__}; use {self.last}")
        different = {k: (data["config"].get(k), v) for k, v in config.items() if data["config"].get(k) != v and k != "epochs"}
        if different:
            listed = ", ".join(f"{k}: saved {a!r}, now {b!r}" for k, (a, b) in different.items())
            raise CheckpointError(f"[resume] the checkpoint {path} belongs to another configuration ({listed}); pass the same options")
        model.load_state_dict(data["model_state_dict"])
        optimizer.load_state_dict(data["optimizer_state_dict"])
        scheduler.load_state_dict(data["scheduler_state_dict"])
        return Progress(**data["progress"])

    def save_best(self, progress: Progress, model: Any, metric: float, config: dict[str, Any]) -> None:
        """Write the best model under a name with its metric, then drop the previous best."""
        name = f"best-epoch{progress.epoch:03d}-accuracy{metric:.4f}.calque"
        io.save({"model_state_dict": model.state_dict(), "epoch": progress.epoch, "accuracy": metric, "config": config}, self.path / name)
        old = progress.best_file
        progress.best, progress.best_epoch, progress.best_file = metric, progress.epoch, name
        self.write_json("index.json", {"best": name, "accuracy": metric, "epoch": progress.epoch, "config": config})
        if old and old != name:
            (self.path / old).unlink(missing_ok=True)

    def write_json(self, name: str, value: Any) -> None:
        """Write a small JSON file atomically."""
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(json.dumps(value, indent=2) + "\n")
        if (self.path / name).exists():
            shutil.copymode(self.path / name, temporary)
        os.replace(temporary, self.path / name)

    def trim_losses(self, epoch: int, step: int) -> None:
        """Drop logged steps at or after (epoch, step): they will be computed again."""
        log = self.path / "losses.jsonl"
        if not log.exists():
            return
        kept = []
        for line in log.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # a line cut short by a kill
                break
            if (entry["epoch"], entry["step"]) < (epoch, step):
                kept.append(line)
        log.write_text("".join(line + "\n" for line in kept))
