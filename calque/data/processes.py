"""Worker processes of a loader: started, asked, listened to, and replaced when they die.

The calling thread does all of it while it waits for a batch; there is no thread in between. A job stays with its worker until the answer has arrived,
so what a worker that dies leaves behind is known, and its successor gets it. `when_gone` ends the processes of a pass that nobody holds any more.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import shutil
import signal
import socket
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import field
from pathlib import Path
from typing import Any

from calque.base.config import whole_environment
from calque.base.dataclass import dataclass
from calque.base.errors import WorkerError
from calque.data.fetch import END, shorten
from calque.data.payload import GUARD, Payload
from calque.data.transport import Lost, Mappings, receive, send
from calque.data.worker_process import ENDED, FAILED, GIVEN_UP, READY, Far, Preparing
from calque.observe.source import warn_user
from calque.run.interrupt import shielded

DEATHS = 3  # of workers that were at one batch, after which it is given up
START = 60.0  # seconds that processes may take to start
_ROOT = str(Path(__file__).parents[2])
_PROGRAM = "import sys; sys.path.insert(0, {root!r}); from calque.data.worker_process import main; main({what!r})"


@dataclass
class Job:
    """A batch that was asked for. `skip`: how many batches of its stream the worker has handed over before."""

    future: "Future[Any]"
    number: int
    seed: int
    indices: Any
    skip: int
    deaths: int = 0
    sent: bool = False


@dataclass
class Link:
    """A worker process, as its loader sees it."""

    pid: int
    sock: socket.socket
    jobs: "OrderedDict[int, Job]" = field(default_factory=OrderedDict)
    mappings: Mappings = field(default_factory=Mappings)
    ready: bool = False
    stopped: bool = False  # and so ended by us


class _Janitor:
    """A thread that does something when an object is gone. What a signal handler raises in the callback of a reference would be lost; here none
    runs."""

    def __init__(self) -> None:
        self.gone: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.actions: dict[int, tuple[weakref.ref[Any], Callable[[], None]]] = {}
        self.thread: threading.Thread | None = None

    @shielded
    def when_gone(self, owner: Any, action: Callable[[], None]) -> None:
        """Call `action`, which must not hold `owner`, in this thread."""
        if self.thread is None or not self.thread.is_alive():
            self.thread = threading.Thread(target=self._run, name="calque-janitor", daemon=True)
            self.thread.start()
        reference = weakref.ref(owner, self.gone.put)
        self.actions[id(reference)] = reference, action

    def _run(self) -> None:
        while True:
            _, action = self.actions.pop(id(self.gone.get()))
            with contextlib.suppress(Exception):
                action()
            del action


_janitor = _Janitor()
when_gone = _janitor.when_gone


def _start(what: str, sock: socket.socket) -> int:
    """A Python process whose standard input is a socket."""
    program = _PROGRAM.format(root=_ROOT, what=what)
    environment = whole_environment() | dict.fromkeys(("CALQUE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command, stream = [sys.executable, "-c", program], [(os.POSIX_SPAWN_DUP2, sock.fileno(), 0)]
    return os.posix_spawn(sys.executable, command, environment, file_actions=stream, setpgroup=0, setsigmask=[])


class _Template:
    """The process that forks workers. There is one for each process; it ends with it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        """In a forked child it is somebody else's."""
        self.sock: socket.socket | None = None
        self.pid = 0

    def ask(self, request: tuple[Any, ...], handles: list[int] | None = None) -> Any:
        """What it answers. It is started if it is not there."""
        with self.lock:
            for attempt in range(2):
                try:
                    if self.sock is None:
                        self._begin()
                    assert self.sock is not None
                    send(self.sock, pickle.dumps(request), handles)
                    return pickle.loads(receive(self.sock)[0])  # noqa: S301 - of our own process
                except Lost:
                    self._end()
                    if request[0] == "end":
                        return None
                    if attempt:
                        raise WorkerError(f"[DataLoader] expected {sys.executable} to start worker processes, got none; {_room()}") from None
        return None

    def _begin(self) -> None:
        self.sock, theirs = socket.socketpair()
        with theirs:
            self.pid = _start("serve", theirs)

    def _end(self) -> None:
        if self.sock is not None:
            self.sock.close()
        if self.pid:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        self.forget()


_template = _Template()
os.register_at_fork(after_in_child=_template.forget)


