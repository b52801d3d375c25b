"""What PyTorch's `torch.cuda` and `torch.accelerator` ask and tell of devices with a backend of their own: once, for devices of any kind."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from calque.base.device import CURRENT, Device, accelerator, backend_of
from calque.base.errors import DeviceError
from calque.base.text import human
from calque.record.recorder import flush
from calque.report.streams import STREAMS, Stream, current_stream, default_stream, device_of_kind
from calque.run.dispatch import wait_for_queues


class Properties:
    """What is known of a device: `name`, `total_memory` (bytes that this process may use), and what its maker says beside it."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int

    def __init__(self, device: Device, **facts: Any) -> None:
        self.__dict__.update(facts, _device=device)

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(key for key in self.__dict__ if not key.startswith("_"))
        where = self.__dict__.get("_device")
        raise AttributeError(f"[get_device_properties] expected a property that {where} tells of, got {name!r}; known are {known}", name=name)

    def __repr__(self) -> str:
        facts = {**self.__dict__, "total_memory": human(self.total_memory)}
        return "Properties(" + ", ".join(f"{key}={value}" for key, value in facts.items() if not key.startswith("_")) + ")"


class DeviceContext:
    """A block in which another device is the current one of its kind: None and negative numbers mean nothing, as in PyTorch."""

    def __init__(self, family: "DeviceKind", device: Any) -> None:
        self._family, self._before = family, 0
        self._device = None if device is None or (isinstance(device, int) and device < 0) or str(device) == "cpu" else device

    def __enter__(self) -> None:
        if self._device is not None:
            self._before = self._family.current_device()
            self._family.set_device(self._device)

    def __exit__(self, *_: object) -> None:
        if self._device is not None:
            self._family.set_device(self._before)


