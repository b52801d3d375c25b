"""Collectives that gradients go through: their results are new tensors, and all ranks go backward together. PyTorch has them in
`torch.distributed.nn.functional`."""

from __future__ import annotations

from typing import Any

from calque.autograd.function import Function
from calque.base.errors import ArgumentError
from calque.distributed import collectives
from calque.distributed.collectives import root_of
from calque.distributed.group import ProcessGroup, ReduceOp
from calque.distributed.world import group_of
from calque.functional.creation import empty, zeros_like
from calque.functional.formats import clone
from calque.functional.joining import stack


def _member(op: str, group: Any) -> ProcessGroup:
    pg = group_of(op, group)
    if pg is None:
        raise ArgumentError(f"[{op}] expected a group of which this process is a member")
    return pg


class _Sum(Function):
    """The sum over ranks; what one rank has goes into the results of all, so its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        total = clone(x)
        collectives.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        total = clone(grad)
        collectives.all_reduce(total, group=ctx.group)
        return total, None


class _Gather(Function):
    """The tensors of all ranks; the gradient of this one's is the sum of those that all ranks have of it."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        found = [empty(tuple(x.shape), dtype=x.dtype) for _ in range(group.size())]
        collectives.all_gather(found, x.contiguous(), group=group)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        own = empty(tuple(grads[0].shape), dtype=grads[0].dtype)
        collectives.reduce_scatter_tensor(own, stack(list(grads)), group=ctx.group)
        return own, None


class _Broadcast(Function):
    """One rank's tensor for all; its gradient is the sum of those that all ranks have of it, and what the others brought has none."""

    @staticmethod
    def forward(ctx: Any, x: Any, src: int, group: Any) -> Any:
        ctx.src, ctx.group = src, group
        found = clone(x)
        collectives.broadcast(found, src, group)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        total = clone(grad)
        collectives.reduce(total, ctx.src, group=ctx.group)
        return (total if ctx.group.own == ctx.src else zeros_like(total)), None, None


class _SumFor(Function):
    """The sum over ranks for one of them; the gradient that this one has of it is everybody's."""

    @staticmethod
    def forward(ctx: Any, x: Any, dst: int, group: Any) -> Any:
        ctx.dst, ctx.group = dst, group
        total = clone(x)
        collectives.reduce(total, dst, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        found = clone(grad)
        collectives.broadcast(found, ctx.dst, ctx.group)
        return found, None, None


class _Collect(Function):
    """The tensors of all ranks on one, zeros on the others; each gets the gradient that this one has of its tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any, dst: int, group: Any) -> Any:
        ctx.dst, ctx.group = dst, group
        found = [zeros_like(x) for _ in range(group.size())]
        collectives.gather(x.contiguous(), found if group.own == dst else None, dst, group)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        own = empty(tuple(grads[0].shape), dtype=grads[0].dtype)
        collectives.scatter(own, [g.contiguous() for g in grads] if ctx.group.own == ctx.dst else None, ctx.dst, ctx.group)
        return own, None, None


class _Deal(Function):
    """Each rank's tensor of those of one, which gets the gradients of all; what the others brought has none."""

    @staticmethod
    def forward(ctx: Any, src: int, group: Any, *xs: Any) -> Any:
        ctx.src, ctx.group = src, group
        own = empty(tuple(xs[0].shape), dtype=xs[0].dtype)
        collectives.scatter(own, [x.contiguous() for x in xs] if group.own == src else None, src, group)
        return own

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        found = [zeros_like(grad) for _ in range(ctx.group.size())]
        collectives.gather(grad.contiguous(), found if ctx.group.own == ctx.src else None, ctx.src, ctx.group)
        return None, None, *found


class _Share(Function):
    """Sums over ranks of which each has one; everybody's addends of it have the gradient that it has."""

    @staticmethod
    def forward(ctx: Any, group: Any, *xs: Any) -> Any:
        ctx.group = group
        own = empty(tuple(xs[0].shape), dtype=xs[0].dtype)
        collectives.reduce_scatter(own, [x.contiguous() for x in xs], group=group)
        return own

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        found = [zeros_like(grad) for _ in range(ctx.group.size())]
        collectives.all_gather(found, grad.contiguous(), ctx.group)
        return None, *found


class _Swap(Function):
    """Tensors from each rank for each; gradients go back the same way. shapes: of what comes."""

    @staticmethod
    def forward(ctx: Any, shapes: Any, group: Any, *xs: Any) -> Any:
        ctx.shapes, ctx.group = [tuple(x.shape) for x in xs], group
        found = [empty(shape, dtype=xs[0].dtype) for shape in shapes]
        collectives.all_to_all(found, [x.contiguous() for x in xs], group)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        found = [empty(shape, dtype=grads[0].dtype) for shape in ctx.shapes]
        collectives.all_to_all(found, [g.contiguous() for g in grads], ctx.group)
        return None, None, *found


class _SwapRows(Function):
    """The same for rows of one tensor. sizes: rows of each part, sent and received; rows: how many come."""

    @staticmethod
    def forward(ctx: Any, x: Any, rows: int, sent: Any, received: Any, group: Any) -> Any:
        ctx.rows, ctx.sent, ctx.received, ctx.group = x.shape[0], sent, received, group
        found = empty((rows, *x.shape[1:]), dtype=x.dtype)
        collectives.all_to_all_single(found, x.contiguous(), received, sent, group)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        found = empty((ctx.rows, *grad.shape[1:]), dtype=grad.dtype)
        collectives.all_to_all_single(found, grad.contiguous(), ctx.sent, ctx.received, ctx.group)
        return found, None, None, None, None


def _require_sum(op: str, kind: Any) -> None:
    if kind not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ArgumentError(f"[{op}] expected ReduceOp.SUM or AVG, which have a gradient, got {kind}; calque.distributed.{op} has all")


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = None) -> Any:
    """The sum (`ReduceOp.SUM`) or mean (`AVG`) of a tensor over the ranks, as a new tensor. Its gradient is the sum, or mean, of those of all ranks.

    Raises ArgumentError for other operations, which have no gradient here.
    """
    _require_sum("all_reduce", op)
    pg = _member("all_reduce", group)
    total = _Sum.apply(tensor, pg)
    return total / pg.size() if op is ReduceOp.AVG else total


