"""What `SyncBatchNorm` does where there are several processes: the mean and variance of the samples of all ranks, and gradients through them."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.autograd.function import Function
from calque.autograd.modes import no_grad
from calque.base.dtypes import float32
from calque.distributed.collectives import all_reduce
from calque.distributed.group import ProcessGroup
from calque.distributed.world import WORLD, group_of
from calque.nn.modules.sync_batch_norm import SyncBatchNorm


class SumOverRanks(Function):
    """The sum of a tensor over the ranks of a group. Its gradient is the sum of theirs: what one rank has goes into the losses of all.

    weight: what this rank counts where gradients are averaged later (`DistributedDataParallel`), or a function that knows it when gradients come. The
    average of all ranks' losses is differentiated, so what goes to rank k of the gradient of rank j counts weight_j / weight_k.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any = None, weight: Any = 1.0) -> Any:
        ctx.group, ctx.weight = group, weight
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        weight = ctx.weight() if callable(ctx.weight) else ctx.weight
        return _summed(grad * weight, ctx.group) / (weight or 1.0), None, None


def _summed(x: Any, group: Any) -> Any:
    total = T.clone(x)
    all_reduce(total, group=group)
    return total


def batch_norm(module: Any, x: Any) -> Any:
    """The forward pass of a `SyncBatchNorm` in training; None where it has one process alone."""
    if WORLD.group is None:
        return None
    pg = group_of("SyncBatchNorm", module.process_group)
    if pg is None or pg.size() == 1:
        return None
    return _over(pg, module, x)


def _over(pg: ProcessGroup, module: Any, x: Any) -> Any:
    wide = x if x.dtype.itemsize > 2 else x.to(float32)
    dims, channels = [d for d in range(x.ndim) if d != 1], x.shape[1]
    weight = module.__dict__.get("weight_of_rank", 1.0)
    shape = [channels if d == 1 else 1 for d in range(x.ndim)]
    rows = T.full((1,), float(x.numel() // channels if channels else 0), dtype=wide.dtype)
    total = SumOverRanks.apply(T.cat([wide.sum(dims), rows]), pg, weight)
    count = total[channels:].detach()
    mean = total[:channels] / count
    centred = wide - mean.reshape(shape)
    variance = SumOverRanks.apply((centred * centred).sum(dims), pg, weight) / count
    y = centred * T.rsqrt(variance + module.eps).reshape(shape)
    if module.weight is not None:
        y = y * module.weight.reshape(shape)
    if module.bias is not None:
        y = y + module.bias.reshape(shape)
    if module.running_mean is not None:
        _follow(module, mean.detach(), variance.detach() * count / (count - 1))
    return y.to(x.dtype)


@no_grad()
def _follow(module: Any, mean: Any, variance: Any) -> None:
    """Update the running statistics, with the unbiased variance, as every batch normalisation does."""
    module.num_batches_tracked.add_(1)
    share = 1.0 / module.num_batches_tracked.to(mean.dtype) if module.momentum is None else module.momentum
    for kept, new in ((module.running_mean, mean), (module.running_var, variance)):
        kept.copy_(kept + (new - kept) * share)


SyncBatchNorm.across = staticmethod(batch_norm)
