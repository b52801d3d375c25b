"""Compiling in other processes: this one never loads LLVM, so its memory is never LLVM's, and a crash of LLVM is a `CompileError`.

The processes run `compiler.py` with the same interpreter and nothing else; they start when the first kernel is missing, take requests over pipes
and are ended when nothing was missing for a while, or with this process (their input ends). What they cannot do is left to the caller, who
compiles in this process; how often, and why, stands in `COUNTERS`.

Whoever terminates this process leaves no orphan: a compiler ends with its input. Ctrl-C does not reach it (a process group of its own).
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import os
import re
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from calque.backend.cpu.compile import compiler
from calque.backend.cpu.compile.compiler import Target
from calque.backend.cpu.compile.objects import can_load
from calque.base import config
from calque.base.errors import CompileError

IDLE = 2.0
"""Seconds after which processes without work are ended."""
PATIENCE = 120.0
"""Seconds without any answer after which they are given up."""
FAILURES = 3
"""After so many lost processes no more are started."""
MOST = 8
"""Processes at once; each holds about 90 MiB."""
MODULES_EACH = 8
"""Modules that are worth starting one more process: they take about as long as the start."""
AHEAD = 2
"""Requests that a process has at a time, so that it never waits for this one."""
_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGTRAP}
_PYTHON = re.compile(r"python[\d.]*[a-z]*$")  # not the program that an interpreter is embedded in: that would start itself again
_SCRIPT = Path(__file__).with_name("compiler.py")


@lru_cache(maxsize=1)
def llvmlite_folder() -> Path:
    """Where llvmlite is."""
    found = importlib.util.find_spec("llvmlite")
    if found is None or not found.submodule_search_locations:
        raise CompileError("[cpu] expected llvmlite, got no such package; install it with: pip install llvmlite")
    return Path(next(iter(found.submodule_search_locations)))


class Counters:
    """Who compiled how many modules, and why not all were compiled in other processes."""

    def __init__(self) -> None:
        self.processes = 0  # started
        self.at_once = 0  # the most that lived together
        self.modules = 0  # compiled by them
        self.alone = 0  # compiled in this process
        self.reasons: dict[str, int] = {}  # why, and how many
        self.peak_mib = 0.0  # the most memory that one of them held


COUNTERS = Counters()


class Lost(Exception):
    """A process that cannot go on; the message says why."""


class Crashed(Exception):
    """LLVM crashed: it would also in this process."""


class Compiler:
    """One process: requests go in, replies come out in the same order."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as opened:

            def own(handle: int) -> int:
                """An inherited standard stream may be closed; the ends of a pipe must not take its number."""
                if handle < 3:
                    high = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
                    os.close(handle)
                    handle = high
                opened.callback(os.close, handle)
                return handle

            their_input, self.input = map(own, os.pipe())
            self.output, their_output = map(own, os.pipe())
            null = own(os.open(os.devnull, os.O_WRONLY))
            command = [sys.executable, "-I", "-S", *(["-B"] if sys.dont_write_bytecode else []), str(_SCRIPT), str(llvmlite_folder().parent)]
            streams = [(os.POSIX_SPAWN_DUP2, handle, k) for k, handle in enumerate((their_input, their_output, null))]
            self.pid = os.posix_spawn(command[0], command, config.whole_environment(), file_actions=streams, setpgroup=0, setsigmask=[])
            opened.pop_all()
        for handle in (their_input, their_output, null):
            os.close(handle)
        os.set_blocking(self.input, False)
        os.set_blocking(self.output, False)
        self.pending: deque[int] = deque()  # what was asked; -1: nobody wants the answer any more
        self.unsent = bytearray()
        self.received = bytearray()
        COUNTERS.processes += 1

    def ask(self, number: int, kind: int, level: int, target: Target, text: bytes) -> None:
        """Queue a request."""
        lines = "\n".join(target).encode()
        self.unsent += compiler.REQUEST.pack(kind, level, len(lines), len(text)) + lines + text
        self.pending.append(number)

    def send(self) -> None:
        """As much as fits the pipe."""
        try:
            del self.unsent[: os.write(self.input, self.unsent)]
        except BlockingIOError:
            return
        except OSError as error:
            raise Lost(self._why()) from error

    def replies(self) -> Iterator[tuple[int, int, bytes]]:
        """(number, kind of reply, content) of what has arrived."""
        try:
            part = os.read(self.output, 1 << 20)
            if not part:
                raise Lost(self._why())
            self.received += part
        except BlockingIOError:
            pass  # what arrived earlier, at most
        except OSError as error:
            raise Lost(self._why()) from error
        size = compiler.REPLY.size
        while len(self.received) >= size:
            status, length, peak = compiler.REPLY.unpack_from(self.received)
            if not self.pending or status > compiler.FAILED:
                raise Lost("a compiler process answered what nobody asked")
            if len(self.received) < size + length:
                return
            content = bytes(self.received[size : size + length])
            del self.received[: size + length]
            COUNTERS.peak_mib = max(COUNTERS.peak_mib, peak / 1024)
            number = self.pending.popleft()
            if number >= 0:
                yield number, status, content

    def _why(self) -> str:
        """What became of a process whose pipe is closed. Raises `Crashed` if LLVM brought it down."""
        ended = self.end(kill=False)
        if ended is None:
            return "a compiler process disappeared"
        if ended >= 0:
            return f"a compiler process ended with status {ended}"
        if -ended in _CRASHES:
            raise Crashed(signal.Signals(-ended).name)
        return f"a compiler process was killed (signal {-ended})"

    def forget(self) -> None:
        """Close our ends of the pipes."""
        for handle in (self.input, self.output):
            with contextlib.suppress(OSError):
                os.close(handle)
        self.input = self.output = -1

    def end(self, kill: bool = True) -> int | None:
        """End it, and its exit status (below 0: the signal), or None if somebody else has collected it. It has no state worth keeping."""
        self.forget()
        if not self.pid:
            return None
        try:
            stop = time.monotonic() + (0.0 if kill else 5.0)
            found, status = os.waitpid(self.pid, os.WNOHANG)
            while not found and time.monotonic() < stop:  # its pipe is closed: it is about to end
                time.sleep(0.001)
                found, status = os.waitpid(self.pid, os.WNOHANG)
            if not found:  # still ours, so its number is still its own
                os.kill(self.pid, signal.SIGKILL)
                found, status = os.waitpid(self.pid, 0)
            return os.waitstatus_to_exitcode(status)
        except (ChildProcessError, ProcessLookupError):
            return None
        finally:
            self.pid = 0  # the number may soon be another's


