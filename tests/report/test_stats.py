"""`calque.stats()`: every counter moves when it should and only then, has the right line, prints, and starts anew."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import calque
from calque.base.config import settings
from calque.observe import causes
from calque.record import recorder, trie
from calque.run import backends, dispatch
from calque.run.engine import CPU_QUEUE, Task


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    recorder.flush("test")
    calque.synchronize()
    calque.stats(reset=True)
    yield


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is interpreted first, and nothing was met before."""
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    causes._known.clear()
    trie.forget()


def test_flushes_are_counted_by_reason_and_line() -> None:
    x = calque.ones(4)
    for _ in range(3):
        (x + 1).sum().item()
    (x * 2).tolist()
    found = calque.stats()
    assert found.flushes == 4 == sum(found.flush_reasons.values()) == sum(found.flush_lines.values())
    (first, times), (second, once) = list(found.flush_lines.items())
    assert times == 3 and once == 1 and "test_stats.py" in first[1] and "test_stats.py" in second[1] and first[1] != second[1]


def test_lines_of_flushes_point_into_the_function_that_reads() -> None:
    def read(value: Any) -> float:
        return float(value.sum())

    read(calque.ones(3))
    (_, line), *_ = calque.stats().flush_lines
    assert line == f"{__file__}:{read.__code__.co_firstlineno + 1}"


def test_traces_are_new_once(compiled: None) -> None:
    for _ in range(5):
        (calque.ones(6) * 3.25).sum().item()
    found = calque.stats()
    assert found.traces["new"] == 1 and found.traces["reused"] == 4 and found.programs == 1 and found.program_hits == 4


def product(a: Any) -> Any:
    return (a * a).sum().item()


def test_compilations_say_why(compiled: None) -> None:
    product(calque.ones(8))
    assert calque.stats().compiles == {"new program": 1}
    product(calque.ones(8))
    assert calque.stats().compiles == {"new program": 1}
    product(calque.ones(9))
    assert calque.stats().compiles == {"new program": 1, "new shape": 1}
    product(calque.ones(9, dtype=calque.float64))
    assert calque.stats().compiles == {"new program": 1, "new shape": 1, "new dtype": 1}
    record = calque.stats().compilations[-1]
    assert record.cause == "new dtype" and "test_stats.py" in record.line and record.seconds > record.lowering > 0
    assert record.launches >= 1 and record.nodes >= 2


def test_more_reasons_to_compile(compiled: None) -> None:
    a = calque.randn(4, 6)
    a.tolist()
    calque.stats(reset=True)
    a.sum(0).tolist()
    a.sum(1).tolist()
    found = calque.stats().compiles
    assert set(found) <= {"new program", "new shape", "new constant"} and sum(found.values()) == 2
    calque.stats(reset=True)
    b = a.exp()
    c = b + 1
    c.tolist()
    del b
    c = a.exp() + 1
    c.tolist()
    assert calque.stats().compiles == {"new program": 1, "other results": 1}
    calque.stats(reset=True)
    trie.forget()
    (a.exp() + 1).tolist()
    assert calque.stats().compiles == {"seen before": 1}


def test_small_programs_are_interpreted_first() -> None:
    trie.forget()
    (calque.ones(5) / 7.5).sum().item()
    found = calque.stats()
    assert found.interpreted == 1 and found.compiled == 0 and found.compiles == {} and found.compilations == []


