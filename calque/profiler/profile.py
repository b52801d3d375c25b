"""`profile` with PyTorch's interface, schedules, and what to do with a finished trace."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from calque.base.errors import ProfileError
from calque.base.text import shown, type_name
from calque.base.unbroken import unbroken
from calque.observe import events
from calque.observe.events import RANGES, Event, Session
from calque.observe.source import warn_user
from calque.profiler import chrome, report
from calque.profiler.averages import Averages, Lines, averages
from calque.profiler.costs import Costs
from calque.profiler.peak import Peak, peak
from calque.record import recorder
from calque.run.backends import host_memory
from calque.run.dispatch import wait_for_queues
from calque.run.interrupt import shielded


class ProfilerActivity(enum.Enum):
    """Kinds of devices. Only the CPU exists here; the other names are PyTorch's, and asking for them warns."""

    CPU = 0
    XPU = 1
    MTIA = 2
    CUDA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(enum.Enum):
    """What a schedule asks for in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def supported_activities() -> set[ProfilerActivity]:
    """Activities that can be profiled.

    >>> supported_activities()
    {<ProfilerActivity.CPU: 0>}
    """
    return {ProfilerActivity.CPU}


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """A schedule for `profile`: skip `skip_first` steps, then cycles of `wait` steps without profile, `warmup` steps that are run and not kept, and
    `active` steps that are recorded; `repeat` cycles (0: for ever). `skip_first_wait` leaves out the first cycle's wait. Raises ProfileError for
    negative numbers and for `active=0`.

    >>> plan = schedule(wait=1, warmup=1, active=2, repeat=1)
    >>> [plan(step).name for step in range(5)]
    ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    for name, value in (("wait", wait), ("warmup", warmup), ("active", active), ("repeat", repeat), ("skip_first", skip_first)):
        if isinstance(value, bool) or not isinstance(value, int) or value < (1 if name == "active" else 0):
            raise ProfileError(f"[schedule] expected {name} to be an integer >= {1 if name == 'active' else 0}, got {shown(value)}")

    def action(step: int) -> ProfilerAction:
        if step < 0:
            raise ProfileError(f"[schedule] expected a step >= 0, got {step}")
        if step < skip_first:
            return ProfilerAction.NONE
        step -= skip_first
        if skip_first_wait:
            step += wait
        cycle, place = divmod(step, wait + warmup + active)
        if (repeat > 0 and cycle >= repeat) or place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < wait + warmup + active - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def _always(step: int) -> ProfilerAction:
    return ProfilerAction.RECORD


def tensorboard_trace_handler(dir_name: str | Path, worker_name: str | None = None, use_gzip: bool = False) -> Callable[[profile], None]:
    """For `on_trace_ready`: writes every trace as `<worker>.<time>.pt.trace.json` into a directory, with the names that PyTorch uses. The files are
    Chrome traces: Perfetto opens them, and so do viewers of such traces; nothing of TensorBoard is needed or written."""
    if worker_name is not None and (not isinstance(worker_name, str) or not worker_name or "/" in worker_name):
        raise ProfileError(f"[tensorboard_trace_handler] expected a worker_name without slashes, got {shown(worker_name)}")

    def handler(p: profile) -> None:
        directory = Path(dir_name)
        directory.mkdir(parents=True, exist_ok=True)
        worker = worker_name or f"{os.uname().nodename}_{os.getpid()}"
        p.export_chrome_trace(directory / f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}")

    return handler


