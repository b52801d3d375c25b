"""`set_num_threads` holds for the BLAS and LAPACK of NumPy, until it is called again: nothing sets their number around a call."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import calque
from calque.autograd.host import on_host
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


@pytest.fixture
def kept() -> Iterator[None]:
    """Both numbers are as before behind the test."""
    ask, tell = found  # type: ignore[misc]
    before, ours = ask(), calque.get_num_threads()
    yield
    tell(before)
    calque.set_num_threads(ours)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("name", CALLS)
def test_linalg_keeps_to_the_number_of_threads(name: str, threads: list[int]) -> None:
    ask, tell = found  # type: ignore[misc]
    x = calque.randn(96, 96)
    for own in (4, 2):  # what the BLAS has on its own
        tell(own)
        for number in (1, 3):
            calque.set_num_threads(number)
            CALLS[name](x)
            assert threads and set(threads) == {min(own, number)} and ask() == min(own, number)
            threads.clear()


@pytest.mark.usefixtures("kept")
def test_what_the_program_tells_the_blas_is_what_it_has_on_its_own() -> None:
    ask, tell = found  # type: ignore[misc]
    tell(4)
    calque.set_num_threads(1)
    calque.set_num_threads(8)
    assert ask() == 4
    tell(2)
    calque.set_num_threads(8)
    assert ask() == 2


@pytest.mark.usefixtures("kept")
def test_calls_that_overlap_have_the_number_that_they_have_alone() -> None:
    """The number was set around a call and given back: a call of another thread, ours or the user's of NumPy, had it or had not, as it came."""
    ask, tell = found  # type: ignore[misc]
    tell(4)
    calque.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal(20000)  # from 10,000 on the bits of this product depend on the number
    seen = {}

    def product(when: str) -> None:
        seen[when] = (ask(), np.dot(x, x).tobytes())

    def during(values: object) -> object:
        other = threading.Thread(target=product, args=("while a call of ours is under way",))
        other.start()
        other.join()
        return values

    product("before")
    on_host("test", during, (calque.ones(2),), [(2,)])
    product("behind it")
    with pytest.raises(RuntimeError):
        calque.linalg.inv(calque.zeros(3, 3))
    product("behind one that failed")
    assert len(set(seen.values())) == 1, {when: values[0] for when, values in seen.items()}


@pytest.mark.parametrize("variable", ["CALQUE_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_the_environment_says_a_number(variable: str) -> None:
    program = "import calque; from calque.base import blas; print(blas.controls()[0](), calque.get_num_threads())"
    environment = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name} | {variable: "1"}
    out = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert out[0] == "1" and (variable.startswith("OPENBLAS") or out[1] == "1")


def test_a_blas_that_cannot_be_asked_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "controls", lambda: None)
    ours = calque.get_num_threads()
    try:
        calque.set_num_threads(ours + 1)
        assert calque.linalg.det(calque.eye(2)).item() == 1 and calque.get_num_threads() == ours + 1
    finally:
        calque.set_num_threads(ours)
