"""Parameter servers on Ray. Skips where Ray is not installed; what needs none of it is in test_shards.py."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import calque
from calque.base.errors import ArgumentError, MissingExtraError

PROGRAMS = Path(__file__).parent / "programs"
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray")


def run(program: Path, *words: str, seconds: float = 300) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(calque.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(program), *words], capture_output=True, text=True, timeout=seconds, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@needs_ray
@pytest.mark.parametrize("words", [("dist_sync",), ("dist_async",), ("dist_sync", "machines")])
def test_no_push_is_lost_or_doubled_while_servers_are_killed(words: tuple[str, ...]) -> None:
    kind, *machines = words
    _, pushed, _, *held = run(PROGRAMS / "kills.py", kind, "4", *machines).split()
    assert int(pushed) > 8 and [float(value) for value in held] == [float(pushed)]


@pytest.mark.slow
@needs_ray
def test_workers_and_servers_say_what_is_wrong() -> None:
    found = run(PROGRAMS / "mistakes.py").splitlines()
    wanted = [
        "call ray.init() first",
        "nobody has started them",
        "are there already",
        "expected a rank from 0 to 1, got 2",
        "expected dist_sync, which is what the servers named 'kvstore' are, got dist_async",
        "expected push from a worker",
        "expected the shape (2,) that key 'w' was initialised with, got (3,)",
        "push expected float32, as key 'w' was initialised with, got float64",
        "initialised key, got 'v'",
        "init expected float32 of shape (2,) for key 'w', as from",
        "expected an open store, got one after close()",
        "push 1 of key 'w' is missing from rank 1",
        "left 0",
    ]
    assert len(found) == len(wanted), found
    for line, words in zip(found, wanted, strict=True):
        assert words in line


@pytest.mark.slow
@needs_ray
def test_the_example_trains_like_one_process() -> None:
    printed = run(Path(__file__).parents[2] / "examples" / "parameter_server.py", "--steps", "20")
    assert "same parameters as one process: True" in printed and "network 1/2" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "num_workers= where the servers are started, or rank= in a worker, got neither"),
        ({"rank": 0, "num_workers": 2}, "got both"),
        ({"rank": -1}, "expected rank to be an integer of at least 0, got -1"),
        ({"num_workers": 0}, "expected num_workers to be an integer of at least 1, got 0"),
        ({"num_workers": 2, "servers": True}, "expected servers to be an integer of at least 1, got True"),
        ({"num_workers": 2, "snapshot": 1.5}, "expected snapshot to be an integer of at least 0, got 1.5"),
        ({"num_workers": 2, "staleness": 3}, "expected staleness= for dist_async alone"),
        ({"num_workers": 3, "machines": [[0, 1], [1]]}, "expected every rank from 0 to 2 once in machines"),
        ({"num_workers": 2, "timeout": float("nan")}, "timeout"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        calque.kvstore.create("dist_sync", **options)
    assert words in str(caught.value)
    with pytest.raises(ArgumentError, match="dist_later"):
        calque.kvstore.create("dist_later", num_workers=2)
    with pytest.raises(TypeError, match="expected rank for 'dist_sync' or 'dist_async' alone"):
        calque.kvstore.create("local", rank=0)


def test_without_ray_one_line_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\[kvstore\] needs ray, which is not installed; run: pip install ray"):
        calque.kvstore.create("dist_sync", num_workers=2)
