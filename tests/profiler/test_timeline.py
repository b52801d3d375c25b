"""Profiles: rows, nesting, the exported JSON, the log, and that nothing is kept when nobody asked."""

from __future__ import annotations

import gzip
import json
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.cpu.program.executable import CpuExecutable
from calque.base.config import settings
from calque.base.errors import ProfileError
from calque.data import DataLoader
from calque.observe import events
from calque.record import recorder, trie
from calque.run import dispatch


def work(size: int = 200) -> None:
    x = calque.randn(size, size)
    (x @ x).exp().sum().item()


def forget() -> None:
    recorder.flush("test")
    calque.synchronize()
    trie.forget()


CAUSES = {"new program", "new shape", "other results", "seen before"}  # which one depends on what the process has compiled before
COMMON = {"ph", "name", "pid", "tid"}
FIELDS = {  # phase -> fields that it must have beside the common ones; all that it may have are those and "cat"
    "M": {"args"},
    "X": {"ts", "dur", "args"},
    "C": {"ts", "args"},
    "s": {"ts", "id"},
    "f": {"ts", "id", "bp"},
}


def validated(path: Path) -> dict[str, Any]:
    """The parsed file, if it is a well-formed Chrome trace: known phases with their fields, every event on a named row, none crossing another of its
    row, counters of numbers, every arrow from inside one event to the beginning of another."""
    text = gzip.decompress(path.read_bytes()).decode() if path.name.endswith(".gz") else path.read_text()
    found: dict[str, Any] = json.loads(text)
    assert set(found) <= {"traceEvents", "displayTimeUnit", "otherData"} and found["displayTimeUnit"] in ("ms", "ns")
    events = found["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert any(e["ph"] == "M" and e["name"] == "process_name" for e in events)
    assert len({e["pid"] for e in events}) == 1
    for e in events:
        wanted = COMMON | FIELDS[e["ph"]]
        assert wanted <= set(e) <= wanted | {"cat"} and isinstance(e["name"], str) and e["name"]
        assert isinstance(e["tid"], int) and (e["tid"] in rows or e["ph"] in "MC")
        assert e["ph"] == "M" or e["ts"] >= 0
        if e["ph"] == "X":
            assert e["dur"] >= 0 and isinstance(e["args"], dict)
        if e["ph"] == "C":
            assert e["args"] and all(isinstance(x, int | float) for x in e["args"].values())
    spans = {row: sorted((e["ts"], -e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == row) for row in rows}
    for row, found_spans in spans.items():
        for (first, length), (start, later) in pairwise(found_spans):
            assert start >= first - length - 0.01 or start - later <= first - length + 0.01, f"events cross on {rows[row]}"
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    assert set(starts) == set(ends)
    for number, e in starts.items():
        assert any(start <= e["ts"] <= start - length + 0.01 for start, length in spans[e["tid"]])
        assert ends[number]["bp"] == "e" and ends[number]["ts"] >= e["ts"]
        assert any(abs(start - ends[number]["ts"]) < 0.01 for start, _ in spans[ends[number]["tid"]])
    found["rows"] = rows
    return found


def test_flushes_compilations_runs_and_memory_are_in_the_file(tmp_path: Path) -> None:
    forget()
    with calque.profiler.profile() as p:
        work()
        work()
    p.export_chrome_trace(tmp_path / "events.json")
    found = validated(tmp_path / "events.json")
    kinds = [name.split(" (")[0] for name in found["rows"].values()]
    assert {"recording", "compile", "cpu queue"} <= set(kinds)
    events = found["traceEvents"]
    flushes = [e for e in events if e.get("cat") == "recording" and e["name"].startswith("flush") and e["ph"] == "X"]
    assert any(e["args"]["slots"] > 0 and "test_timeline.py" in e["args"]["line"] for e in flushes)
    runs = [e for e in events if e.get("cat") == "cpu queue"]
    assert any(e["args"]["cause"] in CAUSES for e in events if e.get("cat") == "compile")
    assert len(runs) >= 2 and all(e["args"]["form"] in ("compiled", "interpreted") for e in runs)
    assert any("test_timeline.py" in e["name"] for e in runs)
    memory = [e["args"]["bytes in use"] for e in events if e["ph"] == "C" and e["name"] == "memory"]
    assert len(memory) >= 2 and max(memory) >= 4 * 200 * 200
    assert not [e for e in events if e.get("cat") == "kernels"]


def test_arrows_lead_from_every_flush_to_its_run_on_the_queue(tmp_path: Path) -> None:
    a = calque.randn(400, 400)
    a.sum().item()
    with calque.profiler.profile() as p:
        values = [(a @ a).sum() for _ in range(1)]
        values[0].item()
        (a @ a @ a @ a).amax().item()
    p.export_chrome_trace(tmp_path / "events.json")
    events = validated(tmp_path / "events.json")["traceEvents"]
    runs = [e for e in p.events() if e.row == "cpu queue"]
    flushes = {e.flow: e for e in p.events() if e.name.startswith("flush")}
    assert len(runs) == 2 and all(r.flow in flushes and flushes[r.flow].start <= r.start for r in runs)
    assert len({r.flow for r in runs}) == 2 and len([e for e in events if e["ph"] == "s"]) == 2
    assert any(e.thread == "calque-cpu" for e in runs), "large programs run on the thread of the device's queue"
    depths = [e for e in events if e["ph"] == "C" and e["name"] == "cpu queue depth"]
    assert depths and all(1 <= e["args"]["tasks"] <= 64 for e in depths)


def test_the_recording_row_shows_python_flushes_and_waits() -> None:
    a = calque.randn(500, 500)
    a.sum().item()
    with calque.profiler.profile() as p:
        time.sleep(0.02)
        b = a @ a
        b.sum().item()
    mine = [e for e in p.events() if e.row == "recording"]
    python = [e for e in mine if e.name.startswith("Python")]
    assert sum(e.seconds for e in python) >= 0.02 and max(e.facts["recorded"] for e in python) >= 2
    assert any(e.name == "wait for a value" for e in mine)


def test_python_goes_on_while_programs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop that waits for nothing is ahead of the device: its own work lies beside the runs, not between them."""
    a = calque.randn(900, 900)
    (a @ a).sum().item()
    for limit in ("INLINE_WORK", "INLINE_READ_WORK", "INLINE_HABIT_WORK"):
        monkeypatch.setattr(dispatch, limit, 0)  # a fast machine would run one of the programs where it is flushed
    began, recorded, run = threading.Event(), threading.Event(), CpuExecutable.run

    def held(self: CpuExecutable, *args: Any) -> Any:
        began.set()
        assert recorded.wait(300)
        return run(self, *args)

    monkeypatch.setattr(CpuExecutable, "run", held)
    sums = []
    with calque.profiler.profile() as p:
        for _ in range(6):
            sums.append((a @ a).sum())
            recorder.flush("test")
            assert began.wait(300)
        recorded.set()
    runs = sorted((e.start, e.start + e.seconds) for e in p.events() if e.row == "cpu queue" and e.thread == "calque-cpu")
    python = [(e.start, e.start + e.seconds) for e in p.events() if e.name.startswith("Python")]
    assert len(runs) == 6
    assert len([1 for start, end in python if runs[0][0] <= start and end <= runs[0][1]]) >= 4, "Python waited for the first run"


def test_the_loader_has_rows_of_its_own(tmp_path: Path) -> None:
    class Slow:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, k: int) -> Any:
            time.sleep(0.01)
            return calque.full((2,), float(k))

    for workers in (0, 2):
        with calque.profiler.profile() as p:
            loader = DataLoader(Slow(), batch_size=2, num_workers=workers, multiprocessing_context="thread" if workers else None)
            total = sum(batch.sum().item() for batch in loader)
        assert total == 2 * sum(range(6))
        loads = [e for e in p.events() if e.row == "loader"]
        assert len(loads) == 3 and all(e.seconds >= 0.02 for e in loads)
        assert {e.thread.startswith("calque-data") for e in loads} == {workers > 0}
        assert any(e.name == "wait for a batch" for e in p.events()) == (workers > 0)
        p.export_chrome_trace(tmp_path / "events.json")
        assert any(row.startswith("loader") for row in validated(tmp_path / "events.json")["rows"].values())


def test_copies_of_shared_memory_are_shown() -> None:
    shared = np.ones((50, 50), np.float32)
    x = calque.from_numpy(shared)
    with calque.profiler.profile() as p:
        assert (x + 1).sum().item() == 5000
    copies = [e for e in p.events() if e.row == "copies"]
    assert copies and copies[0].facts["bytes"] == 10_000


def test_replayed_calls_are_flushes_too() -> None:
    model = calque.nn.Linear(300, 300)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.01)
    x = calque.randn(64, 300)

    @calque.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(6):
        assert step(x).item() > 0
    with calque.profiler.profile() as p:
        for _ in range(3):
            assert step(x).item() > 0
    assert len([e for e in p.events() if e.name == "replay: optimizer.step" and e.flow]) == 3
    assert len([e for e in p.events() if e.row == "cpu queue"]) == 3


def test_a_profile_that_is_left_running_stays_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(events, "EVENTS", 20)
    with calque.profiler.profile() as p:
        for k in range(50):
            assert (calque.ones(3) * k).sum().item() == 3 * k
    session = p._found("test")
    assert len(p.events()) == 20 and len(session.runs) == 20 and len(session.memory) <= 4 * 20 and len(session.values) <= 20
    assert session.dropped > 50
    p.export_chrome_trace(tmp_path / "events.json")
    assert int(validated(tmp_path / "events.json")["otherData"]["events left out"]) == session.dropped


def test_a_compressed_file(tmp_path: Path) -> None:
    with calque.profiler.profile() as p:
        work()
    p.add_metadata("experiment", "seven")
    p.export_chrome_trace(tmp_path / "events.json.gz")
    assert validated(tmp_path / "events.json.gz")["otherData"]["experiment"] == "seven"


def test_kernels_lie_within_their_program(tmp_path: Path) -> None:
    forget()
    with calque.profiler.profile(kernels=True) as p:
        work(300)
    p.export_chrome_trace(str(tmp_path / "events.json"))
    events = validated(tmp_path / "events.json")["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernels"]
    product = [e for e in kernels if e["name"] == "matmul [300, 300] x [300, 300]"]
    assert len(product) == 1 and product[0]["args"]["flops"] == 2 * 300**3
    runs = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "cpu queue"]
    for e in kernels:
        assert any(start - 0.01 <= e["ts"] and e["ts"] + e["dur"] <= end + 0.01 for start, end in runs)


def test_another_thread_has_rows_of_its_own() -> None:
    with calque.profiler.profile() as p:
        other = threading.Thread(target=work, name="loader")
        other.start()
        other.join()
        work()
    assert {e.thread for e in p.events() if e.row == "recording"} >= {"loader", threading.current_thread().name}


def test_nothing_is_collected_outside_the_block() -> None:
    with calque.profiler.profile() as p:
        work()
    count = len(p.events())
    work()
    assert events.active is None and len(p.events()) == count and p.memory


def test_a_profile_ends_with_an_error_in_its_block() -> None:
    with pytest.raises(KeyError), calque.profiler.profile():
        raise KeyError("x")
    assert events.active is None


def test_mistakes(tmp_path: Path) -> None:
    with (
        calque.profiler.profile(),
        pytest.raises(ProfileError, match=r"\[profiler\] expected no profile to be running, got a second one; leave the first"),
        calque.profiler.profile(),
    ):
        pass
    with pytest.raises(ProfileError, match=r"\[export_chrome_trace\] expected a profile, got one that never ran"):
        calque.profiler.profile().export_chrome_trace(tmp_path / "events.json")


def test_the_log_says_what_is_fused_and_compiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    forget()
    monkeypatch.setattr(settings, "log", "fuse,compile")
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    (calque.ones(7, 9) * 3.5).exp().sum(1).numpy()
    text = capsys.readouterr().err
    assert "calque fuse: group 0 (loop)" in text and "exp" in text
    assert "calque compile: program at test_timeline.py:" in text and "launches, lowered in" in text
    (calque.ones(7, 9) * 3.5).exp().sum(1).numpy()
    assert capsys.readouterr().err == ""  # the same program
    monkeypatch.setattr(settings, "log", "")
    (calque.ones(8, 9) * 3.5).exp().sum(1).numpy()
    assert capsys.readouterr().err == ""


def test_timed_runs_give_the_same_bits() -> None:
    """One launch at a time, or all at once."""
    x = calque.randn(64, 300)

    def step() -> Any:
        return (x @ x.T).softmax(1).sum(0)

    plain = step().numpy().copy()
    assert calque.explain(step).result.numpy().tobytes() == plain.tobytes()
