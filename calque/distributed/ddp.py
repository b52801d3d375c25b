"""`DistributedDataParallel`: a copy of the model on every rank, gradients averaged while the backward pass still runs.

`backward` is recorded at once and runs as one program. When it is recorded, the gradients are put into buckets, the last layers' first, and every
bucket becomes one task of the engine, which waits for its gradients alone (`run/exchange.py`): the first travels while the program computes the next.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from calque.autograd.engine import queue_callback
from calque.base.errors import ArgumentError, DistributedError
from calque.base.text import shown, type_name
from calque.distributed import hooks
from calque.distributed.collectives import as_bytes, assign, begin, require_tensor, targets_of
from calque.distributed.group import ProcessGroup
from calque.distributed.objects import all_gather_object
from calque.distributed.world import group_of
from calque.nn.module import Module
from calque.nn.parallel.primitives import tensors_in
from calque.run.effects import gradients_matter
from calque.run.exchange import exchange, wait_for
from calque.run.recorder import local
from calque.run.source import inside_package, user_line

FIRST_BUCKET_MB = 1.0  # small, so that something travels soon
NAMED = 20  # parameters that an error names


class Step:
    """What the ranks told each other about one step: weights, which parameters took part anywhere. Filled by its task."""

    def __init__(self) -> None:
        self.weights: Any = np.zeros(0)
        self.active: Any = np.zeros(0, bool)
        self.used: Any = np.zeros(0, bool)
        self.factor = 0.0

    def root(self) -> int:
        """The first rank that is not done."""
        return int(np.argmax(self.active))


class DistributedDataParallel(Module):
    """Train `module` on all ranks of the job: it starts with the parameters of rank 0, and after every `backward` its gradients are those of the
    mean over the samples of all ranks.

    Gradients are weighted by the number of samples of each rank: dim 0 of the first tensor that the model gets. So ranks with uneven batches
    equal one process with all samples, where PyTorch counts every rank alike; `weight="ranks"` does so, too, and `set_weight(n)` gives another
    number, of tokens for instance, for the next step. The loss is a mean over what is counted.

    device_ids: accepted with one entry, as programs for GPUs have it. broadcast_buffers: after each step the buffers (running statistics) are those
    of rank 0. bucket_cap_mb: gradients that travel together. find_unused_parameters: parameters may take no part in a step; without it that is an
    error at the first backward, which names them. gradient_as_bucket_view, static_graph: accepted; gradients are parts of the buckets anyway.

    Raises DistributedError, on every rank, if the ranks' parameters differ in name, shape or dtype.
    """

    def __init__(
        self, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0, broadcast_buffers: bool = True, init_sync: bool = True,
        process_group: Any = None, bucket_cap_mb: float | None = None, find_unused_parameters: bool = False, check_reduction: bool = False,
        gradient_as_bucket_view: bool = False, static_graph: bool = False, *, weight: str = "samples",
    ) -> None:  # fmt: skip
        super().__init__()
        pg = group_of("DistributedDataParallel", process_group)
        if pg is None:
            raise ArgumentError("[DistributedDataParallel] expected a group of which this process is a member")
        if not isinstance(module, Module):
            raise ArgumentError(f"[DistributedDataParallel] expected a module, got {type_name(module)}")
        if device_ids is not None and len(device_ids) > 1:
            raise ArgumentError(f"[DistributedDataParallel] expected one device or None, got {shown(device_ids)}; start one process for each device")
        if weight not in ("samples", "ranks"):
            raise ArgumentError(f"[DistributedDataParallel] expected weight='samples' or 'ranks', got {shown(weight)}")
        cap = 25.0 if bucket_cap_mb is None else bucket_cap_mb
        if isinstance(cap, bool) or not isinstance(cap, int | float) or not 0 < cap < float("inf"):
            raise ArgumentError(f"[DistributedDataParallel] expected bucket_cap_mb to be a positive number, got {shown(bucket_cap_mb)}")
        named = [(name, p) for name, p in module.named_parameters() if p._requires_grad]
        if not named:
            raise DistributedError(
                "[DistributedDataParallel] expected a module with parameters that require a gradient, got one without: there is nothing to average"
            )
        self.module = module
        self.dim, self.broadcast_buffers, self.find_unused_parameters, self.weight = dim, broadcast_buffers, find_unused_parameters, weight
        self.process_group = pg
        self.require_backward_grad_sync = True
        self._names = [name for name, _ in named]
        self.__dict__["_params"] = [p for _, p in named]  # not a second registration of them
        self._buckets = _buckets(self._params, cap)
        self._arrived: set[int] = set()
        self._rows, self._forwards = 0.0, 0
        self._wanted_rows: float | None = None
        self._waits = False
        self._hook: tuple[Any, Any] | None = None
        self._last: Step | None = None
        if pg.size() > 1 and init_sync:
            _require_the_same(pg, module)
            state = [*module.parameters(), *module.buffers()]
            for tensors in by_dtype(state):
                copy_from(pg, tensors, 0)
        for p in self._params:
            p.register_post_accumulate_grad_hook(self._note)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's result for this rank's share."""
        if local.state.grad:
            self._rows += self._count(inputs, kwargs)
            self._forwards += 1
        return self.module(*inputs, **kwargs)

    def _count(self, inputs: Any, kwargs: Any) -> float:
        if self.weight == "ranks":
            return 1.0
        first = next((t for t in tensors_in((inputs, kwargs)) if t._layout.ndim > self.dim), None)
        return 1.0 if first is None else float(first._layout.shape[self.dim])

    def set_weight(self, weight: float) -> None:
        """The weight of this rank in the next step instead of its number of samples: the tokens, for instance, over which its loss is the mean."""
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
            raise ArgumentError(f"[set_weight] expected a number of 0 or more, got {shown(weight)}; .item() makes one of a tensor")
        self._wanted_rows = float(weight)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients only add up on each rank; the first backward after it averages them all."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size: bool = False, enable: bool = True, throw_on_early_termination: bool = False) -> Iterator[None]:
        """Around a loop in which ranks may have different numbers of batches: a rank that is done takes part in the steps of the others with no
        samples, and has their parameters in the end. Means are always over the samples that there are."""
        if divide_by_initial_world_size or throw_on_early_termination:
            raise ArgumentError("[join] expected divide_by_initial_world_size=False and throw_on_early_termination=False: means are over samples")
        yield
        if enable and self.process_group.size() > 1:
            self._go_along()

    def _go_along(self) -> None:
        """Take part in steps of the others until nobody has any."""
        nothing = np.zeros(len(self._params), bool)
        while True:
            step, task = self._agree(0.0, nothing, False)
            wait_for(task)
            if not step.active.any():
                break
            self._last = step
            for number, bucket in enumerate(self._buckets):
                self._send(number, bucket, step, [], [], [False] * len(bucket), [False] * len(bucket))
            if self.broadcast_buffers:
                self._same_buffers(step)
        if self._last is not None:
            for tensors in by_dtype([*self.module.parameters(), *self.module.buffers()]):
                copy_from(self.process_group, tensors, self._last)

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """How a bucket travels: `hooks.fp16_compress_hook` or `bf16_compress_hook` (half the bytes, sums in float32), `allreduce_hook` (the default),
        or a function `hook(state, bucket)` that returns the averaged `bucket.buffer()`, or something whose `wait()` gives it."""
        if not callable(hook):
            raise ArgumentError(f"[register_comm_hook] expected a function, got {type_name(hook)}")
        if self._hook is not None:
            raise DistributedError("[register_comm_hook] expected one hook per model, got a second one")
        self._hook = (state, hook)

    # ------------------------------------------------------------------------------------------------ after a backward pass

    def _note(self, p: Any) -> None:
        """A gradient is recorded."""
        self._arrived.add(id(p))
        if not self._waits:
            self._waits = True
            queue_callback(self._average)

    def _average(self) -> None:
        """All gradients of a backward pass are recorded."""
        self._waits = False
        if not self.require_backward_grad_sync:
            return
        gradients_matter()
        arrived, self._arrived = self._arrived, set()
        missing = [k for k, p in enumerate(self._params) if id(p) not in arrived]
        if missing and not self.find_unused_parameters:
            raise self._unused(missing)
        rows = self._rows if self._forwards else 1.0  # who calls the module itself says nothing of samples
        rows = rows if self._wanted_rows is None else self._wanted_rows
        self._rows, self._forwards, self._wanted_rows = 0.0, 0, None
        used = np.ones(len(self._params), bool)
        used[missing] = False
        step, task = self._agree(rows, used, True)
        self._last = step
        if missing:  # whether their gradients are zeros, or none, depends on the other ranks
            wait_for(task)
        for number, bucket in enumerate(self._buckets):
            self._reduce(number, bucket, step, set(missing))
        if self.broadcast_buffers:
            self._same_buffers(step)

    def _unused(self, missing: list[int]) -> DistributedError:
        rows = [f"{self._names[k]} does not reach the loss{_place(self.module, self._names[k])}" for k in missing[:NAMED]]
        more = f", and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        return DistributedError(
            f"[DistributedDataParallel] expected every parameter to take part in the loss, but {'; '.join(rows)}{more}; leave them out of the model "
            "(requires_grad_(False)), or pass find_unused_parameters=True. Nothing was averaged"
        )

    def _agree(self, rows: float, used: Any, active: bool) -> tuple[Step, Any]:
        """Tell each other the weights of this step."""
        pg, step = self.process_group, Step()
        call = pg.next_call("DistributedDataParallel", "step", (len(self._params),), "", user_line())
        mine = np.concatenate([as_bytes(np.array([rows], np.float64)), np.packbits(np.concatenate([[active], used]))])

        def work() -> list[Any]:
            found = np.zeros((pg.size(), mine.size), np.uint8)
            pg.all_gather(mine, found)
            step.weights = found[:, :8].copy().view(np.float64).reshape(-1)
            bits = np.unpackbits(found[:, 8:], axis=1, count=used.size + 1).astype(bool)
            step.active, step.used = bits[:, 0], bits[:, 1:].any(0)
            total = float(step.weights.sum())
            step.factor = rows / total if total else 0.0
            return []

        return step, exchange([], [], lambda _: pg.perform(call, work), "DistributedDataParallel", queued=True)[1]

    def _reduce(self, number: int, bucket: list[int], step: Step, missing: set[int]) -> None:
        """Queue the average of one bucket."""
        params = [self._params[k] for k in bucket]
        there = [k not in missing for k in bucket]
        results: list[Any] = []
        for k, p, has in zip(bucket, params, there, strict=True):
            if not has and p._grad is None:
                if not step.used[k]:
                    results.append(None)
                    continue
                p._grad = hooks.empty_like(p)
            results.append(p._grad)
        sources = [p._grad for p, has in zip(params, there, strict=True) if has]
        if self._hook is not None and self._hook[1] not in hooks.NATIVE:
            if not all(there):
                raise DistributedError("[register_comm_hook] expected every parameter to have a gradient: a hook of the user's cannot do without")
            hooks.by_hook(self._hook, number, number == len(self._buckets) - 1, params)
            return
        kept = [t for t in results if t is not None]
        self._send(number, bucket, step, sources, kept, there, [t is not None for t in results])

    def _send(self, number: int, bucket: list[int], step: Step, sources: list[Any], results: list[Any], there: list[bool], kept: list[bool]) -> None:
        """Queue the call itself: `there`, which parameters of the bucket the sources are of; `kept`: those of the results."""
        params = [self._params[k] for k in bucket]
        plan = hooks.Flat([p._layout.numel for p in params], params[0]._layout.dtype.np)
        wire, pg = None if self._hook is None else hooks.NATIVE[self._hook[1]], self.process_group

        def work(arrays: list[Any]) -> list[Any]:
            parts = plan.average(pg, arrays, there, step.factor, wire)
            return [part for part, wanted in zip(parts, kept, strict=True) if wanted]

        begin(pg, f"DistributedDataParallel bucket {number}", params[0], str(sum(plan.sizes)), sources, results, work)

    def _same_buffers(self, step: Step) -> None:
        for tensors in by_dtype(list(self.module.buffers())):
            copy_from(self.process_group, tensors, step)


