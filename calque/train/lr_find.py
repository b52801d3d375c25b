"""Which learning rate to begin with."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import calque
from calque.base.errors import ArgumentError
from calque.base.extras import need
from calque.base.text import described, shown

_SMOOTH = 0.9
_DIVERGED = 4.0  # times the best loss


@dataclass(frozen=True)
class Rates:
    """Losses (smoothed) over rates, and the rate where they fall fastest."""

    rates: list[float]
    losses: list[float]
    suggestion: float

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the losses over the rates into a picture. Needs matplotlib."""
        figure = need("matplotlib.figure", "matplotlib", "demo", "lr_find").Figure(figsize=(7, 4))
        axes = figure.subplots()
        axes.plot(self.rates, self.losses)
        axes.axvline(self.suggestion, linestyle="--", label=f"suggestion {self.suggestion:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss (smoothed)")
        axes.legend()
        figure.savefig(os.fspath(path))


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of a loader, again and again."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise ArgumentError(f"[lr_find] expected batches (inputs, labels), got {described(batch)}; give a loader of pairs")
            yield batch
        if empty:
            raise ArgumentError("[lr_find] expected at least one batch, got an empty loader; make a new one if it was walked through before")


def lr_find(
    model: Any, optimizer: Any, loss_fn: Callable[[Any, Any], Any], loader: Iterable[Any], start: float = 1e-6, end: float = 1.0, steps: int = 100
) -> Rates:
    """Train for a moment while the rate rises from `start` to `end`, until the loss explodes; everything is as before afterwards.

    The suggestion is the rate at which the smoothed loss falls fastest. Source: L. N. Smith, "Cyclical Learning Rates for Training Neural Networks"
    (2017). model, optimizer, streams of random numbers: come back as they were. loader: batches (inputs, targets); begins again if it is short.

    >>> model = calque.nn.Linear(4, 1)
    >>> data = [(calque.randn(32, 4), calque.randn(32, 1))]
    >>> found = calque.train.lr_find(model, calque.optim.SGD(model.parameters(), lr=0.1), calque.nn.functional.mse_loss, data, end=10.0)
    >>> 1e-6 < found.suggestion < 10.0
    True
    """
    if not (0 < start < end and math.isfinite(end)):
        raise ArgumentError(f"[lr_find] expected 0 < start < end, got start={shown(start)}, end={shown(end)}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 10:
        raise ArgumentError(f"[lr_find] expected steps to be an integer >= 10, got {shown(steps)}")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state, training, stream = copy.deepcopy(optimizer.state_dict()), model.training, calque.get_rng_state()
    model.train()
    rates: list[float] = []
    losses: list[float] = []
    average = 0.0
    try:
        for step, (inputs, targets) in zip(range(steps), _endless(loader)):
            rate = start * (end / start) ** (step / (steps - 1))
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()
            average = _SMOOTH * average + (1 - _SMOOTH) * loss.item()
            smooth = average / (1 - _SMOOTH ** (step + 1))
            if not math.isfinite(smooth) or (losses and smooth > _DIVERGED * min(losses)):
                break
            rates.append(rate)
            losses.append(smooth)
    finally:
        optimizer.zero_grad()
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        model.train(training)
        calque.set_rng_state(stream)
    if len(rates) < 5:
        raise ArgumentError(f"[lr_find] expected a loss that is finite at small rates, got {losses} from start={start:g}; begin lower, or look at "
        f"the data")
    slopes = [(losses[k + 2] - losses[k - 2], rates[k]) for k in range(2, len(rates) - 2)]
    return Rates(rates, losses, min(slopes)[1])
