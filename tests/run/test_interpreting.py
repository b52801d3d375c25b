"""Which programs are interpreted: small ones without state, the first 16 times."""

from __future__ import annotations

import numpy as np
import pytest

import calque
from calque.record import recorder
from calque.run import dispatch
from calque.run.dispatch import INTERPRET_TIMES
from calque.run.estimate import estimates
from tests.kernel.programs import Build


def counts() -> tuple[int, int]:
    stats = calque.stats()
    return stats["compiled"], stats["interpreted"]


def test_a_small_expression_is_compiled_after_its_sixteenth_run() -> None:
    x = calque.arange(7.0) * 1.0
    x.tolist()
    recorder.flush("test")
    calque.synchronize()
    compiled, interpreted = counts()
    values = [(x * 1.0625 - 3.0).sum().item() for _ in range(INTERPRET_TIMES)]
    assert counts() == (compiled, interpreted + 1)
    values.append((x * 1.0625 - 3.0).sum().item())
    assert counts() == (compiled + 1, interpreted + 1)
    assert values == [np.float32(21 * 1.0625 - 21)] * len(values)


def test_a_small_product_of_matrices_is_interpreted_first() -> None:
    """Work counts multiplications once per inner element: 20 x 30 by 30 x 5 is 6000 operations."""
    b = Build()
    x, w = b.input((20, 30)), b.input((30, 5))
    b.add("matmul", x, w)
    assert sum(estimates(b.program(2))) == 2 * 20 * 30 * 5
    a, c = calque.randn(20, 30), calque.randn(30, 5)
    a.numpy(), c.numpy()
    calque.synchronize()
    compiled, interpreted = counts()
    np.testing.assert_allclose((a @ c).numpy(), a.numpy() @ c.numpy(), rtol=1e-5, atol=1e-5)
    assert counts() == (compiled, interpreted + 1)


def test_attention_counts_two_products_whatever_the_number_of_heads() -> None:
    b = Build()
    q, k, v = b.input((4, 6, 2, 16)), b.input((4, 6, 50, 16)), b.input((4, 6, 50, 8))
    b.add("attention", q, k, v, attrs=("out", 0.25, False, True))
    assert sum(estimates(b.program(3))) == 2 * (4 * 6) * 2 * 50 * (16 + 8)
    b.add("attention", q, k, v, attrs=("lse", 0.25, False, True))
    assert sum(estimates(b.program(4))) == 2 * (4 * 6) * 2 * 50 * (16 + 8) + 4 * 6 * 2


def test_large_programs_and_updates_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something was compiled before; `test_rounding_alike.py` has what comes first."""
    monkeypatch.setattr(dispatch, "compiles", lambda: True)
    x, state = calque.ones(200, 200), calque.ones(4)
    x.numpy(), state.numpy()
    calque.synchronize()
    compiled, interpreted = counts()
    (x * 0.3125 + 2.0).numpy()
    state.mul_(1.3125)
    state.numpy()
    assert counts() == (compiled + 2, interpreted)
    assert dispatch.INTERPRET_WORK < 200 * 200


def test_programs_of_one_structure_are_interpreted_no_longer_than_planning_takes() -> None:
    """Products of new sizes at a line whose programs seldom repeat: two of them take as long as planning one, so that few are, not 16."""
    w = calque.randn(128, 128)

    def turn(n: int) -> float:
        x = calque.ones(n, 128) @ w
        for _ in range(30):
            x = (x + 1.0).tanh()
        return x.sum().item()

    for n in range(300, 308):
        turn(n)
    compiled, interpreted = counts()
    for n in range(308, 318):
        turn(n)
    assert sum(counts()) == compiled + interpreted + 10
    assert counts()[1] - interpreted < 4
