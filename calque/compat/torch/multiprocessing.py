"""`torch.multiprocessing`: Python's `multiprocessing` and `spawn`. Tensors travel between processes by value: their memory is not shared."""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from multiprocessing import *  # noqa: F403 - what PyTorch's module has, too
from multiprocessing import connection
from typing import Any

__all__ = [
    *(name for name in multiprocessing.__all__),
    "ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException", "SpawnContext", "connection",
    "get_all_sharing_strategies",
    "get_sharing_strategy", "set_sharing_strategy", "spawn", "start_processes",
]  # fmt: skip


class ProcessException(Exception):
    """A process that `spawn` started failed."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.error_pid = msg, error_index, error_pid


class ProcessRaisedException(ProcessException):
    """A process raised an exception."""


class ProcessExitedException(ProcessException):
    """A process ended with an exit code."""

    def __init__(self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name


def _work(fn: Any, index: int, args: Any, errors: Any) -> None:
    """What a process does."""
    try:
        fn(index, *args)
    except KeyboardInterrupt:  # the parent was interrupted, too, and says so
        pass
    except Exception:
        errors.put(traceback.format_exc())
        sys.exit(1)


class ProcessContext:
    """The processes of one `start_processes`."""

    def __init__(self, processes: Any, errors: Any) -> None:
        self.processes, self._errors = processes, errors

    def pids(self) -> list[int]:
        """The number of each process."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until one fails or all have ended: whether all have. If one failed, the others are ended, and its error is raised here."""
        running = {process.sentinel: k for k, process in enumerate(self.processes) if process.is_alive() or process.exitcode != 0}
        ready = connection.wait(list(running), timeout=timeout) if running else []
        for sentinel in ready:
            index = running[sentinel]
            process = self.processes[index]
            process.join()
            if process.exitcode != 0:
                self._fail(index, process)
        return all(process.exitcode == 0 for process in self.processes)

    def _fail(self, index: int, process: Any) -> None:
        for other in self.processes:
            if other.is_alive():
                other.terminate()
            other.join()
        if self._errors[index].empty():
            code = process.exitcode
            raise ProcessExitedException(f"[spawn] process {index} terminated with exit code {code}", index, process.pid, code)
        text = self._errors[index].get()
        raise ProcessRaisedException(f"[spawn] process {index} terminated with the following error:\n\n{text}", index, process.pid)


SpawnContext = ProcessContext


def start_processes(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn") -> Any:
    """Call `fn(i, *args)` in `nprocs` processes; join: wait for them. Without it a `ProcessContext`. An error in one ends all and is raised here."""
    context: Any = multiprocessing.get_context(start_method)
    errors = [context.SimpleQueue() for _ in range(nprocs)]
    processes = [context.Process(target=_work, args=(fn, k, args, errors[k]), daemon=daemon) for k in range(nprocs)]
    for process in processes:
        process.start()
    started = ProcessContext(processes, errors)
    if not join:
        return started
    while not started.join():
        pass
    return None


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
