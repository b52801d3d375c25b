"""Random models, micro-batches and options on two ranks, against what both ranks' gradients are in one process; run by test_training.py with a first
seed and a count."""

import copy
import random
import sys

import numpy as np

import calque
import calque.distributed as dist
from calque import nn
from calque.utils.checkpoint import checkpoint

dist.init_process_group("mpi", timeout=60)
rank, size = dist.get_rank(), dist.get_world_size()
calque.set_default_dtype(calque.float64)


class Net(nn.Module):
    """Branches that inputs choose, shared and frozen parameters, checkpoints, several dtypes."""

    def __init__(self, rng):
        super().__init__()
        width = rng.choice([1, 3, 17])
        self.first = nn.Linear(4, width)
        self.branches = nn.ModuleList([nn.Linear(width, width, bias=rng.random() < 0.5) for _ in range(rng.randint(1, 4))])
        self.norm = nn.BatchNorm1d(width) if rng.random() < 0.3 else nn.Identity()
        self.scale = nn.Parameter(calque.ones(width, dtype=rng.choice([calque.float32, calque.float64, calque.complex128])))
        self.last = nn.Linear(width, 2)
        if rng.random() < 0.3 and len(self.branches) > 1:
            self.branches[1].weight = self.branches[0].weight
        if rng.random() < 0.3:
            self.last.bias.requires_grad_(False)
        self.way = rng.choice(["plain", "checkpoint", "reentrant", "hybrid"])
        self.pair = rng.random() < 0.4
        if self.way == "hybrid":
            self.first.hybridize()

    def forward(self, x, which):
        x = calque.tanh(self.norm(self.first(x)))
        for k in which:
            part = self.branches[k]
            if self.way == "checkpoint":
                x = checkpoint(part, x, use_reentrant=False)
            else:
                x = checkpoint(part, x, use_reentrant=True) if self.way == "reentrant" else part(x)
        scale = self.scale.real if self.scale.is_complex() else self.scale.double()
        x = self.last(x * scale)
        return {"left": x[:, :1], "right": [x[:, 1:]]} if self.pair else x


def loss_of(found):
    """Through one output or two."""
    return found["left"].square().mean() + found["right"][0].square().mean() if isinstance(found, dict) else found.square().mean()


def program(seed):
    rng = random.Random(seed)
    calque.manual_seed(seed)
    model = Net(rng)
    weight, unused = rng.choice(["ranks", "samples"]), rng.random() < 0.6
    ordered = weight == "ranks" and not unused and rng.random() < 0.7
    twins = [copy.deepcopy(model) for _ in range(size)]
    cap = rng.choice([1e-4, 1e-3, 25])
    options = {"find_unused_parameters": unused, "weight": weight, "ordered": ordered, "broadcast_buffers": False}
    ours = dist.DistributedDataParallel(model, bucket_cap_mb=cap, **options)
    branches = list(range(len(model.branches)))
    for step in range(rng.randint(1, 5)):
        kind = rng.choice(["none", "zeros", "keep"])
        if kind != "keep":
            for net in (model, *twins):
                net.zero_grad(set_to_none=kind == "none")
        before = [[None if p.grad is None else p.grad.clone() for p in net.parameters()] for net in twins]
        count, rows = rng.randint(1, 3), [0] * size
        for k in range(count):
            looked = rng.random() < 0.2
            for r in range(size):
                n = rng.randint(2, 6)
                x = calque.randn(n, 4, generator=calque.Generator().manual_seed(hash((seed, step, k, r))))
                which = rng.sample(branches, rng.randint(0, len(branches))) if unused else branches
                rows[r] += n
                loss_of(twins[r](x, which)).backward()
                if r == rank:
                    if looked:
                        ours(x, which)
                    ours.require_backward_grad_sync = k == count - 1
                    loss_of(ours(x, which)).backward()
        shares = [n / sum(rows) if weight == "samples" else 1 / size for n in rows]
        passes = count if ordered else 1
        for k, (p, *others) in enumerate(zip(model.parameters(), *(net.parameters() for net in twins))):
            grads = [q.grad for q in others]
            if not p.requires_grad or all(g is None for g in grads):
                assert p.grad is None, (seed, step, k)
                continue
            wanted = 0
            for share, g, (old,) in zip(shares, grads, zip([row[k] for row in before])):
                new = 0 if g is None else np.asarray(g) - (0 if old is None else np.asarray(old))
                wanted = wanted + share * new / passes
            olds = [row[k] for row in before if row[k] is not None]
            wanted = wanted + (np.asarray(olds[0]) if olds else 0)
            bound = 1e-5 if p.dtype is calque.float32 else 1e-11
            assert np.abs(np.asarray(p.grad) - wanted).max(initial=0) <= bound * max(1.0, np.abs(wanted).max(initial=0)), (
                f"seed {seed} step {step} parameter {k}: {np.asarray(p.grad)} instead of {wanted}; {options}, {model.way}"
            )
            for q in others:  # the twins go on from what all have
                q.grad = p.grad.clone()
    return model


def run(one):
    """`one(seed)` for each seed of the command line: the first and how many."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        try:
            one(seed)
        except BaseException:
            print("seed", seed, flush=True)
            raise
        dist.barrier()
    print("all is well")


if __name__ == "__main__":
    run(program)
