"""`torch.utils._contextlib`: context managers that are decorators as well."""

from __future__ import annotations

import contextlib

__all__ = ["_DecoratorContextManager"]


class _DecoratorContextManager(contextlib.ContextDecorator):
    """A class with `__enter__` and `__exit__`, an instance of which also decorates functions."""
