"""Plans for all sizes that another process reads."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import calque
from calque.base.config import settings
from calque.kernel import portable
from calque.kernel.sizes import Variant
from tests.fuzz.sizes import Drawer, checked, families, program

ROOT = Path(__file__).parents[2]


def test_random_programs_are_lowered_the_same_from_what_another_process_left(seed: int) -> None:
    rng, hits, misses, read = random.Random(seed), 0, 0, 0
    for _ in range(12):
        one, steps = rng.randrange(10**9), rng.randint(4, 30)
        drawer = Drawer()
        for process in range(3):
            known = families()
            for _ in range(5):
                made = program(one, tuple(rng.choice((3, 8, 24, 40, 64, rng.randint(2, 90))) for _ in range(3)), steps)  # type: ignore[arg-type]
                assert made is None or checked(known, made, drawer.shelf)
            if process:
                hits, misses = hits + known.hits, misses + known.misses
        read += sum(1 for name, data in drawer.kept.items() if (v := portable.unpacked(data)) is not None and portable.packed(v) == data)
        assert all(portable.unpacked(data) is not None for data in drawer.kept.values())
    assert hits > misses / 4 and read > 12, (hits, misses, read)


def variant() -> Variant:
    """One of a small program."""
    known, drawer = families(), Drawer()
    for n in (40, 33):
        made = program(11, (n, 3, 5), 25)
        assert made is not None
        assert checked(known, made, drawer.shelf)
    (data,) = drawer.kept.values()
    found = portable.unpacked(data)
    assert found is not None
    return found


def test_what_is_not_a_variant_is_absent(seed: int) -> None:
    whole = portable.packed(variant())
    assert whole is not None
    rng = random.Random(seed)
    rows = json.loads(whole)
    wrong = [None, [], ["tuple", len(rows) + 3], ["os.system", 0], ["class", 0], ["Loop"], ["dict", 0], "x", -1, {"a": 1}, ["function", 0]]
    for _ in range(300):
        damaged = json.loads(whole)
        damaged[rng.randrange(len(rows))] = rng.choice(wrong)
        portable.unpacked(json.dumps(damaged).encode())  # nothing is raised
    for cut in range(0, len(whole), 97):
        assert portable.unpacked(whole[:cut]) is None
    assert portable.unpacked(b"null") is None and portable.unpacked(b"\xff") is None and portable.unpacked(b"[" * 10_000) is None


def test_other_things_than_plain_records_are_not_kept() -> None:
    found = variant()
    found.template.constants.append(object())
    assert portable.packed(found) is None


LOOP = """
import sys
import numpy as np
import calque
from calque.kernel.sizes import FAMILIES
calque.manual_seed(0)
nn = calque.nn
layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 10), nn.LogSoftmax(-1)]
net, first = nn.Sequential(*layers), int(sys.argv[1])
optimizer = calque.optim.Adam(net.parameters())
for k in range(first, first + 24):
    rng = np.random.default_rng(k)
    h, w = rng.integers(8, 40, 2)
    x, y = calque.tensor(rng.standard_normal((2, 3, h, w), dtype=np.float32)), calque.tensor(rng.integers(0, 10, 2))
    optimizer.zero_grad()
    loss = calque.nn.functional.nll_loss(net(x), y)
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
print(FAMILIES.hits, FAMILIES.misses)
"""


def test_what_other_processes_left_saves_planning_and_changes_no_bit(tmp_path: Path) -> None:
    def run(cache: str, first: int) -> tuple[list[str], int, int]:
        environment = {**os.environ, "CALQUE_CACHE": str(tmp_path / cache), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-W", "ignore", "-c", LOOP, str(first)]
        *losses, counts = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
        return (losses, *map(int, counts.split()))  # type: ignore[return-value]

    alone, _, planned = run("one", 100)
    for first in (0, 40):
        run("two", first)
    together, _, fewer = run("two", 100)
    assert alone == together and fewer < planned, (planned, fewer)


def test_short_programs_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from calque.run import backends

    asked: list[bytes] = []
    monkeypatch.setattr(backends.backend(), "read", asked.append)
    for n in (30, 31, 32):
        x = calque.ones(n, 40_000 // n) * 3.0
        assert float((x.exp() + x).sum().item()) > 0
    assert not asked and not settings.deterministic
