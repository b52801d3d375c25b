"""Starting a program costs little, and none of the shortcuts shows: memory used again, numbers read natively, work done at once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.cpu.program import executable
from calque.backend.cpu.team import callable as callable_
from calque.backend.cpu.team import memory
from calque.record import recorder
from calque.run import dispatch
from calque.run.buffer import strided


def warm(step: Any, times: int = 5) -> None:
    for _ in range(times):
        step()


def test_a_small_result_that_somebody_has_is_not_overwritten() -> None:
    x = calque.ones(8)
    rate = 0.0

    def step() -> Any:
        result = x * (rate + 0.3)
        recorder.flush("test")
        return result

    warm(step)
    held, views, arrays = [], [], []
    for k in range(6):
        rate = float(k)
        held.append(step())
        views.append(step()[2:4])
        arrays.append(step().numpy())
    for k in range(6):
        expected = np.float32(np.float32(k) + np.float32(0.3))
        np.testing.assert_allclose(held[k].tolist(), [expected] * 8, rtol=1e-6)
        np.testing.assert_allclose(views[k].tolist(), [expected] * 2, rtol=1e-6)
        np.testing.assert_allclose(arrays[k], [expected] * 8, rtol=1e-6)


def test_every_view_of_a_pooled_array_refers_to_it() -> None:
    """What `CpuExecutable._small` relies on: the reference count of the array sees all of its views."""
    flat = memory.POOL.empty(12, np.dtype(np.float32))
    for view in (flat.reshape(3, 4), flat[2:5], flat.reshape(3, 4).T[1:], flat.view(np.uint8)):
        assert view.base is flat
    assert np.lib.stride_tricks.as_strided(flat[1:], (2, 2), (4, 8)).base is not None
    before = executable.getrefcount(flat)
    shown = strided(flat, calque.ones(3, 4).t()._layout)
    assert executable.getrefcount(flat) > before and shown.shape == (4, 3)


def test_numbers_that_are_no_floats_are_converted() -> None:
    x = calque.ones(4)

    def step(number: Any) -> list[float]:
        result: list[float] = calque.add(x, x, alpha=number).tolist()
        return result

    warm(lambda: step(0.3))
    assert step(3) == [4.0] * 4 and step(7.5) == [8.5] * 4
    assert (x * np.float64(3.5)).tolist() == [3.5] * 4


@pytest.mark.parametrize("native", [True, False])
def test_both_ways_of_filling_the_words_agree(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callable_, "supported", lambda: native)
    x = calque.arange(7.0) + 1.0
    shift = 1.25 if native else 2.25  # a program of its own

    def step(rate: float) -> list[float]:
        result: list[float] = ((x * rate + shift).cos() * x + shift).tolist()
        return result

    warm(lambda: step(0.7))
    expected = np.cos((np.arange(7.0) + 1.0) * 0.9 + shift) * (np.arange(7.0) + 1.0) + shift
    np.testing.assert_allclose(step(0.9), expected, rtol=1e-5)


def test_one_program_run_by_several_threads() -> None:
    x = calque.ones(16)

    def work(rate: float) -> float:
        return float((x * rate).sum().item())

    warm(lambda: work(0.3))
    wrong: list[tuple[float, float]] = []

    def loop(number: int) -> None:
        for k in range(300):
            rate = number * 1000.0 + k
            if work(rate) != 16.0 * rate:
                wrong.append((rate, work(rate)))

    threads = [threading.Thread(target=loop, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_an_error_of_work_done_at_once_comes_at_the_read() -> None:
    table, index = calque.ones(4, 2), calque.tensor([0, 9])
    for _ in range(5):
        picked = calque.nn.functional.embedding(index + 0, table)
        recorder.flush("test")  # not raised here
        with pytest.raises(IndexError) as caught:
            picked.tolist()
        assert any("in the program that was run at" in note for note in caught.value.__notes__)


def test_a_program_that_is_one_number_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    before = calque.stats()["fallbacks"]
    for value in (20.25, 21.5):
        for shape in ((), (1,), (3,)):
            x = calque.full(shape, value)
            recorder.flush("test")
            assert x.sum().item() == value * max(1, x.numel())
    assert calque.stats()["fallbacks"] == before
