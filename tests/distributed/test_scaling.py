"""The scaling model: its arithmetic against counting messages, and its use."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2
from pathlib import Path
from typing import Any

import pytest

import calque
from calque.base.errors import ArgumentError
from calque.distributed.links import LINKS, SCHEMES, Link, seconds
from calque.distributed.scaling import Curve, ScalingPlan

SLOW = Link("slow", 1e6, 1e-3)


def ring_by_counting(ranks: int, nbytes: float, link: Link) -> float:
    """Play it: in every round each rank sends one part to the next; parts are summed on the way once round, and copied once round."""
    have = [[{rank} for _ in range(ranks)] for rank in range(ranks)]  # whose values are in part p of each rank
    time, turns = 0.0, 0
    while any(part != set(range(ranks)) for row in have for part in row):
        sent = [(rank, (rank - turns) % ranks, set(have[rank][(rank - turns) % ranks])) for rank in range(ranks)]
        for rank, part, values in sent:
            have[(rank + 1) % ranks][part] |= values
        time += nbytes / ranks / link.bandwidth + link.latency
        turns += 1
    return time


def plan(fixed: float = 1e-3, each: float = 1e-3, nbytes: int = 100_000_000, **options: Any) -> ScalingPlan:
    curve = Curve((1, 100), (fixed + each, fixed + 100 * each))
    given = {"exchange": 0.01, "ranks": 2, "hidden": 0.6, "hidden_here": 0.0, "per_machine": 8, "inside": LINKS["NVLink 4"], **options}
    return ScalingPlan(curve, curve, gradient_bytes=nbytes, **given)


@pytest.mark.parametrize("ranks", [2, 3, 8, 13])
def test_a_ring_costs_what_playing_it_costs(ranks: int) -> None:
    assert seconds("ring", ranks, 3e6, SLOW, SLOW, 8) == pytest.approx(ring_by_counting(ranks, 3e6, SLOW))


def test_schemes_cost_what_they_send() -> None:
    assert seconds("tree", 9, 2e6, SLOW, SLOW, 8) == pytest.approx(2 * ceil(log2(9)) * (2.0 + 1e-3))
    inside = Link("inside", 1e9, 0.0)
    flat, levels = (seconds(scheme, 64, 2e6, Link("wire", 1e6, 0.0), inside, 8) for scheme in ("ring", "two-level"))
    assert flat == pytest.approx(2 * 63 / 64 * 2) and levels == pytest.approx(2 * 7 / 8 * 2 + 2 * 7 / 8 * 2e6 / 1e9)
    assert all(seconds(scheme, 1, 2e6, SLOW, SLOW, 8) == 0 for scheme in SCHEMES)
    assert seconds("two-level", 8, 2e6, SLOW, inside, 8) == pytest.approx(seconds("ring", 8, 2e6, inside, inside, 8))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ranks", [2, 64, 100_000])
def test_the_batch_that_hides_communication_is_the_first(scheme: str, ranks: int) -> None:
    found = plan()
    for link in LINKS:
        first = found.hides_from(ranks, link, scheme)
        assert first is not None and found.step_time(first, ranks, link, scheme) == pytest.approx(found.alone(first))
        assert first == 1 or found.step_time(first - 1, ranks, link, scheme) > found.alone(first - 1)
        assert found.speedup(first, ranks, link, scheme) == pytest.approx(ranks)
    assert Curve((1, 2), (1.0, 1.0))(1e9) == 1.0 and plan(each=0.0).hides_from(64 * ranks, SLOW, scheme) is None


def test_speed_up_of_one_batch_ends_where_communication_begins_to_cost() -> None:
    found = plan(fixed=0.0)
    best = [found.speedup(4096, n, "10 GbE", strong=True) for n in (1, 4, 16, 4096)]
    assert best[0] == pytest.approx(1) and best[1] == pytest.approx(4) and best[3] < best[2] < 16 * 1.001


def test_a_step_is_measured_and_shown(tmp_path: Path) -> None:
    net = calque.nn.Sequential(calque.nn.Linear(32, 32), calque.nn.Linear(32, 1, bias=False))
    net[1].requires_grad_(False)
    seen: list[int] = []

    def step(batch: int) -> None:
        seen.append(batch)
        net(calque.ones(batch, 32)).sum().backward()

    found = calque.plan_scaling(step, [2, 4, 8], model=net, repeats=2)
    assert seen == [2, 4, 8] * 4 and found.gradient_bytes == 4 * 33 * 32 and found.exchange is None and found.ranks == 1
    (check,) = found.check(step, [6], repeats=2)
    assert check.measured > 0 and check.predicted == found.step_time(6, 1) and "checked: 1 rank, 6 samples" in str(found)
    assert all(link in str(found) for link in LINKS)
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "a.svg", most=100)
    assert (tmp_path / "a.svg").stat().st_size > 10_000


BAD: list[tuple[Callable[[ScalingPlan], Any], str]] = [
    (lambda p: p.step_time(4, 3), "expected a link for 3 ranks"),
    (lambda p: p.communication(0, "10 GbE"), "expected ranks to be a positive whole number"),
    (lambda p: p.communication(2, "wire"), "expected a Link or one of '10 GbE'"),
    (lambda p: p.communication(2, "10 GbE", "star"), "expected a scheme of ring, tree, two-level"),
    (lambda p: Link("x", 0.0, 0.0), "expected a bandwidth above 0"),
    (lambda p: calque.plan_scaling(print, [4, 2], model=calque.nn.Linear(1, 1)), "rising positive batch sizes"),
    (lambda p: calque.plan_scaling(print, [4], model=calque.nn.Linear(1, 1)), "two or more"),
    (lambda p: calque.plan_scaling(3, [1, 2], model=calque.nn.Linear(1, 1)), "expected a function of the batch size"),  # type: ignore[arg-type]
    (lambda p: calque.plan_scaling(print, [1, 2], model=calque.nn.ReLU()), "parameters that require a gradient"),
    (lambda p: calque.plan_scaling(print, [1, 2], model=None), "expected model to be a module"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text for _, text in BAD])
def test_what_cannot_be_planned_says_so(call: Callable[[ScalingPlan], Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        call(plan())