class StreamContext:
    """A block in which a stream, and its device, are the current ones: None means nothing, as in PyTorch."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


class DeviceKind:
    """The devices of one kind; without a kind, those of whatever accelerator is there. `device` is a device, a number, or None: the current one."""

    def __init__(self, kind: str | None, stream: type[Stream] = Stream) -> None:
        self._kind, self._stream = kind, stream

    def _named(self) -> str | None:
        return self._kind or accelerator()

    def _device(self, device: Any, op: str) -> Device:
        return device_of_kind(device, self._kind, op)

    def is_available(self) -> bool:
        """Whether there is a device."""
        return self.device_count() > 0

    def device_count(self) -> int:
        """Number of usable devices."""
        kind = self._named()
        return 0 if kind is None else int(backend_of(kind).count())

    def current_device(self) -> int:
        """Index of the current device of this thread."""
        return int(self._device(None, "current_device").index or 0)

    def set_device(self, device: Any) -> None:
        """Choose the current device of this thread: what the kind's name without a number means. A negative number changes nothing."""
        if not isinstance(device, int) or device >= 0:
            found = self._device(device, "set_device")
            CURRENT.index[found.type] = int(found.index or 0)

    def device(self, device: Any) -> DeviceContext:
        """A block in which another device is the current one."""
        return DeviceContext(self, device)

    def device_of(self, obj: Any) -> DeviceContext:
        """A block in which the device of a tensor is the current one; if it lives on no device of this kind, nothing changes."""
        there = getattr(obj, "device", None)
        return DeviceContext(self, there if there is not None and there.type == self._named() else None)

    def synchronize(self, device: Any = None) -> None:
        """Start what this thread has recorded and wait until everything has run; raise what failed and was not reported yet."""
        self._device(device, "synchronize")
        flush("synchronize")
        wait_for_queues()

    # ------------------------------------------------------------------------------------------------------------- streams

    def current_stream(self, device: Any = None) -> Stream:
        """The stream that this thread has chosen last for the device, else its default one."""
        return current_stream(self._device(device, "current_stream"), self._stream)

    def default_stream(self, device: Any = None) -> Stream:
        """Stream 0 of the device."""
        return default_stream(self._device(device, "default_stream"), self._stream)

    def set_stream(self, stream: Stream | None) -> None:
        """Make a stream, and its device, the current ones of this thread; None means nothing."""
        if stream is not None:
            STREAMS.current[stream.device] = stream
            CURRENT.index[stream.device.type] = stream.device_index

    # -------------------------------------------------------------------------------------------------------------- facts

    def get_device_name(self, device: Any = None) -> str:
        """The device's name, as its maker calls it."""
        found = self._device(device, "get_device_name")
        return str(found.backend.name(found.index))

    def get_device_properties(self, device: Any = None) -> Properties:
        """Name and memory of a device, and what its maker says beside it."""
        found = self._device(device, "get_device_properties")
        there = found.backend
        return Properties(found, name=there.name(found.index), total_memory=int(there.limit(found.index)), **there.facts(found.index))

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """(major, minor) of NVIDIA's compute capability. Raises `DeviceError` for devices that have none."""
        found = self._device(device, "get_device_capability")
        facts = found.backend.facts(found.index)
        if "major" not in facts:
            name = found.backend.name(found.index)
            raise DeviceError(f"[get_device_capability] expected a device with a compute capability, got {found} ({name}); ask its name instead")
        return int(facts["major"]), int(facts["minor"])

    # ------------------------------------------------------------------------------------------------------------- memory

    def _memory(self, device: Any, op: str) -> Any:
        """Accounting of a device, behind what was recorded; None where there is none, as PyTorch counts 0 then."""
        if not self.is_available():
            return None
        found = self._device(device, op)
        flush("memory")
        return found.backend.memory(found.index)

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes in use on the device. What was recorded so far is started first."""
        found = self._memory(device, "memory_allocated")
        return 0 if found is None else int(found.in_use)

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes that were in use on the device."""
        found = self._memory(device, "max_memory_allocated")
        return 0 if found is None else int(found.peak)

    def memory_reserved(self, device: Any = None) -> int:
        """Bytes in use and bytes kept for reuse."""
        found = self._memory(device, "memory_reserved")
        return 0 if found is None else int(found.in_use + found.cached)

    def max_memory_reserved(self, device: Any = None) -> int:
        """At least the most bytes that were in use, and what is reserved now: devices do not tell more."""
        found = self._memory(device, "max_memory_reserved")
        return 0 if found is None else int(max(found.peak, found.in_use + found.cached))

    def memory_stats(self, device: Any = None) -> "OrderedDict[str, int]":
        """What `memory_allocated` and its like say, by PyTorch's keys; other keys are not there. Empty without a device."""
        found = self._memory(device, "memory_stats")
        if found is None:
            return OrderedDict()
        reserved = found.in_use + found.cached
        pairs = {"allocated_bytes": (found.in_use, found.peak), "reserved_bytes": (reserved, max(found.peak, reserved))}
        return OrderedDict((f"{row}.all.{what}", int(n)) for row, both in pairs.items() for what, n in zip(("current", "peak"), both, strict=True))

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        """A table of `memory_stats` to print. `abbreviated` changes nothing: there are no pools to tell apart."""
        found = self._device(device, "memory_summary")
        stats, free = self.memory_stats(found), self.mem_get_info(found)
        rows = [f"memory of {found} ({found.backend.name(found.index)})", f"{'':12}{'now':>14}{'most':>14}"]
        for name, key in (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes")):
            rows.append(f"{name:12}" + "".join(f"{human(stats[f'{key}.all.{what}']):>14}" for what in ("current", "peak")))
        return "\n".join([*rows, f"{'free':12}{human(free[0]):>14} of {human(free[1])}"])

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """(free bytes, all bytes) that this process may use on the device."""
        found = self._device(device, "mem_get_info")
        flush("memory")
        return int(found.backend.free(found.index)), int(found.backend.limit(found.index))

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Start the peak anew, where the device can: XLA's own accounting of GPUs keeps the peak of the process."""
        if self.is_available():
            found = self._device(device, "reset_peak_memory_stats")
            found.backend.reset_peak(found.index)

    def empty_cache(self) -> None:
        """Nothing: freed memory belongs to the device's own allocator, which serves every use of the device in this process."""