Job = Callable[[], tuple[int, bytes]]
"""Makes the pass list and the text of a module; called shortly before it is sent."""


class Compilers:
    """The compiler processes of this process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._compilers: list[Compiler] = []
        self._used = 0.0
        self._watching = False
        self._failures = 0
        self._failure = ""

    @property
    def failure(self) -> str:
        """Why a process was lost last."""
        return self._failure

    def refusal(self) -> str:
        """Why nothing is compiled in other processes here; empty if it is."""
        if config.settings.compile_in_process:
            return "settings.compile_in_process is set"
        if self._failures >= FAILURES:
            return self._failure
        if not can_load():
            return "objects of this platform are loaded by LLVM"  # so it is here anyway
        if getattr(sys, "frozen", False) or not sys.executable or not _PYTHON.match(os.path.basename(sys.executable)):
            return f"no Python interpreter to start (sys.executable is {sys.executable!r})"
        if not _SCRIPT.is_file():
            return "Calque is not installed as files"
        return ""

    def prepare(self, modules: int) -> None:
        """Start what that many modules need, and do not wait for it."""
        if not modules or self.refusal():
            return
        with self._lock:
            wanted = min(MOST, config.settings.threads, config.available_cores(), -(-modules // MODULES_EACH))
            while len(self._compilers) < wanted:
                try:
                    self._compilers.append(Compiler())
                except OSError as error:
                    self._fail(f"no new process: {error}", None)
                    break
            COUNTERS.at_once = max(COUNTERS.at_once, len(self._compilers))
            self._rest()

    def host(self) -> Target:
        """What LLVM says of this machine."""
        if self.refusal():
            return compiler.host()
        found: list[bytes] = []
        left = self._run([lambda: (compiler.HOST, b"")], compiler.HOST, ("", "", ""), lambda _, content: found.append(content))
        if left:
            return compiler.host()
        triple, processor, features = found[0].decode().split("\n")
        return triple, processor, features

    def compile(self, jobs: Sequence[Job], target: Target, finished: Callable[[int, bytes], None]) -> list[int]:
        """Give every object to `finished(number, object)` as it arrives. Returns the numbers of the modules that nobody could compile.

        Raises `CompileError` for text that LLVM does not accept or that makes it crash.
        """
        left = self._run(jobs, compiler.COMPILE, target, finished)
        COUNTERS.modules += len(jobs) - len(left)
        return left

    def alone(self, kind: int, target: Target, text: bytes) -> bytes | None:
        """The answer of a process that is asked for nothing else; None if there is none."""
        if self.refusal():
            return None
        pool, found = Compilers(), [b""]
        try:
            left = pool._run([lambda: (0, text)], kind, target, lambda _, content: found.__setitem__(0, content))
        finally:
            pool.close()
        return None if left else found[0]

    def _run(self, jobs: Sequence[Job], kind: int, target: Target, finished: Callable[[int, bytes], None]) -> list[int]:
        with self._lock:
            waiting = deque(range(len(jobs)))
            self.prepare(len(jobs))
            try:
                for c in list(self._compilers):  # answers to an earlier batch that failed; and whether they live
                    self._guarded(c, waiting, lambda c=c: self._receive(c, finished))  # type: ignore[misc]
                while self._compilers and (waiting or any(number >= 0 for c in self._compilers for number in c.pending)):
                    self._feed(waiting, jobs, kind, target)
                    if self._compilers:
                        self._turn(waiting, finished)
            except Exception:
                for c in self._compilers:  # their answers to this batch are dropped
                    c.pending = deque([-1] * len(c.pending))
                raise
            except BaseException:  # Ctrl-C in the middle of a message
                self._end_all()
                raise
            finally:
                self._rest()
            return sorted(waiting)

    def _feed(self, waiting: deque[int], jobs: Sequence[Job], kind: int, target: Target) -> None:
        """Give every process as much as it may have."""
        for depth in range(AHEAD):
            for c in list(self._compilers):
                if waiting and len(c.pending) <= depth and not c.unsent:
                    level, text = jobs[waiting[0]]()
                    c.ask(waiting.popleft(), kind, level, target, text)
                    self._guarded(c, waiting, c.send)

    def _guarded(self, c: Compiler, waiting: deque[int], action: Callable[[], None]) -> None:
        """Do something with a process; what a lost one had to do waits again."""
        try:
            action()
        except Lost as error:
            waiting.extendleft(reversed([number for number in c.pending if number >= 0]))
            self._fail(str(error), c)
        except Crashed as error:
            self._fail("LLVM crashed", c)
            raise CompileError(f"[cpu] expected LLVM to compile a kernel, got a crash ({error}); this is a bug in the emitter or in LLVM") from None

    def _turn(self, waiting: deque[int], finished: Callable[[int, bytes], None]) -> None:
        """Wait until something can be read or written, and do it."""
        poll = select.poll()
        for c in self._compilers:
            poll.register(c.output, select.POLLIN)
            if c.unsent:
                poll.register(c.input, select.POLLOUT)
        ready = {handle for handle, _ in poll.poll(PATIENCE * 1000)}
        for c in list(self._compilers):
            if not ready:
                waiting.extendleft(reversed([number for number in c.pending if number >= 0]))
                self._fail(f"no answer from a compiler process in {PATIENCE:.0f} s", c)
            if c.input in ready:
                self._guarded(c, waiting, c.send)
            if c.output in ready:
                self._guarded(c, waiting, lambda c=c: self._receive(c, finished))  # type: ignore[misc]

    def _receive(self, c: Compiler, finished: Callable[[int, bytes], None]) -> None:
        for number, status, content in c.replies():
            if status == compiler.INVALID:
                raise CompileError(f"[cpu] expected valid IR, got {content.decode(errors='replace')}; this is a bug in the emitter")
            if status == compiler.FAILED:
                c.pending.appendleft(number)
                raise Lost(f"a compiler process cannot compile: {content.decode(errors='replace')}")
            finished(number, content)

    def _fail(self, why: str, c: Compiler | None) -> None:
        self._failures += 1
        self._failure = why
        if c is not None:
            c.end()
            if c in self._compilers:
                self._compilers.remove(c)

    def _rest(self) -> None:
        """From now on nothing is to be done."""
        self._used = time.monotonic()
        if self._compilers and not self._watching:
            try:
                threading.Thread(target=self._watch, name="calque-compilers", daemon=True).start()
                self._watching = True
            except RuntimeError:  # no new threads while the interpreter goes down
                self._end_all()

    def _watch(self) -> None:
        """End processes that have been idle for long enough."""
        while True:
            time.sleep(max(self._used + IDLE - time.monotonic(), 0.05))
            with self._lock:
                if time.monotonic() - self._used >= IDLE:
                    self._end_all()
                    self._watching = False
                    return

    def _end_all(self) -> None:
        while self._compilers:
            self._compilers.pop().end()

    def close(self) -> None:
        """End all processes; the next missing kernel starts new ones."""
        if self._lock.acquire(timeout=5.0):
            try:
                self._end_all()
            finally:
                self._lock.release()

    def forget(self) -> None:
        """In a forked child: the processes are the parent's."""
        for c in self._compilers:
            c.forget()
        self._lock = threading.RLock()
        self._compilers, self._watching = [], False


POOL = Compilers()
os.register_at_fork(after_in_child=POOL.forget)
atexit.register(POOL.close)
