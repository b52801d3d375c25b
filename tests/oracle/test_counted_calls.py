"""A program that replaces the functions of `nn.functional` and `nn.init` by counters counts the calls of modules that it counts with PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.oracle.test_scripts import printed

PROGRAM = str(Path(__file__).parent / "counted_calls.py")


def test_layers_and_functions_call_what_pytorchs_call_by_name() -> None:
    wanted = printed(PROGRAM)
    found = printed("-m", "calque", "run", PROGRAM, json.dumps(wanted["names"]))["found"]
    assert len(found) > 350 and sum(map(len, found.values())) > 250  # replacements are seen at all
    different = {name: (counts, found.get(name)) for name, counts in wanted["found"].items() if found.get(name) != counts}
    assert not different
