"""`fit` and `largest_batch`: a step is brought under a budget by micro-batches and by computing values again; both ask the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from calque.autograd.checkpoint import checkpoint
from calque.base.config import settings
from calque.base.dataclass import dataclass
from calque.base.dtypes import float64
from calque.base.errors import ArgumentError, MemoryPlanError, ShapeError
from calque.base.text import human, shown, type_name
from calque.functional.common import is_tensor
from calque.memory.plan import MemoryPlan, bytes_of, plan, planned_for
from calque.memory.stage import Stage
from calque.nn.modules import ModuleList, Sequential
from calque.record import recorder
from calque.run.backends import host_memory

AGAIN = 1 / 3  # what computing everything once more in the backward pass adds to the time of a step
EACH = 0.02  # what a micro-batch adds: its programs are started, gradients are added
SHARES = (0.0, 0.5, 1.0)  # of the blocks of a model that are computed again


@dataclass(frozen=True)
class _Choice:
    """How a step is run. `blocks`: those whose values are computed again."""

    micro: int  # samples at a time
    count: int  # how many times
    blocks: tuple[_Block, ...]


class Fitted:
    """What `fit` gives: call it with a batch, instead of the loss and its `backward()`. It adds the gradients of the whole batch to `.grad` and
    returns the loss, without a history.

    `micro_batch`: samples at a time; `blocks`: names of the modules whose values are computed again; `plan`: what it holds; `whole`: what the loss
    and its backward pass would hold.
    """

    def __init__(self, loss: Callable[..., Any], choice: _Choice, reduction: str, weight: Callable[..., Any] | None) -> None:
        self._loss, self._choice, self._reduction, self._weight = loss, choice, reduction, weight
        self.micro_batch, self.blocks = choice.micro, tuple(block.name for block in choice.blocks)
        self.plan: MemoryPlan | None = None
        self.whole: MemoryPlan | None = None

    def __call__(self, *inputs: Any) -> Any:
        total = _batch_of(inputs)
        starts = range(0, total, self.micro_batch)
        parts = [_part(inputs, a, min(a + self.micro_batch, total), total) for a in starts]
        weights = self._weights(parts, inputs, total)
        value: Any = None
        with _again(self._choice.blocks):
            for part, weight in zip(parts, weights, strict=True):
                if weight == 0:  # nothing in it counts: the mean of nothing is NaN, and would be that of the whole
                    continue
                found = self._loss(*part)
                if not is_tensor(found) or found.numel() != 1:
                    text = f"[fit] expected a function that returns the loss, one number, got {shown(found)}"
                    raise ArgumentError(f"{text}; backward() and the update are not its part")
                if len(parts) > 1:
                    found = found * weight
                found.backward()
                value = found.detach() if value is None else value + found.detach()
                del found
                if len(parts) > 1:
                    recorder.flush("micro-batch")  # each is a program of its own, or the memory of one would not serve the next
        return value

    def _weights(self, parts: list[tuple[Any, ...]], inputs: tuple[Any, ...], total: int) -> list[float]:
        """What the loss of each part counts in that of all."""
        if self._reduction == "sum" or len(parts) == 1:
            return [1.0] * len(parts)
        if self._weight is None:
            return [_batch_of(part) / total for part in parts]
        whole = _exact(self._weight(*inputs))
        shares = [_exact(self._weight(*part)) / whole for part in parts]
        return [float(share) for share in shares]

    def __repr__(self) -> str:
        again = "nothing is computed again"
        if self.blocks:
            again = f"{len(self.blocks)} blocks are computed again in the backward pass ({self.blocks[0]} .. {self.blocks[-1]})"
        peaks = "" if self.plan is None or self.whole is None else f"peak {human(self.plan.peak)} instead of {human(self.whole.peak)}: "
        return f"{peaks}micro-batches of {self.micro_batch}, {again}"


def fit(
    loss: Callable[..., Any], *inputs: Any, budget: int | str, reduction: str = "mean", weight: Callable[..., Any] | None = None,
    batch_statistics: str = "whole",
) -> Fitted:  # fmt: skip
    """Bring a loss and its backward pass under a budget: a `Fitted`, to be called in their place, whose gradients are those of the whole batch.

    loss(*inputs): computes the loss of a batch; zero_grad(), clipping and the optimizer's step stay where they are, around it. inputs: a batch
    as large as those that will come; tensors with its first extent are cut into micro-batches, everything else is passed on. budget: of all memory in
    use at the peak, such as "2GiB". reduction: what the loss is of its samples, "mean" or "sum"; weight: of what a mean is taken, as a function of
    the inputs, where that is not the number of samples (tokens that count).
    batch_statistics: batch norms in training compute with the statistics of all that they see at once, so a model with some is not cut ("whole"),
    unless you allow those of micro-batches ("micro"), which gives other gradients.

    What costs least time is chosen: micro-batches cost little, computing the values of a block again in the backward pass up to a third. Nothing is
    run for that. Masks of dropout are drawn micro-batch by micro-batch: others than of the whole batch, as random. Raises MemoryPlanError if nothing
    fits, with what comes nearest.

    >>> import calque
    >>> model = calque.nn.Sequential(calque.nn.Linear(256, 2048), calque.nn.ReLU(), calque.nn.Linear(2048, 1))
    >>> x, y = calque.randn(4096, 256), calque.randn(4096, 1)
    >>> fitted = calque.memory.fit(lambda x, y: calque.nn.functional.mse_loss(model(x), y), x, y, budget="40MiB")
    >>> fitted.micro_batch < 4096, fitted.plan.fits("40MiB"), fitted.whole.fits("40MiB")
    (True, True, False)
    """
    limit = bytes_of("fit", budget)
    if not callable(loss):
        raise ArgumentError(f"[fit] expected a function that computes the loss, got {type_name(loss)}; write fit(loss, x, y, budget='2GiB')")
    for name, value, words in (("reduction", reduction, ("mean", "sum")), ("batch_statistics", batch_statistics, ("whole", "micro"))):
        if value not in words:
            raise ArgumentError(f"[fit] expected {name} to be one of {words}, got {shown(value)}")
    total = _batch_of(inputs)
    blocks, norms = _blocks(loss, inputs)
    whole = plan(Fitted(loss, _Choice(total, 1, ()), reduction, weight), *inputs)
    best: tuple[float, Fitted] | None = None
    least = whole
    cuts = [1] if norms and batch_statistics == "whole" else _cuts(total)
    for share in SHARES if blocks else (0.0,):
        chosen = blocks[: round(share * len(blocks))]
        for count in cuts:
            cost = (1 + AGAIN * share) * (1 + EACH * (count - 1))
            if best is not None and cost >= best[0]:
                break
            micro = -(-total // count)
            found = Fitted(loss, _Choice(micro, count, tuple(chosen)), reduction, weight)
            found.plan = whole if count == 1 and not chosen else plan(found, *inputs)
            found.whole = whole
            least = min(least, found.plan, key=lambda p: p.peak)
            if found.plan.peak <= limit:
                best = cost, found
                break
    if best is None:
        raise MemoryPlanError(_nothing_fits(limit, whole, least, norms, batch_statistics))
    return best[1]


def _nothing_fits(limit: int, whole: MemoryPlan, least: MemoryPlan, norms: list[str], batch_statistics: str) -> str:
    hint = ""
    if norms and batch_statistics == "whole":
        hint = f"; the batch norm {norms[0]} needs the whole batch at once: batch_statistics='micro' gives each micro-batch its own statistics"
    facts = f"{human(whole.peak)} as written; {human(whole.before)} are in use before the step"
    return (
        f"[fit] expected a way to hold at most {human(limit)}, got {human(least.peak)} at best ({facts}){hint}; use a smaller model or batch, or "
        "raise the budget"
    )


def _cuts(total: int) -> list[int]:
    """How many micro-batches there may be: powers of two, up to single samples."""
    found = [1]
    while found[-1] < total:
        found.append(min(2 * found[-1], total))
    return found


def _exact(count: Any) -> Any:
    return count.to(float64) if is_tensor(count) else count


def _batch_of(inputs: tuple[Any, ...]) -> int:
    tensors = [t for t in inputs if is_tensor(t) and t.dim()]
    if not tensors:
        raise ShapeError("[fit] expected a batch among the inputs, a tensor whose first extent counts the samples, got none")
    return int(tensors[0].shape[0])


def _part(inputs: tuple[Any, ...], start: int, end: int, total: int) -> tuple[Any, ...]:
    if start == 0 and end == total:
        return inputs
    return tuple([t[start:end] if is_tensor(t) and t.dim() and t.shape[0] == total else t for t in inputs])


@dataclass(frozen=True)
class _Block:
    """What may be computed again: a method of a module. `name`: its path."""

    name: str
    module: Any
    method: str = "forward"


def _blocks(loss: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[list[_Block], list[str]]:
    """Parts of the model whose inputs are kept and whose values may be computed again: methods that a module names in `blocks_of_forward`, and the
    items of lists and sequences that consist of others, without those inside of them. And names of batch norms in training."""
    blocks: list[_Block] = []
    norms: list[str] = []
    inside: set[int] = set()
    for root in Stage(loss, inputs).reached.modules:
        norms += [name for name, m in root.named_modules() if type(m).__name__.startswith(("BatchNorm", "SyncBatchNorm")) and m.training]
        for name, module in root.named_modules():
            if id(module) not in inside:
                blocks += [_Block(f"{name}.{method}" if name else method, module, method) for method in getattr(module, "blocks_of_forward", ())]
            if isinstance(module, Sequential | ModuleList) and id(module) not in inside:
                for key, child in module.named_children():
                    if id(child) not in inside and any(True for _ in child.children()):
                        blocks.append(_Block(f"{name}.{key}" if name else key, child))
                        inside.update(id(m) for m in child.modules())
    return blocks, norms


@contextmanager
def _again(blocks: tuple[_Block, ...]) -> Iterator[None]:
    """Let the values of some blocks be computed again in the backward pass."""
    for block in blocks:
        block.module.__dict__[block.method] = _Again(block)
    try:
        yield
    finally:
        for block in blocks:
            block.module.__dict__.pop(block.method, None)


class _Again:
    """A method of a module under `checkpoint`. Statistics of batch norms move the first time alone."""

    def __init__(self, block: _Block) -> None:
        self.module, self.forward = block.module, getattr(block.module, block.method)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return checkpoint(_Once(self), *args, **keywords)


class _Once:
    """One call of a module, and its repetition."""

    def __init__(self, owner: _Again) -> None:
        self.owner, self.done = owner, False

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if not self.done:
            self.done = True
            return self.owner.forward(*args, **keywords)
        kept = [(m, dict(m._buffers)) for m in self.owner.module.modules() if m._buffers]
        for m, buffers in kept:
            for name, value in buffers.items():
                if value is not None:
                    m._buffers[name] = value.clone()
        try:
            return self.owner.forward(*args, **keywords)
        finally:
            for m, buffers in kept:
                m._buffers.update(buffers)


def largest_batch(step: Callable[..., Any], *inputs: Any, budget: int | str | None = None, most: int = 1 << 20) -> int:
    """The largest batch with which `step` stays within a budget. Nothing is run, and no batch is made.

    step(*inputs): as for `plan`. inputs: an example; tensors whose first extent is that of the first one get as many samples as are tried. budget:
    default, what this process may have now (`CALQUE_MEMORY_LIMIT`, the system's free memory, its control group's limit). most: where the search ends.

    Raises MemoryPlanError if not even one sample fits.

    >>> import calque
    >>> model = calque.nn.Linear(1024, 1024)
    >>> calque.memory.largest_batch(lambda x: model(x).relu().sum().backward(), calque.ones(1, 1024), budget="64MiB") > 1000
    True
    """
    limit = free_bytes() if budget is None else bytes_of("largest_batch", budget)
    example = _batch_of(inputs)
    peaks: dict[int, int] = {}

    def fits(count: int) -> bool:
        if count not in peaks:
            peaks[count] = planned_for(step, inputs, example, count).peak
        return peaks[count] <= limit

    least = _least_that_runs(fits, example)
    if not fits(least):
        what = "one sample" if least == 1 else f"{least} samples"
        raise MemoryPlanError(f"[largest_batch] expected {what} to fit into {human(limit)}, got a peak of {human(peaks[least])}; use a smaller model")
    low, high = least, most + 1  # the first fits, the other does not, or is not asked for
    guess = 64
    while high - low > 1:
        count = min(max(guess, low + 1), high - 1)
        if fits(count):
            low = count
        else:
            high = count
        known = sorted(peaks.items())
        (a, pa), (b, pb) = known[0], max((item for item in known[1:]), key=lambda item: item[0] if item[0] <= high else 0)
        slope = max((pb - pa) / (b - a), 1.0)
        guess = int(a + (limit - pa) / slope)
        if guess <= low or guess >= high:
            guess = low + 1 if guess <= low else high - 1
            if high - low > 8 and (low + 1 in peaks or high - 1 in peaks or len(peaks) > 12):
                guess = (low + high) // 2
    return low


def _least_that_runs(fits: Callable[[int], bool], given: int) -> int:
    """The batch to begin with: batch norm, for one, refuses a single sample. What is raised for the example as it was given is the caller's."""
    for count in (1, 2):
        if count >= given:
            break
        try:
            fits(count)
        except Exception:  # of the user's step, whatever it is
            continue
        return count
    return given if given > 1 else 1


def free_bytes() -> int:
    """Bytes that may be in use by tensors at one time: `CALQUE_MEMORY_LIMIT`, or what is in use and what is free."""
    stats = host_memory().memory()
    if settings.memory_limit > 0:
        return int(settings.memory_limit)
    return stats.in_use + stats.cached + host_memory().free()


