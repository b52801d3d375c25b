"""`fully_shard`: every rank holds a part of each parameter, of its gradient and of the optimizer's state; whole parameters exist only while their
module computes.

Sources: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020), stages 2 and 3; Zhao et al., "PyTorch
FSDP: Experiences on Scaling Fully Sharded Data Parallel" (2023).

A unit is a module whose parameters travel together. Before its forward pass they are gathered by a differentiable function of the parts; its backward
gives each rank the mean of its part of the gradients. The backward pass comes to that function as soon as it has gone through the unit, so what was
recorded until then becomes a program of its own, and the gradients of the unit are gone before those of the unit before it are made.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from calque.autograd.engine import queue_callback
from calque.autograd.function import Function, once_differentiable
from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError, DistributedError
from calque.base.layout import dense_layout
from calque.base.text import shown, type_name
from calque.distributed.collectives import all_reduce, as_bytes, require_tensor
from calque.distributed.ddp import by_dtype, copy_from, require_the_same
from calque.distributed.exchange import brief, exchange, flat, values_of
from calque.distributed.group import ProcessGroup, ReduceOp, Turn
from calque.distributed.mesh import group_of_mesh
from calque.distributed.owners import OWNING, elsewhere, owned
from calque.distributed.record import kind_of
from calque.distributed.weights import tensors_of
from calque.distributed.world import group_of
from calque.functional.creation import tensor
from calque.functional.formats import clone
from calque.nn.module import Module
from calque.nn.parameter import is_lazy
from calque.nn.shares import share_of
from calque.nn.traps import Departures
from calque.record.recorder import Storage, local, realised
from calque.record.threads import LOCK
from calque.replay.counts import Changes
from calque.run.buffer import Buffer
from calque.run.engine import Task
from calque.tensor import wrap

AHEAD = 2  # units whose parameters may be whole at the same time in a forward pass


class Part:
    """How a parameter is shared out: by rows (dim 0), equally many for each rank, and fewer, or none, for the last ones."""

    def __init__(self, pg: ProcessGroup, shape: tuple[int, ...]) -> None:
        rows, row, rank = shape[0] if shape else 1, prod(shape[1:]), pg.rank()
        each = -(-rows // pg.size())
        low, high = min(each * rank, rows), min(each * (rank + 1), rows)
        self.pg, self.shape, self.own = pg, shape, (high - low, *shape[1:])
        self.numel, self.chunk = rows * row, each * row
        self.slice = slice(low * row, high * row)

    def gathered(self, own: Any) -> Any:
        """The flat array of the whole, from this rank's; inside a call of the group."""
        if own.size < self.chunk:
            own = np.concatenate([own, np.zeros(self.chunk - own.size, own.dtype)])
        found = flat(self.chunk * self.pg.size(), own.dtype)
        self.pg.all_gather(as_bytes(own), as_bytes(found))
        return found[: self.numel]

    def averaged(self, gradient: Any, dtype: Any) -> Any:
        """This rank's part of the mean of all ranks' gradients, flat arrays of the whole (or None: zeros); inside a call of the group."""
        wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
        source, count = gradient, self.pg.size()
        if source is None or source.size < self.chunk * count or source.dtype != wide:
            source = flat(self.chunk * count, wide)
            source[: self.numel] = 0 if gradient is None else gradient
            source[self.numel :] = 0
        found = flat(self.chunk, wide)
        self.pg.reduce_scatter(source, found, ReduceOp.SUM)
        found = found[: self.slice.stop - self.slice.start]
        found /= count
        with np.errstate(over="ignore"):
            return found.astype(dtype, copy=False)

    def scattered(self, whole: Any, dtype: Any) -> Any:
        """This rank's part of what the first rank has; inside a call of the group."""
        count, found, source = self.pg.size(), flat(self.chunk, dtype), None
        if self.pg.rank() == 0:
            source = np.concatenate([whole, np.zeros(self.chunk * count - whole.size, dtype)]) if whole.size < self.chunk * count else whole
        self.pg.scatter(None if source is None else as_bytes(source), as_bytes(found), 0)
        return found[: self.slice.stop - self.slice.start]

    # ------------------------------------------------------------------------------------------------------ see `Share`

    @property
    def group(self) -> ProcessGroup:
        """See `Share`."""
        return self.pg

    @no_grad()
    def whole(self, part: Any) -> Any:
        """See `Share`."""
        layout = dense_layout(self.shape, part._layout.dtype, part._layout.device)
        (made,), task = _call(self.pg, "whole parameter", [part], [layout], lambda arrays: [self.gathered(arrays[0])], part._layout.dtype.name)
        if OWNING.owners is None:
            return wrap(made, made.layout)
        owner = OWNING.owners.next(layout.nbytes)
        task.wait()  # one at a time, and of others only the shape is kept
        return owned(wrap(made, made.layout), owner) if owner == OWNING.owners.rank else elsewhere(self.shape, layout.dtype, owner)

    @no_grad()
    def part(self, whole: Any) -> Any:
        """See `Share`."""
        return clone(whole.reshape(-1)[self.slice]).reshape(self.own)

    @no_grad()
    def norm(self, norm: Any, order: float) -> Any:
        """See `Share`."""
        total = clone(norm) if order in (float("inf"), float("-inf")) else norm**order
        all_reduce(total, ReduceOp.MAX if order == float("inf") else ReduceOp.MIN if order == float("-inf") else ReduceOp.SUM, self.pg)
        return total if order in (float("inf"), float("-inf")) else total ** (1.0 / order)

    @no_grad()
    def everywhere(self, flag: Any) -> Any:
        """See `Share`."""
        found = flag.to(tensor(0).dtype)
        all_reduce(found, ReduceOp.MIN, self.pg)
        return found > 0

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See `Share`."""
        return self.shape, self.own

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class _Later(Turn):
    """One that comes when buffers are filled, or have failed."""

    __slots__ = ("after",)
    after: list[Buffer]

    def begin(self, arrays: list[Any]) -> None:
        """See `Turn`."""
        for buffer in self.after:
            if (task := buffer.task) is not None:
                task.wait()
        self.after = []
        super().begin(arrays)


def _call(
    pg: ProcessGroup, what: str, sources: list[Any], targets: list[Any], work: Any, dtype: str, count: int = 1, after: Any = ()
) -> tuple[list[Any], Task]:
    """Queue a call of the group. `after`: tensors for which it waits, whether or not they come to be."""
    earlier = values_of(after)
    turn = _Later(pg, kind_of(f"fully_shard: {what}", dtype, (count,), ""), work)
    turn.after = earlier
    made, task = exchange(sources, targets, turn, "fully_shard", brief([t._layout for t in sources], targets))
    return [realised(buffer, target) for buffer, target in zip(made, targets, strict=True)], task


class Unit:
    """The parameters of one module that travel together. `places`: where each of them belongs: (module, name, parameter). `inner`: units inside."""

    def __init__(self, pg: ProcessGroup, places: list[tuple[Any, str, Any]], name: str, reshard: bool, inner: list["Unit"]) -> None:
        self.pg, self.places, self.name, self.reshard, self.inner = pg, places, name, reshard, inner
        self.params = list({id(p): p for _, _, p in places}.values())
        self.parts: list[Part] = [p.__dict__["_share"] for p in self.params]
        self.inside = False
        self.around = 0  # units around this one that compute
        self.backward: _Call | None = None  # through which a backward pass goes

    def show(self) -> None:
        """Put in place what one sees of the parameters outside of the forward pass: this rank's parts; in the backward pass whole ones, as a
        checkpoint may compute again; in the forward pass of a unit around this one, which reads them itself, an error, as the parts would be
        wrong there."""
        if self.backward is not None:
            seen = self.backward.whole()
        else:
            seen = [self._out_of_reach(p, part) for p, part in zip(self.params, self.parts, strict=True)] if self.around else self.params
        self.put(seen)

    def put(self, seen: list[Any]) -> None:
        """Let the modules have these in the place of their parameters."""
        found = dict(zip(map(id, self.params), seen, strict=True))
        for module, name, p in self.places:
            module._parameters[name] = found[id(p)]

    def _out_of_reach(self, p: Any, part: "Part") -> Any:
        layout = dense_layout(part.shape, p._layout.dtype, p._layout.device)
        lost = DistributedError(
            f"[fully_shard] expected the parameters of {self.name} to be read in its own forward pass, got a reader in that of a module around "
            f"it; call {self.name}, or do not share it out by itself"
        )
        found = wrap(realised(Buffer(None, Task.failed(lost)), layout), layout, type(p))
        found._requires_grad = p._requires_grad
        return found

    def gather(self, after: list[Any]) -> list[Any]:
        """Storages of the whole parameters; they are gathered when `after`, tensors, are computed, or have failed."""
        parts = self.parts
        targets = [dense_layout(part.shape, p._layout.dtype, p._layout.device) for p, part in zip(self.params, parts, strict=True)]

        def work(arrays: list[Any]) -> list[Any]:
            return [part.gathered(array) for part, array in zip(parts, arrays, strict=True)]

        return _call(self.pg, f"parameters of {self.name}", self.params, targets, work, "", len(parts), after)[0]

    def average(self, gradients: list[Any]) -> list[Any]:
        """This rank's parts of the mean gradients; None for parameters that get none."""
        wanted = [(p, part, g) for p, part, g in zip(self.params, self.parts, gradients, strict=True) if p._requires_grad]
        there = [g is not None for _, _, g in wanted]

        def work(arrays: list[Any]) -> list[Any]:
            given = iter(arrays)
            return [part.averaged(next(given) if has else None, p._layout.dtype.np) for (p, part, _), has in zip(wanted, there, strict=True)]

        sources = [g for _, _, g in wanted if g is not None]
        targets = [dense_layout(part.own, p._layout.dtype, p._layout.device) for p, part, _ in wanted]
        made = iter(_call(self.pg, f"gradients of {self.name}", sources, targets, work, "", len(wanted))[0])
        return [_shown(next(made)) if p._requires_grad else None for p in self.params]

    @contextmanager
    def computing(self) -> Iterator["_Call"]:
        """The parameters are whole in the modules."""
        call = _Call(self)
        whole = _Whole.apply(call, *self.params)
        call.nodes = [None if w._grad_fn is None else weakref.ref(w._grad_fn) for w in whole]
        self.inside = True
        try:
            self.put(whole)
            del whole
            self._let_inner_know(1)
            yield call
        finally:
            self.inside = False
            self.show()
            self._let_inner_know(-1)

    def _let_inner_know(self, more: int) -> None:
        for unit in self.inner:
            unit.around += more
            if not unit.inside:
                unit.show()

    def __deepcopy__(self, memo: Any) -> Any:
        raise DistributedError(
            "[deepcopy] expected a model whose parameters are whole, got one after fully_shard; make another one and load state_dict() into it"
        )