def all_gather(tensor: Any, group: Any = None) -> tuple[Any, ...]:
    """The tensors of all ranks, which have one shape. The gradient of `tensor` is the sum of those that all ranks have of it."""
    found: tuple[Any, ...] = _Gather.apply(tensor, _member("all_gather", group))
    return found


def broadcast(tensor: Any, src: int, group: Any = None) -> Any:
    """The tensor of rank `src`, as a new one on every rank. Its gradient there is the sum of those of all ranks."""
    pg = _member("broadcast", group)
    root_of("broadcast", pg, src)
    return _Broadcast.apply(tensor, src, pg)


def reduce(tensor: Any, dst: int, op: Any = ReduceOp.SUM, group: Any = None) -> Any:
    """The sum or mean over the ranks as a new tensor on rank `dst`, whose gradient is that of every rank; the others get what they brought."""
    _require_sum("reduce", op)
    pg = _member("reduce", group)
    here = pg.ranks[root_of("reduce", pg, dst)] == pg.own
    total = _SumFor.apply(tensor, dst, pg)
    return total / pg.size() if op is ReduceOp.AVG and here else total


def gather(tensor: Any, dst: int = 0, group: Any = None) -> tuple[Any, ...]:
    """The tensors of all ranks on rank `dst`, zeros on the others. Each gets the gradient that `dst` has of its tensor."""
    pg = _member("gather", group)
    root_of("gather", pg, dst)
    found: tuple[Any, ...] = _Collect.apply(tensor, dst, pg)
    return found


def scatter(tensors: Any, src: int = 0, group: Any = None) -> Any:
    """This rank's tensor of those of rank `src`, where the gradients of all come together. The others bring tensors of the same shape."""
    pg = _member("scatter", group)
    root_of("scatter", pg, src)
    return _Deal.apply(src, pg, *collectives.require_list("scatter", tensors, pg.size(), "tensors"))


def reduce_scatter(output: Any, input_list: Any, op: Any = ReduceOp.SUM, group: Any = None) -> Any:
    """Item k of the lists of all ranks, added up or averaged, as a new tensor on rank k. output: as in PyTorch, whose shape and dtype must fit."""
    _require_sum("reduce_scatter", op)
    pg = _member("reduce_scatter", group)
    given = collectives.require_list("reduce_scatter", input_list, pg.size(), "input_list")
    collectives.require_alike("reduce_scatter", given, output)
    total = _Share.apply(pg, *given)
    return total / pg.size() if op is ReduceOp.AVG else total


def all_to_all(output_tensor_list: Any, input_tensor_list: Any, group: Any = None) -> tuple[Any, ...]:
    """What all ranks have sent here of their lists, as new tensors of the shapes of `output_tensor_list`; gradients go back the same way."""
    pg = _member("all_to_all", group)
    shapes = [tuple(t.shape) for t in collectives.require_list("all_to_all", output_tensor_list, pg.size(), "output_tensor_list")]
    given = collectives.require_list("all_to_all", input_tensor_list, pg.size(), "input_tensor_list")
    found: tuple[Any, ...] = _Swap.apply(shapes, pg, *given)
    return found


def all_to_all_single(
    output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, group: Any = None
) -> Any:
    """The rows that all ranks have sent here, as a new tensor of as many rows as `output` has; gradients go back the same way."""
    pg = _member("all_to_all_single", group)
    return _SwapRows.apply(input, output.shape[0], input_split_sizes, output_split_sizes, pg)
