"""Gradient modes: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`. Context managers and decorators, per thread."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from calque.base.unbroken import unbroken
from calque.record.recorder import local


class _Mode:
    """Set grad mode to `value` inside a `with` block, or around each call of a decorated function (generators keep it between steps).

    The library decorates, which costs less.
    """

    inference: bool | None = None  # what `is_inference_mode_enabled()` says inside; None: as outside

    def __init__(self, value: bool) -> None:
        self.value = value
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        state, inference = local.state, self.inference
        self._before.append((state.grad, state.inference))
        state.grad = self.value  # no call from here on: Ctrl-C comes before or in the block
        if inference is not None:
            state.inference = inference

    @unbroken
    def __exit__(self, *_: object) -> None:
        state, before = local.state, self._before
        state.grad, state.inference = before[-1]  # without `pop`, which is a call
        del before[-1]

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function):
            return self._wrap_generator(function)
        value, inference = self.value, self.inference

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            state = local.state
            grad, inferring = state.grad, state.inference
            state.grad = value
            if inference is not None:
                state.inference = inference
            try:  # no call since the mode was set: Ctrl-C comes before or in here
                return function(*args, **kwargs)
            finally:
                state.grad, state.inference = grad, inferring

        return wrapped

    def _wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            send, throw, close = self(generator.send), self(generator.throw), self(generator.close)
            try:
                item = send(None)
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        close()
                        raise
                    except BaseException as error:
                        item = throw(error)
                    else:
                        item = send(sent)
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
        state = local.state
        self._before.append((state.grad, state.inference))
        state.grad = self.value

    def __enter__(self) -> None:
        local.state.grad = self.value

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.__exit__()  # used as a decorator: the mode belongs to the calls, not to now
        return super().__call__(function)


class inference_mode(_Mode):
    """As `no_grad`. Results are ordinary tensors: `is_inference()` is False, and gradients may flow from them later."""

    def __init__(self, mode: Any = True) -> None:
        super().__init__(not mode)
        self.inference = bool(mode)

    def __new__(cls, mode: Any = True) -> Any:
        if callable(mode):
            return cls(True)(mode)
        return object.__new__(cls)


def is_grad_enabled() -> bool:
    """Whether operations record autograd history in this thread."""
    return local.state.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return local.state.inference