def _shown(storage: Storage) -> Any:
    return wrap(storage, storage.layout)


class _Call:
    """One forward pass of a unit. `storages`: of its whole parameters; nothing but `release` and `fetch` changes what they hold. `nodes`: weak
    references to the nodes of the graph that made them."""

    def __init__(self, unit: Unit) -> None:
        self.unit, self.there, self.fetched = unit, True, False
        self.storages: list[Any] = []
        self.nodes: list[Any] = []

    def whole(self) -> list[Any]:
        """The whole parameters, as functions of the parts."""
        found = [_shown(storage) for storage in self.storages]
        for t, node in zip(found, self.nodes, strict=True):
            t._grad_fn = None if node is None else node()
            t._requires_grad = t._grad_fn is not None
        return found

    def come(self, gradient: Any = None) -> None:
        """A backward pass comes to the results."""
        if self.unit.backward is not self:
            self.fetch()
            self.unit.backward = self
            if not self.unit.inside:
                self.unit.show()
            queue_callback(self.leave)

    def leave(self) -> None:
        """It has gone through, or has ended."""
        if self.unit.backward is self:
            self.unit.backward = None
            if not self.unit.inside:
                self.unit.show()

    def release(self) -> None:
        """Give the memory back. Whoever reads the parameters until they are fetched again gets an error."""
        self.there = False
        for storage in self.storages:
            if storage.version:
                raise DistributedError(
                    f"[fully_shard] expected a forward pass that leaves its parameters as they are, but one of {self.unit.name} was written to "
                    "in-place; what is written there is a copy that goes. Change parameters between steps, where every rank has its part"
                )
            lost = DistributedError(
                f"[fully_shard] expected the parameters of {self.unit.name} to be read in its forward pass or through its results, got another "
                "reader; return what depends on them from forward, or pass reshard_after_forward=False"
            )
            with LOCK:
                storage.trace, storage.slot, storage.buffer = None, -1, Buffer(None, Task.failed(lost))

    def fetch(self) -> None:
        """Hold the parameters again."""
        if self.there:
            return
        for storage, made in zip(self.storages, self.unit.gather([]), strict=True):
            with LOCK:
                storage.trace, storage.slot, storage.buffer = None, -1, made.buffer
        self.there = self.fetched = True

    def over(self, result: Any) -> None:
        """The forward pass has ended with this."""
        found = list(tensors_of(result))
        recent = _PACE.setdefault(self.unit.pg, deque(maxlen=AHEAD))
        recent.extend(wrap(t._storage, t._layout) for t in found[:1] if t._layout.dense)  # without its graph, which would hold more
        behind = [t for t in found if t._grad_fn is not None] if local.state.grad else []
        for t in behind:
            t.register_hook(self.come)
        given_away = any(t._storage is storage for t in found for storage in self.storages)
        if self.unit.reshard and not given_away and (behind or not local.state.grad):  # else nobody would fetch them again
            self.release()


