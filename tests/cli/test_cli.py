"""The `calque` command: help, version, doctor, wrong words."""

from __future__ import annotations

import importlib.metadata

import pytest

import calque
from calque.cli import main
from calque.cli.doctor import DISTRIBUTION


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
    assert stopped.value.code == 2 and "trian" in capsys.readouterr().err


def test_the_doctor_lists_the_packages_of_the_extras_and_no_others(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=2.0", 'tensorboardX>=2.6; extra == "monitor"', 'scikit-learn>=1.5; extra == "demo"', 'ruff>=0.9; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines if name == DISTRIBUTION else None)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    optional = out.partition("optional:")[2].partition("kernel cache")[0]
    assert f"calque {calque.__version__}" in out
    assert [line.split()[0] for line in optional.splitlines() if line.strip()] == ["tensorboardX", "scikit-learn"]
