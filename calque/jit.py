"""`calque.jit`: names of TorchScript for `calque.compile`, so that code written for it runs. Nothing is frozen: branches stay branches."""

from __future__ import annotations

from typing import Any

from calque.hybrid import compile as _compile

__all__ = ["script", "trace"]


def script(obj: Any) -> Any:
    """`calque.compile(obj)`: calls of a function or module are recorded and replayed; also a decorator.

    >>> import calque
    >>> double = calque.jit.script(lambda x: x * 2)
    >>> [double(calque.ones(1)).item() for _ in range(4)]
    [2.0, 2.0, 2.0, 2.0]
    """
    return _compile(obj)


def trace(func: Any, example_inputs: Any = None, **options: Any) -> Any:
    """`calque.compile(func)`. The example inputs are not needed: a call of new shapes, or one that takes another branch, is recorded by itself.
    Options of `torch.jit.trace` are accepted and change nothing."""
    return _compile(func)
