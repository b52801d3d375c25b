"""The `calque` command: help, version, doctor, wrong words."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import calque
from calque.cli import main
from calque.cli.doctor import DISTRIBUTION
from calque.compat.run import USAGE


def test_without_a_command_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: calque") and "doctor" in out and not err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0 and capsys.readouterr().out == f"calque {calque.__version__}\n"


def test_a_word_that_is_no_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["trian"])
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and "'trian'" in err and err.endswith("did you mean 'train'?\n")


@pytest.mark.parametrize(("words", "says"), [
    (["train", "calque.toml", "--threads", "0"], "calque train: error: argument --threads: expected at least 1, got 0"),
    (["train", "digits", "--threads", "0"], "calque train digits: error: argument --threads: expected at least 1, got 0"),
    (["launch", "-n", "2"], "calque launch: error: expected a script, -m module or -c code after the options"),
])  # fmt: skip
def test_what_is_wrong_with_the_words_of_a_command_comes_with_its_usage(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and err.startswith(f"usage: calque {words[0]}") and says in err


def test_the_help_of_run_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--help"])
    out = capsys.readouterr().out
    assert stopped.value.code == 0 and f"usage: {USAGE.replace('run ', 'run [-h] ')}\n" in out and "__main__.py" in out


def test_a_folder_without_a_program_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"calque: [run] expected a program, got the folder '{tmp_path}' without a __main__.py; name a file in it\n"


def test_the_doctor_lists_the_packages_of_the_extras_and_no_others(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=2.0", 'tensorboardX>=2.6; extra == "monitor"', 'scikit-learn>=1.5; extra == "demo"', 'ruff>=0.9; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines if name == DISTRIBUTION else None)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    optional = out.partition("optional:")[2].partition("kernel cache")[0]
    assert f"calque {calque.__version__}" in out
    assert [line.split()[0] for line in optional.splitlines() if line.strip()] == ["tensorboardX", "scikit-learn"]


@pytest.mark.parametrize("words", [["run", "-c", "import time; time.sleep(60)"], ["info", "."]])
def test_ctrl_c_while_it_is_loaded_says_nothing(words: list[str]) -> None:
    """There was a traceback of whatever was imported in that moment."""
    environment = os.environ | {"PYTHONPATH": str(Path(calque.__file__).parents[1])}
    command = [sys.executable, "-X", "importtime", "-m", "calque", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stderr is not None
        for line in running.stderr:  # of each module, when it is there
            if "calque.base.config" in line:
                running.send_signal(signal.SIGINT)
                break
        rest = running.stderr.read()
    assert running.returncode == -signal.SIGINT and "Traceback" not in rest and "calque.cli" not in rest  # 130 for a shell


def test_ctrl_c_is_an_exception_again_when_it_is_loaded() -> None:
    program = "import os, signal, sys\nsys.argv = ['calque']\nimport calque\nassert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    environment = os.environ | {"PYTHONPATH": str(Path(calque.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
