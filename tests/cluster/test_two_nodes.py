"""The parameter server on two nodes of Ray, each in a network namespace of its own. Needs root, `ip` and Ray."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.test_servers import needs_ray
from tests.distributed.test_two_machines import Machines, ip, machines

__all__ = ["machines"]  # the fixture
pytestmark = [pytest.mark.slow, needs_ray]
PROGRAM = Path(__file__).parents[2] / "examples" / "parameter_server.py"
WITHIN = 150  # seconds that a run may take
VARIABLES = {"RAY_ADDRESS": "10.77.0.1:6399", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def everybody(nodes: Machines, k: int) -> list[str]:
    """The processes on a machine."""
    return ip("netns", "pids", nodes.names[k]).split()


@pytest.fixture
def nodes(machines: Machines, tmp_path: Path) -> Iterator[Machines]:
    ray = str(Path(sys.executable).parent / "ray")
    short = tempfile.mkdtemp(prefix="cq")  # of sockets, whose paths are short
    about = ["--object-store-memory=100000000", "--block"]
    head = ["start", "--head", "--node-ip-address=10.77.0.1", "--port=6399", "--num-cpus=1", "--include-dashboard=false", f"--temp-dir={short}"]
    with (tmp_path / "log").open("w") as log:
        try:
            for k, words in enumerate((head, ["start", "--address=10.77.0.1:6399", "--node-ip-address=10.77.0.2", "--num-cpus=3"])):
                node = machines.start(k, ray, *words, *about, out=log, RAY_AUTH_MODE="disabled", OMP_NUM_THREADS="1")
                until = time.monotonic() + WITHIN
                while (tmp_path / "log").read_text().count("This command will now block") <= k:
                    assert time.monotonic() < until and node.poll() is None, (tmp_path / "log").read_text()
                    time.sleep(0.1)
            yield machines
        finally:
            for k in range(2):
                for pid in everybody(machines, k):
                    subprocess.run(["kill", "-9", pid], check=False, capture_output=True)
            shutil.rmtree(short, ignore_errors=True)


def test_two_nodes_train_like_one_process_and_the_network_carries_half(nodes: Machines) -> None:
    before = nodes.sent()
    driver = nodes.start(0, sys.executable, str(PROGRAM), "--cluster", "--steps", "20", **VARIABLES)
    out, err = driver.communicate(timeout=WITHIN)
    assert driver.returncode == 0, out + err
    assert "network 1/2" in out and "same parameters as one process: True" in out
    assert nodes.sent() - before > 100_000  # the cable did


def test_a_node_that_is_killed_ends_the_run_with_an_error(nodes: Machines) -> None:
    before = nodes.sent()
    driver = nodes.start(0, sys.executable, str(PROGRAM), "--cluster", "--steps", "1000000", **VARIABLES)
    until = time.monotonic() + WITHIN
    while nodes.sent() - before < 1_000_000:  # it trains
        assert time.monotonic() < until and driver.poll() is None
        time.sleep(0.1)
    for pid in everybody(nodes, 1):
        subprocess.run(["kill", "-9", pid], check=False, capture_output=True)
    out, err = driver.communicate(timeout=WITHIN)
    assert driver.returncode == 1 and "ray.exceptions." in err and "same parameters" not in out, out + err
