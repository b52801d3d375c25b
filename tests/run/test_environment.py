"""Variables of the environment: what cannot be used is said, and the default taken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from calque.base.config import VARIABLES, available_cores, whole_environment


def imported(**variables: str) -> "subprocess.CompletedProcess[str]":
    """A process that imports Calque with these variables and prints what it made of them."""
    show = "from calque.base.config import settings as s; import calque; print(s.logical_devices, s.threads, s.memory_limit)"
    given = {k: v for k, v in whole_environment().items() if k not in VARIABLES or k == "CALQUE_CACHE"}
    return subprocess.run([sys.executable, "-c", show], env=given | variables, capture_output=True, text=True, timeout=300, check=True)


def test_variables_are_read() -> None:
    done = imported(CALQUE_LOGICAL_DEVICES="3", CALQUE_NUM_THREADS="2", CALQUE_MEMORY_LIMIT=" 1000 ")
    assert done.stdout.split() == ["3", "2", "1000"]
    assert not done.stderr


def test_a_list_of_thread_numbers_counts_by_its_first() -> None:
    done = imported(OMP_NUM_THREADS="3,1")
    assert done.stdout.split()[1] == "3"
    assert not done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {
            "CALQUE_LOGICAL_DEVICES": ("100000", "1 to 256"), "CALQUE_MEMORY_LIMIT": ("-5", "0 or more"), "CALQUE_NUM_THREADS": ("1.5", "0 to 256"),
            "OMP_NUM_THREADS": ("1000", "0 to 256"),
        },
        {"CALQUE_LOGICAL_DEVICES": ("0", "1 to 256"), "CALQUE_NUM_THREADS": ("1000", "0 to 256")},
        {"CALQUE_LOGICAL_DEVICES": ("two", "1 to 256")},
    ],
    ids=["too large or small", "at the limits", "no number"],
)  # fmt: skip
def test_what_cannot_be_used_is_said(wrong: dict[str, tuple[str, str]]) -> None:
    done = imported(**{name: value for name, (value, _) in wrong.items()})
    for name, (value, range) in wrong.items():
        assert f"[{name}] expected a whole number, {range}, got '{value}'" in done.stderr
    devices, threads, limit = (int(x) for x in done.stdout.split())
    assert devices == 1 and threads >= 1 and limit == 0


def test_every_variable_is_in_the_table() -> None:
    root = Path(__file__).resolve().parents[2] / "calque"
    files = [file for file in root.rglob("*.py") if file.parent.name != "native"]  # the names there are those of a C header
    read = {name for file in files for name in re.findall(r"\bCALQUE_[A-Z_]+[A-Z]", file.read_text())}
    assert read == {name for name in VARIABLES if name.startswith("CALQUE_")}


@pytest.mark.parametrize("long", [False, True])
def test_every_variable_that_cannot_be_used_is_said_in_one_line(long: bool) -> None:
    """All of them at once: each is said by itself."""
    wrong = {name: "?" * 10_000 if long else text for name, text in VARIABLES.items() if text is not None}
    if long:
        del wrong["CALQUE_CACHE"]  # a long name is a name
    done = imported(**wrong)
    reports = [line for line in done.stderr.splitlines() if "RuntimeWarning" in line]
    assert len(reports) == len(wrong) > 10
    for name in wrong:
        (report,) = [line for line in reports if f"RuntimeWarning: [{name}] expected " in line]
        assert len(report) < 400 and report.startswith("<string>:1:")  # the line that imports Calque
    assert done.stdout.split() == ["1", str(available_cores()), "0"]


def test_an_unknown_backend_is_said_by_the_first_operation() -> None:
    code = "import calque; calque.ones(3).sum().item()"
    done = subprocess.run([sys.executable, "-c", code], env=whole_environment() | {"CALQUE_BACKEND": "gpu"}, capture_output=True, text=True)
    assert "DeviceError: [backend] expected one of ref, cpu, got 'gpu'; set CALQUE_BACKEND" in done.stderr


def test_a_misspelt_variable_is_said_and_an_unrelated_one_is_not() -> None:
    done = imported(CALQUE_NUMTHREADS="1", CALQUE_TEST_OF_MINE="1")
    assert "[CALQUE_NUMTHREADS] expected the name of a setting (is CALQUE_NUM_THREADS meant?), got '1'; it is not used" in done.stderr
    assert done.stderr.count("RuntimeWarning") == 1


@pytest.mark.parametrize("home", [None, "", "relative", "/nowhere/at/all"])
def test_a_user_without_a_home_can_import_and_run(tmp_path: Path, home: str | None) -> None:
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path), **({} if home is None else {"HOME": home})}
    code = (
        "import pwd\ndef absent(uid): raise KeyError(uid)\npwd.getpwuid = absent  # a user that no table knows\n"
        "import calque; from calque.base.config import settings; print(calque.ones(300, 300).exp().sum().item() > 0, settings.cache_dir)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    name = f"calque-{os.geteuid()}"
    assert done.stdout.split() == ["True", str(tmp_path / name)] and not done.stderr
    assert os.listdir(tmp_path) in ([], [name])


SMALL = """
import sys, calque
x = calque.tensor([1.0, 2.0], requires_grad=True)
(x * 2).exp().sum().backward()
calque.nn.Linear(3, 2)(calque.randn(4, 3)).relu().sum().backward()
print(len(x.grad.tolist()), [name for name in sys.modules if name in ("calque.backend.cpu.backend", "calque.run.pipeline", "llvmlite")])
"""


def test_small_operations_load_no_compiler() -> None:
    given = {k: v for k, v in whole_environment().items() if k not in VARIABLES}
    done = subprocess.run([sys.executable, "-c", SMALL], env=given, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["2", "[]"], done.stderr
