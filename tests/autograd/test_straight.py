"""Gradients at places that are known: the functions written for them also take views that begin somewhere else each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.autograd.template import Template
from calque.base.config import settings
from calque.record import trie


def _rows(order: list[int]) -> list[np.ndarray]:
    """Rows of a matrix, in an order, through a layer and picked elements; gradients of all."""
    x = calque.tensor(np.arange(24, dtype=np.float32).reshape(6, 4) / 10).requires_grad_()
    w = calque.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)).requires_grad_()
    total: Any = 0.0
    for k in order:
        h = calque.softmax(x[k : k + 2] @ w, -1)
        total = total + calque.log(h[0, k % 3]) * 0.5 + (h * x[k][1]).sum()
    total.backward()
    return [x.grad.numpy().copy(), w.grad.numpy().copy()]


def test_offsets_that_change_are_taken_without_reading_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    trie.forget()
    rng = np.random.default_rng(0)
    for _ in range(30):
        _rows(rng.integers(0, 5, 4).tolist())
    read: list[str] = []
    append = Template.append

    def counted(template: Template, node: Any, *rest: Any) -> Any:
        read.append(node.name())
        return append(template, node, *rest)

    monkeypatch.setattr(Template, "append", counted)
    found = _rows([4, 0, 2, 1])
    assert len(read) < 6, read
    monkeypatch.setattr(settings, "macros", False)
    for mine, rules in zip(found, _rows([4, 0, 2, 1]), strict=True):
        np.testing.assert_array_equal(mine, rules)
