"""`DistributedDataParallel`: a copy of the model on every rank, gradients averaged while the backward pass still runs.

`backward` is recorded at once and runs as one program. When it is recorded, the gradients are put into buckets, the last layers' first, and every
bucket becomes one task of the engine, which waits for its gradients alone (`exchange.py`): the first travels while the program computes the next.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from calque.autograd.engine import queue_callback, running_pass
from calque.base.errors import ArgumentError, DistributedError
from calque.base.text import shown, type_name
from calque.distributed import hooks
from calque.distributed.collectives import Plan, all_reduce, as_bytes, assign, begin, require_tensor, targets_of
from calque.distributed.exchange import exchange, wait_for
from calque.distributed.group import ProcessGroup, ReduceOp, Turn
from calque.distributed.join import Join, Joinable, JoinHook
from calque.distributed.objects import all_gather_object
from calque.distributed.ordered import InOrder
from calque.distributed.record import Kind, kind_of
from calque.distributed.watch import WATCH
from calque.distributed.weights import Weights
from calque.distributed.world import group_of
from calque.functional.creation import tensor
from calque.nn.module import Module
from calque.nn.modules.sync_batch_norm import SyncBatchNorm
from calque.observe.source import inside_package
from calque.record.recorder import local
from calque.replay.effects import gradients_matter

FIRST_BUCKET_MB = 1.0  # small, so that something travels soon
NAMED = 20  # parameters that an error names
LONG = 64  # steps between two comparisons of parameters, in the end
SAMPLED = 16  # numbers of each that are compared


class Step:
    """What the ranks told each other about one step: weights, which parameters took part anywhere. Filled by its task. `uneven`: whether some may
    be done."""

    def __init__(self, size: int, uneven: bool = False) -> None:
        self.uneven = uneven
        self.active: Any = np.ones(size, bool)
        self.used: Any = np.zeros(0, bool)
        self.factor = 1.0 / size

    def root(self) -> int:
        """Whose buffers count: those of the first rank; where some may be done, as in PyTorch those of the last one that is not."""
        return self.active.size - 1 - int(np.argmax(self.active[::-1])) if self.uneven else 0


class DistributedDataParallel(Module, Joinable):
    """Train `module` on all ranks of the job: it starts with the parameters of rank 0, and after every `backward` its gradients are the mean of those
    of all ranks.

    weight: what a rank counts in that mean. "ranks" (as in PyTorch): every one the same, so n ranks equal one process with all samples if their
    batches are equal. "samples": the number of its samples, dim `dim` of the first tensor that the model gets; for losses that are means over these,
    ranks with uneven batches equal one process then, too. With it, `set_weight(n)` gives another number for the next step, of tokens for instance.

    device_ids: accepted with one entry, as programs for GPUs have it. broadcast_buffers: after each step the buffers (running statistics) are those
    of rank 0. bucket_cap_mb: gradients that travel together. find_unused_parameters: parameters may take no part in a step; without it that is an
    error at the first backward, which names them. gradient_as_bucket_view, static_graph: accepted; gradients are parts of the buckets anyway.

    ordered: gradients of the micro-batches of a step (`no_sync` around all but the last) are kept apart and added in one order, from the first
    of rank 0 on, then divided by their number. So the same micro-batches give the same bits on 1, 2 or 4 ranks, with
    `use_deterministic_algorithms(True)`. It takes the memory and the messages of all of them.

    Now and then (after 1, 2, 4, .. 64, then every 64 steps) ranks compare some numbers of every parameter. Raises DistributedError, on every rank, if
    the ranks' parameters differ in name, shape or dtype, or come to differ in value.
    """

    def __init__(
        self, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0, broadcast_buffers: bool = True, init_sync: bool = True,
        process_group: Any = None, bucket_cap_mb: float | None = None, find_unused_parameters: bool = False, check_reduction: bool = False,
        gradient_as_bucket_view: bool = False, static_graph: bool = False, *, weight: str = "ranks",
        ordered: bool = False,
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
        if ordered and (weight != "ranks" or find_unused_parameters):
            raise ArgumentError("[DistributedDataParallel] expected ordered=True with weight='ranks' and find_unused_parameters=False, got others")
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
        self.bucket_cap_mb, self.static_graph, self.device_ids = float(cap), static_graph, device_ids
        self.process_group = pg
        self.require_backward_grad_sync = True
        self._meant = False  # whether the last forward pass stood outside of `no_sync`, and no average has come since
        self._names = [name for name, _ in named]
        self.__dict__["_params"] = [p for _, p in named]  # not a second registration of them
        self._share_out()
        self._arrived: set[int] = set()
        self._weights = Weights(dim) if weight == "samples" else None
        self._pass: Any = None
        self._ordered = InOrder(pg, self._params) if ordered else None
        self._joined: bool | None = None  # inside `join`: whether those that are done count
        self._divides_by_all = True  # the same inside `Join`
        self._steps = 0
        self._hook: tuple[Any, Any] | None = None
        self._last: Step | None = None
        if pg.size() > 1 and init_sync:
            require_the_same("DistributedDataParallel", pg, dict([*module.named_parameters(), *module.named_buffers()]))
            state = [*module.parameters(), *module.buffers()]
            for tensors in by_dtype(state):
                copy_from(pg, tensors, 0)
        itself = weakref.ref(self)
        handles = [p.register_post_accumulate_grad_hook(lambda p: _note(itself, p)) for p in self._params]
        weakref.finalize(self, _remove, handles)
        for part in module.modules():
            if isinstance(part, SyncBatchNorm) and self._weights is not None:
                part.__dict__["weight_of_rank"] = self._weights.pending

    def _share_out(self) -> None:
        """Which parameters travel together."""
        self._layouts = [p._layout for p in self._params]
        self._known = {id(p) for p in self._params}
        self._buckets = buckets_of(self._params, self.bucket_cap_mb)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's result for this rank's share."""
        if self._join_config.enable:
            Join.notify_join_context(self)
            self._anybody_averages(self.require_backward_grad_sync and local.state.grad)
        found = self.module(*inputs, **kwargs)
        if local.state.grad:
            self._meant = self.require_backward_grad_sync
        if self._weights is not None and local.state.grad:
            self._weights.forward((inputs, kwargs), found)
        return found

    def set_weight(self, weight: float) -> None:
        """The weight of this rank in the next step instead of its number of samples: the tokens, for instance, over which its loss is the mean."""
        if self._weights is None:
            raise ArgumentError("[set_weight] expected a model with weight='samples', got one where every rank counts alike; wrap it with that")
        self._weights.give(weight)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients only add up on each rank; the first backward after it averages them all. As in PyTorch the forward pass belongs inside,
        too: gradients of one that stands before are averaged in any case."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False) -> Iterator[None]:
        """Around a loop in which ranks may have different numbers of batches: a rank that is done takes part in the steps of the others with
        gradients of zero, and has their parameters in the end.

        divide_by_initial_world_size: whether sums are divided by the number of all ranks (as in PyTorch), or of those that have samples; with
        weight="samples" they are divided by the samples that there are in either case.
        """
        if throw_on_early_termination:
            raise ArgumentError("[join] expected throw_on_early_termination=False; a rank that ends too early is an error outside of join")
        if not enable or self.process_group.size() == 1:
            yield
            return
        if self._ordered is not None:
            raise ArgumentError("[join] expected a model without ordered=True: all ranks have equally many micro-batches there")
        self._joined = divide_by_initial_world_size
        try:
            yield
            self._go_along()
        finally:
            self._joined = None

    def _go_along(self) -> None:
        """Take part in steps of the others until nobody has any."""
        while self._go_one_step(False):
            pass
        self._end_alike()

    def _go_one_step(self, keep: bool) -> bool:
        """Take part in one step; whether there was any. `keep`: whether to have the mean gradients, too."""
        step, task = self._agree(0.0, np.zeros(len(self._params), bool), False)
        wait_for(task)
        if not step.active.any():
            return False
        self._last = step
        self._compare(step)
        for number, bucket in enumerate(self._buckets):
            none, wanted = [False] * len(bucket), [keep and bool(step.used[k]) for k in bucket]
            params = [self._params[k] for k in bucket]
            if self._hook is not None and self._hook[1] not in hooks.NATIVE:
                hooks.by_hook(self._hook, number, number == len(self._buckets) - 1, params, none, wanted)
                continue
            for p, want in zip(params, wanted, strict=True):
                if want:
                    p._grad = hooks.empty_like(p)
            self._send(number, bucket, step, [], [p._grad for p, want in zip(params, wanted, strict=True) if want], none, wanted)
        if self.broadcast_buffers:
            self._same_buffers(step)
        return True

    def _end_alike(self) -> None:
        """Parameters and buffers become those of a rank that has done the last step."""
        if self._last is not None:
            for tensors in by_dtype([*self.module.parameters(), *self.module.buffers()]):
                copy_from(self.process_group, tensors, self._last)

    def join_hook(self, divide_by_initial_world_size: bool = True, **kwargs: Any) -> "JoinHook":
        """See `Join`."""
        if self._ordered is not None:
            raise ArgumentError("[join] expected a model without ordered=True: all ranks have equally many micro-batches there")
        return _Follower(self, divide_by_initial_world_size)

    @property
    def join_device(self) -> Any:
        """See `Join`."""
        return self._params[0].device

    @property
    def join_process_group(self) -> Any:
        """See `Join`."""
        return self.process_group

    def _uneven(self) -> bool | None:
        """Whether ranks that are done count, where there may be any."""
        return self._divides_by_all if self._join_config.enable else self._joined

    def _anybody_averages(self, mine: bool) -> bool:
        """Whether the gradients of the pass that begins are averaged; a rank that is done hears it so."""
        flag = tensor([int(mine)])
        all_reduce(flag, ReduceOp.MAX, self.process_group)
        return bool(flag.item())

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """How a bucket travels: `hooks.fp16_compress_hook` or `bf16_compress_hook` (half the bytes, sums in float32), `allreduce_hook` (the default),
        or a function `hook(state, bucket)` that returns the averaged `bucket.buffer()`, or something whose `wait()` gives it."""
        if not callable(hook):
            raise ArgumentError(f"[register_comm_hook] expected a function, got {type_name(hook)}")
        if self._ordered is not None:
            raise ArgumentError("[register_comm_hook] expected a model without ordered=True, whose gradients travel one by one")
        if self._hook is not None:
            raise DistributedError("[register_comm_hook] expected one hook per model, got a second one")
        self._hook = (state, hook)

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """What PyTorch's class has found out about itself; libraries ask for this entry."""
        return {"can_set_static_graph": False}

    # ------------------------------------------------------------------------------------------------ after a backward pass

    def _average(self) -> None:
        """All gradients of a backward pass are recorded."""
        self._pass = None
        if self._weights is not None:
            self._weights.end()
        if self._ordered is not None:
            self._average_in_order(self._ordered)
            return
        if not (self._meant or (self.require_backward_grad_sync and not self._join_config.enable)):  # in `Join` the others know what forward said
            return
        self._meant = False
        gradients_matter()
        arrived, self._arrived = self._arrived, set()
        rows = 1.0 if self._weights is None else self._weights.take()
        self._look_at_parameters()
        missing = [k for k, p in enumerate(self._params) if id(p) not in arrived]
        if missing and not self.find_unused_parameters:
            raise self._unused(missing)
        step = Step(self.process_group.size())
        if self._weights is not None or self.find_unused_parameters or self._uneven() is not None:
            used = np.ones(len(self._params), bool)
            used[missing] = False
            step, task = self._agree(rows, used, True)
            if missing:  # whether their gradients are zeros, or none, depends on the other ranks
                wait_for(task)
        self._last = step
        self._compare(step)
        for number, bucket in enumerate(self._buckets):
            self._reduce(number, bucket, step, set(missing), rows)
        if self.broadcast_buffers:
            self._same_buffers(step)

    def _average_in_order(self, ordered: InOrder) -> None:
        """The same with `ordered=True`."""
        arrived, self._arrived = self._arrived, set()
        self._look_at_parameters()
        missing = [k for k, p in enumerate(self._params) if id(p) not in arrived]
        if missing:
            raise self._unused(missing)
        ordered.keep(self.require_backward_grad_sync)
        if not self.require_backward_grad_sync:
            return
        gradients_matter()
        step = self._last = Step(self.process_group.size())
        self._compare(step)
        ordered.average(self._buckets)
        if self.broadcast_buffers:
            self._same_buffers(step)

    def _look_at_parameters(self) -> None:
        """Those that came later would be left out, and those whose dtype has changed do not fit where they were."""
        mine = self._known
        if any(p is not None and p._requires_grad and id(p) not in mine for part in _parts(self.module) for p in part._parameters.values()):
            late = [name for name, p in self.module.named_parameters() if p._requires_grad and id(p) not in mine]
            raise DistributedError(
                f"[DistributedDataParallel] expected the parameters that the module had when it was wrapped, but {', '.join(late[:NAMED])} "
                "came, or began to require a gradient, later and would not be averaged; wrap the module again. Nothing was averaged"
            )
        if any(p._layout is not layout for p, layout in zip(self._params, self._layouts, strict=True)):
            self._share_out()

    def _compare(self, step: Step) -> None:
        """Look, now and then, whether all ranks have the same parameters."""
        self._steps += 1
        pg, often = self.process_group, min(self._steps, LONG)
        if pg.size() > 1 and pg.checks and self._hook is None and self._steps % often == 0 and often & (often - 1) == 0:
            compare(pg, self._names, self._params, step, self._steps)

    def _unused(self, missing: list[int]) -> DistributedError:
        rows = [f"{self._names[k]} does not reach the loss{_place(self.module, self._names[k])}" for k in missing[:NAMED]]
        more = f", and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        return DistributedError(
            f"[DistributedDataParallel] expected every parameter to take part in the loss, but {'; '.join(rows)}{more}; leave them out of the model "
            "(requires_grad_(False)), or pass find_unused_parameters=True. Nothing was averaged"
        )

    def _agree(self, rows: float, used: Any, active: bool) -> tuple[Step, Any]:
        """Tell each other the weights of this step."""
        pg, all_count = self.process_group, self._uneven() is True and self._weights is None
        step = Step(pg.size(), self._uneven() is not None)
        mine = np.concatenate([as_bytes(np.array([rows], np.float64)), np.packbits(np.concatenate([[active], used]))])

        def work(_: Any) -> list[Any]:
            found = np.zeros((pg.size(), mine.size), np.uint8)
            pg.all_gather(mine, found)
            bits = np.unpackbits(found[:, 8:], axis=1, count=used.size + 1).astype(bool)
            step.active, step.used = bits[:, 0], bits[:, 1:].any(0)
            total = float(pg.size()) if all_count else float(found[:, :8].copy().view(np.float64).sum())
            step.factor = rows / total if total else 0.0
            return []

        return step, _queue(pg, kind_of("DistributedDataParallel", "step", (len(self._params),), ""), [], [], work)[1]

    def _reduce(self, number: int, bucket: list[int], step: Step, missing: set[int], rows: float) -> None:
        """Queue the average of one bucket."""
        params = [self._params[k] for k in bucket]
        wanted = [k not in missing or bool(step.used[k]) for k in bucket]  # what nobody has used stays as it is
        there = [p._grad is not None and want for p, want in zip(params, wanted, strict=True)]
        for p, has in zip(params, there, strict=True):
            if has and p._grad._layout.dtype is not p._layout.dtype:
                raise DistributedError(
                    f"[DistributedDataParallel] expected gradients of the dtype of their parameters, got {p._grad._layout.dtype!r} for "
                    f"{p._layout.dtype!r}; call zero_grad() after the dtype of a model has changed"
                )
        if self._hook is not None and self._hook[1] not in hooks.NATIVE:
            hooks.by_hook(self._hook, number, number == len(self._buckets) - 1, params, there, wanted)
            return
        for p, has, want in zip(params, there, wanted, strict=True):
            if want and not has:
                p._grad = hooks.empty_like(p)
        there = [has and rows > 0 for has in there]  # the mean over no samples is no number
        sources = [p._grad for p, has in zip(params, there, strict=True) if has]
        self._send(number, bucket, step, sources, [p._grad for p, want in zip(params, wanted, strict=True) if want], there, wanted)

    def _send(self, number: int, bucket: list[int], step: Step, sources: list[Any], results: list[Any], there: list[bool], kept: list[bool]) -> None:
        """Queue the call itself: `there`, which parameters of the bucket the sources are of; `kept`: those of the results."""
        params = [self._params[k] for k in bucket]
        plan = hooks.Flat([p._layout.numel for p in params], params[0]._layout.dtype.np)
        wire, pg = None if self._hook is None else hooks.NATIVE[self._hook[1]], self.process_group

        def work(arrays: list[Any]) -> list[Any]:
            parts = plan.average(pg, arrays, there, step.factor, wire)
            return [part for part, wanted in zip(parts, kept, strict=True) if wanted]

        begin(pg, Plan(f"DistributedDataParallel bucket {number}", params[0], str(sum(plan.sizes)), sources, results, work), sources, results)

    def _same_buffers(self, step: Step) -> None:
        found = {id(b): b for part in _parts(self.module) for b in part._buffers.values() if b is not None}
        for tensors in by_dtype(list(found.values())):
            copy_from(self.process_group, tensors, step)


