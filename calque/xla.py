"""What devices that XLA compiles for (`cuda`, `tpu`, `xla`) do beyond PyTorch's names: see docs/devices.md."""

from __future__ import annotations

from calque.base.errors import DTypeError
from calque.base.text import type_name
from calque.record.fallback import choose
from calque.record.recorder import flush
from calque.replay.counts import Changes

__all__ = ["fallback"]


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
