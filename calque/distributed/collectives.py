"""Collectives on tensors, with PyTorch's names. Every one is a task of the engine: the call returns once it is queued, devices go on computing, and
whoever reads a result waits for it. All ranks of a group make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np

from calque.autograd.modes import no_grad
from calque.base.device import META
from calque.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedTypeError
from calque.base.futures import Future
from calque.base.layout import Layout, value_layout
from calque.base.text import shown, type_name
from calque.distributed.exchange import FINISHED, brief, exchange, flat, go_on, set_value, wait_for
from calque.distributed.group import FUNCTIONS, PLANS, Payload, ProcessGroup, ReduceOp, Turn
from calque.distributed.record import kind_of
from calque.distributed.world import group_of, seconds_of
from calque.functional.blame import answering
from calque.functional.common import is_tensor
from calque.functional.inplace import copy_
from calque.functional.views import detach
from calque.record.recorder import realised
from calque.run.buffer import Buffer
from calque.run.engine import Task
from calque.tensor import Tensor, wrap

Arrays = list[np.ndarray[Any, Any]]
Work_ = Callable[[Arrays], Sequence[Any]]
_HALF = ("float16", "bfloat16")  # combined as float32: MPI has no bfloat16, and sums of 16 bits lose digits
_KINDS = {ReduceOp.AVG: "fc", ReduceOp.MIN: "iuf", ReduceOp.MAX: "iuf", ReduceOp.BAND: "iu", ReduceOp.BOR: "iu", ReduceOp.BXOR: "iu"}
_new: Any = object.__new__


class Work:
    """A call that was begun with `async_op=True`, or a message."""

    def __init__(self, task: Task, result: Sequence[Any], source: Callable[[], int] | None = None) -> None:
        self._task, self._result, self._source = task, result, source

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self._task.done

    def is_success(self) -> bool:
        """Whether it is over and did not fail."""
        return self._task.done and self._task.error is None

    def exception(self) -> BaseException | None:
        """Why it failed, if it did."""
        return self._task.error

    @answering
    def wait(self, timeout: Any = None) -> bool:
        """Block until it is over; raises its error. What waits longer than the group's timeout fails by itself."""
        if timeout is not None:
            seconds_of("wait", timeout, 1.0)
        task = self._task
        if not task.done or task.error is not None:
            wait_for(task)
        return True

    def result(self) -> list[Any]:
        """The tensors that it writes."""
        return list(self._result)

    def get_future(self) -> Future[list[Any]]:
        """A future of the tensors that it writes. What `then` gives it is called by the thread that waits."""
        return Future.of(lambda: self.wait() and self.result())

    def source_rank(self) -> int:
        """Who has sent what was received."""
        self.wait()
        if self._source is None:
            raise ArgumentError("[source_rank] expected a message that was received, got another call")
        return self._source()


# --------------------------------------------------------------------------------------------------------- what all share


def require_tensor(op: str, t: Any, name: str = "tensor") -> None:
    """A tensor with values."""
    if not is_tensor(t):
        raise DTypeError(f"[{op}] expected {name} to be a Tensor, got {type_name(t)}; for other objects there is {op.split('_into')[0]}_object")
    if t._layout.device is META:
        raise ArgumentError(f"[{op}] expected {name} to have values, got one on device 'meta'; make it on 'cpu'")


def require_list(op: str, tensors: Any, count: int, name: str) -> list[Any]:
    """One tensor for each rank."""
    found = list(tensors) if isinstance(tensors, list | tuple) else None
    if found is None or len(found) != count:
        got = shown(tensors) if found is None else len(found)
        raise ArgumentError(f"[{op}] expected {name} to be a list of {count} tensors, one per rank, got {got}")
    for t in found:
        require_tensor(op, t, f"every item of {name}")
    return found


def require_alike(op: str, tensors: Sequence[Any], like: Any) -> None:
    """The same shape and dtype."""
    for t in tensors:
        if t._layout.dtype is not like._layout.dtype:
            raise DTypeError(f"[{op}] expected one dtype, got {like._layout.dtype!r} and {t._layout.dtype!r}; convert with .to(...)")
        if tuple(t._layout.shape) != tuple(like._layout.shape):
            raise ShapeError(f"[{op}] expected one shape, got {tuple(like._layout.shape)} and {tuple(t._layout.shape)}")


