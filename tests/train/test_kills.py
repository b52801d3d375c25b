"""R1: a checkpoint in several files, with its index, whose process is killed: before each of its calls, at each of its system calls, and at
random moments."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import calque
from tests.io.killed import dies_before
from tests.train.kills import state, step_of, write_once

ROOT = Path(calque.__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
# What a save asks of the system; not what Python asks for itself.
CALLS = ("openat", "write", "pwrite64", "ftruncate", "fallocate", "fsync", "fdatasync", "rename", "unlink", "flock", "close", "newfstatat", "fchmod",
         "fchown", "getdents64", "lseek", "mkdir", "link")  # fmt: skip


def test_r1_death_before_each_call_of_a_save_in_several_files(tmp_path: Path) -> None:
    seen, point = [], 0
    while True:
        folder = tmp_path / str(point)
        write_once(folder, 1)
        died = dies_before(point, partial(write_once, folder, 2))
        seen.append(step_of(folder))
        if not died:
            break
        write_once(folder, 3)  # and the next one clears away what is left of it
        assert step_of(folder) == 3 and not [name for name in os.listdir(folder) if ".tmp-" in name]
        point += 1
    assert seen == sorted(seen) and seen[0] == 1 and seen[-1] == 2 and len(seen) > 30, seen


@pytest.mark.slow
def test_r1_a_kill_at_each_system_call(tmp_path: Path) -> None:
    """The system itself ends the process, at the k-th call of a kind, for every kind and k."""
    if shutil.which("strace") is None:
        pytest.skip("no strace is installed (a Debian package)")
    points, outcomes = 0, {1: 0, 2: 0}
    for call in CALLS:
        for k in range(1, 200):
            folder = tmp_path / f"{call}{k}"
            write_once(folder, 1)
            killed = _killed_at(folder, call, k)
            if killed is None:
                pytest.skip("strace may not follow other processes here")
            outcomes[step_of(folder)] += 1
            shutil.rmtree(folder)
            if not killed:
                break
            points += 1
    print(f"{points} points at {len(CALLS)} system calls: the old step {outcomes[1]} times, the new one {outcomes[2]} times")
    assert points > 50 and min(outcomes.values()) > 5


def _killed_at(folder: Path, call: str, k: int) -> bool | None:
    """Save step 2 in a process that is killed at the k-th `call` of the save; False if it lived to the end, None if that cannot be done."""
    command = [sys.executable, "-m", "tests.train.kills", "once", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=ENVIRONMENT) as process:
        assert process.stdin is not None and process.stdout is not None and process.stdout.readline() == b"ready\n"
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={k}"]
        with subprocess.Popen(["strace", "-f", "-p", str(process.pid), *inject], stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            if "attached" not in tracer.stderr.readline():
                process.kill()
                return None
            process.stdin.write(b"go\n")
            process.stdin.flush()
            code = process.wait(120)
            tracer.stderr.read()
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_r1_kills_at_random_moments(tmp_path: Path, seed: int, count: int) -> None:
    """Awaited, and in a thread of their own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.train.kills", "many", str(tmp_path), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(f"{found['kills']} kills, {found['landed']} of them behind a new checkpoint")
    assert sum(found["kills"].values()) == count and found["landed"] > count // 10
    assert not [name for name in found["files"] if ".tmp-" in name] and state(1)["step"] == 1