# ------------------------------------------------------------------------------------------------------------------ parts


class _Follower(JoinHook):
    """What a rank that is done does for a model in `Join`. While the block lasts the model says in each step who has samples."""

    def __init__(self, model: DistributedDataParallel, all_count: bool) -> None:
        self._model = model
        model._divides_by_all = all_count

    def main_hook(self) -> None:
        """See `JoinHook`."""
        if self._model._anybody_averages(False):
            self._model._go_one_step(True)

    def post_hook(self, is_last_joiner: bool) -> None:
        """See `JoinHook`."""
        self._model._end_alike()


def _parts(module: Any) -> list[Any]:
    """A module and all in it, in an order that is the same on all ranks; a quicker `modules()`, since every step asks."""
    found = {id(module): module}
    waiting = [module]
    while waiting:
        for part in waiting.pop()._modules.values():
            if part is not None and id(part) not in found:
                found[id(part)] = part
                waiting.append(part)
    return list(found.values())


def _note(wrapper: Any, p: Any) -> None:
    """A gradient is recorded. `wrapper`: a weak reference, since a parameter may live longer than what averages its gradients."""
    ddp, running = wrapper(), running_pass()
    if ddp is None:
        return
    ddp._arrived.add(id(p))
    if ddp._pass is not running:  # also after a pass that has failed in its middle
        ddp._pass = running
        queue_callback(ddp._average)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


