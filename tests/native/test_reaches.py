"""Gradients of what is asked for, by the compiled module: which nodes lead there, and the values, as the twin in Python has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.autograd import engine
from calque.base.native import hot

pytestmark = [pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler"), pytest.mark.usefixtures("as_users")]
STEPS = ("add", "mul", "exp", "view", "sum", "cat", "unbind", "detach", "square", "hook")


def _graph(seed: int, steps: list[str]) -> tuple[list[Any], list[Any]]:
    """Leaves and all values of a random graph."""
    rng = np.random.default_rng(seed)
    leaves = [calque.tensor(rng.uniform(0.1, 0.4, 3), requires_grad=True) for _ in range(3)]
    values: list[Any] = list(leaves)
    for name in steps:
        a, b = (values[int(rng.integers(len(values)))] for _ in range(2))
        values.append(
            {
                "add": lambda a=a, b=b: a + b, "mul": lambda a=a, b=b: a * b, "exp": lambda a=a: a.exp() * 0.1,
                "view": lambda a=a: a.view(3, 1)[:, 0],
                "sum": lambda a=a: a.sum() * calque.ones(3), "cat": lambda a=a, b=b: calque.cat([a[:1], b[1:]]),
                "unbind": lambda a=a: calque.stack(a.unbind()), "detach": lambda a=a: a.detach(), "square": lambda a=a: a.square(),
                "hook": lambda a=a: a * 1.0,
            }[name]()
        )  # fmt: skip
        if name == "hook" and values[-1].requires_grad:
            values[-1].register_hook(lambda g: g * 2.0)
    return leaves, values


def _found(seed: int, steps: list[str], asked: list[int], keep: bool) -> Any:
    leaves, values = _graph(seed, steps)
    roots = [v for v in values[-2:] if v.requires_grad]
    wanted = [values[k % len(values)] for k in asked]
    wanted = [w for k, w in enumerate(wanted) if w.requires_grad and not any(w is v for v in wanted[:k])]
    if not roots or not wanted:
        return None
    results = []
    for create in (False, keep):
        grads = calque.autograd.grad([r.sum() for r in roots], wanted, retain_graph=True, create_graph=create, allow_unused=True)
        results.append([None if g is None else g.tolist() for g in grads])
    sum(r.sum() for r in roots).backward(inputs=wanted)
    return results, [None if x.grad is None else x.grad.tolist() for x in leaves]


@given(
    seed=st.integers(0, 1 << 20), steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=14),
    asked=st.lists(st.integers(0, 16), min_size=1, max_size=3), keep=st.booleans(),
)  # fmt: skip
def test_gradients_of_what_is_asked_for_are_those_of_the_twin(seed: int, steps: list[str], asked: list[int], keep: bool) -> None:
    found = _found(seed, steps, asked, keep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "hot", None)
        wanted = _found(seed, steps, asked, keep)
    assert found == wanted


@given(seed=st.integers(0, 1 << 20), steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=14), asked=st.lists(st.integers(0, 16), max_size=3))
def test_what_leads_to_what_is_asked_for_is_what_the_twin_finds(seed: int, steps: list[str], asked: list[int]) -> None:
    _, values = _graph(seed, steps)
    wanted = {id(v._grad_fn or v) for v in (values[k % len(values)] for k in asked) if v.requires_grad}
    roots = [v._grad_fn or v for v in values[-2:]]
    found = hot.reaches(roots, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "hot", None)
        expected = engine.reaches(roots, wanted)
    assert found == expected or (found is None and "unbind" in steps)  # what has several results is walked by the twin


def test_a_long_chain_needs_no_stack_of_the_machine() -> None:
    x = calque.ones(1, requires_grad=True)
    y = x
    for _ in range(50_000):
        y = y + 1.0
    (g,) = calque.autograd.grad(y, x)
    assert g.tolist() == [1.0]
