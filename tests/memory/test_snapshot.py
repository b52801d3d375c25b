"""`calque.memory.snapshot`: every byte in use has its holder, graphs are told from variables, and the page says the same."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError
from calque.memory import Snapshot, snapshot
from tests.profiler.browser import find_browser, opened

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("nothing_kept")


def holder(found: Snapshot, name: str) -> Any:
    return next((h for h in found.holders if h.name == name), None)


def test_every_block_is_counted_and_has_its_holder() -> None:
    model = nn.Sequential(nn.Linear(300, 400), nn.GELU(), nn.Linear(400, 300))
    optimizer = calque.optim.Adam(model.parameters())
    x = calque.randn(900, 300)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    losses = [model(x).square().mean() for _ in range(2)]
    assert losses[-1].item() > 0
    calque.synchronize()  # a value is there before the rest of its program
    found = snapshot()
    assert sum(b.nbytes for b in found.blocks if not b.free) == found.in_use
    assert sum(b.nbytes for b in found.blocks if b.free) == found.cached
    numbers = 2 * 300 * 400 + 700
    mine = holder(found, "model")
    assert {t.kind for t in mine.tensors} == {"values", "gradients"} and mine.nbytes == 2 * 4 * numbers and mine.count == 4
    assert holder(found, "optimizer").nbytes >= 2 * 4 * numbers
    kept = holder(found, "losses")
    assert kept.nodes > 10 and kept.saved >= 2 * 4 * 900 * (400 + 300) and kept.nbytes == kept.saved + 8
    assert all(re.search(r"test_snapshot\.py:\d+$", t.line) for t in kept.tensors if t.kind == "graph" and t.nbytes > MIB)
    assert holder(found, "x").saved == 0, "what a variable holds is not its graph's"
    assert "`losses`: 2 tensors, with graphs of" in str(found) and "that keep" in str(found)
    mine = [b for b in found.blocks if b.holder == "losses"]
    assert sum(b.nbytes for b in mine) >= kept.nbytes


def test_what_changed_since_an_earlier_one() -> None:
    gone, stays = calque.ones(500, 500), calque.ones(400, 400)
    calque.synchronize()
    before = snapshot()
    del gone
    more = [calque.ones(250, 1000) for _ in range(3)]
    now = snapshot(since=before)
    assert now.changes() == {"more": 3_000_000, "gone": -1_000_000} and holder(now, "stays") is not None
    assert before.changes() == {} and f"+    {'2.9 MiB'}  `more`, compared" in str(now)
    assert len(more) == 3 and stays.shape == (400, 400)


def test_a_snapshot_keeps_nothing_alive() -> None:
    value = (calque.ones(600, 600, requires_grad=True) * 2).exp()
    value.sum().item()
    calque.synchronize()  # the sum is there before the rest of its program
    alive = weakref.ref(value)
    found = snapshot()
    assert holder(found, "value").nbytes == 600 * 600 * 4
    held = found.in_use
    del value
    gc.collect()
    assert alive() is None and snapshot().in_use <= held - 600 * 600 * 4


def test_memory_of_others_is_no_block_of_ours() -> None:
    shared = calque.from_numpy(np.ones((700, 700), np.float32))
    found = snapshot()
    assert holder(found, "shared").nbytes == shared.nbytes == 700 * 700 * 4
    assert not [b for b in found.blocks if b.holder == "shared"]


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"\[snapshot\] expected since to be what an earlier snapshot\(\) returned, got int"):
        snapshot(since=3)  # type: ignore[arg-type]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    before = snapshot()
    hostile = {"</section><script>document.title='changed'</script>": calque.ones(700, 700)}
    many = [calque.ones(40 + k, 100) for k in range(60)]
    graph = (calque.ones(300, 300, requires_grad=True) * 3.0).exp().sum()
    graph.item()
    namespace = type("Named", (), {})()
    setattr(namespace, "<b>bold</b>", calque.ones(200, 200))
    snapshot(since=before).export_html(tmp_path / "not" / "there" / "memory.html")
    assert len(hostile) == 1 and len(many) == 60
    return tmp_path / "not" / "there" / "memory.html"


def test_the_page_says_the_same_and_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    assert "<!--" not in text.replace("<!doctype", "")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", text) and "url(" not in text and "http" not in text and "<script" not in text
    for words in ("many", "60 tensors", "graph", "test_snapshot.py:", "+", "&lt;b&gt;bold"):
        assert words in text, words
    assert "<b>bold" not in text
    areas = [int(side) ** 2 for kind, side in re.findall(r'<i class="(\w+)" style="--side:(\d+)px', text) if kind != "other"]
    assert len(areas) > 60 and areas == sorted(areas, reverse=True)


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_the_page_in_a_browser(page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium is installed (a Debian package: chromium-headless-shell); set CHROMIUM to the path of one")
    with opened(browser, tmp_path / "chromium") as window:
        window.open(page, width=width, dark=dark)
        assert window.problems == [] and window.requests == [page.resolve().as_uri()]
        assert window.run("document.title") == "Calque memory"
        assert window.run("document.documentElement.scrollWidth") <= width, "no page wider than its window"
        drawn = window.run("[...document.querySelectorAll('.blocks i')].map(e => e.getBoundingClientRect().width)")
        assert len(drawn) > 60 and min(drawn) >= 3
        colours = window.run("new Set([...document.querySelectorAll('.blocks i.held')].map(e => getComputedStyle(e).backgroundColor)).size")
        assert colours >= 3
        assert window.run("document.querySelector('details').open = true, document.querySelector('details').innerText").count("\n") >= 1
