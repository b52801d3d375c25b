"""Collectives that gradients go through: their results are new tensors, and all ranks go backward together. PyTorch has them in
`torch.distributed.nn.functional`."""

from __future__ import annotations

from typing import Any

from calque.autograd.function import Function
from calque.base.errors import ArgumentError
from calque.distributed import collectives
from calque.distributed.group import ProcessGroup, ReduceOp
from calque.distributed.world import group_of
from calque.functional.creation import empty
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


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = None) -> Any:
    """The sum (`ReduceOp.SUM`) or mean (`AVG`) of a tensor over the ranks, as a new tensor. Its gradient is the sum, or mean, of those of all ranks.

    Raises ArgumentError for other operations, which have no gradient here.
    """
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ArgumentError(f"[all_reduce] expected ReduceOp.SUM or AVG, which have a gradient, got {op}; calque.distributed.all_reduce has all")
    pg = _member("all_reduce", group)
    total = _Sum.apply(tensor, pg)
    return total / pg.size() if op is ReduceOp.AVG else total


def all_gather(tensor: Any, group: Any = None) -> tuple[Any, ...]:
    """The tensors of all ranks, which have one shape. The gradient of `tensor` is the sum of those that all ranks have of it."""
    found: tuple[Any, ...] = _Gather.apply(tensor, _member("all_gather", group))
    return found
