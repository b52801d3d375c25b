"""Starting the processes of a job on this machine: `calque launch`, and `spawn` for a function.

Whoever starts them serves the rendezvous, at a free port. They die with it, whatever becomes of it (`PR_SET_PDEATHSIG`); and when one of them fails,
the others have a moment to end with errors of their own, and are then ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing import connection
from pickle import PicklingError
from typing import IO, Any

from calque.base.config import GANG, RENDEZVOUS, SNAPSHOTS, available_cores, job_variables, set_variables, whole_environment
from calque.base.errors import ArgumentError, DistributedError, DTypeError
from calque.base.text import shown, type_name
from calque.data.payload import GUARD, guarded_names
from calque.distributed import mpi
from calque.distributed.rendezvous import Rendezvous
from calque.distributed.snapshots import Snapshots
from calque.distributed.watch import WATCH
from calque.distributed.world import leave

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h
MOMENT = 3.0  # seconds that the others have after one has failed
SHORT_MOMENT = 0.3  # the same, if all are started anew
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_with_parent() -> None:
    """From here on this process is killed when the thread that has started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def require_count(op: str, name: str, count: Any) -> int:
    """A number of processes."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1024:
        raise ArgumentError(f"[{op}] expected {name} to be a whole number from 1 to 1024, got {shown(count)}")
    return count


def variables_of(rank: int, size: int, server: Rendezvous) -> dict[str, str | None]:
    """What tells a process which one it is: torchrun's names, and where all meet. Those of a job around this one are taken away."""
    found: dict[str, str | None] = dict.fromkeys(job_variables())
    found |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": server.host,
        "MASTER_PORT": str(server.port), RENDEZVOUS: f"{server.host}:{server.port}",
        # For libraries that look at mpi4py before anybody joins the job: MPI_Finalize at the end of a process would wait for the others.
        "PMI_PORT": f"{server.host}:{server.port}", "PMI_ID": str(rank), "MPI4PY_RC_FINALIZE": "0",
    }  # fmt: skip
    given = whole_environment()
    if "OMP_NUM_THREADS" not in given and "CALQUE_NUM_THREADS" not in given:
        found["OMP_NUM_THREADS"] = str(max(1, available_cores() // size))
    return found


# ------------------------------------------------------------------------------------------------------------- programs


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code; None while it runs. What it has started in its session, and left there, ends with it."""
    if process.returncode is None and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # the number is not given to others before the process is waited for
    return process.poll()


def how_it_ended(code: int) -> str:
    """What an exit code of a process says."""
    return f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code} ({signal.Signals(-code).name})"


class _Gang:
    """The processes of one `launch`, and the threads that show what they print. `kept`: where they keep commits; `number`: how often they have been
    started anew."""

    def __init__(self, words: Sequence[str], size: int, prefix: bool, kept: Snapshots | None = None, number: int = 0) -> None:
        self.server = Rendezvous(size).start()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        self._files: set[str] = set()
        self._lock = threading.Lock()
        more: dict[str, str | None] = {}
        if kept is not None:
            more = {SNAPSHOTS: str(kept), GANG: str(number), "TORCHELASTIC_RESTART_COUNT": str(number)}
        try:
            for rank in range(size):
                variables = {**variables_of(rank, size, self.server), **more, "PYTHONUNBUFFERED": "1"}
                self._start(words, rank, variables, prefix, () if kept is None else kept.descriptors)
        except BaseException:
            self.end()
            raise

    def _start(self, words: Sequence[str], rank: int, variables: dict[str, str | None], prefix: bool, kept: Sequence[int]) -> None:
        environment = whole_environment()
        for name, value in variables.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        out = subprocess.PIPE if prefix else None
        process = subprocess.Popen(
            list(words), env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, preexec_fn=die_with_parent,
            pass_fds=kept,
        )  # fmt: skip
        self.processes.append(process)
        for stream, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if stream is not None:
                reader = threading.Thread(target=self._show, args=(stream, target, f"[{rank}] "), daemon=True)
                reader.start()
                self._readers.append(reader)

    def _show(self, stream: IO[bytes], target: Any, prefix: str) -> None:
        with stream:
            for line in stream:
                with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
                    target.write(prefix + line.decode(errors="replace"))
                    target.flush()

    def signal(self, number: int) -> None:
        """Send a signal to those that are alive."""
        self._files |= {file for process in self.processes if process.returncode is None for file in mpi.files_of(process.pid)}
        for process in self.processes:
            if _code(process) is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    def wait(self, asked: list[int]) -> tuple[int, int] | None:
        """Until all have ended well: None; or one has not: its rank and code. `asked`: signals that have come for them."""
        while True:
            codes = [_code(process) for process in self.processes]
            for rank, code in enumerate(codes):
                if code is not None:
                    self.server.gone(rank, how_it_ended(code))
            bad = next(((rank, code) for rank, code in enumerate(codes) if code), None)
            if bad is not None or all(code == 0 for code in codes):
                return bad
            if asked:
                return None
            time.sleep(0.02)

    def end(self, moment: float = 0.0) -> None:
        """Until nobody is left: after a moment they are asked, and then made, to end."""
        for number, seconds in ((0, moment), (signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
            self.signal(number)
            if number:
                self.signal(signal.SIGCONT)  # one that is stopped hears nothing
            until = time.monotonic() + seconds
            while time.monotonic() < until and any(_code(process) is None for process in self.processes):
                time.sleep(0.02)
        for reader in self._readers:
            reader.join(timeout=2)
        mpi.forget(self._files)  # of ranks that were ended between the start of MPI and the moment when they do this themselves
        self.server.close()  # a pipe that somebody else holds open, too, is left to its reader: closing it would wait for that


def launch(words: Sequence[str], nprocs: int, prefix: bool = True, restarts: int = 0, least: int | None = None) -> int:
    """Run a command line in `nprocs` processes of one job; returns 0, or the exit code of the first that failed (128 + signal if one ended it).

    words: the program and its arguments; `prefix`: every line that they print begins with the rank of who prints it. restarts: how often all are
    started anew after one has failed; `calque.distributed.State` goes on where they were. least: after a start that failed before anything new was
    committed the next one has one process less, but never less than this (default: always `nprocs`).

    >>> import sys
    >>> from calque.distributed.launch import launch
    >>> launch([sys.executable, "-c", "import os; assert os.environ['WORLD_SIZE'] == '2'"], 2)
    0
    """
    require_count("launch", "-n", nprocs)
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
        raise ArgumentError(f"[launch] expected --restarts to be a whole number from 0 on, got {shown(restarts)}")
    if least is not None and require_count("launch", "--min", least) > nprocs:
        raise ArgumentError(f"[launch] expected --min to be at most -n, {nprocs}, got {least}")
    if least is not None and not restarts:
        raise ArgumentError("[launch] expected --restarts with --min: without it nobody is started anew")
    asked: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in _FORWARDED}
    kept = Snapshots.create(nprocs) if restarts else None
    try:
        return _gangs(words, nprocs, prefix, restarts, nprocs if least is None else least, kept, asked)
    finally:
        if kept is not None:
            kept.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _gangs(words: Sequence[str], size: int, prefix: bool, restarts: int, least: int, kept: Snapshots | None, asked: list[int]) -> int:
    """One gang after the other, until one ends well, or too many have failed."""
    newest = 0
    for number in range(restarts + 1):
        gang = _Gang(words, size, prefix, kept, number)
        try:
            bad = gang.wait(asked)
            if asked:
                gang.signal(asked[0])
            last = number == restarts or bad is None or bool(asked)
            gang.end(MOMENT if last else SHORT_MOMENT)
        finally:
            gang.end()
        if asked:
            return 128 + asked[0]
        if bad is None:
            return 0
        rank, code = bad
        how = how_it_ended(code)
        if last or kept is None:
            break
        commit = max((c.number for c in kept.newest()), default=0)
        sys.stderr.write(f"calque: rank {rank} of {size} {how}; ")
        if commit == newest:  # this number of processes does not come far
            size = max(size - 1, least)
        newest = commit
        where = f"from commit {commit}" if commit else "from the beginning, as nothing was committed"
        sys.stderr.write(f"restart {number + 1} of {restarts} with {size} processes {where}\n")
        sys.stderr.flush()
    sys.stderr.write(f"calque: rank {rank} of {size} {how}; the others were ended\n")
    return code if code > 0 else 128 - code


# ------------------------------------------------------------------------------------------------------------ functions


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
    die_with_parent()
    try:
        fn(index, *args)
    except KeyboardInterrupt:  # the parent was interrupted, too, and says so
        pass
    except Exception as error:
        errors.put(traceback.format_exc())
        WATCH.leave(f"{type_name(error)}: {str(error)[:500]}")
        sys.exit(1)
    finally:
        leave()  # `multiprocessing` runs no exit handlers


class ProcessContext:
    """The processes of one `start_processes`."""

    def __init__(self, processes: Any, errors: Any, server: Rendezvous | None = None) -> None:
        self.processes, self._errors, self._server = processes, errors, server

    def pids(self) -> list[int]:
        """The number of each process."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until one fails or all have ended: whether all have. If one failed, the others are ended, and its error is raised here."""
        for k, process in enumerate(self.processes if self._server is not None else ()):
            if process.exitcode is not None:
                self._server.gone(k, how_it_ended(process.exitcode))  # type: ignore[union-attr]
        running = {process.sentinel: k for k, process in enumerate(self.processes) if process.is_alive() or process.exitcode != 0}
        ready = connection.wait(list(running), timeout=timeout) if running else []
        for sentinel in ready:
            index = running[sentinel]
            process = self.processes[index]
            process.join()
            if self._server is not None:
                self._server.gone(index, how_it_ended(process.exitcode))
            if process.exitcode != 0:
                self._fail(index, process, grace_period)
        over = all(process.exitcode == 0 for process in self.processes)
        if over and self._server is not None:
            self._server.close()
        return over

    def _fail(self, index: int, process: Any, grace_period: float | None) -> None:
        moment = grace_period if grace_period is not None else MOMENT if self._server is not None else 0.0
        until = time.monotonic() + moment
        while time.monotonic() < until and any(other.is_alive() for other in self.processes):
            time.sleep(0.02)
        for kill in (False, True):
            for other in self.processes:
                if other.is_alive():
                    other.kill() if kill else other.terminate()
            for other in self.processes:
                other.join(None if kill else 3.0)
        if self._server is not None:
            self._server.close()
        if self._errors[index].empty():
            code = process.exitcode
            name = signal.Signals(-code).name if code < 0 else None
            how = f"exit code {code}" if name is None else f"signal {name}"
            raise ProcessExitedException(f"[spawn] process {index} terminated with {how}", index, process.pid, code, name)
        text = self._errors[index].get()
        raise ProcessRaisedException(f"[spawn] process {index} terminated with the following error:\n\n{text}", index, process.pid)


def _require_guard() -> None:
    """A new process runs the program's file to find what it needs, and would start processes as well."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is not None and os.path.isfile(path) and getattr(main, "__spec__", None) is None and not guarded_names(path)[0]:
        raise DistributedError(
            f"[spawn] expected a guard in {path}, because every process that is started runs that file, and would start processes, too; "
            f"write:\n{GUARD}\n"
            "or pass start_method='fork', or start the program with calque launch"
        )


def start_processes(
    fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn", server: Rendezvous | None = None
) -> Any:
    """Call `fn(i, *args)` in `nprocs` processes; join: wait for them. Without it a `ProcessContext`. An error in one ends all and is raised here."""
    require_count("spawn", "nprocs", nprocs)
    if start_method != "fork":
        _require_guard()
    context: Any = multiprocessing.get_context(start_method)
    errors = [context.SimpleQueue() for _ in range(nprocs)]
    processes = [context.Process(target=_work, args=(fn, k, args, errors[k]), daemon=daemon) for k in range(nprocs)]
    started = ProcessContext(processes, errors, server)
    begun: list[Any] = []
    try:
        for rank, process in enumerate(processes):
            before = set_variables(variables_of(rank, nprocs, server)) if server is not None else {}
            try:
                process.start()
                begun.append(process)
            except (AttributeError, TypeError, PicklingError) as error:
                raise DTypeError(
                    f"[spawn] expected a function and arguments that can be sent to another process, got {shown(fn)} and {shown(args)} ({error}); "
                    "define functions and classes at the top of a module, or pass start_method='fork'"
                ) from error
            finally:
                set_variables(before)
        while join and not started.join():
            pass
    except BaseException:  # Ctrl-C too: nobody is left behind
        for process in begun:
            if process.is_alive():
                process.kill()
            process.join()
        if server is not None:
            server.close()
        raise
    return None if join else started


def spawn(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn") -> Any:
    """Call `fn(rank, *args)` in `nprocs` processes of one job, where `init_process_group()` needs no arguments; they meet at a free port.

    join: wait until all have ended; else a `ProcessContext` with `join()` is returned. start_method: "spawn", or "fork" for functions that cannot be
    imported, as in a notebook. The first error is raised here, with the traceback of its process, once all have ended.

    >>> import time
    >>> import calque.distributed as dist
    >>> dist.spawn(time.sleep, nprocs=1)
    """
    if not callable(fn):
        raise ArgumentError(f"[spawn] expected a function, got {type_name(fn)}")
    server = Rendezvous(require_count("spawn", "nprocs", nprocs)).start()
    return start_processes(fn, args, nprocs, join, daemon, start_method, server)


def command_of(words: Sequence[str]) -> list[str]:
    """The command line of `calque launch`: a script, `-m module`, or `-c code`, with arguments, as for Python."""
    if words[0] not in ("-m", "-c") and not os.path.isfile(words[0]):
        raise ArgumentError(f"[launch] expected a script, got {shown(words[0])}, which is no file here; give its path, or -m module")
    return [sys.executable, *words]
