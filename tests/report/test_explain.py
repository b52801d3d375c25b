"""`calque.explain`: what it counts, what it says, and that it refuses what it cannot do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.config import settings
from calque.base.errors import ProfileError
from calque.observe import events
from calque.record import trie


def chain(a: Any, b: Any) -> Any:
    hidden = (a @ b).relu()
    return (hidden * 2.5).sum(1)


def test_programs_kernels_and_totals() -> None:
    a, b = calque.randn(32, 48), calque.randn(48, 64)
    found = calque.explain(chain, a, b)
    assert len(found.programs) == 1
    product = [k for k in found.kernels if k.kind == "contract"]
    assert len(product) == 1 and product[0].flops == 2 * 32 * 48 * 64
    assert product[0].bytes == 4 * (32 * 48 + 48 * 64 + 32 * 64)
    assert all("test_explain.py" in line for k in found.kernels for line in k.lines)
    assert any("relu" in node for k in found.kernels for node in k.nodes)
    assert found.flops == sum(k.flops for k in found.kernels) and found.bytes == sum(k.bytes for k in found.kernels)
    assert found.peak_bytes >= found.programs[0].peak_bytes > 4 * (32 * 48 + 48 * 64)
    assert all(k.seconds > 0 for k in found.kernels)
    np.testing.assert_array_equal(found.result.numpy(), chain(a, b).numpy())


def test_small_programs_are_compiled_for_the_explanation_and_a_repeat_is_the_same_program() -> None:
    found = calque.explain(lambda x: x.exp() + 1, calque.ones(3), repeats=3)
    assert [p.runs for p in found.programs] == [3]
    assert len(found.kernels) == 1 and found.kernels[0].flops == 6


def test_what_is_not_fused_says_why_and_where() -> None:
    def both(x: Any) -> Any:
        return x.sum(0) + x.sum(1)

    found = calque.explain(both, calque.randn(200, 200))
    refused = [r for p in found.programs for r in p.refused]
    assert refused and all("not in group" in why and "test_explain.py" in line for _, line, why in refused)
    assert "not fused:" in str(found)


def test_loops_behind_contractions_say_how_they_run() -> None:
    x, w, bias, other = (calque.ones(*shape) for shape in ((300, 64), (64, 256), (256,), (300, 256)))
    found = calque.explain(lambda: (x @ w + bias).relu())
    assert found.kernels[1].note == "runs part by part behind the contraction (timed apart here)"
    assert found.kernels[1].note in str(found) and found.to_dict()["programs"][0]["kernels"][1]["note"] == found.kernels[1].note
    found = calque.explain(lambda: (x @ w + other).relu())
    assert found.kernels[1].note.startswith("a pass of its own behind the contraction: it reads or writes 307200 bytes beside the result")
    assert not found.kernels[0].note


def test_the_table_and_the_dict_hold_the_same_kernels() -> None:
    found = calque.explain(chain, calque.randn(8, 8), calque.randn(8, 8))
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["flops"] == found.flops and plain["peak_bytes"] == found.peak_bytes
    assert [k["name"] for p in plain["programs"] for k in p["kernels"]] == [k.name for k in found.kernels]
    for k in found.kernels:
        assert k.name in str(found)
    assert f"{len(found.kernels)} kernels in 1 program," in str(found)


def test_a_training_step_steps_once_per_run() -> None:
    model = calque.nn.Linear(4, 1)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.5)
    x, y = calque.ones(8, 4), calque.zeros(8, 1)
    before = model.weight.detach().clone()

    def step() -> Any:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    expected = ((model(x) - y) ** 2).mean().item()
    found = calque.explain(step)
    assert found.result.item() == pytest.approx(expected)
    assert not calque.equal(before, model.weight.detach())


def test_the_reference_backend_is_explained_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "backend", "ref")
    trie.forget()
    found = calque.explain(lambda x: x.exp(), calque.ones(5))
    assert found.kernels == () and len(found.programs) == 1
    trie.forget()


def test_mistakes() -> None:
    with pytest.raises(TypeError, match=r"\[explain\] expected a function, got Tensor; pass the function and its inputs"):
        calque.explain(calque.ones(2))
    with pytest.raises(ValueError, match=r"\[explain\] expected at least one run, got repeats=0"):
        calque.explain(lambda: None, repeats=0)
    with pytest.raises(ProfileError, match=r"\[explain\] expected the function to compute something, got no program; return its result"):
        calque.explain(lambda: None)
    with pytest.raises(ZeroDivisionError):
        calque.explain(lambda: 1 / 0)
    assert events.active is None


def test_the_function_cannot_explain_itself() -> None:
    with pytest.raises(ProfileError, match=r"\[profiler\] expected no profile to be running, got a second one"):
        calque.explain(lambda: calque.explain(lambda: calque.ones(2) + 1))
    assert events.active is None
