"""Programs of examples/ run without PyTorch, and their page names all of them. tests/oracle/test_examples.py compares every one with PyTorch."""

from __future__ import annotations

import re

import pytest

from tests.examples_runner import FOLDER, PROGRAMS, ROOT, differences, losses, printed

EXPECTED = {  # what PyTorch 2.13 computes with --steps 5
    "graph_attention": [1.42812, 1.36680, 1.30938, 1.25515, 1.20346],
    "super_resolution": [0.294465, 0.090450, 0.082681, 0.113685, 0.090402],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs_without_pytorch(name: str) -> None:
    assert losses(printed(name, "--steps", "5", by="calque")) == pytest.approx(EXPECTED[name], rel=1e-3)


def test_the_page_names_every_program() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)\.py`", page)) >= {file.stem for file in FOLDER.glob("*.py")}
    assert set(re.findall(r"calque run examples/(\w+)\.py", page)) == set(PROGRAMS)
    assert len(PROGRAMS) >= 11


def test_differences_are_seen() -> None:
    assert not differences("step 1 loss 0.50001\n'a 7'", "step 1 loss 0.50002\n'a 7'")
    assert differences("step 1 loss 0.51\nb", "step 1 loss 0.5\nc") == ["'step 1 loss 0.51' instead of 'step 1 loss 0.5'", "'b' instead of 'c'"]
    assert differences("step 2 loss 0.5", "step 1 loss 0.5") and differences("step 1 loss nan", "step 1 loss 0.5")
    assert differences("step 1", "step 1\nstep 2") == ["1 lines instead of 2"]
