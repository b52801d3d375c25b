"""The recorder: trie hits, run-time scalars and offsets, liveness, donation, bounded pending work, sharing with NumPy, threads, errors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.config import settings
from calque.base.errors import LeakWarning
from calque.record import recorder
from calque.record.places import path_of
from calque.run.dispatch import Plan


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    recorder.flush("test")
    calque.synchronize()
    yield
    recorder.flush("test")
    calque.synchronize()


def edges_and_programs(action: Any) -> tuple[int, int]:
    """How many trie edges and programs an action adds."""
    before = calque.stats()
    action()
    after = calque.stats()
    return after["trie_edges"] - before["trie_edges"], after["programs"] - before["programs"]


def test_the_same_path_adds_nothing() -> None:
    a, b = calque.ones(3, 4), calque.arange(4.0)
    recorder.flush("test")

    def step() -> None:
        (a * b + a.exp()).sum().item()

    step()
    assert edges_and_programs(step) == (0, 0)


def test_a_changing_float_does_not_recompile() -> None:
    a = calque.ones(5)
    recorder.flush("test")

    def step(rate: float) -> float:
        return float((a * rate).sum().item())

    step(0.3)
    assert edges_and_programs(lambda: [step(0.1 + 0.01 * k) for k in range(50)]) == (0, 0)
    assert step(0.25) == pytest.approx(1.25)


def test_zeros_of_both_signs_at_one_place_are_different_numbers() -> None:
    a = calque.ones(3)
    recorder.flush("test")
    signs = [np.signbit((a * zero).numpy()).all() for zero in (0.0, -0.0, 0.0, -0.0)]
    assert signs == [False, True, False, True]


def test_a_changing_index_becomes_an_argument() -> None:
    a = calque.arange(100.0) * 1.0
    a.sum().item()

    def step(i: int) -> float:
        return float((a[i] + 1.0).item())

    assert [step(i) for i in range(3)] == [1.0, 2.0, 3.0]
    assert edges_and_programs(lambda: [step(i) for i in range(3, 100)]) == (0, 0)
    assert step(57) == 58.0


def test_a_changing_write_index_becomes_an_argument() -> None:
    a = calque.zeros(50)

    def step(i: int) -> None:
        a[i] = float(i)
        recorder.flush("test")

    for i in range(4):
        step(i)
    assert edges_and_programs(lambda: [step(i) for i in range(4, 50)]) == (0, 0)
    assert a.tolist() == [float(i) for i in range(50)]


def test_dead_intermediates_are_not_materialised() -> None:
    a = calque.ones(4)
    b = a + 1.0
    c = b * 2.0
    del b
    recorder.flush("test")
    (plan,) = [p for e in _edges() if e.plans for p in e.plans.values() if isinstance(p, Plan)]
    assert c.tolist() == [4.0] * 4
    assert len(plan.program.outputs) == 2, "a and c are held, b is not"


def _edges() -> list[Any]:
    found, stack = [], [recorder.root()]
    while stack:
        edge = stack.pop()
        found.append(edge)
        stack.extend(set(edge.next.values()))
    return sorted(found, key=lambda e: e.used)


def test_nothing_live_runs_nothing() -> None:
    x = calque.ones(3) + 1.0
    del x
    before = calque.stats()["programs"] + calque.stats()["program_hits"]
    recorder.flush("test")
    assert calque.stats()["programs"] + calque.stats()["program_hits"] == before


def test_an_in_place_update_reuses_its_buffer() -> None:
    weights = calque.ones(1000)
    weights.sum().item()
    address = weights.data_ptr()
    for _ in range(3):
        weights.mul_(2.0)
        recorder.flush("test")
    calque.synchronize()
    assert weights.data_ptr() == address or settings.backend == "ref"
    assert weights[0].item() == 8.0


def test_a_saved_handle_keeps_the_old_value() -> None:
    weights = calque.ones(10)
    weights.sum().item()
    old = weights.clone()
    view = weights[2:4]
    detached = weights.detach()
    weights.mul_(3.0)
    assert old.tolist() == [1.0] * 10
    assert view.tolist() == [3.0, 3.0] and detached.tolist() == [3.0] * 10


def test_pending_work_is_bounded() -> None:
    x = calque.zeros(2)
    before = calque.stats()["flush_reasons"].get("bound on pending work", 0)
    count = settings.max_pending_ops * 9 // 8 + 10
    for _ in range(count):
        x = x + 1.0
    assert calque.stats()["flush_reasons"]["bound on pending work"] == before + 1
    assert x.tolist() == [float(count)] * 2


def test_pending_work_is_cut_behind_a_contraction_if_one_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut of an unrolled loop does not depend on what was recorded before it: always the same kernels on both sides."""
    monkeypatch.setattr(settings, "max_pending_ops", 64)
    places = []
    for before in range(5):
        x, w = calque.ones(2, 2), calque.full((2, 2), 0.25)
        recorder.flush("test")
        for _ in range(before):
            x = x * 1.5
        done = calque.stats()["flush_reasons"].get("bound on pending work", 0)
        for _ in range(100):
            x = (x @ w).tanh().exp()
            x = x - 0.5 * x
            if calque.stats()["flush_reasons"].get("bound on pending work", 0) > done:
                places.append(recorder.local.state.trace.n)
                break
        else:
            raise AssertionError("no cut in 100 steps")
        recorder.flush("test")
    assert len(set(places)) == 1


def test_numpy_writes_after_recording_do_not_leak_in() -> None:
    source = np.ones(4, np.float32)
    t = calque.from_numpy(source)
    doubled = t * 2.0
    source[:] = 7.0
    assert doubled.tolist() == [2.0] * 4
    assert t.tolist() == [7.0] * 4
    assert (t * 2.0).tolist() == [14.0] * 4


