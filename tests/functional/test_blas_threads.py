"""`set_num_threads` holds for the LAPACK behind `calque.linalg`, for the time of the call."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import calque
from calque.base import blas

found = blas.controls()
pytestmark = pytest.mark.skipif(found is None, reason="this NumPy has a BLAS whose threads cannot be set")

CALLS = {
    "svd": lambda x: calque.linalg.svd(x),
    "qr": lambda x: calque.linalg.qr(x),
    "eigh": lambda x: calque.linalg.eigh(x),
    "inv": lambda x: calque.linalg.inv(x),
    "cholesky": lambda x: calque.linalg.cholesky(x @ x.T + 96 * calque.eye(96)),
    "solve": lambda x: calque.linalg.solve(x, x),
    "slogdet": lambda x: calque.linalg.slogdet(x),
    "det": lambda x: calque.linalg.det(x / 20),
    "qr of init": lambda x: calque.nn.init.orthogonal_(calque.empty(96, 96)),
}
NUMPY = ("svd", "qr", "eigh", "inv", "cholesky", "solve", "slogdet", "det")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads the BLAS had in each call of numpy.linalg."""
    seen: list[int] = []

    def watched(real: object) -> object:
        def call(*arguments: object, **keywords: object) -> object:
            seen.append(found[0]())  # type: ignore[index]
            return real(*arguments, **keywords)  # type: ignore[operator]

        return call

    for name in NUMPY:
        monkeypatch.setattr(np.linalg, name, watched(getattr(np.linalg, name)))
    return seen


@pytest.mark.parametrize("name", CALLS)
def test_linalg_keeps_to_the_number_of_threads(name: str, threads: list[int]) -> None:
    ask, tell = found  # type: ignore[misc]
    before, ours = ask(), calque.get_num_threads()
    x = calque.randn(96, 96)
    try:
        for own in (4, 1):  # what the BLAS has on its own
            tell(own)
            for number in (1, 3):
                calque.set_num_threads(number)
                CALLS[name](x)
                assert threads and set(threads) == {min(own, number)} and ask() == own
                threads.clear()
    finally:
        tell(before)
        calque.set_num_threads(ours)


def test_a_call_that_fails_and_calls_that_overlap_give_the_number_back() -> None:
    ask, tell = found  # type: ignore[misc]
    before, ours = ask(), calque.get_num_threads()
    try:
        tell(4)
        calque.set_num_threads(1)
        with pytest.raises(RuntimeError):
            calque.linalg.inv(calque.zeros(3, 3))
        assert ask() == 4
        inside, leave = threading.Event(), threading.Event()

        def first() -> None:
            with blas.limited():
                inside.set()
                leave.wait(300)

        thread = threading.Thread(target=first)
        thread.start()
        inside.wait(300)
        with blas.limited():
            assert ask() == 1
            leave.set()
            thread.join()
            assert ask() == 1
        assert ask() == 4
    finally:
        tell(before)
        calque.set_num_threads(ours)


def test_a_blas_that_cannot_be_asked_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "controls", lambda: None)
    assert calque.linalg.det(calque.eye(2)).item() == 1