def require_op(op: str, kind: Any, dtype: Any) -> ReduceOp:
    """A reduction that is defined for the dtype."""
    if not isinstance(kind, ReduceOp):
        raise ArgumentError(f"[{op}] expected op to be one of ReduceOp.{', ReduceOp.'.join(k.name for k in ReduceOp)}, got {shown(kind)}")
    letter = "f" if dtype.name in _HALF else dtype.np.kind
    if letter not in _KINDS.get(kind, "iufc") or dtype.stored == "float8":
        raise UnsupportedTypeError(
            f"[{op}] expected a dtype that {kind.name} is defined for here, got {dtype!r}; convert it with .to(...), booleans to calque.uint8"
        )
    return kind


def root_of(op: str, group: ProcessGroup, rank: Any, group_rank: Any = None, default: int | None = None) -> int:
    """The place in the group of a rank of the job."""
    if group_rank is not None:
        rank = group.ranks[group_rank] if isinstance(group_rank, int) and 0 <= group_rank < group.size() else group_rank
    if rank is None:
        rank = default
    if isinstance(rank, bool) or not isinstance(rank, int) or rank not in group.ranks:
        raise ArgumentError(f"[{op}] expected a rank of the group, one of {list(group.ranks)}, got {shown(rank)}")
    return group.ranks.index(rank)


def assign(t: Tensor, value: Buffer) -> None:
    """Write a result into a tensor of the same number of elements."""
    if not set_value(t._storage, t._layout, value):
        with no_grad():
            layout = value_layout(t._layout)
            copy_(detach(t), wrap(realised(value, layout), layout))
    else:
        t._cache = None


def targets_of(tensors: Sequence[Any]) -> list[Layout]:
    """Dense layouts of the shapes of tensors."""
    return [value_layout(t._layout) for t in tensors]


class Plan:
    """What is known of a call before its tensors are: `targets`, dense layouts of its results, and what makes them (see `Turn`)."""

    __slots__ = ("kind", "targets", "brief", "work", "payload")

    def __init__(
        self, op: str, like: Any, detail: str, sources: Sequence[Any], results: Sequence[Any], work: Work_, payload: Payload | None = None,
        same_shape: bool = True,
    ) -> None:  # fmt: skip
        """`like`: the tensor whose dtype and shape must agree."""
        layout = like._layout
        self.kind = kind_of(op, layout.dtype.name, tuple(layout.shape) if same_shape else None, detail)
        self.targets, self.work, self.payload = targets_of(results), work, payload
        self.brief = brief([t._layout for t in sources], self.targets)


def begin(pg: ProcessGroup, plan: Plan, sources: Sequence[Any], results: Sequence[Any], away: bool = False) -> Task:
    """Start a call, see `exchange`."""
    kind = plan.kind
    made, task = exchange(sources, plan.targets, Turn(pg, kind, plan.work, plan.payload), kind.op, plan.brief, away)
    if len(made) == 1:
        assign(results[0], made[0])
    else:
        for t, buffer in zip(results, made, strict=True):
            assign(t, buffer)
    return task


def _call(pg: ProcessGroup, plan: Plan, sources: Sequence[Any], results: Sequence[Any], async_op: bool) -> Work | None:
    """The same, with what a call returns."""
    found: Any = None
    if pg.shelf is not None and plan.payload is not None and plan.payload.function is not None:
        found = pg.shelf.swift(pg, plan, results[0])
    if found is None:
        task = begin(pg, plan, sources, results, async_op)
    elif found is True:
        task = FINISHED
    else:
        task = _begun(pg, plan, results[0], found, async_op)
    if not async_op:
        return None
    work: Work = _new(Work)  # its `__init__` stands in a frame that explains arguments of users
    work._task, work._result, work._source = task, results, None
    return work


def _begun(pg: ProcessGroup, plan: Plan, t: Tensor, found: Any, away: bool) -> Task:
    """What is left of a call that `swift` has begun. `found`: what it gave."""
    if isinstance(found, Buffer):
        assign(t, found)
        return FINISHED
    assert plan.payload is not None
    turn = Turn.begun(found, pg, plan.work, plan.payload, pg.shelf)
    made, task = go_on([], plan.targets, turn, plan.kind.op, found.line, away)
    assign(t, made[0])
    return task


