"""Which kernel `scaled_dot_product_attention` uses: PyTorch's switches. Here there is one kernel, which needs none of them.

>>> import calque
>>> from calque.nn.attention import SDPBackend, sdpa_kernel
>>> with sdpa_kernel(SDPBackend.MATH):
...     tuple(calque.nn.functional.scaled_dot_product_attention(*[calque.ones(1, 2, 4)] * 3).shape)
(1, 2, 4)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from calque.base.errors import DTypeError
from calque.base.text import described

__all__ = ["WARN_FOR_UNFUSED_KERNELS", "SDPBackend", "sdpa_kernel"]

WARN_FOR_UNFUSED_KERNELS = False


class SDPBackend(IntEnum):
    """PyTorch's kernels of attention. All name the same one here.

    >>> from calque.nn.attention import SDPBackend
    >>> SDPBackend.FLASH_ATTENTION.name
    'FLASH_ATTENTION'
    """

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends: Any, set_priority: bool = False) -> Iterator[None]:
    """A block (or a function, as a decorator) in which attention is computed by one of these kernels: the same as outside, as all are one here.

    backends: an `SDPBackend` or a list of them. set_priority: accepted.

    >>> from calque.nn.attention import SDPBackend, sdpa_kernel
    >>> @sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
    ... def f():
    ...     return 3
    >>> f()
    3
    """
    listed = [backends] if isinstance(backends, SDPBackend) else backends
    if not isinstance(listed, (list, tuple)) or not all(isinstance(b, SDPBackend) for b in listed):
        raise DTypeError(f"[sdpa_kernel] expected an SDPBackend or a list of them, got {described(backends)}")
    yield
