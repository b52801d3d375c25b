"""`torch.nn.attention`: a choice among PyTorch's kernels of attention. There is one way here; the choice is kept and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from calque.nn.attention import SDPBackend

__all__ = ["SDPBackend", "sdpa_kernel"]


@contextlib.contextmanager
def sdpa_kernel(backends: Any, set_priority: bool = False) -> Iterator[None]:
    """A block in which attention is computed by one of some kernels: a `SDPBackend` or a list of them. It is computed as always."""
    wanted = [backends] if isinstance(backends, SDPBackend) else list(backends)
    if not wanted or not all(isinstance(one, SDPBackend) for one in wanted):
        raise AssertionError(f"[sdpa_kernel] expected a SDPBackend or a list of them, got {backends!r}; use SDPBackend.MATH")
    yield
