"""The numbers that optimizers count, as programs see them: 0-d tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import calque

NUMBERS = {"Adam": ["step"], "AdamW": ["step"], "Adagrad": ["step"], "Adadelta": ["step"], "Adamax": ["step"], "NAdam": ["step", "mu_product"],
           "RAdam": ["step"], "RMSprop": ["step"], "Rprop": ["step"], "ASGD": ["step", "eta", "mu"], "Adafactor": ["step"]}  # fmt: skip


def stepped(name: str, steps: int = 2) -> tuple[Any, Any]:
    p = calque.ones(2, 3, requires_grad=True)
    optimizer = getattr(calque.optim, name)([p], lr=0.1)
    step(optimizer, p, steps)
    return optimizer, p


def step(optimizer: Any, p: Any, steps: int = 1) -> None:
    for _ in range(steps):
        p.grad = p.detach().cos()
        optimizer.step()


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_tensors_and_looking_changes_nothing(name: str) -> None:
    (optimizer, p), (twin, q) = stepped(name), stepped(name)
    for key in NUMBERS[name]:
        for value in (optimizer.state[p][key], optimizer.state[p].get(key)):
            assert calque.is_tensor(value) and value.dtype is calque.float32 and value.shape == ()
    assert optimizer.state[p]["step"].item() == 2.0 and optimizer.state[p].get("none", 3) == 3
    step(optimizer, p, 3)
    step(twin, q, 3)
    assert calque.equal(p, q) and optimizer.state[p]["step"].item() == 5.0
    assert all(calque.equal(a, b) for a, b in zip(*[o.state_dict()["state"][0].values() for o in (optimizer, twin)], strict=True))


@pytest.mark.parametrize("change", [
    lambda s: s.__setitem__("step", 100), lambda s: s.__setitem__("step", calque.tensor(100.0)), lambda s: s["step"].fill_(100.0),
    lambda s: s["step"].add_(98), lambda s: s.update(step=calque.tensor(100.0)),
])  # fmt: skip
def test_the_next_step_counts_from_what_a_program_has_made_of_it(change: Any) -> None:
    (optimizer, p), (twin, q) = stepped("Adam"), stepped("Adam")
    change(optimizer.state[p])
    state = twin.state_dict()
    state["state"][0]["step"] = calque.tensor(100.0)
    twin.load_state_dict(state)
    step(optimizer, p)
    step(twin, q)
    assert calque.equal(p, q) and optimizer.state_dict()["state"][0]["step"].item() == 101.0


def test_copies_and_states_of_other_dtypes() -> None:
    optimizer, p = stepped("Adam")
    again = copy.deepcopy(optimizer)
    q = again.param_groups[0]["params"][0]
    step(optimizer, p)
    step(again, q)
    assert calque.equal(p, q) and again.state[q]["step"].item() == 3.0
    r = calque.ones(2, 3, dtype=calque.float64, requires_grad=True)
    other = calque.optim.Adam([r], lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    assert other.state[r]["exp_avg"].dtype is calque.float64 and other.state[r]["step"].dtype is calque.float32
    step(other, r)
    assert other.state[r]["exp_avg"].dtype is calque.float64 and other.state[r]["step"].item() == 4.0


def test_a_step_of_the_programs_own_keeps_what_it_puts_there() -> None:
    class Mine(calque.optim.Adam):
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1

    p = calque.ones(2, requires_grad=True)
    optimizer = Mine([p])
    optimizer.step()
    optimizer.step()
    assert optimizer.state[p]["step"] == 2 and type(optimizer.state[p]["step"]) is int


@pytest.mark.parametrize("other", [False, True])
def test_what_shares_memory_in_a_state_shares_it_when_it_is_loaded(other: bool) -> None:
    """A program keeps a buffer and a view of it, and writes through either."""
    p = calque.nn.Parameter(calque.zeros(3))
    first, second = Ring([p]), Ring([calque.nn.Parameter(calque.zeros(3, dtype=calque.float64 if other else calque.float32))])
    for k in range(3):
        p.grad = calque.full((3,), k + 1.0)
        first.step()
    second.load_state_dict(first.state_dict())
    kept = second.state[second.param_groups[0]["params"][0]]
    assert kept["whole"].tolist() == first.state[p]["whole"].tolist()
    if not other:  # of another dtype they are copies of their own, in both
        kept["row"].fill_(7)
        assert kept["whole"][1].tolist() == [7, 7, 7]
        assert kept["same"] is not kept["whole"]
        kept["same"].zero_()
        assert (kept["whole"].tolist(), kept["row"].tolist()) == ([[0] * 3] * 2, [0] * 3)
    assert first.state[p]["row"].tolist() == [2.125, 2.125, 2.125], "the state that was loaded is another optimizer's"


class Ring(calque.optim.Optimizer):
    """Keeps two gradients, and looks at them in two ways."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @calque.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                whole = calque.zeros(2, 3, dtype=p.dtype)
                state.update(whole=whole, row=whole[1], same=whole)
            state["row"].lerp_(p.grad, 0.5) if state["row"].any() else state["row"].copy_(state["whole"][0] + p.grad / 2)
            state["whole"][0].copy_(p.grad)
