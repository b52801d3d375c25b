"""`torch.utils.collect_env`: what a report of a fault says about the machine."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import NamedTuple

import numpy as np

import calque
from calque.compat.finder import VERSION

__all__ = ["SystemEnv", "get_env_info", "get_pretty_env_info", "main"]


class SystemEnv(NamedTuple):
    """The machine and the versions."""

    torch_version: str
    calque_version: str
    os: str
    python_version: str
    numpy_version: str
    threads: int
    cuda_available: str = "False"
    is_debug_build: str = "False"


def get_env_info() -> SystemEnv:
    """The machine and the versions."""
    return SystemEnv(VERSION, calque.__version__, platform.platform(), sys.version.replace("\n", " "), np.__version__, calque.get_num_threads())


def get_pretty_env_info() -> str:
    """The same as text, one line each."""
    found = get_env_info()
    return "\n".join(
        [
            f"PyTorch version: {found.torch_version} (Calque {found.calque_version})",
            f"Is debug build: {found.is_debug_build}",
            f"CUDA available: {found.cuda_available}",
            f"OS: {found.os}",
            f"Python version: {found.python_version}",
            f"numpy: {found.numpy_version}",
            f"llvmlite: {importlib.metadata.version('llvmlite')}",
            f"threads: {found.threads}",
        ]
    )


def main() -> None:
    """Write the text to the standard output."""
    sys.stdout.write(get_pretty_env_info() + "\n")
