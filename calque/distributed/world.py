"""The job that this process belongs to: how it is joined and left, and its groups."""

from __future__ import annotations

import atexit
import math
import os
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from calque.base.config import RENDEZVOUS, job_variables, set_variables, slurm_variables
from calque.base.errors import ArgumentError, DistributedError
from calque.base.text import shown
from calque.distributed import mpi, rendezvous
from calque.distributed.exchange import wait_for_exchanges
from calque.distributed.group import OPEN, Near, ProcessGroup
from calque.distributed.watch import WATCH
from calque.observe.source import user_line

DEFAULT_TIMEOUT = 300.0  # seconds
MEETING_SECONDS = 120.0  # for which processes wait for each other at the start
LINGER = 2.0  # seconds for which a process that failed stays, so that the others end with their own errors
HOW = "start it with: calque launch -n 2 train.py, or: mpiexec -n 2 python train.py"
_NATIVE = (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMIX_RANK", ""))  # set by an mpiexec


class _World:
    """What this process knows of its job."""

    def __init__(self) -> None:
        self.group: ProcessGroup | None = None
        self.groups = 0
        self.mpi: Any = None
        self.wire: Any = None
        self.near = Near(frozenset(), frozenset())
        self.helper: subprocess.Popen[str] | None = None
        self.hooked = self.left = False


WORLD = _World()


class NonMember:
    """What `new_group` gives a process that is not a member."""

    def __repr__(self) -> str:
        return "<process group of which this process is no member>"


NON_GROUP_MEMBER = NonMember()


def seconds_of(op: str, timeout: Any, default: float) -> float:
    """A timeout: a `timedelta`, seconds or None."""
    if timeout is None:
        return default
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ArgumentError(f"[{op}] expected timeout to be a timedelta or a positive number of seconds, got {shown(timeout)}")
    return float(seconds)


def _require_backend(backend: Any) -> None:
    if backend is None:
        return
    names = [part.rpartition(":")[2] for part in str(backend).lower().split(",") if not part.startswith("cuda")] or ["nccl"]
    for name in names:
        if name == "nccl":
            raise DistributedError(
                "[init_process_group] expected back-end 'mpi' (or 'gloo', which is taken as the same), got 'nccl': it joins GPUs, and this version "
                "of Calque has no backend for them; write backend='mpi'"
            )
        if name not in ("mpi", "gloo"):
            raise ArgumentError(f"[init_process_group] expected back-end 'mpi' or 'gloo', got {shown(backend)}")


def _number(variables: dict[str, str], name: str) -> int | None:
    text = variables.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise DistributedError(f"[init_process_group] expected the environment variable {name} to be a whole number, got {shown(text)}")
    return int(text)


def _agreed(what: str, given: int, found: int | None, where: str) -> int | None:
    """The number that was given or found."""
    if given >= 0 and found is not None and given != found:
        raise DistributedError(f"[init_process_group] expected {what}={found}, as {where} says, got {given}; leave {what} out")
    return given if given >= 0 else found


def _place(rank: int, size: int, method: str | None) -> tuple[int, int, str, int]:
    """Rank, number of processes, and host and port where they meet: "" if an mpiexec has seen to that, or nobody else is there."""
    variables = job_variables()
    meeting = variables.get(RENDEZVOUS, "")
    for rank_name, size_name in () if meeting else _NATIVE:
        if rank_name in variables:
            found = _agreed("rank", rank, _number(variables, rank_name), rank_name)
            count = _agreed("world_size", size, _number(variables, size_name), size_name) if size_name else size
            return found if found is not None else -1, -1 if count is None else count, "", 0
    if "RANK" not in variables and "WORLD_SIZE" not in variables:
        variables = {**slurm_variables(), **variables}
    address = urlsplit(method or "env://")
    if address.scheme not in ("env", "tcp"):
        raise ArgumentError(f"[init_process_group] expected init_method 'env://' or 'tcp://host:port', got {shown(method)}")
    from_env = address.scheme == "env" or meeting
    place = _agreed("rank", rank, _number(variables, "RANK") if from_env else None, "RANK")
    count = _agreed("world_size", size, _number(variables, "WORLD_SIZE") if from_env else None, "WORLD_SIZE")
    if place is None or count is None:
        missing = ", ".join(name for name, value in (("RANK", place), ("WORLD_SIZE", count)) if value is None)
        raise DistributedError(f"[init_process_group] expected {missing} in the environment or as arguments, found neither: {HOW}")
    if not 0 <= place < count:
        raise DistributedError(f"[init_process_group] expected a rank from 0 to world_size - 1 = {count - 1}, got {place}; ranks count from 0")
    if count == 1:
        return place, count, "", 0
    if meeting:
        host, _, text = meeting.rpartition(":")
        return place, count, host, int(text)
    host = address.hostname or variables.get("MASTER_ADDR", "")
    port = address.port if address.scheme == "tcp" else _number(variables, "MASTER_PORT")
    if not host or port is None:
        raise DistributedError(
            f"[init_process_group] expected MASTER_ADDR and MASTER_PORT in the environment, or init_method='tcp://host:port', for {count} "
            f"processes; {HOW}"
        )
    return place, count, host, port


def _meet(rank: int, size: int, host: str, port: int, seconds: float) -> None:
    """Come together at host:port; rank 0 starts the server there, unless whoever started the processes has."""
    helped = RENDEZVOUS not in job_variables()
    if helped and rank == 0:
        WORLD.helper = subprocess.Popen(
            [sys.executable, "-I", str(Path(rendezvous.__file__)), host, str(port), str(size), str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert WORLD.helper.stdout is not None
        said = WORLD.helper.stdout.readline().strip()
        if not said.startswith("port"):
            _dismiss_helper()
            raise DistributedError(
                f"[init_process_group] expected to open {host}:{port} for {size} processes, got {said.removeprefix('error ') or 'no server'}; is "
                "another job using it? Choose another MASTER_PORT, or use calque launch, which needs none"
            )
    wrong = rendezvous.meet(host, port, rank, size, seconds)
    if wrong:
        _dismiss_helper()
        raise DistributedError(f"[init_process_group] expected {size} processes at {host}:{port}, but {wrong}. This is rank {rank}; {HOW}")
    set_variables({"PMI_PORT": f"{host}:{port}", "PMI_ID": str(rank)})


def init_process_group(
    backend: str | None = None, init_method: str | None = None, timeout: Any = None, world_size: int = -1, rank: int = -1, store: Any = None,
    group_name: str = "", pg_options: Any = None, device_id: Any = None, *, check_collectives: bool = True, flight_folder: str = "",
) -> None:  # fmt: skip
    """Join the job: from here on its processes can communicate.

    backend: "mpi", or "gloo" for the same. init_method: "env://" (the default: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them,
    or what Slurm's `srun` sets, if neither an `mpiexec` nor `calque launch` has started the process), or "tcp://host:port" with world_size and rank.
    timeout: seconds or a `timedelta` for which every call waits for its last member (default: 300). check_collectives: compare calls before data
    moves, so that ranks which differ are an error that names them. flight_folder: where the last calls are written after a failure (default: the
    folder of temporary files).

    Raises DistributedError if processes are missing, or disagree, and MissingExtraError without mpi4py.

    >>> import calque
    >>> import calque.distributed as dist
    >>> try:
    ...     dist.init_process_group("nccl")
    ... except RuntimeError as error:
    ...     print(str(error)[:90])
    [init_process_group] expected back-end 'mpi' (or 'gloo', which is taken as the same), got
    """
    if WORLD.group is not None:
        raise DistributedError("[init_process_group] expected no process group, but this process has joined one; call destroy_process_group() first")
    if store is not None:
        raise ArgumentError("[init_process_group] expected init_method= instead of store=: processes meet through PMI; leave store out")
    _require_backend(backend)
    seconds = seconds_of("init_process_group", timeout, DEFAULT_TIMEOUT)
    place, size, host, port = _place(rank, world_size, init_method)
    earlier = WORLD.mpi is None and mpi.begun()
    if WORLD.mpi is None:
        mpi.require("init_process_group")
        if not host and size != 1:
            mpi.require_own_mpiexec("init_process_group", place, size)
        if host:
            _meet(place, size, host, port, min(seconds, MEETING_SECONDS))
        WORLD.mpi = mpi.load("init_process_group")
        mpi.forget_files(WORLD.mpi.COMM_WORLD)
        WORLD.near = mpi.neighbours(WORLD.mpi, WORLD.mpi.COMM_WORLD)
        WORLD.wire = mpi.MpiWire(WORLD.mpi, WORLD.mpi.COMM_WORLD.Dup())
    comm = WORLD.mpi.COMM_WORLD
    if (size >= 0 and comm.size != size) or (place >= 0 and comm.rank != place):
        raise _another_job(place, size, comm, earlier, bool(host))
    WATCH.start(comm.rank, comm.size, WORLD.wire, flight_folder, WORLD.near.processes)
    WORLD.groups = 0
    WORLD.group = mpi.MpiGroup(WORLD.mpi, comm, tuple(range(comm.size)), comm.rank, 0, seconds, check_collectives, WORLD.near)
    if not WORLD.hooked:
        WORLD.hooked = True
        atexit.register(leave)
        _hook_exceptions()


def _another_job(place: int, size: int, comm: Any, earlier: bool, met: bool) -> DistributedError:
    """The error of an MPI that knows of other processes. earlier: it was started before this process joined its job; met: the processes have met."""
    library, folder = WORLD.mpi.Get_library_version().split("\n")[0][:60], Path(sys.executable).parent
    if earlier and comm.size == 1:
        why = (
            "it was started before, as a job of one process, by something that imports mpi4py.MPI (a library that looks whether there is a job); "
            "start the program with calque launch"
        )
    elif met and "MPICH" not in library.upper():
        why = (
            "processes of calque launch, of spawn and of torchrun's variables meet as those of MPICH do; pip install mpich, or start the program "
            "with the mpiexec of that MPI"
        )
    else:
        why = "they were started by the mpiexec of another MPI, or for another job; use calque launch, or the mpiexec of this environment, "
        why += f"in {folder}"
    return DistributedError(
        f"[init_process_group] expected rank {place} of {size} processes, but the MPI of mpi4py ({library}) says {comm.rank} of {comm.size}: {why}"
    )


def world(op: str) -> ProcessGroup:
    """The group of all processes."""
    if WORLD.group is None:
        raise DistributedError(f"[{op}] expected a process group: Default process group has not been initialized, call init_process_group() first")
    return WORLD.group


def group_of(op: str, group: Any) -> ProcessGroup | None:
    """A `group` argument; None if this process is no member."""
    if group is None:
        return world(op)
    if isinstance(group, NonMember):
        return None
    if not isinstance(group, ProcessGroup):
        raise ArgumentError(f"[{op}] expected group to be a process group or None, got {shown(group)}; new_group() makes one")
    world(op)
    if group.closed:
        group.require_open(op)
    return group


def destroy_process_group(group: Any = None) -> None:
    """Wait for what was asked for; from here on this process takes part in nothing, or in nothing of one group. All processes call it, or none; of
    a sub-group each member gives up its own part."""
    pg = group_of("destroy_process_group", group)
    if pg is None:
        return
    wait_for_exchanges()
    if pg is not WORLD.group:
        pg.close()
        return
    if WATCH.well():
        pg.perform("destroy_process_group", "", user_line(), lambda: None)
    for part in sorted(OPEN, key=lambda part: part.number):
        part.close()
    WATCH.stop()
    WORLD.group = None


def new_group(
    ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, use_local_synchronization: bool = False,
    group_desc: str | None = None, device_id: Any = None,
) -> Any:  # fmt: skip
    """A group of some of the processes (default: all). Every process of the job calls this with the same ranks, members or not; one that is none
    gets `GroupMember.NON_GROUP_MEMBER`."""
    whole = world("new_group")
    _require_backend(backend)
    chosen = tuple(range(whole.size())) if ranks is None else tuple(sorted(ranks))
    if not chosen or len(set(chosen)) < len(chosen) or not all(isinstance(r, int) and 0 <= r < whole.size() for r in chosen):
        raise ArgumentError(f"[new_group] expected different ranks from 0 to {whole.size() - 1}, got {shown(ranks)}")
    wait_for_exchanges()
    WORLD.groups += 1
    seconds = seconds_of("new_group", timeout, whole.timeout)

    def part() -> Any:
        return whole.part(chosen, WORLD.groups, seconds) if whole.own in chosen else NON_GROUP_MEMBER

    return whole.perform("new_group", f"ranks {list(chosen)}", user_line(), part)


def new_subgroups(
    group_size: int | None = None, group: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, group_desc: str | None = None
) -> tuple[Any, list[Any]]:
    """Groups of `group_size` neighbours each (default: LOCAL_WORLD_SIZE, the ranks of a machine): this process's, and all of them. A call of all
    processes; the size must divide their number.

    >>> import calque.distributed as dist
    >>> dist.new_subgroups(2)
    Traceback (most recent call last):
    calque.base.errors.DistributedError: [new_subgroups] expected a process group: Default process group has not been initialized, ...
    """
    whole = world("new_subgroups")
    if group is not None and group is not whole:
        raise ArgumentError(f"[new_subgroups] expected group=None, the group of all processes, got {shown(group)}; new_group(ranks) makes others")
    each = _number(job_variables(), "LOCAL_WORLD_SIZE") if group_size is None else group_size
    if isinstance(each, bool) or not isinstance(each, int) or each < 1 or whole.size() % each:
        raise ArgumentError(f"[new_subgroups] expected group_size to be a whole number that divides {whole.size()}, got {shown(each)}")
    rows = [list(range(first, first + each)) for first in range(0, whole.size(), each)]
    return new_subgroups_by_enumeration(rows, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Any, timeout: Any = None, backend: Any = None, pg_options: Any = None, group_desc: str | None = None
) -> tuple[Any, list[Any]]:
    """A group of each list of ranks, which share none: this process's (None if it is in none), and all of them. A call of all processes.

    >>> import calque.distributed as dist
    >>> dist.new_subgroups_by_enumeration([[0], [1]])
    Traceback (most recent call last):
    calque.base.errors.DistributedError: [new_subgroups_by_enumeration] expected a process group: Default process group has not been initialized, ...
    """
    own = world("new_subgroups_by_enumeration").own
    rows = [list(row) for row in ranks_per_subgroup_list]
    every = [rank for row in rows for rank in row]
    if not rows or len(set(every)) < len(every):
        raise ArgumentError(f"[new_subgroups_by_enumeration] expected lists of ranks that share none, got {shown(ranks_per_subgroup_list)}")
    made = [new_group(row, timeout, backend) for row in rows]
    return next((found for row, found in zip(rows, made, strict=True) if own in row), None), made


# ------------------------------------------------------------------------------------------------------------------- the end


def _hook_exceptions() -> None:
    """An exception that ends this process is told to the others, and its text says whose it is."""
    usual = sys.excepthook

    def hook(kind: Any, error: Any, raised: Any) -> None:
        if WORLD.group is not None:
            sys.stderr.write(f"calque: rank {WATCH.rank} of {WATCH.size} ends with this error:\n")
        usual(kind, error, raised)
        if WORLD.group is not None:
            sys.stderr.flush()
            last = traceback.extract_tb(raised)[-1:] if raised is not None else []
            where = f" at {last[0].filename}:{last[0].lineno}" if last else ""
            WATCH.leave(f"{kind.__name__}: {str(error)[:500]}{where}")

    sys.excepthook = hook


def leave() -> None:
    """The end of the interpreter, or of a function that `spawn` has called."""
    if WORLD.mpi is None or WORLD.left:
        return
    WORLD.left = True
    if WORLD.group is not None:
        wait_for_exchanges()
        WATCH.leave(f"an error that nobody has read: {WATCH.failed}" if WATCH.failed else "")
        until = time.monotonic() + (WORLD.group.timeout if WATCH.well() else LINGER)
        while not WATCH.all_gone() and time.monotonic() < until:
            time.sleep(0.005)
            WATCH.hear()
            if not WATCH.well():
                until = min(until, time.monotonic() + LINGER)
        whole = WATCH.well() and WATCH.all_gone()
        WATCH.stop()
    else:
        whole = not WATCH.failed
    if whole:
        mpi.finalize(WORLD.mpi)
    unread = WATCH.unread()
    if unread is not None:
        sys.stderr.write(f"calque: rank {WATCH.rank} of {WATCH.size} ends with an error that nobody has read: {unread}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    # The helper ends when its input does, which is when this process has: MPICH speaks with it to the very end.


def _dismiss_helper() -> None:
    """End the server of a rendezvous that failed, if this process has started it."""
    helper, WORLD.helper = WORLD.helper, None
    if helper is not None:
        for stream in (helper.stdin, helper.stdout):
            if stream is not None:
                stream.close()
        helper.wait(timeout=10)