def buckets_of(params: list[Any], cap: float) -> list[list[int]]:
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
    made, _ = _queue(pg, kind_of("DistributedDataParallel", tensors[0]._layout.dtype.name, None, detail), tensors, targets_of(tensors), work)
    for t, buffer in zip(tensors, made, strict=True):
        assign(t, buffer)


def _queue(pg: ProcessGroup, kind: Kind, sources: list[Any], targets: list[Any], work: Any) -> Any:
    """A call of the group whose results nobody waits for at once."""
    return exchange(sources, targets, Turn(pg, kind, work), "DistributedDataParallel")


def compare(pg: ProcessGroup, names: list[str], params: list[Any], step: Step, steps: int) -> None:
    """Queue a look at some numbers of every parameter: DistributedError, on every rank, if they differ between ranks by more than roundings do."""
    layouts = [p._layout for p in params]

    def work(arrays: list[Any]) -> list[Any]:
        mine = np.stack([_sampled(a) for a in arrays])
        found = np.empty((pg.size(), *mine.shape))
        pg.all_gather(as_bytes(mine), as_bytes(found.reshape(-1)))
        rows = found[step.active]
        scale = np.abs(rows).max((0, 2), initial=0.0)
        bounds = np.array([1e-3 if layout.dtype.itemsize > 2 else 0.1 for layout in layouts]) * scale  # optimizers may round differently
        with np.errstate(invalid="ignore"):
            differs = ((np.abs(rows - rows[:1]) > bounds[:, None]) | (np.isnan(rows) != np.isnan(rows[:1]))).any(2)
        if differs.any():
            k = int(np.argmax(differs.any(0)))
            other = int(np.argmax(differs[:, k]))
            ranks = [r for r, active in zip(pg.ranks, step.active, strict=True) if active]
            at = int(np.argmax(np.abs(np.nan_to_num(rows[other, k] - rows[0, k]))))
            raise WATCH.broken(
                f"[DistributedDataParallel] expected the same parameters on every rank, but before step {steps} {names[k]} has {rows[0, k, at]:g} on "
                f"rank {ranks[0]} where rank {ranks[other]} has {rows[other, k, at]:g}; load checkpoints and change parameters on every rank alike"
            )
        return []

    _queue(pg, kind_of("DistributedDataParallel", "", (len(params),), "comparison of parameters"), params, [], work)


