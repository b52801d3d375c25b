"""`torch.futures`: results that some thread gives later."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from calque.base.futures import Future

__all__ = ["Future", "collect_all", "wait_all"]


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
