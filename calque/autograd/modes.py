"""Gradient modes: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`. Context managers and decorators, per thread."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from calque.run.recorder import local


class _Mode:
    """Set grad mode to `value` inside a `with` block, or around each call of a decorated function (generators keep it between steps)."""

    def __init__(self, value: bool) -> None:
        self.value = value
        self._before: list[bool] = []

    def __enter__(self) -> None:
        state = local.state
        self._before.append(state.grad)
        state.grad = self.value

    def __exit__(self, *_: object) -> None:
        local.state.grad = self._before.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function):
            return self._wrap_generator(function)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._clone():
                return function(*args, **kwargs)

        return wrapped

    def _clone(self) -> "_Mode":
        return _Mode(self.value)

    def _wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            try:
                with self._clone():
                    item = next(generator)
                while True:
                    sent = yield item
                    with self._clone():
                        item = generator.send(sent)
            except StopIteration as stop:
                return stop.value

        return wrapped


class no_grad(_Mode):
    """Record no autograd history.

    >>> import calque
    >>> w = calque.ones(2, requires_grad=True)
    >>> with calque.no_grad():
    ...     (w * 2).requires_grad
    False
    """

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__(False)

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        if function is not None and callable(function):
            return _Mode(False)(function)
        return object.__new__(cls)


class enable_grad(_Mode):
    """Record autograd history, also inside `no_grad`."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__(True)

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        if function is not None and callable(function):
            return _Mode(True)(function)
        return object.__new__(cls)


class set_grad_enabled(_Mode):
    """Set grad mode now, and restore it when used as a context manager."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._before.append(local.state.grad)
        local.state.grad = bool(mode)

    def __enter__(self) -> None:
        local.state.grad = self.value

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        local.state.grad = self._before.pop()  # used as a decorator: the mode belongs to the calls, not to now
        return super().__call__(function)


class inference_mode(_Mode):
    """As `no_grad`. Results are ordinary tensors: `is_inference()` is False, and gradients may flow from them later."""

    def __init__(self, mode: Any = True) -> None:
        super().__init__(not mode)
        self._inference: list[bool] = []

    def __new__(cls, mode: Any = True) -> Any:
        if callable(mode):
            return _Mode(False)(mode)
        return object.__new__(cls)

    def __enter__(self) -> None:
        self._inference.append(local.state.inference)
        local.state.inference = not self.value
        super().__enter__()

    def __exit__(self, *details: object) -> None:
        local.state.inference = self._inference.pop()
        super().__exit__(*details)


def is_grad_enabled() -> bool:
    """Whether operations record autograd history in this thread."""
    return local.state.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return local.state.inference
