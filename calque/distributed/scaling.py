"""`plan_scaling`: how fast a training step will be on more ranks, from what it takes here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from statistics import median
from typing import Any

import numpy as np

from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError
from calque.base.extras import need
from calque.base.text import shown, type_name
from calque.distributed.collectives import Plan, barrier, begin
from calque.distributed.ddp import buckets_of
from calque.distributed.exchange import wait_for
from calque.distributed.group import ProcessGroup
from calque.distributed.hooks import Flat, empty_like
from calque.distributed.links import LINKS, SCHEMES, Link, link_of, seconds
from calque.distributed.objects import all_gather_object
from calque.distributed.world import WORLD
from calque.nn.module import Module
from calque.report.devices import synchronize
from calque.report.stats import get_num_threads

BACKWARD = 0.6  # of a step: while the rest of the backward pass runs, gradients of the last layers travel
SHOWN = (2, 8, 64, 1024, 100_000)  # ranks in the table


@dataclass(frozen=True)
class Curve:
    """Seconds by batch: straight lines between what was measured, and on beyond the ends."""

    batches: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, batch: float) -> float:
        """Seconds of a batch."""
        x, y = self.batches, self.seconds
        k = min(max(int(np.searchsorted(x, batch)), 1), len(x) - 1)
        slope = (y[k] - y[k - 1]) / (x[k] - x[k - 1])
        return max(y[k - 1] + slope * (batch - x[k - 1]), 0.5 * min(y) * min(1.0, batch / x[0]))


@dataclass(frozen=True)
class Check:
    """A step that was measured beside its prediction, in seconds."""

    ranks: int
    batch: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured."""
        return self.predicted / self.measured - 1


