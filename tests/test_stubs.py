"""Editors and type checkers see the methods of `Tensor`, and that a name is none of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stubs import FACADE, PACKAGE, SPACES, STUB, facade, page, space

PROGRAM = """
import calque
from calque.vision.transforms import v2
from calque.vision.transforms.v2 import ToImage, functional

x = calque.zeros(2, 3)
total: calque.Tensor = (x + 1).relu().sum(-1, keepdim=True)
size: calque.Size = x.shape
count: int = x.ndim + x.nbytes
total.summ()
x.view(3, 2).transpose(0, 1).permut(0)
x.sum(keepdims=3)
v2.Compose([ToImage(), v2.RandomResizedCrop(24), v2.CutMix, v2.ScaleJitter])(functional.resize(x, [3, 3]), functional.to_image)
v2.RandomResizedCorp(24)
functional.rezise(x, [3, 3])
"""


def test_the_stub_is_that_of_the_tree() -> None:
    assert STUB.read_text() == page() and FACADE.read_text() == facade(), "run `python -m tests.stubs`"
    for of, file in SPACES.items():
        assert (PACKAGE / file).read_text() == space(of), "run `python -m tests.stubs`"


def test_type_checkers_know_what_is_attached(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), str(program)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=STUB.parents[2], check=False).stdout.splitlines()
    errors = [line for line in found if ": error:" in line]
    assert len(errors) == 5, found
    assert '"summ"' in errors[0] and '"permut"' in errors[1] and '"keepdims"' in errors[2], errors
    assert '"RandomResizedCorp"' in errors[3] and '"rezise"' in errors[4], errors
