"""The HTML report: what it says, that it needs nothing else, and that it works in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import ProfileError
from calque.data import DataLoader, TensorDataset
from calque.profiler import profile, record_function
from calque.profiler.peak import temporaries
from tests.profiler.browser import Page, find_browser, opened

BROWSER = find_browser()


def trained(**arguments: Any) -> profile:
    """A profile of two steps of a small network, with a loader and ranges."""
    calque.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(calque.randn(256, 64), calque.randint(0, 10, (256,)))
    with profile(**arguments) as p:
        for x, y in DataLoader(data, batch_size=128, num_workers=1):
            with record_function("forward </script><b>"):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            p.step()
        loss.item()
    return p


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "profile.html"
    trained().export_html(path)
    return path


def section(text: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">(.*?)</section>', text, re.S)
    assert found
    return found.group(1)


def test_the_tables_say_what_the_profile_says(tmp_path: Path) -> None:
    p = trained(kernels=True)
    p.export_html(tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    assert "<!--" not in text.replace("<!doctype", "")
    for row in p.lines()[:5]:
        assert Path(row.line).name in section(text, "lines")
    assert "matmul" in section(text, "operations") and "times every launch" not in section(text, "lines")
    causes = [e.facts["cause"] for e in p.events() if e.row == "compile"]
    assert all(cause in section(text, "compilations") for cause in causes)
    assert "optimizer.step" in section(text, "flushes") and "test_page.py:" in section(text, "flushes")
    divided = _text(tmp_path, trained())
    assert "times every launch" in section(divided, "lines") and "GFLOP" not in divided and "GFLOP" in section(text, "lines")


def _text(folder: Path, p: profile) -> str:
    p.export_html(folder / "other.html")
    return (folder / "other.html").read_text()


def test_the_page_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", text) and "@import" not in text and "url(" not in text and "http" not in text
    assert "fetch(" not in text and "XMLHttpRequest" not in text and "eval(" not in text
    assert text.count("</script>") == 2, "names of the user cannot end the script"


def test_the_numbers_of_the_timeline_are_those_of_the_events(page: Path) -> None:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)
    assert found
    data = json.loads(found.group(1))
    assert {"recording", "ranges", "cpu queue", "loader"} <= {row["name"] for row in data["rows"]}
    for row in data["rows"]:
        assert all(0 <= level < row["levels"] and start >= 0 and length >= 0 for start, length, _, level, _ in row["events"])
        assert all(start + length <= data["end"] + 1 for start, length, *_ in row["events"])
    assert max(held for _, held in data["memory"]) == data["peak"][1]


def test_the_peak_is_attributed_to_lines() -> None:
    kept = []
    base = calque.stats().memory["in_use"]
    with profile() as p:
        kept.append(calque.randn(512, 1024).exp())  # 2 MiB that stay
        calque.synchronize()
        kept[0].sum().item()
        wide = kept[0] @ kept[0].T  # line of a temporary that is needed twice
        (wide.softmax(1) @ wide).sum().item()
    found = p.peak()
    assert found.nbytes >= base + (2 << 20) and p.memory and found.nbytes == max(held for _, held in p.memory)
    stay = [h for h in found.held if h.kind == "kept" and any("exp [512, 1024]" in name for name in h.values)]
    assert stay and stay[0].nbytes >= 2 << 20 and "test_page.py:" in stay[0].line
    short = [h for h in found.held if h.kind == "temporary"]
    assert any("test_page.py:" in h.line for h in short) and sum(h.nbytes for h in short) >= 1 << 20
    assert sum(h.nbytes for h in found.held) >= 0.99 * found.nbytes
    assert found.running.startswith(__file__)


def test_temporaries_that_share_memory_are_counted_once() -> None:
    """What a program holds at most fits into its arena, also where values overwrite one another in place."""
    calque.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    model = nn.Sequential(layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 36, 10))
    optimizer = calque.optim.Adam(model.parameters())
    x = calque.randn(64, 3, 16, 16)
    with profile() as p:
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), calque.arange(64) % 10).backward()
            optimizer.step()
        calque.synchronize()
    forms = [run.form for run in p._session.runs if run.form.schedule is not None]
    held = [(sum(size for _, _, size in temporaries(form.schedule, form.program.nodes)), form.schedule.arena_bytes) for form in forms]
    assert max(arena for _, arena in held) > 1 << 20 and any(most > arena / 2 for most, arena in held)
    assert all(most <= arena for most, arena in held), held


def test_without_following_values_the_page_says_so(tmp_path: Path) -> None:
    with profile(profile_memory=False) as p:
        calque.ones(300, 300).exp().sum().item()
    assert p.peak().held == () and p.peak().nbytes > 0
    assert "profile_memory was False" in section(_text(tmp_path, p), "memory")


def test_an_empty_profile_is_a_page_too(tmp_path: Path) -> None:
    with profile() as p:
        pass
    text = _text(tmp_path, p)
    assert "no program ran" in text and "nothing was compiled" in text and "nothing was flushed" in text
    with pytest.raises(ProfileError, match=r"\[export_html\] expected a profile, got one that never ran"):
        profile().export_html(tmp_path / "x.html")


# ------------------------------------------------------------------------------------------------------------ a real browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if BROWSER is None:
        pytest.skip("no Chromium is installed (a Debian package: chromium-headless-shell); set CHROMIUM to the path of one")
    with opened(BROWSER, tmp_path_factory.mktemp("chromium")) as found:
        yield found


def view(browser: Page) -> tuple[float, float]:
    browser.settle()
    first, last = browser.run("document.body.dataset.view").split(",")
    return float(first), float(last)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_the_page_draws_without_errors_or_requests(browser: Page, page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    browser.problems.clear()
    browser.requests.clear()
    browser.open(page, width=width, dark=dark)
    assert browser.problems == [] and browser.requests == [page.resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= width, "no page wider than its window"
    painted = "(id) => { const c = document.getElementById(id), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
    painted += " const seen = new Set(); for (let k = 0; k < d.length; k += 4) if (d[k + 3] > 200) seen.add(d[k] << 16 | d[k + 1] << 8 | d[k + 2]);"
    painted += " return seen.size; }"
    assert browser.run(f"({painted})('rows')") > 5 and browser.run(f"({painted})('curve')") > 3
    colours = browser.run("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    ground, ink = (sum(int(x) for x in re.findall(r"\d+", colour)[:3]) for colour in colours)
    assert (ground < ink) == dark and abs(ground - ink) > 400
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_zooming_moving_and_looking(browser: Page, page: Path) -> None:
    browser.problems.clear()
    browser.open(page)
    whole = view(browser)
    assert whole[0] == 0 and whole[1] > 0
    box = browser.run("(({left, top, width}) => [left, top, width])(document.getElementById('rows').getBoundingClientRect())")
    x, y = box[0] + box[2] * 0.6, box[1] + 40
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-60, modifiers=2)  # with Ctrl
    closer = view(browser)
    assert closer[1] - closer[0] < 0.9 * (whole[1] - whole[0]) and closer[0] > 0
    browser.mouse("mousePressed", x, y)
    browser.mouse("mouseMoved", x - 100, y, buttons=1)
    browser.mouse("mouseReleased", x - 100, y)
    moved = view(browser)
    assert moved[0] > closer[0] and moved[1] - moved[0] == pytest.approx(closer[1] - closer[0], rel=1e-3)
    browser.run("document.getElementById('in').click()")
    assert view(browser)[1] - view(browser)[0] == pytest.approx((moved[1] - moved[0]) / 2, rel=1e-2)
    browser.run("document.getElementById('fit').click()")
    assert view(browser) == whole
    browser.run("document.getElementById('find').value = 'program'; document.getElementById('find').dispatchEvent(new Event('input'))")
    height = browser.run("document.getElementById('rows').getBoundingClientRect().height")
    for step in range(int(height) // 4):  # somewhere under the pointer is an event
        browser.mouse("mouseMoved", x, box[1] + 26 + 4 * step)
        if not browser.run("document.getElementById('tip').hidden"):
            break
    assert "µs" in browser.run("document.getElementById('tip').textContent") or "ms" in browser.run("document.getElementById('tip').textContent")
    browser.mouse("mousePressed", x, box[1] + 26 + 4 * step)
    browser.mouse("mouseReleased", x, box[1] + 26 + 4 * step)
    browser.settle()
    assert not browser.run("document.getElementById('details').hidden")
    assert browser.run("document.getElementById('details').textContent").count("\n") >= 2
    assert browser.problems == []


def test_an_empty_page_draws(browser: Page, tmp_path: Path) -> None:
    with profile() as p:
        pass
    p.export_html(tmp_path / "empty.html")
    browser.problems.clear()
    browser.open(tmp_path / "empty.html")
    assert browser.problems == []
