"""Programs of the tests on four host devices of XLA's CPU client, under the names of CUDA devices, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOUR = f"""
import math, os, sys
sys.path.insert(0, {str(ROOT)!r})
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
import calque
from calque.backend.xla.backend import JaxBackend
from calque.base.device import register_backend
register_backend("cuda", JaxBackend("cuda", None))
from calque import nn
"""


def passes(program: str, start: str = FOUR) -> None:
    """Fail with what the program has written if it does not end well."""
    found = subprocess.run([sys.executable, "-c", start + program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