def test_in_place_writes_show_in_numpy_at_once() -> None:
    source = np.zeros(4, np.float32)
    t = calque.from_numpy(source)
    t.add_(1.0)
    t[1] = 5.0
    assert source.tolist() == [1.0, 5.0, 1.0, 1.0]
    own = calque.zeros(3)
    exported = own.numpy()
    own.fill_(2.0)
    assert exported.tolist() == [2.0] * 3
    exported[0] = 9.0
    assert own.tolist() == [9.0, 2.0, 2.0]
    piece = exported[1:]
    del exported
    own.mul_(2.0)
    assert piece.tolist() == [4.0, 4.0]


def test_a_tensor_made_in_one_thread_is_used_in_another() -> None:
    made: list[Any] = []

    def produce() -> None:
        made.append(calque.ones(3) * 2.0)

    thread = threading.Thread(target=produce)
    thread.start()
    thread.join()
    (t,) = made
    assert (t + 1.0).tolist() == [3.0] * 3
    t.add_(1.0)
    assert t.tolist() == [3.0] * 3


@pytest.mark.parametrize("replayed", [False, True])
def test_what_another_thread_still_has_to_read_is_not_overwritten(replayed: bool) -> None:
    x = calque.arange(4.0) + 0
    update = calque.compile(lambda: x.add_(1)) if replayed else lambda: x.add_(1)
    for _ in range(4):
        update()
        x.sum().item()
    found: list[Any] = []
    recorded, changed = threading.Event(), threading.Event()

    def work() -> None:
        y = x * 2
        recorded.set()
        changed.wait(300)
        found.append(y.tolist())

    thread = threading.Thread(target=work)
    thread.start()
    assert recorded.wait(300)
    update()
    assert x.tolist() == [5.0, 6.0, 7.0, 8.0]
    changed.set()
    thread.join()
    assert found == [[8.0, 10.0, 12.0, 14.0]]


def test_threads_record_at_the_same_time() -> None:
    shared = calque.arange(8.0) + 0.0
    results: dict[int, list[float]] = {}

    def work(k: int) -> None:
        total = shared
        for _ in range(200):
            total = total + float(k)
            if k == 2:
                total.sum().item()
        results[k] = total.tolist()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: [i + 200.0 * k for i in range(8)] for k in range(4)}


def test_a_failure_in_the_engine_surfaces_at_the_read_with_the_line() -> None:
    from calque.ops.opdef import OpDef, register, unregister
    from calque.tensor import record

    def explode(x: Any) -> Any:
        raise FloatingPointError("the kernel failed")

    op = register(OpDef("explode_test", "opaque", "Fails when run.", ref=explode))
    try:
        a = calque.ones(3)
        good = a * 3.0
        bad = record(op, (a,))
        later = bad + 1.0
        with pytest.raises(FloatingPointError) as caught:
            later.tolist()
        assert any("test_recorder.py" in note for note in caught.value.__notes__)
        assert (a + 1.0).tolist() == [2.0] * 3 and good.tolist() == [3.0] * 3  # other results are not corrupted
    finally:
        unregister("explode_test")


def test_accumulating_with_history_warns_by_name() -> None:
    w = calque.ones(3, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        total_loss: Any = calque.zeros(())
        for _ in range(160):
            loss = (w * w).sum()
            total_loss = total_loss + loss
            recorder.flush("optimizer.step")
    messages = [str(c.message) for c in caught if issubclass(c.category, LeakWarning)]
    assert messages and "total_loss" in messages[0] and "test_recorder.py" in messages[0] and ".item()" in messages[0]


def test_accumulating_without_history_is_flat() -> None:
    total: Any = calque.zeros(())
    value = calque.ones(())
    for _ in range(300):
        total = total + value
        recorder.flush("optimizer.step")
    assert total.item() == 300.0
    assert len(recorder.local.state.trace.storages) == 0


def test_the_trie_is_bounded() -> None:
    before = settings.max_trie_edges
    settings.max_trie_edges = calque.stats()["trie_edges"] + 200
    try:
        for n in range(1, 120):
            (calque.ones(n) + 1.0).sum().item()
        assert calque.stats()["evictions"] > 0
        assert (calque.ones(5) + 1.0).tolist() == [2.0] * 5
    finally:
        settings.max_trie_edges = before


def test_a_backend_that_fails_is_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    from calque.run import backends, dispatch

    def broken(*_: Any) -> Any:
        raise RuntimeError("no code for this program")

    monkeypatch.setattr(backends, "Compiled", broken)
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    before = calque.stats()["fallbacks"]
    x = calque.arange(7.0) * 3.0 + 0.125
    with pytest.warns(RuntimeWarning, match="no code for this program"):
        recorder.flush("test")
        calque.synchronize()
    assert calque.stats()["fallbacks"] == before + 1
    assert x.tolist() == [3.0 * k + 0.125 for k in range(7)]


def test_no_view_is_recorded_for_nothing() -> None:
    """Whether an operand has been looked at before must not change what is recorded of operands that lie in memory in another order."""
    calque.synchronize()
    (a, b, c, d, e), other = [calque.zeros(12 + k)[:6].view(2, 3) for k in range(5)], calque.ones(3, 2).T
    results = [a * other, other * b, calque.addcmul(c, other, d), calque.lerp(e, e, other)]
    path = path_of(recorder.local.state.trace.cur)
    used = {slot for edge in path for slot in edge.inputs if isinstance(slot, int)} | {t._storage.slot for t in results}
    unused = [edge for k, edge in enumerate(path) if edge.op.name.startswith("view") and k not in used]
    assert not unused and len(path) > 8, unused
