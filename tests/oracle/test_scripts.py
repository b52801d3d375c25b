"""A hundred programs as people write them print the same under PyTorch and under `calque run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "tests" / "clients" / "scripts").glob("*.py") if path.name != "common.py")


def printed(*words: str) -> dict[str, Any]:
    """What the programs of a file print. PyTorch runs where Calque does, but does not find it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT) if "calque" in words else "", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        found.update(json.loads(line))
    return found


def differences(found: Any, wanted: Any, place: str) -> list[str]:
    """Where two results differ by more than rounding: the programs take few steps, and no step that follows a gradient of mere rounding."""
    if isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        return [d for k, pair in enumerate(zip(found, wanted, strict=True)) for d in differences(*pair, f"{place}[{k}]")]
    if isinstance(wanted, float) and isinstance(found, float):
        return [] if abs(found - wanted) <= 1e-4 * abs(wanted) + 2e-5 else [f"{place}: {found} instead of {wanted}"]
    return [] if found == wanted else [f"{place}: {found!r} instead of {wanted!r}"]


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_programs_print_what_they_print_with_pytorch(path: Path) -> None:
    wanted, found = printed(str(path)), printed("-m", "calque", "run", str(path))
    assert found.keys() == wanted.keys() and len(wanted) >= 6
    assert [d for name in wanted for d in differences(found[name], wanted[name], name)] == []