def as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory as bytes."""
    return array.view(np.uint8)


def _joined(arrays: Sequence[Any]) -> Any:
    """Flat arrays one behind the other."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _moving(move: Callable[[Any, Any], None], sizes: Sequence[int], dtype: Any) -> Work_:
    """The work of a call that moves bytes: `move(source, target)`, of all sources, one behind the other, into all results. sizes: elements of the
    results; dtype: theirs, of NumPy."""

    def work(arrays: Arrays) -> Arrays:
        found = flat(sum(sizes), dtype)
        move(as_bytes(_joined(arrays) if arrays else np.zeros(0, np.uint8)), as_bytes(found))
        return _cut(found, sizes)

    return work


def _cut(found: Any, sizes: Sequence[int]) -> Arrays:
    return [found] if len(sizes) == 1 else np.split(found, np.cumsum(sizes)[:-1]) if sizes else []


def _brought(pg: ProcessGroup, count: int, dtype: Any, brings: bool, unpack: Callable[[Arrays], Sequence[Any]]) -> Payload | None:
    """A payload of so many elements of each member; None if that is too much. `brings`: whether this member brings any."""
    return Payload(count, dtype, _joined if brings else _nothing, unpack) if Payload.fits(count, dtype, pg.size()) else None


def _nothing(arrays: Sequence[Any]) -> None:
    return None


def _combining(reduce: Callable[[Any, Any], None], numel: int, dtype: Any, kept: bool = True) -> Work_:
    """The work of a call that combines values: `reduce(source, target)`, in a dtype that MPI knows, of all sources, one behind the other. numel:
    elements of the result; dtype: its `DType`; kept: whether this process gets it."""
    half = dtype.name in _HALF

    def work(arrays: Arrays) -> Arrays:
        source = _joined(arrays)
        if half:
            source = source.astype(np.float32)
        target = flat(numel, source.dtype)
        reduce(source, target)
        return [_narrowed(target, dtype) if half else target] if kept else []

    return work


def _narrowed(array: Any, dtype: Any) -> Any:
    """Sums of 16-bit floats, as such."""
    with np.errstate(over="ignore"):  # infinity, as on every device
        return array.astype(dtype.np)


def _combined(pg: ProcessGroup, kind: ReduceOp, count: int, dtype: Any, kept: bool = True, part: slice = slice(None)) -> Payload | None:
    """The payload of such a call: each member combines what all bring, or a part of it, in the order of ranks, so all have the same bits."""
    half, function, size = dtype.name in _HALF, FUNCTIONS[kind], pg.size()
    plain = not half and size == 2 and kind is not ReduceOp.AVG
    whole = part == slice(None)

    def unpack(rows: Arrays) -> Arrays:
        if not kept:
            return []
        if not whole:
            rows = [row[part] for row in rows]
        if plain:
            return [function(*rows)]
        if half:
            rows = [row.astype(np.float32) for row in rows]
        found = function(rows[0], rows[1])
        for row in rows[2:]:
            function(found, row, found)
        if kind is ReduceOp.AVG:
            np.divide(found, size, found)
        return [found.astype(dtype.np) if half else found]

    payload = _brought(pg, count, dtype.np, True, partial(_quiet(), unpack))
    if payload is not None and kept and whole and not half and kind is not ReduceOp.AVG:
        payload.function = function
    return payload


def _quiet() -> Callable[..., Any]:
    """What calls a function without warnings of NumPy's about infinities and what is no number, for one thread at a time; `errstate` takes three
    times as long."""
    context = copy_context()
    context.run(np.errstate(all="ignore").__enter__)
    return context.run