# ------------------------------------------------------------------------------------------------------------------ parts


def _buckets(params: list[Any], cap: float) -> list[list[int]]:
    """Numbers of the parameters that travel together: the last ones first, as the backward pass makes them; one dtype each."""
    found: list[list[int]] = []
    limit, size, dtype = min(FIRST_BUCKET_MB, cap) * (1 << 20), 0.0, None
    for k in reversed(range(len(params))):
        layout = params[k]._layout
        if dtype is not layout.dtype or size + layout.nbytes > limit:
            if found:
                limit = cap * (1 << 20)
            found.append([])
            size, dtype = 0.0, layout.dtype
        found[-1].append(k)
        size += layout.nbytes
    return found


def by_dtype(tensors: list[Any]) -> list[list[Any]]:
    """The tensors of each dtype."""
    found: dict[Any, list[Any]] = {}
    for t in tensors:
        found.setdefault(t._layout.dtype, []).append(t)
    return list(found.values())


def copy_from(pg: ProcessGroup, tensors: list[Any], root: Any) -> None:
    """Tensors of one dtype become those of one rank. `root`: its number, or the `Step` that will say."""
    for t in tensors:
        require_tensor("DistributedDataParallel", t, "parameters and buffers")

    def work(arrays: list[Any]) -> list[Any]:
        whole = np.concatenate(arrays)
        pg.broadcast(as_bytes(whole), root.root() if isinstance(root, Step) else root)
        return np.split(whole, np.cumsum([a.size for a in arrays])[:-1])

    detail = f"{len(tensors)} tensors, {sum(t._layout.numel for t in tensors)} elements"
    call = pg.next_call("DistributedDataParallel", tensors[0]._layout.dtype.name, None, detail, user_line())
    sources = [(t._storage, t._layout) for t in tensors]
    made, _ = exchange(sources, targets_of(tensors), lambda a: pg.perform(call, lambda: work(a)), "DistributedDataParallel", queued=True)
    for t, storage in zip(tensors, made, strict=True):
        assign(t, storage)