@dataclass
class ScalingPlan:
    """What `plan_scaling` has found; batches are those of one rank.

    alone, together: seconds of a step's computation (T1), with the other ranks idle, and with all of them computing on this machine. exchange:
    seconds in which the ranks that there are add up their gradients (T2), None in one process. gradient_bytes: of one rank. hidden: the part of a
    step's computation during which gradients can travel; hidden_here: the same for the ranks of this machine. per_machine, inside: for two levels,
    how many ranks share a machine and its link, and what joins them. checks: filled by `check`.
    """

    alone: Curve
    together: Curve
    exchange: float | None
    ranks: int
    gradient_bytes: int
    hidden: float
    hidden_here: float
    per_machine: int
    inside: Link
    checks: list[Check] = field(default_factory=list)

    def communication(self, ranks: int, link: Link | str, scheme: str = "ring") -> float:
        """Seconds in which so many ranks add up their gradients over a link."""
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise ArgumentError(f"[plan_scaling] expected ranks to be a positive whole number, got {shown(ranks)}")
        return seconds(scheme, ranks, self.gradient_bytes, link_of("plan_scaling", link), self.inside, self.per_machine)

    def step_time(self, batch: int, ranks: int, link: Link | str | None = None, scheme: str = "ring") -> float:
        """Seconds of a step; without a link, of the ranks that the plan was made with."""
        if link is None:
            if ranks not in (1, self.ranks):
                raise ArgumentError(f"[step_time] expected a link for {ranks} ranks, got none; only 1 and {self.ranks} were measured here")
            t1 = self.alone(batch) if ranks == 1 else self.together(batch)
            t2, hidden = (0.0 if ranks == 1 else self.exchange or 0.0), self.hidden_here
        else:
            t1, t2, hidden = self.alone(batch), self.communication(ranks, link, scheme), self.hidden
        return t1 + max(t2 - hidden * t1, 0.0)

    def speedup(self, batch: int, ranks: int, link: Link | str, scheme: str = "ring", strong: bool = False) -> float:
        """Samples per second beside one rank. strong: `batch` is that of all ranks together, which they share out."""
        if strong:
            return self.alone(batch) / self.step_time(batch / ranks, ranks, link, scheme)  # type: ignore[arg-type]
        return ranks * self.alone(batch) / self.step_time(batch, ranks, link, scheme)

    def hides_from(self, ranks: int, link: Link | str, scheme: str = "ring") -> int | None:
        """The smallest batch of a rank whose computation hides the communication; None if none up to 2^40 does."""
        t2, low, high = self.communication(ranks, link, scheme), 0, 1
        while self.hidden * self.alone(high) < t2:
            low, high = high, 2 * high
            if high > 1 << 40:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.hidden * self.alone(middle) >= t2 else (middle, high)
        return high

    def check(self, step: Callable[[int], Any], batches: Sequence[int], repeats: int = 5, ranks: int | None = None) -> list[Check]:
        """Measure a step with the ranks that there are (with one of them: ranks=1, the others wait) and put the predictions beside it. All ranks
        call this; `step(batch)` trains the model in `DistributedDataParallel`, or alone."""
        count = self.ranks if ranks is None else ranks
        pg = WORLD.group
        only = count == 1 and pg is not None and pg.size() > 1
        found = _times(pg, step, tuple(batches), repeats, only)
        new = [Check(count, n, self.step_time(n, count), t) for n, t in zip(batches, found, strict=True)]
        self.checks += new
        return new

    def __str__(self) -> str:
        batch = self.alone.batches[-1]
        t2 = "" if self.exchange is None else f", {self.exchange * 1e3:.3g} ms to add them up on the {self.ranks} ranks here"
        rows = [
            f"computation of {batch} samples {self.alone(batch) * 1e3:.3g} ms, gradients {self.gradient_bytes / 1e6:.3g} MB{t2}",
            f"speed-up with {batch} samples per rank; in brackets the batch from which computation hides communication",
            f"{'link':18} {'scheme':10}" + "".join(f"{f'{n:,} ranks':>22}" for n in SHOWN),
        ]
        for link in LINKS.values():
            for scheme in SCHEMES:
                cells = []
                for n in SHOWN:
                    cells.append(f"{f'{self.speedup(batch, n, link, scheme):,.4g} ({self.hides_from(n, link, scheme)})':>22}")
                rows.append(f"{link.name:18} {scheme:10}" + "".join(cells))
        for c in self.checks:
            times = f"predicted {c.predicted * 1e3:.3g} ms, measured {c.measured * 1e3:.3g} ms ({c.error:+.0%})"
            rows.append(f"checked: {c.ranks} rank{'s' * (c.ranks > 1)}, {c.batch} samples: {times}")
        return "\n".join(rows)

    def plot(self, path: Any, batch: int | None = None, most: int = 100_000) -> None:
        """Write a picture: speed-up by ranks, and the batch from which computation hides communication. path: of a .png, .svg or .pdf file.
        batch: per rank, the largest that was measured by default. Needs matplotlib."""
        need("matplotlib", "matplotlib", "demo", "ScalingPlan.plot")
        from matplotlib.figure import Figure

        batch = self.alone.batches[-1] if batch is None else batch
        ranks = sorted({round(float(n)) for n in np.geomspace(1, most, 60)})
        figure = Figure(figsize=(12, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        for k, link in enumerate(LINKS.values()):
            for scheme, style in zip(SCHEMES, ("-", ":", "--"), strict=True):
                look = {"color": f"C{k}", "linestyle": style, "label": f"{link.name}, {scheme}"}
                left.loglog(ranks, [self.speedup(batch, n, link, scheme) for n in ranks], **look)
                right.loglog(ranks[1:], [self.hides_from(n, link, scheme) or np.nan for n in ranks[1:]], **look)
        left.loglog(ranks, ranks, color="black", linewidth=0.5)
        left.set(xlabel="ranks", ylabel="speed-up", title=f"{batch} samples per rank")
        right.set(xlabel="ranks", ylabel="samples per rank", title="computation hides communication from here on")
        right.legend(fontsize="x-small", ncols=2)
        figure.savefig(path)


def plan_scaling(
    step: Callable[[int], Any], batches: Sequence[int], *, model: Any, repeats: int = 5, per_machine: int = 8, inside: Link | str = "NVLink 4",
    hidden: float = BACKWARD,
) -> ScalingPlan:  # fmt: skip
    """Measure what a training step takes here, and predict it for more ranks and other links.

    step: `step(batch)` trains `model`, which no `DistributedDataParallel` wraps, with so many samples. batches: two or more sizes to measure. model:
    whose gradients will travel. repeats: the median of so many turns counts. In a job all ranks call this: how long they take together, and how long
    their gradients take, is measured, too. per_machine, inside: for the two-level scheme, how many ranks share a machine's link and what joins them
    (a `Link`, or a name of `links.LINKS`). hidden: the part of a step's computation during which gradients can travel.

    Step time is T1(batch) + max(T2(ranks) - hidden * T1(batch), 0). On a machine whose ranks use all its cores nothing is hidden: moving data is
    work of theirs.

    Raises ArgumentError for sizes that are no rising positive whole numbers, or a model without parameters that require a gradient.

    >>> import calque
    >>> net = calque.nn.Linear(64, 64)
    >>> def step(batch):
    ...     net.zero_grad()
    ...     net(calque.ones(batch, 64)).sum().backward()
    >>> plan = calque.plan_scaling(step, [16, 64], model=net, repeats=2)
    >>> plan.gradient_bytes, plan.communication(8, "10 GbE", "ring") < plan.communication(8, "10 GbE", "tree")
    (16640, False)
    >>> 1 <= plan.speedup(64, 8, "NVLink 4") <= 8
    True
    """
    sizes = tuple(batches)
    if len(sizes) < 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes) or list(sizes) != sorted(set(sizes)):
        raise ArgumentError(f"[plan_scaling] expected two or more rising positive batch sizes, got {shown(batches)}")
    if not callable(step):
        raise ArgumentError(f"[plan_scaling] expected a function of the batch size as step, got {type_name(step)}")
    if not isinstance(model, Module):
        raise ArgumentError(f"[plan_scaling] expected model to be a module, got {type_name(model)}")
    if not 0 <= hidden <= 1 or isinstance(per_machine, bool) or not isinstance(per_machine, int) or per_machine < 1:
        raise ArgumentError(f"[plan_scaling] expected hidden from 0 to 1 and per_machine of 1 or more, got {shown(hidden)} and {shown(per_machine)}")
    params = [p for p in model.parameters() if p._requires_grad]
    if not params:
        raise ArgumentError("[plan_scaling] expected a model with parameters that require a gradient, got one without")
    pg = WORLD.group
    count = 1 if pg is None else pg.size()
    alone = Curve(sizes, _times(pg, step, sizes, repeats, only=True))
    together = alone if count == 1 else Curve(sizes, _times(pg, step, sizes, repeats, only=False))
    exchange = None if pg is None or count == 1 else _exchange(pg, params, repeats)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = cores >= count * (get_num_threads() + 1)
    nbytes = sum(p._layout.nbytes for p in params)
    return ScalingPlan(alone, together, exchange, count, nbytes, hidden, hidden if free else 0.0, per_machine, link_of("plan_scaling", inside))


def _times(pg: ProcessGroup | None, step: Callable[[int], Any], batches: tuple[int, ...], repeats: int, only: bool) -> tuple[float, ...]:
    """Medians of the seconds of steps; of all ranks that run them the slowest counts. only: rank 0 alone runs them."""
    many = pg is not None and pg.size() > 1
    found: dict[int, list[float]] = {n: [] for n in batches}
    runs = not (many and only) or (pg is not None and pg.rank() == 0)
    if runs:
        for n in (*batches, *batches):  # compiled, and run once as it will be
            step(n)
            synchronize()
    for _ in range(repeats):  # sizes take turns, so that a busy moment of the machine is one value of each
        for n in batches:
            if many and not only:
                barrier()
            start = time.perf_counter()
            if runs:
                step(n)
                synchronize()
            found[n].append(time.perf_counter() - start)
    if not many or pg is None:
        return tuple(median(found[n]) for n in batches)
    everybodys: list[Any] = [None] * pg.size()
    all_gather_object(everybodys, [found[n] for n in batches])
    rows = everybodys[:1] if only else everybodys
    return tuple(median(max(row[k][turn] for row in rows) for turn in range(repeats)) for k in range(len(batches)))


def _exchange(pg: ProcessGroup, params: list[Any], repeats: int) -> float:
    """Seconds in which gradients are put into buckets as `DistributedDataParallel` has them, and added up."""
    gradients = [empty_like(p).zero_() for p in params]
    buckets = buckets_of(params, 25.0)
    found = []
    for turn in range(repeats + 1):
        synchronize()
        barrier()
        start, task = time.perf_counter(), None
        for number, bucket in enumerate(buckets):
            plan = Flat([params[k]._layout.numel for k in bucket], params[bucket[0]]._layout.dtype.np)
            part = [gradients[k] for k in bucket]

            def work(arrays: list[Any], plan: Flat = plan) -> list[Any]:
                return plan.average(pg, arrays, [True] * len(arrays), 1.0, None)

            task = begin(pg, Plan(f"plan_scaling bucket {number}", part[0], str(sum(plan.sizes)), part, part, work, same_shape=False), part, part)
        if task is not None:
            wait_for(task)
        if turn:
            found.append(time.perf_counter() - start)
    everybodys: list[Any] = [None] * pg.size()
    all_gather_object(everybodys, found)
    return float(median(max(row[turn] for row in everybodys) for turn in range(repeats)))
