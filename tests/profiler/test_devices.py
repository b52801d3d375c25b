"""Profiles and counters of several logical devices: a row for every queue, copies between them, callbacks of the host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import calque
from calque.profiler import profile
from tests.profiler.test_timeline import validated

pytestmark = pytest.mark.usefixtures("two_devices")


def test_every_device_has_a_row_also_for_what_runs_at_once(tmp_path: Path) -> None:
    a, b = calque.randn(700, 700, device="cpu:0"), calque.randn(700, 700, device="cpu:1")
    small = calque.ones(3, device="cpu:1")
    calque.waitall()
    with profile(kernels=True) as p:
        c, d = (a @ a).sum(), (b @ b).sum()
        assert c.item() != d.item()
        assert (small + 1).sum().item() == 6
    runs = [e for e in p.events() if e.row.endswith(" queue")]
    assert {e.row for e in runs} == {"cpu:0 queue", "cpu:1 queue"}
    assert all(r.flow for r in runs) and {r.queue for r in p._found("test").runs} == {"cpu:0", "cpu:1"}
    assert {e.facts["device"] for e in p.events() if e.row == "kernels"} >= {"cpu:0", "cpu:1"}
    p.export_chrome_trace(tmp_path / "trace.json")
    rows = validated(tmp_path / "trace.json")["rows"].values()
    assert any(name.startswith("cpu:0 queue") for name in rows) and any(name.startswith("cpu:1 queue") for name in rows)
    p.export_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "cpu:0 queue" in text and "cpu:1 queue" in text
    assert (calque.ones(3) + 1).sum().item() == 6  # and this thread is back where it was
    with profile() as p:
        calque.ones(3).exp().sum().item()
    assert {e.row for e in p.events() if e.row.endswith(" queue")} == {"cpu queue"}


def test_copies_between_devices_are_shown(tmp_path: Path) -> None:
    a = calque.randn(300, 100, device="cpu:0")
    calque.waitall()
    calque.stats(reset=True)
    with profile() as p:
        b = a.to("cpu:1")
        assert b.sum().item() == pytest.approx(a.sum().item(), abs=1e-2)
    copies = [e for e in p.events() if e.row == "copies"]
    assert [e.name for e in copies] == ["copy to cpu:1"] and copies[0].facts == {"bytes": 120_000, "values": 1}
    assert calque.stats().copies == {"count": 1, "bytes": 120_000} and "copies      1 between devices" in repr(calque.stats())
    p.export_chrome_trace(tmp_path / "trace.json")
    assert any(name.startswith("copies") for name in validated(tmp_path / "trace.json")["rows"].values())


def test_the_depth_of_every_queue_is_counted() -> None:
    a, b = calque.randn(600, 600, device="cpu:0"), calque.randn(600, 600, device="cpu:1")
    calque.waitall()
    for _ in range(4):
        a, b = (a @ a) * 1e-3, (b @ b) * 1e-3
        calque.stats()  # reads nothing
    assert {"cpu:0", "cpu:1"} <= set(calque.stats().queues)
    calque.waitall()
    assert all(tasks == 0 for tasks in calque.stats().queues.values())


def test_callbacks_of_the_host_have_a_row() -> None:
    x = calque.ones(1000, device="cpu:0")
    calque.waitall()
    seen = []

    def note(array: object) -> None:
        time.sleep(0.01)
        seen.append(array)

    with profile() as p:
        calque.call_when_ready(note, x + 1).wait()
    found = [e for e in p.events() if e.row == "host queue"]
    assert len(found) == 1 == len(seen) and found[0].name == "callback note" and found[0].seconds >= 0.01
