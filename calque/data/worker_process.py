"""What a worker process does, and the process that forks workers.

`serve` runs in one process that has Calque loaded, no threads and nothing of the program's: copies of it are there at once, and share its pages. A
worker ends as soon as the other end of its socket is closed, however the process there has ended, so no worker outlives its loader.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import queue
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from calque.base.device import InUse
from calque.base.errors import WorkerError
from calque.base.text import type_name
from calque.data import convert, streams
from calque.data.fetch import END, IndexFetcher, StreamFetcher
from calque.data.payload import unpacked
from calque.data.transport import Lost, Segments, receive, send
from calque.data.worker_info import WorkerInfo, set_worker_info

READY, BATCH, ENDED, FAILED, GIVEN_UP = range(5)


class Preparing:
    """Whether this process is a worker that looks for its data set, for which it imports the modules of the program."""

    now = False


class Far(Exception):
    """Holds the traceback of a worker, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class Worker:
    """The loop of a worker."""

    def __init__(self, sock: socket.socket, setup: dict[str, Any], handles: list[int]) -> None:
        self.sock, self.setup = sock, setup
        self.segments = Segments()
        self.jobs: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.passes: dict[int, Callable[..., Any]] = {}
        self.given_up: set[int] = set()
        self.failure: BaseException | None = None
        self.handles = handles

    def run(self) -> None:
        """Answer until nobody asks any more."""
        threading.Thread(target=self.listen, daemon=True).start()
        try:
            self.prepare()
        except BaseException as error:
            self.failure = error
        self.answer({"kind": READY, "job": -1}, [])
        while True:
            self.do(*self.jobs.get())

    def listen(self) -> None:
        """Take what comes, whatever the other thread is busy with."""
        try:
            while True:
                content, handles = receive(self.sock)
                for handle in handles:
                    os.close(handle)
                message = pickle.loads(content)  # noqa: S301 - of the process that has started this one
                if message[0] == "free":
                    self.segments.returned(message[1])
                elif message[0] == "over":
                    self.given_up.add(message[1])
                else:
                    self.segments.returned(message[-1])
                    self.jobs.put(message[1:-1])
        except BaseException:
            os._exit(0)

    def prepare(self) -> None:
        """Make the data set of this worker."""
        setup = self.setup
        Preparing.now = True
        try:
            _like_the_other(setup)
            InUse.helper = True
            parts = unpacked(self.handles)
        finally:
            Preparing.now = False
        self.dataset, self.collate_fn = parts["dataset"], parts["collate_fn"]
        set_worker_info(WorkerInfo(setup["worker"], setup["workers"], setup["seed"] + setup["worker"], self.dataset))
        convert.shared = self.segments.array
        streams.own_process()
        streams.begin(setup["seed"], -1 - setup["worker"])
        if parts["worker_init_fn"] is not None:
            try:
                parts["worker_init_fn"](setup["worker"])
            except BaseException as error:
                error.add_note(f"[DataLoader] raised by worker_init_fn in worker {setup['worker']}")
                raise

    def do(self, job: int, number: int, seed: int, indices: Any, skip: int) -> None:
        """One batch."""
        if number in self.given_up:
            self.answer({"kind": GIVEN_UP, "job": job}, [])
            return
        start = time.perf_counter()
        try:
            if self.failure is not None:
                raise self.failure
            fetch = self.fetcher(number, seed, skip)
            box = [fetch() if self.setup["streamed"] else fetch(indices)]
            count = getattr(fetch, "count", 0)
            if box[0] is END:  # the fetcher stays: what was asked for meanwhile gets the same answer
                self.answer({"kind": ENDED, "job": job, "count": count, "seconds": time.perf_counter() - start}, [])
                return
            message, handles = self.segments.pack(box)
            self.answer({"kind": BATCH, "job": job, "count": count, "seconds": time.perf_counter() - start} | message, handles)
            self.segments.sent(message)
        except Lost:
            os._exit(0)
        except BaseException as error:
            self.answer({"kind": FAILED, "job": job, "error": portable(error, self.setup["worker"]), "seconds": 0.0}, [])

    def fetcher(self, number: int, seed: int, skip: int) -> Callable[..., Any]:
        """What loads the batches of a pass; a stream that another worker has begun goes on behind its `skip` batches."""
        if number not in self.passes:
            if self.setup["streamed"]:
                stream = StreamFetcher(self.dataset, self.collate_fn, self.setup["batch_size"], self.setup["drop_last"], seed)
                for _ in range(skip):
                    stream()
                self.passes[number] = stream
            else:
                self.passes[number] = IndexFetcher(self.dataset, self.collate_fn, self.setup["batched"], seed)
            for old in [n for n in self.passes if n in self.given_up]:
                del self.passes[old]
        return self.passes[number]

    def answer(self, message: dict[str, Any], handles: list[int]) -> None:
        try:
            send(self.sock, pickle.dumps(message, protocol=5), handles)
        except Lost:
            os._exit(0)


def portable(error: BaseException, worker: int) -> bytes:
    """An exception and its traceback; of one that cannot be sent, its class and text, or at least these as words."""
    text = f"worker {worker}:\n" + "".join(traceback.format_exception(error)).rstrip()
    notes, words = list(getattr(error, "__notes__", [])), str(error)
    unsent = WorkerError(f"[DataLoader] expected an exception that can be sent to another process, got {type_name(error)}: {words}")
    for sent, kind in ((error, None), (None, type(error))):
        with contextlib.suppress(Exception):
            content = pickle.dumps((sent, kind, words, notes, text))
            pickle.loads(content)  # noqa: S301 - what was just written
            return content
    return pickle.dumps((unsent, None, words, notes, text))


def _like_the_other(setup: dict[str, Any]) -> None:
    """Make this process find what the other one finds."""
    sys.path[:], sys.argv = setup["path"], setup["argv"]
    with contextlib.suppress(OSError):
        os.chdir(setup["folder"])
    if setup["torch"] and "calque.compat.run" not in sys.modules:
        importlib.import_module("calque.compat.run").install_as_torch(children=False)
    if setup["main"] is not None:
        how, what = setup["main"]
        main = ModuleType("__mp_main__")
        run = runpy.run_module if how == "module" else runpy.run_path
        main.__dict__.update(run(what, run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main


def work(sock: socket.socket) -> None:
    """Be a worker: what it is to do comes first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's, which ends this one
    try:
        content, handles = receive(sock)
        Worker(sock, pickle.loads(content), handles).run()  # noqa: S301 - of the process that has started this one
    except Lost:
        pass
    finally:
        os._exit(0)


def serve(sock: socket.socket) -> None:
    """Fork a worker for each socket that comes, and say how each has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # what is there stays on the pages that all workers share
    while True:
        try:
            content, handles = receive(sock)
        except Lost:
            os._exit(0)
        asked = pickle.loads(content)  # noqa: S301 - of the process that has started this one
        if asked[0] == "end":
            send(sock, pickle.dumps(_ended(asked[1])))
            continue
        for name in asked[1]:
            with contextlib.suppress(Exception):  # the worker meets the same error where somebody sees it
                importlib.import_module(name)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            sock.close()
            work(socket.socket(fileno=handles[0]))
        for handle in handles:
            os.close(handle)
        send(sock, pickle.dumps(pid))


def _ended(pid: int) -> int | None:
    with contextlib.suppress(ChildProcessError):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None


def main(what: str) -> None:
    """The program of these processes: a socket is in the place of the standard input."""
    sock = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    (serve if what == "serve" else work)(sock)