def _sampled(array: Any) -> Any:
    """Some numbers of a parameter."""
    at = np.linspace(0, max(array.size - 1, 0), SAMPLED // 2).astype(np.int64) if array.size else np.zeros(0, np.int64)
    found = np.zeros(SAMPLED)
    found[: 2 * at.size] = array[at].astype(np.complex128).view(np.float64)
    return found


def require_the_same(op: str, pg: ProcessGroup, named: dict[str, Any]) -> None:
    """Raise, on every rank, if the ranks have different parameters or buffers."""
    mine = [[name, [int(n) for n in t._layout.shape], t._layout.dtype.name, bool(t._requires_grad)] for name, t in named.items()]
    found: list[Any] = [None] * pg.size()
    all_gather_object(found, mine, pg)
    for rank, theirs in zip(pg.ranks, found, strict=True):
        if theirs == found[0]:
            continue
        k = next((k for k, (a, b) in enumerate(zip(found[0], theirs)) if a != b), min(len(found[0]), len(theirs)))
        first, other = (_described(rows[k]) if k < len(rows) else "nothing more" for rows in (found[0], theirs))
        raise DistributedError(
            f"[{op}] expected the same parameters on every rank, but rank {pg.ranks[0]} has {len(found[0])} and rank {rank} has "
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
