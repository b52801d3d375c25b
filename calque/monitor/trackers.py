"""Figures for Weights & Biases and MLflow, which load when a run begins. Neither is asked for an account or a server."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from calque.base.config import set_variables
from calque.base.errors import ArgumentError
from calque.base.extras import need
from calque.base.text import shown
from calque.monitor.host import to_host
from calque.monitor.logger import Logger, numbers


def _options(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of a run, where tensors and arrays are numbers and lists: W&B would keep the text of an array."""
    found = {name: to_host(value) for name, value in (config or {}).items()}
    return {name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value for name, value in found.items()}


class WandbLogger(Logger):
    """Keeps figures as a run of Weights & Biases, in a folder of this machine; `wandb sync FOLDER` uploads it later, if you want that.

    project: the project of the run. name: of the run; None: wandb chooses one. dir: where its folder `wandb` is; default: here. config: options of
    the run, as texts and numbers. mode: "offline" (default), "online", which needs an account, or "disabled". id: of a run that is gone on with;
    None: a new one. Steps must not become smaller: W&B drops figures of a step that is over.

    Needs the extra `trackers`; without it the constructor raises MissingExtraError, an ImportError, with the pip line. Raises ArgumentError for
    another mode. An example is in docs/monitoring.md.
    """

    def __init__(
        self, project: str, *, name: str | None = None, dir: str | os.PathLike[str] = ".", config: Mapping[str, Any] | None = None,
        mode: str = "offline", id: str | None = None,
    ) -> None:  # fmt: skip
        if mode not in ("offline", "online", "disabled"):
            raise ArgumentError(f"[WandbLogger] expected mode to be 'offline', 'online' or 'disabled', got {shown(mode)}")
        module = need("wandb", "wandb", "trackers", "WandbLogger")
        resume = None if id is None else "allow"
        self.run = module.init(project=project, name=name, dir=os.fspath(dir), config=_options(config), mode=mode, id=id, resume=resume)

    @property
    def folder(self) -> Path:
        """The folder of the run, which `wandb sync` takes."""
        return Path(self.run.dir).parent

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Keep the figures of a step; see `Logger.log`."""
        self.run.log(numbers("WandbLogger", figures, step), step=step)

    def close(self) -> None:
        """End the run."""
        self.run.finish()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.run.finish(exit_code=0 if kind is None else 1)


class MLflowLogger(Logger):
    """Keeps figures as a run of MLflow: in a folder of this machine, in a database, or at a server.

    where: a folder, which becomes MLflow's file store, or an address that MLflow knows ("sqlite:///mlflow.db", "http://localhost:5000"); default: the
    folder "mlruns". `mlflow ui --backend-store-uri WHERE` shows it. experiment: its name; it is made if there is none. name: of the run; None: MLflow
    chooses one. config: options of the run, kept as texts. run_id: of a run that is gone on with; None: a new one.

    Needs the extra `trackers`, and for a database the whole package mlflow; without the extra the constructor raises MissingExtraError, an
    ImportError, with the pip line. An example is in docs/monitoring.md.
    """

    def __init__(
        self, where: str | os.PathLike[str] = "mlruns", *, experiment: str = "calque", name: str | None = None,
        config: Mapping[str, Any] | None = None, run_id: str | None = None,
    ) -> None:  # fmt: skip
        module = need("mlflow", "mlflow-skinny", "trackers", "MLflowLogger")
        place = os.fspath(where)
        here = not re.match(r"\w[\w+.-]*://|databricks", place)
        self.where = Path(place).absolute().as_uri() if here else place
        # Today's MLflow opens its file store only for those who say that they want it; a folder says so.
        before = set_variables({"MLFLOW_ALLOW_FILE_STORE": "true"}) if here else {}
        try:
            self._client = module.MlflowClient(tracking_uri=self.where)
        finally:
            set_variables(before)
        self._entities = module.entities
        if run_id is None:
            found = self._client.get_experiment_by_name(experiment)
            number = self._client.create_experiment(experiment) if found is None else found.experiment_id
            run_id = str(self._client.create_run(number, run_name=name).info.run_id)
        else:
            self._client.update_run(run_id, status="RUNNING")
        self.run_id = run_id
        """The run's id, for `run_id=` of a logger that goes on with it."""
        options = [self._entities.Param(key, str(value)) for key, value in _options(config).items()]
        for first in range(0, len(options), 100):  # the most that MLflow takes at once
            self._client.log_batch(run_id, params=options[first : first + 100])

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Keep the figures of a step; see `Logger.log`."""
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in numbers("MLflowLogger", figures, step).items()]
        for first in range(0, len(metrics), 1000):  # the most that MLflow takes at once
            self._client.log_batch(self.run_id, metrics=metrics[first : first + 1000])

    def close(self) -> None:
        """End the run, as one that is finished."""
        self._client.set_terminated(self.run_id, "FINISHED")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.set_terminated(self.run_id, "FINISHED" if kind is None else "FAILED")
