"""`calque train digits` as a user runs it: in a process of its own, killed, interrupted, resumed, with wrong input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.cli import main
from calque.train import report

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("tensorboardX")

EPOCHS = 2


def command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "calque", "train", "digits", "--out", str(out), *options]


def run(out: Path, *options: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command(out, *options), capture_output=True, text=True, env={**os.environ, **environment}, timeout=300, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An undisturbed run: (folder, standard output)."""
    out = tmp_path_factory.mktemp("digits") / "run"
    return out, run(out, "--epochs", str(EPOCHS)).stdout


def losses(out: Path) -> list[Any]:
    return [json.loads(line) for line in (out / "losses.jsonl").read_text().splitlines()]


def test_everything_promised_is_written_and_named(reference: tuple[Path, str]) -> None:
    out, text = reference
    index = json.loads((out / "index.json").read_text())
    best, last = (out / index[kind][0]["file"] for kind in ("best", "last"))
    assert "val_accuracy0." in best.name or "val_accuracy1" in best.name
    for path in (best, last, out / "report.png", out / "losses.jsonl", out / "tensorboard"):
        assert path.exists() and str(path) in text
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))
    assert "test accuracy" in text and "val_accuracy" in text
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")


def _start(out: Path, *options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(command(out, "--epochs", str(EPOCHS), *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (out / "index.json").exists():
        time.sleep(0.02)
    return process


def test_resume_after_a_kill_continues_to_the_same_losses(reference: tuple[Path, str], tmp_path: Path) -> None:
    """Whatever the number of threads before and after it."""
    process = _start(tmp_path / "killed", "--quiet", "--threads", "1")
    process.kill()
    process.communicate()
    run(tmp_path / "killed", "--epochs", str(EPOCHS), "--resume", "--threads", "3")
    assert losses(tmp_path / "killed") == losses(reference[0])


def test_ctrl_c_saves_and_resume_continues_inside_the_epoch(reference: tuple[Path, str], tmp_path: Path) -> None:
    process = _start(tmp_path / "stopped")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    if process.returncode != 0:  # it may have finished first on a fast machine
        assert process.returncode == 130 and "--resume" in errors
    run(tmp_path / "stopped", "--epochs", str(EPOCHS), "--resume")
    assert losses(tmp_path / "stopped") == losses(reference[0])


def test_a_nan_loss_stops_the_run_and_keeps_the_checkpoint(reference: tuple[Path, str], tmp_path: Path) -> None:
    """Its first loss, which no step has changed, is that of another seed."""
    result = run(tmp_path / "nan", "--epochs", "2", "--lr", "1e30", "--seed", "7", code=1)
    assert "expected a finite loss" in result.stderr and "epoch 1" in result.stderr and "--lr" in result.stderr
    assert "Traceback" not in result.stderr
    assert losses(tmp_path / "nan")[0] != losses(reference[0])[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--bogus",), ("unrecognized arguments: --bogus",)),
        (("--epochs", "0"), ("expected epochs >= 1", "got 0")),
        (("--epochs", "many"), ("--epochs", "many")),
        (("--lr", "nan"), ("finite lr",)),
        (("--batch-size", "1"), ("batch_size >= 2",)),
        (("--threads", "0"), ("--threads",)),
        (("--resume", "/does/not/exist"), ("/does/not/exist",)),
    ],
)
def test_wrong_options_are_refused_with_code_2(
    tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    errors = refused(capsys, tmp_path / "wrong", *options)
    assert all(word in errors for word in words) and "Traceback" not in errors


def refused(capsys: pytest.CaptureFixture[str], out: Path, *options: str) -> str:
    """What the command says to standard error when it ends with code 2. In this process: loading what it needs takes two seconds."""
    try:
        code: Any = main(command(out, *options)[3:])
    except SystemExit as end:
        code = end.code
    assert code == 2
    return capsys.readouterr().err


def test_a_wrong_option_ends_the_process_with_code_2(tmp_path: Path) -> None:
    result = run(tmp_path / "wrong", "--epochs", "0", code=2)
    assert "expected epochs >= 1" in result.stderr and "Traceback" not in result.stderr


def test_an_unwritable_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("not a folder")
    errors = refused(capsys, tmp_path / "file" / "run")
    assert str(tmp_path / "file" / "run") in errors and "--out" in errors


def test_resuming_with_other_options_is_refused(reference: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "saved 0.004, now 0.5" in refused(capsys, reference[0], "--epochs", str(EPOCHS), "--resume", "--lr", "0.5")


@pytest.mark.slow
def test_more_epochs_than_a_finished_run_was_planned_for(reference: tuple[Path, str], tmp_path: Path) -> None:
    """They keep the last rate of the schedule, and the epochs before them stay as they were. A finished run is not trained again."""
    out = tmp_path / "more"
    shutil.copytree(reference[0], out)
    twice = "import sys; from calque.cli import main; sys.exit(main(sys.argv[1:]) or print('again') or main(sys.argv[1:]))"
    words = [sys.executable, "-c", twice, *command(out, "--epochs", str(EPOCHS + 1), "--resume")[3:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    first, _, second = done.stdout.partition("again\n")
    assert done.returncode == 0 and f"planned for {EPOCHS} epochs" in first and "test accuracy" in second, done.stdout + done.stderr
    before, after = losses(reference[0]), losses(out)
    assert after[: len(before)] == before and len(after) == len(before) // EPOCHS * (EPOCHS + 1)


def test_a_foreign_file_is_refused(reference: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    errors = refused(capsys, reference[0], "--epochs", str(EPOCHS), "--resume", str(tmp_path / "model.pt"))
    assert "model.pt" in errors and "Traceback" not in errors


@pytest.mark.parametrize("module", ["sklearn", "matplotlib", "tensorboardX"])
def test_a_missing_extra_is_one_clear_error(tmp_path: Path, module: str) -> None:
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text(f"raise ImportError('no {module}')\n")
    result = run(tmp_path / "run", "--epochs", "1", code=2, PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert "pip install" in result.stderr and "Traceback" not in result.stderr


def test_the_augmentation_is_a_function_of_seed_epoch_and_index() -> None:
    from calque.train.digits_data import Digits, load_digits, split

    images, labels = load_digits()
    train, validation, test = split(labels, 0)
    assert len(set(train) | set(validation) | set(test)) == 1797 == len(train) + len(validation) + len(test)
    from calque.data import DataLoader

    data = Digits(images[train][:32], labels[train][:32], augment=True)

    def passes(seed: int, workers: int, order: list[int]) -> Any:
        calque.manual_seed(seed)
        loader = DataLoader(data, 8, sampler=order, num_workers=workers)
        return [np.concatenate([batch[0].numpy() for batch in loader])[np.argsort(order)] for _ in range(2)]

    forward, backward = list(range(32)), list(range(31, -1, -1))
    first = passes(3, 0, forward)
    assert not np.array_equal(first[0], first[1]) and not np.array_equal(first[0], passes(4, 0, forward)[0])
    for workers, order in ((0, backward), (2, backward)):
        np.testing.assert_array_equal(passes(3, workers, order), first)


@pytest.mark.parametrize(("count", "ticks"), [(1, {1.0}), (3, {1.0, 2.0, 3.0}), (30, None)])
def test_the_curves_of_a_report_stand_at_whole_epochs_and_are_seen(count: int, ticks: set[float] | None) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axis = pyplot.subplots()
    report._curves(axis, [{"loss": 2.0 - k / 40, "val_loss": 1.0, "val_accuracy": 0.3} for k in range(count)])
    shown = {tick for tick in axis.get_xticks() if 1 <= tick <= count}
    assert all(tick == int(tick) for tick in shown) and (ticks is None or shown == ticks)
    second = next(other for other in figure.axes if other is not axis)
    assert second.get_ylim()[0] < 30 and (count > 3 or all(line.get_marker() == "." for line in axis.get_lines()))
    pyplot.close(figure)