def _require_the_same(pg: ProcessGroup, module: Any) -> None:
    """Raise, on every rank, if the ranks have different parameters or buffers."""
    mine = [
        [name, [int(n) for n in t._layout.shape], t._layout.dtype.name, bool(t._requires_grad)]
        for name, t in [*module.named_parameters(), *module.named_buffers()]
    ]
    found: list[Any] = [None] * pg.size()
    all_gather_object(found, mine, pg)
    for rank, theirs in zip(pg.ranks, found, strict=True):
        if theirs == found[0]:
            continue
        k = next((k for k, (a, b) in enumerate(zip(found[0], theirs)) if a != b), min(len(found[0]), len(theirs)))
        first, other = (_described(rows[k]) if k < len(rows) else "nothing more" for rows in (found[0], theirs))
        raise DistributedError(
            f"[DistributedDataParallel] expected the same parameters on every rank, but rank {pg.ranks[0]} has {len(found[0])} and rank {rank} has "
            f"{len(theirs)}; the first that differs is {first} on rank {pg.ranks[0]}, {other} on rank {rank}; build the same model everywhere"
        )


def _described(row: Any) -> str:
    return f"{row[0]} {tuple(row[1])} {row[2]}{'' if row[3] else ' without gradient'}"


def _place(module: Any, name: str) -> str:
    """Where the class of the user's that holds a parameter computes."""
    found, holder = "", module
    for part in ["", *name.split(".")[:-1]]:
        holder = holder if not part else getattr(holder, part, None)
        kind = type(holder)
        with contextlib.suppress(OSError, TypeError):
            file = inspect.getsourcefile(kind)
            if file and not inside_package(file):
                code: Any = getattr(kind, "forward", None) or kind
                found = f" ({kind.__name__}, {file}:{inspect.getsourcelines(code)[1]})"
    return found
