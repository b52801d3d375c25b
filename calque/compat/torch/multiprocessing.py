"""`torch.multiprocessing`: Python's `multiprocessing` and `spawn`. Tensors travel by value, unless `share_memory_` has moved them."""

from __future__ import annotations

import multiprocessing
from multiprocessing import *  # noqa: F403 - what PyTorch's module has, too
from multiprocessing import connection
from typing import Any

from calque.distributed.launch import ProcessContext, ProcessException, ProcessExitedException, ProcessRaisedException, start_processes

SpawnContext = ProcessContext
__all__ = [
    *(name for name in multiprocessing.__all__),
    "ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException", "SpawnContext", "connection",
    "get_all_sharing_strategies",
    "get_sharing_strategy", "set_sharing_strategy", "spawn", "start_processes",
]  # fmt: skip


def spawn(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn") -> Any:
    """`start_processes` with new Python processes."""
    return start_processes(fn, args, nprocs, join, daemon, start_method)


def get_all_sharing_strategies() -> set[str]:
    """The ways in which tensors travel."""
    return {"file_system"}


def get_sharing_strategy() -> str:
    """The way in which tensors travel: their values are written and read."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Accepted: there is one way."""
