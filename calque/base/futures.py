"""`Future`: a value that is there later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Future(Generic[Value]):
    """A value that one thread sets, once, and others wait for; callbacks are called by the thread that sets it."""

    def __init__(self, *, devices: Any = None) -> None:
        self._changed = threading.Condition()
        self._done, self._value, self._error = False, None, None
        self._callbacks: list[Callable[[], Any]] = []
        self._source: Callable[[], Any] | None = None

    @staticmethod
    def of(source: Callable[[], Any]) -> Future[Any]:
        """A future of what `source()` returns, or raises; the first thread that waits calls it, and so what was asked to be called then."""
        made: Future[Any] = Future()

        def fill() -> None:
            try:
                found = source()
            except Exception as error:
                made.set_exception(error)
            else:
                made.set_result(found)

        made._source = fill
        return made

    def done(self) -> bool:
        """Whether a value or an error has been set."""
        return self._done

    def wait(self) -> Any:
        """The value, when it is there; the error is raised if one was set."""
        with self._changed:
            source, self._source = self._source, None
        if source is not None and not self._done:
            source()
        with self._changed:
            self._changed.wait_for(lambda: self._done)
        return self.value()

    def value(self) -> Any:
        """The value that was set; the error is raised if one was set."""
        if not self._done:
            raise RuntimeError("[Future.value] expected a future that is done, got one without a value; call wait()")
        if self._error is not None:
            raise self._error
        return self._value

    def set_result(self, result: Any) -> None:
        """Set the value, and call what waits for it."""
        self._set(result, None)

    def set_exception(self, result: BaseException) -> None:
        """Set an error: `wait` and `value` raise it."""
        if not isinstance(result, BaseException):
            raise AssertionError(f"[Future.set_exception] expected an exception, got {type(result).__name__}; use set_result for values")
        self._set(None, result)

    def _set(self, value: Any, error: Any) -> None:
        with self._changed:
            if self._done:
                raise RuntimeError("[Future.set_result] expected a future without a value, got one that has it; a future is set once")
            self._done, self._value, self._error = True, value, error
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            callback()

    def _draw(self) -> None:
        with suppress(Exception):  # whoever waits for what follows is told
            self.wait()

    def _when_done(self, callback: Callable[[], Any]) -> None:
        with self._changed:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback()

    def add_done_callback(self, callback: Callable[[Future[Any]], Any]) -> None:
        """Call `callback(self)` when the value is there, or now if it is."""
        self._when_done(lambda: callback(self))

    def then(self, callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        """A future of `callback(self)`, which is called when the value of this one is there."""
        following: Future[Any] = Future()
        if self._source is not None:
            following._source = self._draw

        def follow() -> None:
            try:
                result = callback(self)
            except Exception as error:
                following.set_exception(error)
            else:
                following.set_result(result)

        self._when_done(follow)
        return following
