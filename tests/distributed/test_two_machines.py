"""Two machines, played by two network namespaces with a cable between them, each with a name and shared memory of its own. Needs root and `ip`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
PROGRAM = str(HERE / "programs" / "machines.py")
pytestmark = [pytest.mark.mpi, pytest.mark.slow]
WITHIN = 90  # seconds that anything here may take


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=True).stdout


class Machines:
    """`names` of the namespaces; their addresses are 10.77.0.1 and 10.77.0.2."""

    def __init__(self) -> None:
        self.names = [f"calque{os.getpid()}{letter}" for letter in "ab"]
        self.links = [f"cq{os.getpid() % 10**8}{letter}" for letter in "ab"]
        self.started: list[subprocess.Popen[str]] = []

    def build(self) -> None:
        """Raises where the system does not allow it."""
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1])
        for k, (name, link) in enumerate(zip(self.names, self.links)):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{k + 1}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def start(self, k: int, *words: str, out: Any = None, **variables: str) -> subprocess.Popen[str]:
        """Run a command on a machine. out: the file for what it prints, a pipe by default."""
        alone = f"hostname machine{k}; mount -t tmpfs tmpfs /dev/shm; exec \"$@\""
        path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
        out = subprocess.PIPE if out is None else out
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[k], "unshare", "--uts", "--mount", "sh", "-c", alone, "sh", *words],
            stdout=out, stderr=out, text=True, env={**os.environ, "PYTHONPATH": path, **variables}, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def job(self, mode: str, folder: Path) -> list[subprocess.Popen[str]]:
        """One rank on each."""
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29511", "OMP_NUM_THREADS": "1"}
        variables |= {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}  # the kernel is one: MPICH would find memory that both see
        return [self.start(k, sys.executable, PROGRAM, mode, str(folder), RANK=str(k), **variables) for k in range(2)]

    def sent(self) -> int:
        """Bytes that the first machine has sent to the other one."""
        found = re.search(r"TX:.*\n\s*(\d+)", ip("-n", self.names[0], "-s", "link", "show", self.links[0]))
        assert found is not None
        return int(found[1])

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=30)
        known = ip("netns", "list").split()
        for name in self.names:
            if name in known:
                ip("netns", "del", name)


@pytest.fixture
def machines() -> Iterator[Machines]:
    if os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("two machines: needs root, and ip and unshare (iproute2, util-linux)")
    made = Machines()
    try:
        try:
            made.build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two machines: this system does not allow network namespaces: {error.stderr.strip()}")
        yield made
    finally:
        made.close()


def test_two_machines_train_as_one(machines: Machines, tmp_path: Path) -> None:
    first, second = machines.job("train", tmp_path)
    out, err = first.communicate(timeout=WITHIN)
    assert first.returncode == 0, out + err + "".join(second.communicate(timeout=WITHIN))
    assert second.communicate(timeout=WITHIN)[0] == "" and second.returncode == 0
    gradients = 10 * 8 * (64 * 1024 + 1024 + 1024 + 1)
    assert machines.sent() > gradients  # everything went over the cable, and not through memory
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    alone = subprocess.run(
        [sys.executable, PROGRAM, "train", str(tmp_path)], capture_output=True, text=True, timeout=WITHIN, check=True,
        env={**os.environ, "PYTHONPATH": path, "RANK": "0", "WORLD_SIZE": "1"},
    )  # fmt: skip
    assert len(out.split()) == 10 and [float(n) for n in out.split()] == pytest.approx([float(n) for n in alone.stdout.split()], rel=1e-9)


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_machine_that_is_lost_is_named_by_the_other(how: str, machines: Machines, tmp_path: Path) -> None:
    first, second = machines.job("lost", tmp_path)
    until = time.monotonic() + WITHIN
    while not (tmp_path / "there").exists():
        assert time.monotonic() < until and first.poll() is None, first.communicate(timeout=5)
        time.sleep(0.05)
    if how == "kill":
        os.killpg(second.pid, signal.SIGKILL)
    else:
        ip("-n", machines.names[1], "link", "set", machines.links[1], "down")
    out, err = first.communicate(timeout=WITHIN)
    assert first.returncode not in (0, None) and len(out.split()) == 5, out + err
    assert re.search(r"rank 0 has waited 8 s in .*machines\.py:\d+, and asks ranks \[1\] where they are; its last calls are in", err), err
    flight = json.loads(next(tmp_path.glob("calque-flight-*-rank0.json")).read_text())
    assert flight["calls"]
