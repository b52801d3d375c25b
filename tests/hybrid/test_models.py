"""The six benchmark models: hybridized modules and whole hybridized steps give the bits of the steps as written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from bench.models import JOBS
from tests.hybrid.common import counts

SLOW = ("gpt", "resnet18-32", "resnet18-224")


def train(name: str, style: str, steps: int = 8) -> tuple[list[float], dict[str, Any]]:
    """Losses and final state; the learning rate changes at every step, every second loss is read at once."""
    job = JOBS[name]
    calque.manual_seed(0)
    model = job.model(calque)
    optimizer = job.optimizer(calque, model)
    step = calque.compile(job.step) if style == "step" else job.step
    if style == "module":
        model.hybridize()
    rng = np.random.default_rng(0)
    losses = []
    for k in range(steps):
        x, y = (calque.tensor(a) for a in job.batch(rng, job.small))
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        loss = step(calque, model, optimizer, x, y)
        losses.append(loss.item() if k % 2 else loss)
    return [x if isinstance(x, float) else x.item() for x in losses], {k: v.numpy().copy() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in JOBS])
def test_hybridized_training_is_the_same_bit_for_bit(name: str) -> None:
    losses, state = train(name, "as written")
    for style, least in (("module", 7), ("step", 5)):
        before = counts()
        got, got_state = train(name, style)
        after = counts()
        assert got == losses
        for key, value in state.items():
            np.testing.assert_array_equal(got_state[key], value, err_msg=f"{style}: {key}")
        assert after["replays"] - before["replays"] >= least, after["reasons"]
