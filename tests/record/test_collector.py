"""Compiling holds back full collections only, and gives the thresholds back."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

import calque
from calque.base import collector
from calque.base.collector import NEVER, without_full_collections
from calque.base.native import hot
from calque.record import recorder
from calque.run.engine import Task


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    assert gc.get_threshold() == before
    gc.set_threshold(*before)


def test_thresholds_come_back_also_when_nested_and_after_errors() -> None:
    before = gc.get_threshold()
    with without_full_collections():
        with without_full_collections():
            assert gc.get_threshold() == (*before[:2], NEVER)
        assert gc.get_threshold()[2] == NEVER
    assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="inside"), without_full_collections():
        raise ValueError("inside")
    assert gc.get_threshold() == before


def test_what_the_user_sets_meanwhile_stays() -> None:
    before = gc.get_threshold()
    with without_full_collections():
        gc.set_threshold(500, 5, 7)
    assert gc.get_threshold() == (500, 5, 7)
    gc.set_threshold(*before)
    with without_full_collections():
        gc.disable()
    assert not gc.isenabled()
    gc.enable()


def test_threads_share_one_pause() -> None:
    before = gc.get_threshold()
    inside, leave = threading.Barrier(3, timeout=300), threading.Barrier(3, timeout=300)

    def work() -> None:
        with without_full_collections():
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    inside.wait()
    assert gc.get_threshold()[2] == NEVER
    leave.wait()
    for t in threads:
        t.join()
    assert gc.get_threshold() == before


def test_compiling_leaves_the_thresholds_alone() -> None:
    before = gc.get_threshold()
    (calque.ones(40, 1000).exp() * 1.75).sum(0).numpy()
    assert gc.get_threshold() == before


class Striking:
    """A lock during whose acquisition number `when` Ctrl-C is pressed."""

    def __init__(self, when: int) -> None:
        self.left = when

    def __enter__(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("when", [0, 1])
def test_a_block_that_is_interrupted_does_not_count_for_ever(when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_threshold()
    with monkeypatch.context() as patch:
        patch.setattr(collector, "_lock", Striking(when))
        with pytest.raises(KeyboardInterrupt), without_full_collections():
            pass
    with without_full_collections():
        assert gc.get_threshold()[2] == NEVER
    assert gc.get_threshold() == before


def test_programs_that_are_made_all_the_time_do_not_hold_collections_back_for_ever() -> None:
    """Where some thread plans at every moment, garbage in cycles would else pile up."""
    before = gc.get_threshold()
    inside, leave, done = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with without_full_collections():
            inside.set()
            leave.wait(300)
        done.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(300)
    for k in range(collector.MANY):
        assert gc.get_threshold()[2] == NEVER, k
        with without_full_collections():
            pass
    assert gc.get_threshold() == before
    with without_full_collections():
        assert gc.get_threshold() == before
    leave.set()
    assert done.wait(300)
    thread.join()
    with without_full_collections():
        assert gc.get_threshold()[2] == NEVER
    assert gc.get_threshold() == before


def test_a_task_that_has_run_is_in_no_cycle() -> None:
    x = calque.ones(600, 1024)
    for _ in range(3):
        x = (x * 1.0).exp().log()
        recorder.flush("test")
        calque.synchronize()
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        before = sum(type(item) is Task for item in gc.get_objects())
        for n in range(596, 600):
            y = calque.ones(n, 1024).exp().log()
            recorder.flush("test")
            calque.synchronize()
            del y
        assert sum(type(item) is Task for item in gc.get_objects()) <= before + 1
    finally:
        if enabled:
            gc.enable()


def test_young_cycles_are_looked_for_less_often_unless_somebody_chose_how_often() -> None:
    before = gc.get_threshold()
    try:
        for young, wanted in ((700, collector.YOUNG), (2000, collector.YOUNG), (500, 500), (50_000, 50_000), (0, 0)):
            gc.set_threshold(young, 9, 8)
            collector.let_graphs_grow()
            assert gc.get_threshold() == (wanted, 9, 8)
    finally:
        gc.set_threshold(*before)


@pytest.mark.skipif(hot is None, reason="only the compiled module can say so")
def test_collections_pass_by_what_is_kept_of_programs() -> None:
    """Each size makes edges, layouts and nodes that stay. Of what an edge keeps the collector does not see all."""

    def turn(n: int) -> float:
        x = calque.arange(float(n))
        for _ in range(60):
            x = x * 1.5 - 1.0
        return x.sum().item()

    turn(50_000)
    gc.collect()
    before, edges = len(gc.get_objects()), recorder.Counters.edges
    for n in range(60_000, 60_020):
        turn(n)
    gc.collect()
    grown = recorder.Counters.edges - edges
    assert grown > 20 * 120
    assert len(gc.get_objects()) - before < 6 * grown


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is frozen, as the suite's own start has it."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if frozen:
        gc.freeze()


def test_what_counts_as_old_is_walked_through_by_full_collections_alone(thawed: None) -> None:
    class Ring:
        def __init__(self) -> None:
            self.own = self

    ring = weakref.ref(Ring())
    collector.count_as_old()
    gc.collect(1)
    assert ring() is not None and gc.get_freeze_count() == 0
    gc.collect()
    assert ring() is None


def test_what_somebody_has_frozen_stays_so(thawed: None) -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    collector.count_as_old()
    assert frozen >= gc.get_freeze_count() > frozen // 2  # what another thread lets go meanwhile is counted no longer
