"""Profiles: rows, nesting, the exported JSON, the log, and that nothing is kept when nobody asked."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import calque
from calque.base.config import settings
from calque.base.errors import ProfileError
from calque.run import dispatch, recorder, trace


def work(size: int = 200) -> None:
    x = calque.randn(size, size)
    (x @ x).exp().sum().item()


def forget() -> None:
    recorder.flush("test")
    calque.synchronize()
    recorder.root().next.clear()


def validated(path: Path) -> dict[str, Any]:
    """The parsed file, if it is a well-formed Chrome trace: every complete event on a named row, none crossing another of its row."""
    found: dict[str, Any] = json.loads(path.read_text())
    events = found["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert any(e["ph"] == "M" and e["name"] == "process_name" for e in events)
    assert len({e["pid"] for e in events}) == 1
    for e in events:
        assert e["ph"] in "MXC" and isinstance(e["name"], str) and e["name"]
        if e["ph"] != "M":
            assert e["ts"] >= 0
        if e["ph"] == "X":
            assert e["dur"] >= 0 and e["tid"] in rows
            json.dumps(e["args"])
    for row in rows:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == row)
        for (_, end), (start, later) in pairwise(spans):
            assert start >= end - 0.01 or later <= end + 0.01, f"events cross on {rows[row]}"
    found["rows"] = rows
    return found


def test_flushes_compilations_runs_and_memory_are_in_the_file(tmp_path: Path) -> None:
    forget()
    with calque.profiler.profile() as p:
        work()
        work()
    p.export_chrome_trace(tmp_path / "trace.json")
    found = validated(tmp_path / "trace.json")
    kinds = [name.split(" (")[0] for name in found["rows"].values()]
    assert {"recording", "compile", "cpu queue"} <= set(kinds)
    events = found["traceEvents"]
    flushes = [e for e in events if e.get("cat") == "recording"]
    assert any(e["args"]["slots"] > 0 and "test_trace.py" in e["args"]["line"] for e in flushes)
    runs = [e for e in events if e.get("cat") == "cpu queue"]
    assert len(runs) >= 2 and all(e["args"]["form"] in ("compiled", "interpreted") for e in runs)
    assert any("test_trace.py" in e["name"] for e in runs)
    memory = [e["args"]["bytes in use"] for e in events if e["ph"] == "C"]
    assert len(memory) >= 2 and max(memory) >= 4 * 200 * 200
    assert not [e for e in events if e.get("cat") == "kernels"]


def test_kernels_lie_within_their_program(tmp_path: Path) -> None:
    forget()
    with calque.profiler.profile(kernels=True) as p:
        work(300)
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    events = validated(tmp_path / "trace.json")["traceEvents"]
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
    assert {e.thread for e in p.events if e.row == "recording"} >= {"loader", threading.current_thread().name}


def test_nothing_is_collected_outside_the_block() -> None:
    with calque.profiler.profile() as p:
        work()
    count = len(p.events)
    work()
    assert trace.active is None and len(p.events) == count and p.memory


def test_a_profile_ends_with_an_error_in_its_block() -> None:
    with pytest.raises(KeyError), calque.profiler.profile():
        raise KeyError("x")
    assert trace.active is None


def test_mistakes(tmp_path: Path) -> None:
    with (
        calque.profiler.profile(),
        pytest.raises(ProfileError, match=r"\[profiler\] expected no profile to be running, got a second one; leave the first"),
        calque.profiler.profile(),
    ):
        pass
    with pytest.raises(ProfileError, match=r"\[export_chrome_trace\] expected a profile, got one that never ran"):
        calque.profiler.profile().export_chrome_trace(tmp_path / "trace.json")


def test_the_log_says_what_is_fused_and_compiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    forget()
    monkeypatch.setattr(settings, "log", "fuse,compile")
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    (calque.ones(7, 9) * 3.5).exp().sum(1).numpy()
    text = capsys.readouterr().err
    assert "calque fuse: group 0 (loop)" in text and "exp" in text
    assert "calque compile: program at test_trace.py:" in text and "launches, lowered in" in text
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