# ------------------------------------------------------------------------------------------------------------ collectives


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Combine a tensor of every rank, element by element; each rank's `tensor` becomes the result, bit for bit the same on all.

    op: `ReduceOp.SUM`, `AVG`, `PRODUCT`, `MIN`, `MAX`, `BAND`, `BOR` or `BXOR`. 16-bit floats are combined as float32. With `async_op` a `Work` is
    returned. Shapes, dtypes and op must be the same on all ranks: else DistributedError, on every rank, when the result is read or waited for.

    >>> import calque
    >>> import calque.distributed as dist
    >>> dist.is_initialized()
    False
    """
    pg = group_of("all_reduce", group)
    if pg is None:
        return None
    key = (pg, "all_reduce", getattr(tensor, "_layout", None), op)
    try:
        plan = PLANS.get(key)
    except TypeError:  # an operation of the wrong kind
        plan = None
    if plan is None:
        require_tensor("all_reduce", tensor)
        layout = tensor._layout
        kind = require_op("all_reduce", op, layout.dtype)
        work = _combining(lambda s, t: pg.all_reduce(s, t, kind), layout.numel, layout.dtype)
        plan = PLANS.keep(key, Plan("all_reduce", tensor, kind.name, [tensor], [tensor], work, _combined(pg, kind, layout.numel, layout.dtype)))
    return _call(pg, plan, (tensor,), (tensor,), async_op)


def broadcast(tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None) -> Work | None:
    """Every rank's `tensor` becomes that of rank `src` (of the job; `group_src`: of the group)."""
    pg = group_of("broadcast", group)
    if pg is None:
        return None
    require_tensor("broadcast", tensor)
    root = root_of("broadcast", pg, src, group_src)

    def move(source: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> None:
        if pg.rank() == root:
            np.copyto(target, source)
        pg.broadcast(target, root)

    count, dtype = tensor._layout.numel, tensor._layout.dtype.np
    payload = _brought(pg, count, dtype, pg.rank() == root, lambda rows: [rows[root].copy()])
    plan = Plan("broadcast", tensor, f"from {pg.ranks[root]}", [tensor], [tensor], _moving(move, [count], dtype), payload)
    return _call(pg, plan, [tensor], [tensor], async_op)


def all_gather_into_tensor(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """`output_tensor` (n * N, ...) or (n, N, ...) becomes the tensors (N, ...) of all n ranks, one after the other."""
    op = "all_gather_into_tensor"
    pg = group_of(op, group)
    if pg is None:
        return None
    require_tensor(op, input_tensor, "input_tensor")
    require_tensor(op, output_tensor, "output_tensor")
    require_parts(op, output_tensor, input_tensor, pg.size())
    return _call(pg, _gathering(pg, op, input_tensor, [output_tensor]), [input_tensor], [output_tensor], async_op)


def _gathering(pg: ProcessGroup, op: str, part: Any, results: list[Any]) -> Plan:
    """The plan of a call that gives all members what each has."""
    sizes, dtype = [t._layout.numel for t in results], part._layout.dtype.np
    payload = _brought(pg, part._layout.numel, dtype, True, lambda rows: _cut(np.concatenate(rows), sizes))
    return Plan(op, part, "", [part], results, _moving(pg.all_gather, sizes, dtype), payload)


def require_parts(op: str, whole: Any, part: Any, count: int) -> None:
    """`whole` holds `count` of `part`."""
    big, small = whole._layout, part._layout
    if big.dtype is not small.dtype:
        raise DTypeError(f"[{op}] expected one dtype, got {big.dtype!r} and {small.dtype!r}; convert with .to(...)")
    if big.numel != small.numel * count:
        raise ShapeError(
            f"[{op}] expected the larger tensor to hold {count} times {small.numel} elements, one part per rank, got shapes {tuple(big.shape)} and "
            f"{tuple(small.shape)}"
        )


def all_gather(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """The tensors of `tensor_list`, one per rank, become those of all ranks; shapes are the same everywhere."""
    pg = group_of("all_gather", group)
    if pg is None:
        return None
    require_tensor("all_gather", tensor)
    results = require_list("all_gather", tensor_list, pg.size(), "tensor_list")
    require_alike("all_gather", results, tensor)
    return _call(pg, _gathering(pg, "all_gather", tensor, results), [tensor], results, async_op)


def reduce(tensor: Any, dst: Any = None, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False, group_dst: Any = None) -> Work | None:
    """Like `all_reduce`, for rank `dst` alone; the tensors of the others stay as they are."""
    pg = group_of("reduce", group)
    if pg is None:
        return None
    require_tensor("reduce", tensor)
    kind = require_op("reduce", op, tensor._layout.dtype)
    root = root_of("reduce", pg, dst, group_dst)
    here = pg.rank() == root
    count, dtype, results = tensor._layout.numel, tensor._layout.dtype, [tensor] if here else []
    work = _combining(lambda s, t: pg.reduce(s, t, kind, root), count, dtype, here)
    plan = Plan("reduce", tensor, f"{kind.name} to {pg.ranks[root]}", [tensor], results, work, _combined(pg, kind, count, dtype, here))
    return _call(pg, plan, [tensor], results, async_op)


def reduce_scatter_tensor(output: Any, input: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Combine `input` (n * N, ...) or (n, N, ...) of every rank; rank k's `output` (N, ...) becomes part k of the result."""
    name = "reduce_scatter_tensor"
    pg = group_of(name, group)
    if pg is None:
        return None
    require_tensor(name, output, "output")
    require_tensor(name, input, "input")
    require_parts(name, input, output, pg.size())
    kind = require_op(name, op, input._layout.dtype)
    return _call(pg, _sharing(pg, name, kind, input, [input], output), [input], [output], async_op)


def _sharing(pg: ProcessGroup, name: str, kind: ReduceOp, like: Any, sources: list[Any], output: Any) -> Plan:
    """The plan of a call that combines, and gives each member its part."""
    count, dtype = output._layout.numel, output._layout.dtype
    payload = _combined(pg, kind, count * pg.size(), dtype, part=slice(count * pg.rank(), count * (pg.rank() + 1)))
    return Plan(name, like, kind.name, sources, [output], _combining(lambda s, t: pg.reduce_scatter(s, t, kind), count, dtype), payload)


def reduce_scatter(output: Any, input_list: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Combine lists of n tensors, item by item; rank k's `output` becomes item k of the result."""
    name = "reduce_scatter"
    pg = group_of(name, group)
    if pg is None:
        return None
    require_tensor(name, output, "output")
    sources = require_list(name, input_list, pg.size(), "input_list")
    require_alike(name, sources, output)
    kind = require_op(name, op, output._layout.dtype)
    return _call(pg, _sharing(pg, name, kind, output, sources, output), sources, [output], async_op)


def gather(
    tensor: Any, gather_list: Any = None, dst: Any = None, group: Any = None, async_op: bool = False, group_dst: Any = None
) -> Work | None:
    """On rank `dst` (default 0) the tensors of `gather_list`, one per rank, become those of all ranks; the others pass none."""
    pg = group_of("gather", group)
    if pg is None:
        return None
    require_tensor("gather", tensor)
    root = root_of("gather", pg, dst, group_dst, pg.ranks[0])
    results = _at_root("gather", pg, root, gather_list, "gather_list", tensor)
    here = pg.rank() == root
    sizes, dtype = [t._layout.numel for t in results], tensor._layout.dtype.np
    work = _moving(lambda s, t: pg.gather(s, t if here else None, root), sizes, dtype)
    payload = _brought(pg, tensor._layout.numel, dtype, True, lambda rows: _cut(np.concatenate(rows), sizes) if here else [])
    return _call(pg, Plan("gather", tensor, f"to {pg.ranks[root]}", [tensor], results, work, payload), [tensor], results, async_op)


def scatter(
    tensor: Any, scatter_list: Any = None, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None
) -> Work | None:
    """Every rank's `tensor` becomes its item of the `scatter_list` of rank `src` (default 0); the others pass none."""
    pg = group_of("scatter", group)
    if pg is None:
        return None
    require_tensor("scatter", tensor)
    root = root_of("scatter", pg, src, group_src, pg.ranks[0])
    sources = _at_root("scatter", pg, root, scatter_list, "scatter_list", tensor)
    here = pg.rank() == root
    count, dtype, own = tensor._layout.numel, tensor._layout.dtype.np, pg.rank()
    work = _moving(lambda s, t: pg.scatter(s if here else None, t, root), [count], dtype)
    payload = _brought(pg, count * pg.size(), dtype, here, lambda rows: [rows[root][count * own : count * (own + 1)].copy()])
    return _call(pg, Plan("scatter", tensor, f"from {pg.ranks[root]}", sources, [tensor], work, payload), sources, [tensor], async_op)


def _at_root(op: str, pg: ProcessGroup, root: int, tensors: Any, name: str, like: Any) -> list[Any]:
    """The list that one process alone passes."""
    if pg.rank() != root:
        if tensors:
            raise ArgumentError(f"[{op}] expected {name} on rank {pg.ranks[root]} alone, got one on rank {pg.own}")
        return []
    found = require_list(op, tensors, pg.size(), name)
    require_alike(op, found, like)
    return found


def all_to_all(output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """Send item k of the input list to rank k; item k of the output list becomes what rank k sent here. Shapes may differ, if both sides agree."""
    pg = group_of("all_to_all", group)
    if pg is None:
        return None
    sources = require_list("all_to_all", input_tensor_list, pg.size(), "input_tensor_list")
    results = require_list("all_to_all", output_tensor_list, pg.size(), "output_tensor_list")
    dtype = sources[0]._layout.dtype
    for t in (*sources, *results):
        if t._layout.dtype is not dtype:
            raise DTypeError(f"[all_to_all] expected one dtype, got {dtype!r} and {t._layout.dtype!r}; convert with .to(...)")
    sent, received = ([t._layout.nbytes for t in tensors] for tensors in (sources, results))
    _same_counts("all_to_all", pg, sent, received)
    work = _moving(lambda s, t: pg.all_to_all(s, t, sent, received), [t._layout.numel for t in results], dtype.np)
    return _call(pg, Plan("all_to_all", sources[0], "", sources, results, work, same_shape=False), sources, results, async_op)


def _same_counts(op: str, pg: ProcessGroup, sent: list[int], received: list[int]) -> None:
    """What rank k sends here must be what is expected of it."""
    given, found, counts = np.array(sent, np.int64), np.zeros(pg.size(), np.int64), [8] * pg.size()

    def work(arrays: Arrays) -> Arrays:
        pg.all_to_all(as_bytes(given), as_bytes(found), counts, counts)
        return []

    wait_for(exchange([], [], Turn(pg, kind_of(op, "sizes", None, ""), work), op, True)[1])
    wrong = [(k, int(n), m) for k, (n, m) in enumerate(zip(found, received, strict=True)) if n != m]
    if wrong:
        k, n, m = wrong[0]
        raise ShapeError(f"[{op}] expected {m} bytes from rank {pg.ranks[k]}, as the output says, but it sends {n}; both must agree on the shapes")


def all_to_all_single(
    output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, group: Any = None, async_op: bool = False
) -> Work | None:
    """Cut `input` along dim 0 into parts for the ranks (equal ones, or of `input_split_sizes` rows); `output` becomes the parts that came, one after
    the other."""
    op = "all_to_all_single"
    pg = group_of(op, group)
    if pg is None:
        return None
    require_tensor(op, input, "input")
    require_tensor(op, output, "output")
    if input._layout.dtype is not output._layout.dtype:
        raise DTypeError(f"[{op}] expected one dtype, got {input._layout.dtype!r} and {output._layout.dtype!r}; convert with .to(...)")
    sent, received = _splits(op, input, input_split_sizes, pg.size()), _splits(op, output, output_split_sizes, pg.size())
    _same_counts(op, pg, sent, received)

    work = _moving(lambda s, t: pg.all_to_all(s, t, sent, received), [output._layout.numel], input._layout.dtype.np)
    return _call(pg, Plan(op, input, "", [input], [output], work, same_shape=False), [input], [output], async_op)


def _splits(op: str, t: Tensor, sizes: Any, count: int) -> list[int]:
    """Bytes of the parts of a tensor along dim 0."""
    rows = t._layout.shape[0] if t._layout.ndim else 0
    if not sizes:
        if not t._layout.ndim or rows % count:
            raise ShapeError(f"[{op}] expected a first dim that {count} ranks divide, got shape {tuple(t._layout.shape)}; pass the split sizes")
        sizes = [rows // count] * count
    if len(sizes) != count or sum(sizes) != rows or min(sizes) < 0:
        raise ShapeError(f"[{op}] expected {count} split sizes with the sum {rows}, got {list(sizes)}")
    row = t._layout.nbytes // rows if rows else 0
    return [int(n) * row for n in sizes]


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    """Wait until every rank has come here, and for all calls before this one."""
    pg = group_of("barrier", group)
    if pg is None:
        return None
    task = exchange([], [], Turn(pg, kind_of("barrier", "", None, ""), list), "barrier", True, async_op)[1]
    if async_op:
        return Work(task, [])
    wait_for(task)
    return None
