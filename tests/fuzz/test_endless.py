"""Loops that nobody reads from come to a fixed set of programs."""

from __future__ import annotations

import pytest

import calque
from calque import nn
from calque.base.config import settings
from tests.fuzz.endless import KINDS, bounds, counts, wrong


@pytest.mark.parametrize("kind", KINDS)
def test_random_loops_meet_their_programs_again(kind: str, seed: int) -> None:
    for number in range(seed, seed + 2):
        found = wrong(number, **KINDS[kind])
        assert not found, f"seed {number}: {found}"


def test_a_cut_inside_a_hybridized_call_stays_where_it_was_met() -> None:
    """Its recording was moved to other places with the cut, and programs there got the wrong values."""
    assert not wrong(101)


def test_a_recurrent_network_whose_backward_pass_crosses_iterations() -> None:
    """The loss is there long before the pass has been recorded: reading it starts nothing, and what is pending is the next iteration's beginning."""
    calque.manual_seed(0)
    cell, x = nn.GRUCell(4, 4), calque.randn(300, 2, 4)
    seen = []
    before = counts()[0]
    with bounds(settings.max_pending_ops // 4):
        for _ in range(8):
            h = calque.zeros(2, 4)
            for step in range(300):
                h = cell(x[step], h)
            loss = (h * h).mean()
            loss.backward()
            loss.item()
            seen.append(counts()[:2])
    assert seen[5] == seen[7], seen
    assert seen[7][0] - before < 60


@pytest.mark.parametrize("body", [1, 5, 7, 97])
def test_a_loop_whose_length_does_not_divide_the_bound(body: int) -> None:
    x = calque.ones(3)
    seen = []
    with bounds(256):
        for _ in range(6):
            for _ in range(3000 // body):
                for k in range(body):
                    x = x * 0.5 if k % 3 else x + 1.0
            seen.append(counts()[:2])
    assert seen[2] == seen[5], seen


def test_a_hybridized_call_that_is_cut_replays() -> None:
    """Places behind a cut are few and come again, so recordings are found there."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    net.hybridize()
    with bounds(256), calque.no_grad():
        h = calque.ones(2, 3)
        for _ in range(400):
            h = net(h)
        before, programs = calque.stats()["hybridize"], counts()
        for _ in range(400):
            h = net(h)
        after = calque.stats()["hybridize"]
        assert counts()[:2] == programs[:2]
    assert after["replays"] - before["replays"] + after["imperative"] - before["imperative"] == 400
    assert after["recordings"] == before["recordings"] and after["replays"] - before["replays"] > 300