_PACE: weakref.WeakKeyDictionary[ProcessGroup, deque[Any]] = weakref.WeakKeyDictionary()  # results of the units that computed last


class _Whole(Function):
    """Whole parameters from the parts of all ranks."""

    @staticmethod
    def forward(ctx: Any, call: Any, *parts: Any) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)
        recent: Any = _PACE.get(call.unit.pg, ())
        call.storages = call.unit.gather([recent[0]] if len(recent) == AHEAD else [])
        whole = [_shown(storage) for storage in call.storages]
        ctx.mark_non_differentiable(*[w for w, p in zip(whole, parts, strict=True) if not p._requires_grad])
        return tuple(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.call.leave()
        found = ctx.call.unit.average(list(gradients))
        if ctx.call.fetched and ctx.call.there:  # it may come again, with retain_graph
            ctx.call.release()
        return None, *found


class FSDPModule:
    """What a module is after `fully_shard`, beside what it was."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        unit = self.__dict__["_unit"]
        if unit.inside or not (unit.params or unit.inner):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        with unit.computing() as call:
            found = super().__call__(*args, **kwargs)  # type: ignore[misc]
        call.over(found)
        return found

    def set_modules_to_forward_prefetch(self, modules: list[Any]) -> None:
        """Changes nothing: the parameters of the next units are fetched while one computes, as far as the calls before it let them."""

    def set_modules_to_backward_prefetch(self, modules: list[Any]) -> None:
        """Changes nothing, as `set_modules_to_forward_prefetch`."""

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Changes no result: gradients are averaged after each backward, and their sum is the mean of the sums; no rank keeps whole ones."""

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Changes nothing: no work is left over from one backward pass to the next."""


_CLASSES: dict[type, type] = {}


def fully_shard(
    module: Any, *, mesh: Any = None, reshard_after_forward: bool | None = None, shard_placement_fn: Any = None, mp_policy: Any = None,
    offload_policy: Any = None, ignored_params: Any = None,
) -> Any:  # fmt: skip
    """Share the parameters of a module out among the ranks, in place; returns the module.

    From now on each parameter is this rank's rows of it (an nth of dim 0, the last ranks fewer or none), and so are its gradient and what an
    optimizer keeps. Whole parameters exist while the module computes, forward and backward: call this for the parts of a model first (each block of a
    Transformer), and for the model last, which takes the rest. Values are those of rank 0. Gradients are the mean of those of all ranks, as with
    `DistributedDataParallel`; a parameter of a unit that takes no part in a step gets a gradient of zeros if another of the unit does.

    mesh: a process group, or a `DeviceMesh` of one dimension; all ranks by default. reshard_after_forward: whether the whole parameters are given
    back between forward and backward, and fetched again. Default: True, but False for a module that holds others that were shared out, whose backward
    comes at once. False for all is ZeRO's stage 2. ignored_params: parameters that stay whole, and whose gradients nobody averages.

    `state_dict()` of the module and of an optimizer give whole tensors and are calls of all ranks; `load_state_dict` takes whole ones.
    `clip_grad_norm_` and `GradScaler` look at all ranks. Optimizers that look at whole parameters (LARS, LAMB, Muon, Adafactor, LBFGS) raise.

    Raises ArgumentError for other arguments, DistributedError if a parameter is shared out already, or belongs to two units.

    >>> from calque.distributed import fully_shard
    >>> fully_shard(3)
    Traceback (most recent call last):
    calque.base.errors.ArgumentError: [fully_shard] expected a module, got int
    """
    if not isinstance(module, Module):
        raise ArgumentError(f"[fully_shard] expected a module, got {type_name(module)}")
    for name, value in (("shard_placement_fn", shard_placement_fn), ("mp_policy", mp_policy), ("offload_policy", offload_policy)):
        if value is not None:
            raise ArgumentError(f"[fully_shard] expected {name}=None, got {shown(value)}; leave it out")
    if reshard_after_forward not in (None, True, False) or isinstance(reshard_after_forward, int) is not isinstance(reshard_after_forward, bool):
        raise ArgumentError(f"[fully_shard] expected reshard_after_forward=True, False or None, got {shown(reshard_after_forward)}")
    if type(module).forward is Module.forward:
        raise ArgumentError(f"[fully_shard] expected a module that computes, got {type_name(module)}, which nobody calls; share out its parts")
    pg = group_of("fully_shard", group_of_mesh("fully_shard", mesh))
    if pg is None:
        raise ArgumentError("[fully_shard] expected a group of which this process is a member")
    if isinstance(module, FSDPModule):
        raise DistributedError("[fully_shard] expected a module that is not shared out yet, got one that is; call it once")
    inner = [part for part in module.modules() if isinstance(part, FSDPModule)]
    places = _places(module, inner, {id(p) for p in ignored_params or ()})
    named = {f"{type(part).__name__}.{name} ({k})": p for k, (part, name, p) in enumerate(places)}
    if pg.size() > 1:
        require_the_same("fully_shard", pg, named)
        for tensors in by_dtype(_own_buffers(module, inner)):
            copy_from(pg, tensors, 0)
    for p in {id(p): p for _, _, p in places}.values():
        _cut(pg, p)
    reshard = not inner if reshard_after_forward is None else reshard_after_forward
    module.__dict__["_unit"] = Unit(pg, places, type(module).__name__, reshard, [part.__dict__["_unit"] for part in inner])
    cls = type(module)
    module.__class__ = _CLASSES.setdefault(cls, type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__module__": cls.__module__}))
    for part in dict.fromkeys(part for part, _, _ in places):
        part.register_state_dict_post_hook(_make_whole)
        part.register_load_state_dict_pre_hook(_take_part)
    Changes.epoch += 1
    Departures.count += 1  # optimizers look at their parameters again
    return module


def _places(module: Any, inner: list[Any], ignored: set[int]) -> list[tuple[Any, str, Any]]:
    """Where the parameters of a module are that are not shared out yet."""
    known = {(id(part), name) for unit in inner for part, name, _ in unit.__dict__["_unit"].places}
    found = []
    for prefix, part in module.named_modules():
        for name, p in part._parameters.items():
            if p is None or id(p) in ignored or (id(part), name) in known:
                continue
            full = f"{prefix}.{name}".lstrip(".")
            if share_of(p) is not None:
                raise DistributedError(
                    f"[fully_shard] expected parameters that belong to one unit, but {full} is shared out already as part of another module; share "
                    "out a module that holds both"
                )
            if is_lazy(p):
                raise DistributedError(f"[fully_shard] expected parameters with a shape, but {full} has none yet; call the model once before")
            require_tensor("fully_shard", p, full)
            found.append((part, name, p))
    return found


def _own_buffers(module: Any, inner: list[Any]) -> list[Any]:
    elsewhere = {id(b) for unit in inner for b in unit.buffers()}
    return [b for b in module.buffers() if id(b) not in elsewhere]


def _cut(pg: ProcessGroup, p: Any) -> None:
    """Let a parameter hold this rank's part alone; it is the same object, so optimizers and names go on with it."""
    part, dtype = Part(pg, tuple(int(n) for n in p._layout.shape)), p._layout.dtype
    target = dense_layout(part.own, dtype, p._layout.device)
    (made,), _ = _call(pg, "parameter", [p], [target], lambda arrays: [part.scattered(arrays[0], dtype.np)], dtype.name, part.numel)
    p._storage, p._layout, p._cache, p._grad = made, made.layout, None, None
    p.__dict__["_share"] = part


def _make_whole(module: Any, found: Any, prefix: str, metadata: Any) -> None:
    """A state dict gets whole parameters."""
    for name, p in module._parameters.items():
        part = None if p is None else share_of(p)
        if part is not None and prefix + name in found:
            found[prefix + name] = part.whole(p)


def _take_part(module: Any, found: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: list[str]) -> None:
    """This rank's part of what is loaded."""
    for name, p in module._parameters.items():
        part, value = None if p is None else share_of(p), found.get(prefix + name)
        if part is None or not hasattr(value, "_layout"):
            continue
        whole, _ = part.shapes()
        if tuple(value.shape) == whole:
            found[prefix + name] = part.part(value)
        else:
            errors.append(f"size mismatch for {prefix}{name}: expected the whole parameter of shape {list(whole)}, got {list(value.shape)}")
