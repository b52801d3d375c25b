"""What devices that XLA compiles for (`cuda`, `tpu`, `xla`) do beyond PyTorch's names: see docs/devices.md."""

from __future__ import annotations

from typing import Any

from calque.base.device import Device, known
from calque.base.errors import ArgumentError, DeviceError, DTypeError
from calque.base.text import shown, type_name
from calque.record.fallback import choose
from calque.record.recorder import flush
from calque.replay.counts import Changes

__all__ = ["fallback", "memory_limit"]


def fallback(enabled: bool = True) -> None:
    """Let the CPU compute what a device cannot: operations and types that are refused otherwise, such as complex numbers and FFTs.

    The values live on the device; a step stays one executable, which copies the operands of such an operation to the host and its result back each
    time. A warning names each line where that happens, once. `enabled`: False refuses them again. Raises `DTypeError` for anything but a bool.

    >>> import calque
    >>> calque.xla.fallback(True)
    >>> calque.xla.fallback(False)
    """
    if not isinstance(enabled, bool):
        raise DTypeError(f"[xla.fallback] expected a bool, got {type_name(enabled)}; pass True or False")
    flush("fallback")
    choose(enabled)
    Changes.hooks += 1  # calls that are replayed may hold what is refused now


def memory_limit(nbytes: int, device: Any = "xla:0") -> None:
    """Let a device refuse what would take more memory than this, to try out on a machine without accelerators what fits on one: XLA's CPU devices
    alone, whose memory Calque counts. A value or program that does not fit raises `OutOfMemoryError` before it is started.

    nbytes: bytes of values and of what programs need beside them; 0: no limit. device: the device or its name. Raises `ArgumentError` for a number
    that is no size, `DeviceError` for devices that count their memory themselves.

    >>> import importlib.util
    >>> import calque
    >>> if importlib.util.find_spec("jax"):
    ...     calque.xla.memory_limit(0, "xla:0")
    """
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise ArgumentError(f"[xla.memory_limit] expected bytes as an int >= 0, got {shown(nbytes)}; 0 means no limit")
    found = known(Device(device))
    ledger = found.backend.ledger(found.index) if hasattr(found.backend, "ledger") else None
    if ledger is None:
        help_ = "XLA_PYTHON_CLIENT_MEM_FRACTION in the environment limits a GPU"
        raise DeviceError(f"[xla.memory_limit] expected one of XLA's CPU devices, got {found}; {help_}")
    ledger.limit = nbytes