def test_guard_misses_and_what_they_compile(compiled: None) -> None:
    scale = {"by": 2.0}
    layer = calque.nn.Linear(4, 4)

    class Net(calque.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = layer, scale

        def forward(self, x: Any) -> Any:
            return self.layer(x) * self.scale["by"] if self.scale["by"] > 1 else self.layer(x).exp()

    net = Net()
    net.hybridize()
    x = calque.ones(2, 4)
    with calque.no_grad():
        for _ in range(4):
            net(x).tolist()
        assert calque.stats().guard_misses == 0
        scale["by"] = 0.5
        net(x).tolist()
    found = calque.stats()
    assert found.guard_misses == 1 and found.compiles.get("guard miss") == 1
    assert found.hybridize["replays"] >= 1


def test_fallbacks(monkeypatch: pytest.MonkeyPatch, compiled: None) -> None:
    def broken(self: Any, inputs: Any, scalars: Any) -> Any:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(settings, "sync", True)
    monkeypatch.setattr(backends.Compiled, "run", broken)
    with pytest.warns(RuntimeWarning, match="broken on purpose"):
        try:
            assert (calque.ones(11) * 1.75).sum().item() == 19.25
        except RuntimeError:  # the value was computed, the failure is told as well
            pass
    assert calque.stats().fallbacks == 1


def test_queue_depth() -> None:
    queues = calque.stats().queues
    assert "cpu" in queues and not any(queues.values())
    gate = threading.Event()
    CPU_QUEUE.submit(Task(lambda: gate.wait(300) and None))
    CPU_QUEUE.submit(Task(lambda: None))
    assert calque.stats().queues["cpu"] == 2
    gate.set()
    calque.synchronize()
    assert calque.stats().queues["cpu"] == 0


def test_memory_and_its_peak() -> None:
    gc.collect()  # what earlier tests left behind must not be freed while bytes are counted
    before = calque.stats().memory["in_use"]
    x = calque.ones(1 << 20)
    x.sum().item()
    held = calque.stats().memory
    assert held["peak"] >= held["in_use"] >= before + (4 << 20)
    del x
    freed = calque.stats(reset=True).memory
    assert freed["in_use"] < before + (4 << 20) <= freed["peak"] and freed["cached"] >= 0
    assert calque.stats().memory["peak"] < freed["peak"]


def test_the_trie_and_evictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "max_trie_edges", recorder.Counters.edges + 40)
    for k in range(60):
        calque.ones(k + 1).sum().item()
    found = calque.stats()
    assert found.evictions >= 1 and 0 < found.trie_edges <= found.trie_limit == settings.max_trie_edges
    assert calque.stats(reset=True).evictions >= 1 and calque.stats().evictions == 0


def test_a_reset_returns_the_old_counts_and_changes_nothing_else() -> None:
    calque.ones(3).sum().item()
    steps = dict(recorder.Counters.reasons)
    assert calque.stats(reset=True).flushes == 1
    empty = calque.stats()
    assert empty.flushes == 0 and empty.flush_lines == {} and empty.flush_reasons == {} and empty.compilations == []
    assert empty.hybridize["replays"] == 0 and recorder.Counters.reasons == steps
    calque.ones(3).sum().item()
    assert calque.stats().flushes == 1


def test_a_reset_forgets_a_reason_that_is_called_like_a_counter() -> None:
    """`hybridize` is a reason of a flush and a group of counters: the reason stayed behind with 0 once it had occurred."""
    step = calque.compile(lambda x: x + 1)
    for _ in range(4):
        step(calque.ones(3)).sum().item()
    recorder.Counters.reasons["hybridize"] = recorder.Counters.reasons.get("hybridize", 0) + 1
    held = calque.stats(reset=True).hybridize["stretches"]
    after = calque.stats()
    assert after.flush_reasons == {} and after.hybridize["continued"] == 0 and after.hybridize["stretches"] == held


def test_it_prints() -> None:
    calque.ones(3).sum().item()
    text = repr(calque.stats())
    for word in ("traces", "flushes", "compiles", "hybridize", "guard misses", "queues", "cpu: 0", "memory", "MiB", "test_stats.py:"):
        assert word in text
    assert text == str(calque.stats()) and calque.stats()["flushes"] == calque.stats().flushes
    with pytest.raises(AttributeError, match=r"\[stats\] expected one of traces, .*, got 'flush'"):
        _ = calque.stats().flush


def test_recording_an_operation_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters are touched when programs start, not when operations are recorded."""
    calls: list[str] = []
    monkeypatch.setattr(recorder, "flushed", lambda reason, frames: calls.append(reason))
    x = calque.ones(3)
    for _ in range(50):
        x = x + 1
    assert calls == []
    x.tolist()
    assert len(calls) == 1
