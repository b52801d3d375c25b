"""Loggers: one interface, a table that survives kills and full disks, runs that W&B and MLflow read back with their own readers."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
from calque.base.errors import CheckpointError, MissingExtraError
from calque.monitor import CSVLogger, Logger, MLflowLogger, WandbLogger
from calque.train import Trainer


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


NAMES = st.sampled_from(["loss", "val, loss", 'a "word"', "lr/0", "ü"])
FIGURES = st.dictionaries(NAMES, st.floats() | st.integers(-5, 5), min_size=1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), FIGURES), min_size=1, max_size=8), st.data())
def test_a_table_is_what_was_logged_last(tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[int, dict[str, float]]], data: Any) -> None:
    """Whatever is logged in whatever order, and wherever the run is killed and begun again: rows of later steps are those of a run that is over."""
    path = tmp_path_factory.mktemp("csv") / "figures.csv"
    expected: list[tuple[int, dict[str, float]]] = []
    logger = CSVLogger(path)
    for step, figures in entries:
        if data.draw(st.booleans()):
            logger = CSVLogger(path)
        logger.log(figures, step)
        expected = [entry for entry in expected if entry[0] < step] + [(step, figures)]
        rows = table(path)
        assert [int(row["step"]) for row in rows] == [s for s, _ in expected]
        for row, (_, wanted) in zip(rows, expected, strict=True):
            found = {name: float(cell) for name, cell in row.items() if cell and name != "step"}
            assert found.keys() == wanted.keys()
            assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(found.values(), (wanted[name] for name in found), strict=True))


def test_a_row_that_a_kill_has_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    path.write_text("step,loss\n1,0.5\n2,0.2")
    CSVLogger(path).log({"loss": 0.25}, 3)
    assert path.read_text() == "step,loss\n1,0.5\n3,0.25\n"


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    for text in ("name,age\nA,3\n", "step,loss\nx,3\n", "step,loss\n1\n", "hello\n"):
        path = tmp_path / "other.csv"
        path.write_text(text)
        with pytest.raises(CheckpointError, match=r"\[CSVLogger\] expected a table whose first column is step in .*; choose another path"):
            CSVLogger(path)
        assert path.read_text() == text


def test_rows_that_cannot_be_written_are_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.write_text("a file where the folder should be")
    logger = CSVLogger(folder / "figures.csv")
    with pytest.warns(UserWarning, match=r"\[CSVLogger\] cannot write .*; its rows are kept and tried again"):
        logger.log({"loss": 1.0}, 1)
    logger.log({"loss": 0.5}, 2)  # told once
    folder.unlink()
    logger.close()
    assert [row["loss"] for row in table(folder / "figures.csv")] == ["1.0", "0.5"]


@pytest.mark.parametrize(
    ("figures", "step", "error", "match"),
    [
        ({"loss": 1}, -1, ValueError, r"\[CSVLogger\] expected step to be an integer >= 0, got int -1; pass the epoch"),
        ({"loss": 1}, 1.5, ValueError, "expected step to be an integer"),
        ([1], 1, TypeError, "expected figures as a dict of names and numbers"),
        ({3: 1}, 1, TypeError, "expected the name of a figure as a text, got int 3"),
        ({"loss": "low"}, 1, TypeError, "expected a number for 'loss', got str 'low'; texts belong into the options"),
        ({"loss": calque.ones(2)}, 1, ValueError, r"expected one number for 'loss', got shape \(2,\); use .mean\(\)"),
    ],
)
def test_what_is_no_figure_is_refused(tmp_path: Path, figures: Any, step: Any, error: type[Exception], match: str) -> None:
    logger = CSVLogger(tmp_path / "figures.csv")
    with pytest.raises(error, match=match):
        logger.log(figures, step)
    assert not logger.path.exists()


def train(folder: Path, on_epoch: Any, epochs: int = 2) -> list[dict[str, float]]:
    calque.manual_seed(0)
    model = calque.nn.Linear(4, 3)
    optimizer = calque.optim.SGD([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}])
    data = calque.data.TensorDataset(calque.randn(8, 4), calque.arange(8) % 3)
    trainer = Trainer(model, optimizer, calque.nn.functional.cross_entropy, folder=folder, on_epoch=on_epoch, quiet=True)
    trainer.resume()
    return trainer.fit(calque.data.DataLoader(data, 4), epochs=epochs)


def test_the_trainer_calls_loggers_after_every_epoch(tmp_path: Path) -> None:
    seen: list[float] = []
    with CSVLogger(tmp_path / "figures.csv") as logger:
        history = train(tmp_path / "run", [logger, lambda _, figures: seen.append(figures["epoch"])])
    expected = [{"step": str(k), "loss": repr(figures["loss"]), "lr/0": "0.1", "lr/1": "0.2"} for k, figures in enumerate(history, 1)]
    assert table(tmp_path / "figures.csv") == expected and seen == [1, 2]
    history = train(tmp_path / "run", CSVLogger(tmp_path / "figures.csv"), epochs=3)
    assert [float(row["loss"]) for row in table(tmp_path / "figures.csv")] == [figures["loss"] for figures in history]
    with pytest.raises(TypeError, match=r"\[Trainer\] expected on_epoch as a function, a logger or a list of them, got"):
        train(tmp_path / "run", [logger, "figures.csv"])


def test_a_logger_of_ones_own_has_one_method() -> None:
    class Kept(Logger):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def log(self, figures: Any, step: int) -> None:
            self.seen.append((figures, step))

    with Kept() as logger:
        logger.log({"loss": 1.0}, 3)
    assert logger.seen == [({"loss": 1.0}, 3)]
    with pytest.raises(TypeError, match="abstract"):
        Logger()  # type: ignore[abstract]


def records(path: Path) -> list[Any]:
    """What a `.wandb` file holds: W&B's messages in the blocks of LevelDB's log format, each with its CRC."""
    messages: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    content, found, part = path.read_bytes(), [], b""
    assert content[:4] == b":W&B"
    place = 7
    while place < len(content):
        if (1 << 15) - place % (1 << 15) < 7:  # too little room for a header: the rest of the block is empty
            place += (1 << 15) - place % (1 << 15)
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        text = content[place + 7 : place + 7 + length]
        assert zlib.crc32(content[place + 6 : place + 7] + text) == int.from_bytes(content[place : place + 4], "little")
        part = text if kind in (1, 2) else part + text
        if kind in (1, 4):
            found.append(messages.Record.FromString(part))
        place += 7 + length
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_wandb_keeps_a_run_on_this_machine(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    with WandbLogger("digits", name="first", dir=tmp_path, config={"lr": calque.tensor(0.5)}) as logger:
        logger.log({"loss": 0.5}, 1)
        logger.log({"loss": calque.tensor(0.25), "accuracy": np.float32(0.75)}, 2)
        folder = logger.folder
    wandb.teardown()  # its process writes the end of the file when it ends
    assert folder.parent == tmp_path / "wandb" and folder.name.startswith("offline-run")
    found = records(next(folder.glob("*.wandb")))
    steps = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in r.history.item} for r in found if r.HasField("history")]
    kept = [{name: step[name] for name in ("_step", "loss", "accuracy") if name in step} for step in steps]
    assert kept == [{"_step": 1, "loss": 0.5}, {"_step": 2, "loss": 0.25, "accuracy": 0.75}]
    (run,) = (r.run for r in found if r.HasField("run"))
    assert run.project == "digits" and run.display_name == "first" and "0.5" in {u.value_json for u in run.config.update if u.key == "lr"}
    (ended,) = (r.exit for r in found if r.HasField("exit"))
    assert ended.exit_code == 0
    with pytest.raises(ValueError, match=r"\[WandbLogger\] expected mode to be 'offline', 'online' or 'disabled', got 'cloud'"):
        WandbLogger("digits", mode="cloud")


def reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's own."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return pytest.importorskip("mlflow").MlflowClient(tracking_uri=folder.absolute().as_uri())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_reads_its_file_store_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    folder = tmp_path / "a folder" / "mlruns"
    many = {f"figure {k}": float(k) for k in range(1203)}
    with MLflowLogger(folder, experiment="digits", name="first", config={f"option{k}": k for k in range(203)}) as logger:
        history = train(tmp_path / "run", logger)
        logger.log(many, 7)
    client = reader(folder, monkeypatch)
    experiment = client.get_experiment_by_name("digits")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == logger.run_id and run.info.run_name == "first" and run.info.status == "FINISHED"
    assert run.data.params == {f"option{k}": str(k) for k in range(203)}
    assert [(m.step, m.value) for m in client.get_metric_history(logger.run_id, "loss")] == [(k, f["loss"]) for k, f in enumerate(history, 1)]
    assert {name: run.data.metrics[name] for name in many} == many and run.data.metrics["lr/1"] == 0.2

    with pytest.raises(KeyError), MLflowLogger(folder, run_id=logger.run_id) as again:
        again.log({"loss": 0.0}, 9)
        assert client.get_run(again.run_id).info.status == "RUNNING"
        raise KeyError("the loop fails")
    assert client.get_run(logger.run_id).info.status == "FAILED"
    assert client.get_metric_history(logger.run_id, "loss")[-1].step == 9


@pytest.mark.parametrize(
    ("module", "make"), [("wandb", "WandbLogger('digits')"), ("mlflow", "MLflowLogger('mlruns')")]
)  # fmt: skip
def test_the_missing_extra_is_named(module: str, make: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from calque.monitor import *\n"
        f"try: {make}\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(MissingExtraError.__name__)
    assert "Logger] needs " in run.stdout and "pip install -e '.[trackers]'" in run.stdout


def test_they_are_not_imported_before_they_are_used() -> None:
    code = "import sys, calque, calque.monitor, calque.train; print({'wandb', 'mlflow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
