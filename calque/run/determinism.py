"""PyTorch's switch for equal bits from equal seeds. No operation here is random in its rounding; what changes is when a small program is compiled."""

from __future__ import annotations

from calque.base.config import settings
from calque.base.text import shown


class _Asked:
    """What `use_deterministic_algorithms` was told."""

    warn_only = False


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """With True, loops with equal seeds give equal bits also one after the other in one process.

    Without it, a small program that updates nothing is interpreted the first 16 times a process sees it and compiled from then on, and the
    two forms round differently: seeded processes agree, the second loop of a process may differ from the first in its last bits.
    Compiling from the first run on takes some milliseconds for each such program once per machine. No operation is refused; `warn_only` changes
    nothing but `is_deterministic_algorithms_warn_only_enabled()`. `CALQUE_DETERMINISTIC=1` begins with it.

    >>> import calque
    >>> calque.use_deterministic_algorithms(True)
    >>> calque.are_deterministic_algorithms_enabled()
    True
    >>> calque.use_deterministic_algorithms(False)
    """
    for name, value in (("mode", mode), ("warn_only", warn_only)):
        if not isinstance(value, bool):
            raise TypeError(f"[use_deterministic_algorithms] expected {name} to be True or False, got {shown(value)}; pass a bool")
    settings.deterministic, _Asked.warn_only = mode, warn_only


def are_deterministic_algorithms_enabled() -> bool:
    """Whether `use_deterministic_algorithms(True)` holds.

    >>> import calque
    >>> calque.are_deterministic_algorithms_enabled()
    False
    """
    return settings.deterministic


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """The `warn_only` that was passed last to `use_deterministic_algorithms`."""
    return _Asked.warn_only