class profile:
    """Context manager that records what takes time and memory: Python, flushes, compilations, runs of programs on every device queue, copies, the
    data loader, and the user's ranges (`record_function`).

    With PyTorch's arguments: `activities` (only the CPU exists: others warn), `schedule` (see `schedule`; call `step()` after every step),
    `on_trace_ready(profile)` (called at the end of every cycle, or of the block), `record_shapes` (allows `key_averages(group_by_input_shape=True)`),
    `profile_memory` (follow every value's life, for `export_html`; on unless False), `with_stack` (allows `group_by_stack_n=1`: Calque knows the
    user's line of every operation, not the whole stack), `with_flops` (always counted), `acc_events` (no effect: cycles are separate).
    `with_modules`, `experimental_config` and `execution_trace_observer` raise ProfileError.
    Calque's own: `kernels=True` times every launch by itself: exact, and somewhat slower; otherwise the time of a program is divided among its
    operations by their work.

    Work that was pending before the block is finished first and work of the block before it ends. Raises ProfileError inside another profile.

    >>> import calque
    >>> with calque.profiler.profile(kernels=True) as p:
    ...     y = calque.ones(300, 300).exp().sum().item()
    >>> sorted({e.row for e in p.events()} - {"compile"})
    ['cpu queue', 'kernels', 'recording']
    """

    def __init__(
        self, *, activities: Iterable[ProfilerActivity] | None = None, schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None, record_shapes: bool = False, profile_memory: bool = True, with_stack: bool = False,
        with_flops: bool = True, with_modules: bool = False, experimental_config: Any = None, execution_trace_observer: Any = None,
        acc_events: bool = False, kernels: bool = False,
    ) -> None:  # fmt: skip
        _check_activities(activities)
        for name, value in (("schedule", schedule), ("on_trace_ready", on_trace_ready)):
            if value is not None and not callable(value):
                raise ProfileError(f"[profile] expected {name} to be a function, got {type_name(value)}")
        refused = {"with_modules": with_modules, "experimental_config": experimental_config, "execution_trace_observer": execution_trace_observer}
        for name, given in refused.items():
            if given:
                raise ProfileError(f"[profile] {name} is not supported; leave it out (with_stack=True groups by source line)")
        self.record_shapes, self.profile_memory, self.with_stack, self.with_flops = record_shapes, profile_memory, with_stack, with_flops
        self.kernels = kernels
        self.schedule = schedule or _always
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self.current_action = ProfilerAction.NONE
        self._scheduled = schedule is not None
        self._session: Session | None = None  # of the cycle that runs or ran last
        self._step_start = 0.0
        self._inside = False
        self._metadata: dict[str, str] = {}
        self._costs = Costs()

    def __enter__(self) -> profile:
        self.start()
        return self

    @unbroken  # a profile that stays keeps others from running
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self._give_up()

    def start(self) -> None:
        """Begin, as `with` does."""
        if self._inside:
            raise ProfileError("[profile] expected a profile that is not running, got start() twice; call stop() before")
        self._inside = True
        try:
            self._enter(self.schedule(self.step_num))
        except BaseException:
            self._give_up()
            raise

    @shielded
    def _give_up(self) -> None:
        """End what still runs. Nothing is waited for: what is pending may have failed too."""
        self._inside = False
        if self._recording():
            self._end(ready=False)

    def stop(self) -> None:
        """Finish the work of the block and end, as leaving `with` does."""
        if not self._inside:
            raise ProfileError("[profile] expected a profile that is running, got stop() without start()")
        self._inside = False
        self._finish()

    def step(self) -> None:
        """The next step begins: what the schedule says of it decides whether it is recorded."""
        if not self._inside:
            raise ProfileError("[profile] expected step() between start and stop of a profile; call it inside the `with` block")
        before, running = self.current_action, self._recording()
        if running:
            self._mark_step()
        self.step_num += 1
        now = self.schedule(self.step_num)
        if before is ProfilerAction.RECORD and now in (ProfilerAction.NONE, ProfilerAction.WARMUP):
            warn_user("[profile] the schedule stops recording without RECORD_AND_SAVE; the trace is handed over all the same")
        if running and (before is ProfilerAction.RECORD_AND_SAVE or now in (ProfilerAction.NONE, ProfilerAction.WARMUP)):
            self._finish()
        self._enter(now)

    def add_metadata(self, key: str, value: str) -> None:
        """Text that goes into the exported file."""
        self._metadata[str(key)] = str(value)

    # ------------------------------------------------------------------------------------------------------------- results

    def events(self) -> list[Event]:
        """What took time, in the order of its end."""
        return list(self._found("events").events)

    @property
    def memory(self) -> list[tuple[float, int]]:
        """Samples (moment, bytes in use)."""
        return sorted(self._found("memory").memory)

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> Averages:
        """Operations and spans by name; print it, or call its `table(sort_by=..., row_limit=...)`. Raises ProfileError for what was not recorded."""
        session = self._found("key_averages")
        if group_by_input_shape and not self.record_shapes:
            raise ProfileError("[key_averages] expected a profile with record_shapes=True to group by input shapes, got one without")
        if group_by_stack_n not in (0, 1):
            raise ProfileError(f"[key_averages] expected group_by_stack_n to be 0 or 1 (the user's line is known), got {shown(group_by_stack_n)}")
        if group_by_stack_n and not self.with_stack:
            raise ProfileError("[key_averages] expected a profile with with_stack=True to group by source line, got one without")
        by_shape, by_stack = bool(group_by_input_shape), bool(group_by_stack_n)
        rows = self._costs.rows(session.runs, lambda s: (s.op, s.shapes if by_shape else (), s.line if by_stack else ""))
        return averages(session.events, rows.values(), by_shape, by_stack)

    def lines(self) -> Lines:
        """What every source line cost: time, launches, FLOPs, bytes, share of the machine's limit, and the launches that its operations were fused
        into. Prints as a table."""
        return Lines(self._costs.rows(self._found("lines").runs, lambda s: s.line).values())

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the timeline as JSON, to be opened in https://ui.perfetto.dev or chrome://tracing; compressed if the name ends in .gz. Raises
        ProfileError if nothing was profiled."""
        chrome.export(self._found("export_chrome_trace"), path, self._metadata)

    def peak(self) -> Peak:
        """The moment with the most memory in use, and what was alive then by source line (nothing with `profile_memory=False`)."""
        found = peak(self._found("peak"))
        assert found is not None  # a session takes a sample when it begins
        return found

    def export_html(self, path: str | Path) -> None:
        """Write a page that needs nothing else: timeline, memory with what was alive at the peak, costs by line and operation, compilations with
        their causes, flushes with their reasons. Raises ProfileError if nothing was profiled.

        >>> import calque, tempfile, pathlib
        >>> with calque.profiler.profile() as p:
        ...     _ = calque.ones(300, 300).exp().sum().item()
        >>> page = pathlib.Path(tempfile.mkdtemp()) / "profile.html"
        >>> p.export_html(page)
        >>> "Cost by source line" in page.read_text()
        True
        """
        session = self._found("export_html")
        by_name = averages(session.events, self._costs.rows(session.runs, lambda s: s.op).values(), False, False)
        report.write(path, session, self.lines(), by_name, peak(session), self._metadata)

    # ------------------------------------------------------------------------------------------------------------ internals

    @property
    def recorded(self) -> bool:
        """Whether there is anything to show yet."""
        return self._session is not None

    def _found(self, what: str) -> Session:
        if self._session is None:
            raise ProfileError(f"[{what}] expected a profile, got one that never ran; use `with calque.profiler.profile() as p:` first")
        return self._session

    def _recording(self) -> bool:
        return self._session is not None and events.active is self._session

    def _enter(self, action: ProfilerAction) -> None:
        self.current_action = action
        if action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE) and not self._recording():
            recorder.flush("profiler")
            wait_for_queues()
            self._begin()
        self._step_start = events.clock()

    @shielded
    def _begin(self) -> None:
        session = Session(lambda: host_memory().memory().in_use, kernels=self.kernels, values=self.profile_memory)
        session.start()
        self._session = session

    def _mark_step(self) -> None:
        assert self._session is not None
        self._session.span(f"ProfilerStep#{self.step_num}", RANGES, self._step_start)

    def _finish(self) -> None:
        """The end of a cycle or of the block."""
        if not self._recording():
            return
        try:
            recorder.flush("profiler")
            wait_for_queues()
        except BaseException:
            self._end(ready=False)
            raise
        self._end(ready=True)

    def _end(self, ready: bool) -> None:
        if self._recording():
            assert self._session is not None
            if self._scheduled and self._inside is False:
                self._mark_step()
            self._session.stop()
            if ready and self.on_trace_ready is not None:
                self.on_trace_ready(self)


def _check_activities(activities: Iterable[Any] | None) -> None:
    if activities is None:
        return
    chosen: set[Any] = {activities} if isinstance(activities, str) else set(activities)
    wrong = [a for a in chosen if not isinstance(a, ProfilerActivity)]
    if wrong or not chosen:
        raise ProfileError(f"[profile] expected activities from ProfilerActivity, got {wrong or 'none'}; use activities=[ProfilerActivity.CPU]")
    missing = ", ".join(sorted(a.name for a in chosen - supported_activities()))
    if not chosen & supported_activities():
        raise ProfileError(f"[profile] expected ProfilerActivity.CPU among the activities, got {missing}, which this version cannot profile")
    if missing:
        warn_user(f"[profile] {missing} is not available and is not profiled; only the CPU is")
