"""The older names of `torch.autograd.profiler`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from calque import profiler
from calque.base.errors import ProfileError
from calque.base.text import shown
from calque.profiler import record_function

__all__ = ["profile", "record_function"]


class profile:
    """`calque.profiler.profile` without schedules; `enabled=False` profiles nothing. `use_cpu` must be True; what belongs to other devices
    (`use_cuda`, `use_device`) and `with_modules` raise ProfileError; `use_kineto` and `acc_events` have no effect.

    >>> import calque
    >>> with calque.autograd.profiler.profile() as p:
    ...     _ = calque.ones(300, 300).exp().sum().item()
    >>> "exp" in {a.key for a in p.key_averages()}
    True
    """

    def __init__(
        self, enabled: bool = True, *, use_cuda: bool = False, use_device: str | None = None, record_shapes: bool = False, with_flops: bool = False,
        profile_memory: bool = True, with_stack: bool = False, with_modules: bool = False, use_kineto: bool = False, use_cpu: bool = True,
        acc_events: bool = False,
    ) -> None:  # fmt: skip
        for name, value, wrong in (("use_cuda", use_cuda, True), ("use_device", use_device, None), ("use_cpu", use_cpu, False)):
            if (value is not None) if name == "use_device" else value is wrong:
                raise ProfileError(f"[profile] {name}={shown(value)} is not supported: the CPU is what is profiled; leave it out")
        self.enabled = enabled
        self._profile = profiler.profile(
            record_shapes=record_shapes, with_flops=with_flops, profile_memory=profile_memory, with_stack=with_stack, with_modules=with_modules
        )

    def __enter__(self) -> profile:
        if self.enabled:
            self._profile.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        if self.enabled:
            self._profile.__exit__(kind, value, where)

    def __repr__(self) -> str:
        return self.table() if self._profile.recorded else "<profile that has not run>"

    @property
    def function_events(self) -> list[profiler.Event]:
        """What took time."""
        return self._profile.events()

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of all operations on devices."""
        return self.key_averages().self_cpu_time_total

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> profiler.Averages:
        """See `calque.profiler.profile.key_averages`."""
        return self._profile.key_averages(group_by_input_shape, group_by_stack_n)

    def total_average(self) -> profiler.Average:
        """The sum of all operations on devices."""
        return self.key_averages().total_average()

    def table(self, sort_by: str | None = None, row_limit: int = 100, **widths: Any) -> str:
        """`key_averages().table(...)`."""
        return self.key_averages().table(sort_by, row_limit, **widths)

    def export_chrome_trace(self, path: str | Path) -> None:
        """See `calque.profiler.profile.export_chrome_trace`."""
        self._profile.export_chrome_trace(path)
