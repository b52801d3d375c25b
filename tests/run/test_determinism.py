"""Equal bits from equal seeds, one loop after the other in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.config import settings
from calque.run.dispatch import INTERPRET_TIMES

F = nn.functional


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "deterministic", False)  # and restore it
    calque.use_deterministic_algorithms(True)


def _loop(kind: str, hybridized: bool) -> list[Any]:
    """What a seeded loop sees that looks at values in the middle of its steps and evaluates, and its parameters."""
    calque.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 20), nn.LayerNorm(20), nn.Tanh(), nn.Dropout(0.2), nn.Linear(20, 5))
    if hybridized:
        model.hybridize()
    optimizer = getattr(calque.optim, kind)(model.parameters(), lr=0.05)
    seen: list[Any] = []
    for step in range(INTERPRET_TIMES + 6):
        x, y = calque.randn(16, 12), calque.randint(0, 5, (16,))
        loss = F.cross_entropy(model(x), y)
        seen.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if step % 3 == 0:
            seen.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        if step % 4 == 0:
            model.eval()
            with calque.no_grad():
                seen.append(F.softmax(model(x), 1).exp().sum(1).tolist())
            model.train()
    return [*seen, [p.tolist() for p in model.parameters()]]


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_loops_of_one_seed_give_the_same_bits(kind: str, hybridized: bool, deterministic: None) -> None:
    interpreted = calque.stats()["interpreted"]
    first = _loop(kind, hybridized)
    assert all(_loop(kind, hybridized) == first for _ in range(2))
    assert calque.stats()["interpreted"] == interpreted


def test_a_value_is_the_same_however_often_its_program_was_seen(deterministic: None) -> None:
    x = calque.linspace(-3.0, 3.0, 1001)
    x.tolist()
    values = {((x * 0.7).exp() - x.sin()).softmax(0).mean().item() for _ in range(INTERPRET_TIMES + 2)}
    assert len(values) == 1


def test_the_switch_says_what_it_was_told(deterministic: None) -> None:
    assert calque.are_deterministic_algorithms_enabled() and not calque.is_deterministic_algorithms_warn_only_enabled()
    calque.use_deterministic_algorithms(True, warn_only=True)
    assert calque.are_deterministic_algorithms_enabled() and calque.is_deterministic_algorithms_warn_only_enabled()
    calque.use_deterministic_algorithms(False)
    assert not calque.are_deterministic_algorithms_enabled() and not calque.is_deterministic_algorithms_warn_only_enabled()
    for wrong in (1, "yes", None):
        with pytest.raises(TypeError, match=r"\[use_deterministic_algorithms\] expected mode to be True or False"):
            calque.use_deterministic_algorithms(wrong)  # type: ignore[arg-type]


def test_the_variable_begins_with_it() -> None:
    script = "import calque; print(calque.are_deterministic_algorithms_enabled())"
    environment = {**os.environ, "CALQUE_DETERMINISTIC": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "True\n", done.stderr
