"""`torch.futures`: results that some thread gives later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

__all__ = ["Future", "collect_all", "wait_all"]

Value = TypeVar("Value")


class Future(Generic[Value]):
    """A value that one thread sets, once, and others wait for; callbacks are called by the thread that sets it."""

    def __init__(self, *, devices: Any = None) -> None:
        self._changed = threading.Condition()
        self._done, self._value, self._error = False, None, None
        self._callbacks: list[Callable[[], Any]] = []

    def done(self) -> bool:
        """Whether a value or an error has been set."""
        return self._done

    def wait(self) -> Any:
        """The value, when it is there; the error is raised if one was set."""
        with self._changed:
            self._changed.wait_for(self.done)
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

        def follow() -> None:
            try:
                result = callback(self)
            except Exception as error:
                following.set_exception(error)
            else:
                following.set_result(result)

        self._when_done(follow)
        return following


def collect_all(futures: Iterable[Future[Any]]) -> Future[list[Future[Any]]]:
    """A future of the list of `futures`, done when all of them are."""
    listed = list(futures)
    whole: Future[list[Future[Any]]] = Future()
    left, lock = [len(listed)], threading.Lock()

    def one_more() -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            whole.set_result(listed)

    for future in listed:
        future._when_done(one_more)
    if not listed:
        whole.set_result(listed)
    return whole


def wait_all(futures: Iterable[Future[Any]]) -> list[Any]:
    """The values of all futures; the first error among them is raised."""
    return [future.wait() for future in collect_all(futures).wait()]
