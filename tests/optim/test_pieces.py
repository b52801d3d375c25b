"""Steps that find gradients of other parameters each time: what has had them at the same steps is updated together."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn, optim
from calque.optim import updates
from calque.replay.stretches import StretchCounts

KINDS: dict[str, Any] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
}


class Experts:
    """Eight of them, of which some are asked at each step."""

    def __init__(self, kind: str) -> None:
        calque.manual_seed(0)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8)) for _ in range(8)])
        self.head = nn.Linear(8, 3)
        self.model = nn.ModuleList([self.experts, self.head])
        self.optimizer = KINDS[kind](self.model.parameters())

    def step(self, k: int) -> None:
        rng = random.Random(k)
        x = calque.tensor(np.random.default_rng(k).standard_normal((5, 8), dtype=np.float32))
        for expert in self.experts:
            if rng.random() < 0.5:
                x = x + expert(x)
        self.optimizer.zero_grad()
        self.head(x).square().mean().backward()
        self.optimizer.step()

    def values(self) -> list[Any]:
        return [p.detach().numpy().copy() for p in self.model.parameters()]


def apart(first: Experts, second: Experts) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(first.values(), second.values(), strict=True))


@pytest.mark.parametrize("kind", [*KINDS])
def test_pieces_are_updated_as_the_whole_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_pieces, written = Experts(kind), Experts(kind)
    replays = StretchCounts.replays
    for k in range(40):
        by_pieces.step(k)
    assert StretchCounts.replays - replays > 60  # some four or five a step
    monkeypatch.setattr(updates, "STRANGE", 10**6)
    for k in range(40):
        written.step(k)
    assert apart(by_pieces, written) < 1e-6
    steps = [by_pieces.optimizer.state[p].get("step") for p in by_pieces.model.parameters()]
    assert steps == [written.optimizer.state[p].get("step") for p in written.model.parameters()]


def test_what_changes_in_the_middle_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates, groups that are added, states that are loaded, copies, parameters that are frozen."""

    def run(trainer: Experts) -> None:
        optimizer = trainer.optimizer
        for k in range(80):
            if k == 25:
                optimizer.param_groups[0]["lr"] = 0.003
            if k == 35:
                calque.manual_seed(1)
                trainer.experts.append(nn.Linear(8, 8))
                optimizer.add_param_group({"params": list(trainer.experts[8].parameters()), "lr": 0.02})
            if k == 45:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if k == 55:
                for p in trainer.experts[2].parameters():
                    p.requires_grad_(False)
            if k == 65:
                trainer.optimizer = optimizer = copy.copy(optimizer)
            trainer.step(k)

    by_pieces, written = Experts("AdamW"), Experts("AdamW")
    replays = StretchCounts.replays
    run(by_pieces)
    assert StretchCounts.replays - replays > 100
    monkeypatch.setattr(updates, "STRANGE", 10**6)
    run(written)
    assert apart(by_pieces, written) < 1e-6


def test_steps_that_repeat_are_one_program() -> None:
    trainer = Experts("Adam")
    for k in range(60):
        trainer.step(k % 3)  # three sets of experts
    assert not trainer.optimizer._pieces.pieces


def test_parameters_that_come_and_go_alone_are_updated_as_written() -> None:
    calque.manual_seed(0)
    weights = [nn.Parameter(calque.randn(4)) for _ in range(12)]
    optimizer, rng = optim.SGD(weights, lr=0.1), random.Random(0)
    expected = [w.detach().numpy().copy() for w in weights]
    for _ in range(40):
        optimizer.zero_grad()
        chosen = [k for k in range(12) if rng.random() < 0.5] or [0]
        sum(weights[k].sum() for k in chosen).backward()  # type: ignore[union-attr]
        optimizer.step()
        for k in chosen:
            expected[k] = expected[k] - np.float32(0.1)
    assert all(np.allclose(w.detach().numpy(), e, atol=1e-5) for w, e in zip(weights, expected, strict=True))


def test_an_old_value_that_somebody_holds_stays() -> None:
    """The program of a piece overwrites parameters only where nobody sees it."""
    trainer = Experts("SGD")
    for k in range(20):
        trainer.step(k)
    held = [p.detach().clone() for p in trainer.model.parameters()]
    views = [p.detach() for p in trainer.model.parameters()]
    before = trainer.values()
    trainer.step(20)
    assert all(np.array_equal(h.numpy(), b) for h, b in zip(held, before, strict=True))
    assert all(np.array_equal(v.numpy(), p) for v, p in zip(views, trainer.values(), strict=True))
