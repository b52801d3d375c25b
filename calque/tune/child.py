"""A trial's process: a fork of the program, made while nothing is being computed."""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calque.compat.tracebacks import prepare
from calque.distributed.launch import die_with_parent
from calque.functional.generators import manual_seed
from calque.memory.plan import plan
from calque.report.stats import set_num_threads
from calque.tune.session import Session, Stopped, tell
from calque.tune.space import named


def start(run: Callable[[], None], connection: Any, others: list[Any]) -> int:
    """Fork; the number of the child. `connection`: its end, `others`: what it must not keep open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those that there are wait for work
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner ends trials
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        with contextlib.suppress(OSError, AttributeError):
            die_with_parent()
        for other in others:
            other.close()
        run()
        code = 0
    except BaseException as error:
        prepare(error)  # frames of the trial's function, not of what runs it
        with contextlib.suppress(OSError):
            tell(connection, "error", "".join(traceback.format_exception(error)))
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return 0


def trial(
    function: Callable[..., Any], config: dict[str, Any], session: Session, seed: int, threads: int, rehearse: Callable[..., Any] | None, memory: int
    | None
) -> None:  # fmt: skip
    """Everything that a trial does."""
    set_num_threads(threads)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    manual_seed(seed)
    Session.current = session
    config = named(config)
    if rehearse is not None:
        step, *inputs = rehearse(config)
        found = plan(step, *inputs)
        if memory is not None and found.peak > memory:
            text = f"expected a step that holds at most {memory:,} bytes, got one that would hold {found.peak:,}: {found}"
            session.end(refused=text)
            return
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        manual_seed(seed)
    more = {}
    if _takes(function, "checkpoint_dir"):
        more["checkpoint_dir"] = session.checkpoint
    with contextlib.suppress(Stopped):
        result = function(config, **more)
        if isinstance(result, dict):
            session.report(result, None)
    session.end()


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def folder_of(base: Path, name: str) -> Path:
    """The folder of a trial."""
    found = base / name
    found.mkdir(parents=True, exist_ok=True)
    return found


def available() -> int:
    """Bytes that programs may still take."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