class ProcessPool:
    """Worker processes of one loader."""

    threads = False

    def __init__(self, payload: Payload, setup: dict[str, Any], method: str) -> None:
        if Preparing.now:  # its workers would import the module again, and start workers
            raise WorkerError(
                "[DataLoader] expected modules that do nothing but define things when they are imported, got one that loads batches with workers, "
                f"which a worker has just imported to find its dataset; write:\n{GUARD}\nor move the dataset to a module of its own"
            )
        self.payload, self.setup, self.method = payload, setup, method
        self.lock = threading.RLock()
        self.links: list[Link] = []
        self.next_job = self.next_pass = 0
        self.starts_lost = 0
        self.deaths = 0
        self.busy = 0.0  # seconds that workers have spent on batches
        self.loaded = 0  # batches
        self.delivered: dict[tuple[int, int], int] = {}  # batches of a stream: (pass, worker) -> count
        self.counts: dict[tuple[int, int], int] = {}  # samples of a stream
        with self.lock:
            for worker in range(setup["workers"]):
                self.links.append(self._start(worker))

    @shielded
    def _start(self, worker: int) -> Link:
        ours, theirs = socket.socketpair()
        with theirs:
            if self.method == "forkserver":
                modules = [name for name in self.payload.modules if name.partition(".")[0] in ("calque", "PIL", "numpy")]
                pid = _template.ask(("fork", modules), [theirs.fileno()])
            else:
                pid = _start("work", theirs)
        with contextlib.suppress(Lost):  # its end is seen where answers are awaited
            send(ours, pickle.dumps(self.setup | {"worker": worker}), self.payload.handles)
        return Link(pid, ours)

    # -------------------------------------------------------------------------------------------------------------------- jobs

    def begin_pass(self) -> int:
        """A number for a pass over the data."""
        with self.lock:
            self.next_pass += 1
            return self.next_pass

    @shielded
    def submit(self, worker: int, number: int, seed: int, indices: Any) -> "Future[Any]":
        """Have a worker load a batch (indices), or the next one of its stream."""
        future: Future[Any] = Future()
        with self.lock:
            skip = self.delivered.get((number, worker), 0)
            job = Job(future, number, seed, indices, skip)
            self.links[worker].jobs[self.next_job] = job
            self._send(worker, self.next_job)
            self.next_job += 1
        return future

    def _send(self, worker: int, key: int) -> None:
        link = self.links[worker]
        job = link.jobs[key]
        with contextlib.suppress(Lost):  # its end is seen where answers are awaited
            send(link.sock, pickle.dumps(("job", key, job.number, job.seed, job.indices, job.skip, link.mappings.given_back())))

    def least_busy(self) -> int:
        """The worker with the fewest jobs."""
        return min(range(len(self.links)), key=lambda worker: len(self.links[worker].jobs))

    def wait(self, futures: "list[Future[Any]]", timeout: float | None) -> "Future[Any] | None":
        """The first of some batches that is there; None if there is none in time."""
        start = begin = time.monotonic()
        while True:
            for future in futures:
                if future.done():
                    return future
            now = time.monotonic()
            if now < begin + START and not all(link.ready for link in self.links):
                start = now  # a process that starts is not a batch that takes long
            left = None if timeout is None else start + timeout - now
            if left is not None and left <= 0:
                return None
            self._listen(left)

    def _listen(self, timeout: float | None) -> None:
        """Take what workers have sent, or wait for something."""
        poll = select.poll()
        links = {link.sock.fileno(): worker for worker, link in enumerate(self.links)}
        for handle in links:
            poll.register(handle, select.POLLIN)
        for handle, _ in poll.poll(None if timeout is None else max(1, min(int(timeout * 1000) + 1, 1 << 30))):
            self._take(links[handle], handle)

    @shielded
    def _take(self, worker: int, handle: int) -> None:
        """Read one message of a worker."""
        with self.lock:
            link = self.links[worker]
            if link.sock.fileno() != handle or not select.select([handle], [], [], 0)[0]:
                return  # another thread was quicker
            try:
                content, handles = receive(link.sock)
            except Lost:
                self._replace(worker)
                return
            self._answered(worker, pickle.loads(content), handles)  # noqa: S301 - of our own worker

    def _answered(self, worker: int, message: dict[str, Any], handles: list[int]) -> None:
        link, kind = self.links[worker], message["kind"]
        if kind == READY:
            link.ready, self.starts_lost = True, 0
            return
        job = link.jobs.pop(message["job"])
        self.busy += message.get("seconds", 0.0)
        self.loaded += 1
        place = job.number, worker
        self.counts[place] = message.get("count", 0)
        if kind == FAILED:
            job.future.set_exception(_raised(message["error"]))
            return
        if kind in (ENDED, GIVEN_UP):
            job.future.set_result(END)
            return
        if self.setup["streamed"]:
            self.delivered[place] = self.delivered.get(place, 0) + 1
        try:
            job.future.set_result(link.mappings.unpack(message, handles))
        except Exception as error:  # a class that cannot be made again here
            error.add_note(f"[DataLoader] raised while a batch of worker {worker} was unpickled; collate_fn should give tensors, arrays and plain "
            f"values")
            job.future.set_exception(error)

    # -------------------------------------------------------------------------------------------------------------------- deaths

    def stopped(self, future: "Future[Any]") -> bool:
        """Whether the worker that has a job is not running (SIGSTOP); if so it is replaced."""
        for link in self.links:
            if any(job.future is future for job in link.jobs.values()) and _state(link.pid) in ("T", "t"):
                link.stopped = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(link.pid, signal.SIGKILL)
                return True
        return False

    def _replace(self, worker: int) -> None:
        """A worker is gone: another one takes its place and its jobs."""
        link = self.links[worker]
        link.sock.close()
        status = self._collect(link.pid)
        how = "was stopped (SIGSTOP) for as long as timeout= says, and ended," if link.stopped else _how(status)
        jobs = list(link.jobs.values())
        first = jobs[0] if jobs else None
        asked = f"the sample indices {shorten(first.indices)}" if first is not None and not self.setup["streamed"] else "its stream"
        self.deaths += 1
        text = f"[DataLoader] worker {worker} (process {link.pid}) {how} while it {'loaded ' + asked if link.ready else 'started'}"
        if not link.ready:
            self.starts_lost += 1
        elif first is not None:
            first.deaths += 1
        given_up = self.starts_lost >= DEATHS or (first is not None and first.deaths >= DEATHS)
        if given_up and first is not None:
            lost = jobs if self.starts_lost >= DEATHS else jobs[:1]
            for job in lost:
                job.future.set_exception(WorkerError(f"{text}, for the {DEATHS}rd time; expected it to live; {_room()}"))
            jobs = jobs[len(lost) :]
            self.starts_lost = 0
        self.links[worker] = self._start(worker)
        for job in jobs:
            key = self.next_job
            self.next_job += 1
            job.skip = self.delivered.get((job.number, worker), 0)
            self.links[worker].jobs[key] = job
            self._send(worker, key)
        if not given_up:
            warn_user(f"{text}; another one does its work, nothing is lost; {_room()}")

    def _collect(self, pid: int) -> int | None:
        """The exit status of a process that has ended."""
        if self.method == "forkserver":
            status: int | None = _template.ask(("end", pid))
            return status
        with contextlib.suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return None

    # -------------------------------------------------------------------------------------------------------------------- the end

    def close_with(self, owner: Any) -> None:
        """End the processes when the owner is gone."""
        when_gone(owner, self.close)

    def give_up_with(self, owner: Any, number: int) -> None:
        """Let no worker go on with a pass when the owner is gone."""
        when_gone(owner, lambda: self._give_up(number))

    def _give_up(self, number: int) -> None:
        with self.lock:
            for link in self.links:
                with contextlib.suppress(Lost, OSError):
                    send(link.sock, pickle.dumps(("over", number)))

    def close(self) -> None:
        """End the processes; none is left."""
        with self.lock:
            links, self.links = self.links, []
            for link in links:
                link.sock.close()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(link.pid, signal.SIGKILL)
                for job in link.jobs.values():
                    job.future.cancel()
            for link in links:
                self._collect(link.pid)


def _raised(content: bytes) -> BaseException:
    """The exception of a worker, with the traceback that it had there."""
    error, kind, words, notes, text = pickle.loads(content)  # noqa: S301 - of our own worker
    if error is None:  # its class and text are what could be sent
        error = kind.__new__(kind)
        error.args = (words,)
    error.__notes__ = notes
    error.__cause__ = Far(text)
    return error  # type: ignore[no-any-return]


def _how(status: int | None) -> str:
    if status is None:
        return "disappeared"
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    return f"was killed by {name}" + (" (the system does that when memory runs out)" if name == "SIGKILL" else "")


def _state(pid: int) -> str:
    """The letter of a process's state; "" where nobody knows."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _room() -> str:
    """How much memory there is."""
    facts = []
    with contextlib.suppress(OSError):
        facts.append(f"/dev/shm {shutil.disk_usage('/dev/shm').free >> 20:,} MiB free")
    with contextlib.suppress(OSError, StopIteration, ValueError):
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
        facts.append(f"memory {int(line.split()[1]) >> 10:,} MiB free")
    return ", ".join(facts)
