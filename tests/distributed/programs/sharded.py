"""`fully_shard` compared in float64 with `DistributedDataParallel` of the same model; run by test_sharded.py."""

import contextlib
import copy
import sys

import numpy as np

import calque
import calque.distributed as dist
from calque import nn
from calque.nn import functional as F
from calque.utils.checkpoint import checkpoint

dist.init_process_group("mpi", timeout=60)
rank, size = dist.get_rank(), dist.get_world_size()
calque.set_default_dtype(calque.float64)
calque.manual_seed(3)
X, Y = calque.randint(0, 11, (24, 5)), calque.randint(0, 11, (24, 5))


SINGLE = calque.float64


class Block(nn.Module):
    """Sizes that do not divide, a scalar, a frozen parameter, one of another dtype, one that is never used."""

    def __init__(self, d):
        super().__init__()
        self.a, self.b, self.n = nn.Linear(d, 3 * d + 1), nn.Linear(3 * d + 1, d), nn.LayerNorm(d)
        self.scale = nn.Parameter(calque.tensor(1.0))
        self.frozen = nn.Parameter(calque.randn(d), requires_grad=False)
        self.single = nn.Parameter(calque.ones(d, dtype=SINGLE))

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.n(x + self.frozen)))) * self.scale * self.single.double()


class Net(nn.Module):
    """Tied weights, and a block that computes twice, under a checkpoint if asked."""

    def __init__(self, d=7, recompute=False):
        super().__init__()
        self.emb, self.blocks = nn.Embedding(11, d), nn.ModuleList([Block(d) for _ in range(3)])
        self.head, self.recompute = nn.Linear(d, 11, bias=False), recompute
        self.head.weight = self.emb.weight

    def forward(self, x):
        x = self.emb(x)
        for block in (*self.blocks, self.blocks[0]):
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def sharded(net, reshard):
    for block in net.blocks:
        dist.fully_shard(block, reshard_after_forward=reshard)
    return dist.fully_shard(net, reshard_after_forward=reshard)


def loss_of(net, step, part, parts):
    mine = slice(*(8 * step + 8 * k // (parts * size) for k in (rank * parts + part, rank * parts + part + 1)))
    return F.cross_entropy(net(X[mine]).reshape(-1, 11), Y[mine].reshape(-1)) / parts


def nearly(ours, theirs, bound=1e-12):
    assert list(ours) == list(theirs), (list(ours), list(theirs))
    for name, t in theirs.items():
        if not hasattr(t, "shape"):
            assert ours[name] == t, (name, ours[name], t)
            continue
        assert tuple(ours[name].shape) == tuple(t.shape), name
        x, y = np.asarray(ours[name].double()), np.asarray(t.double())
        limit = max(bound, 1e-5) if t.dtype is calque.float32 else bound
        assert np.abs(x - y).max(initial=0.0) <= limit * max(1.0, np.abs(y).max(initial=0.0)), (name, np.abs(x - y).max())


def refused(call, *texts, kind=RuntimeError):
    try:
        call()
    except kind as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise SystemExit(f"nothing was wrong with what should say {texts}")


# The same training as with whole parameters, from rank 0's on, whatever is given back when.
for reshard, make, parts, options in (
    (True, calque.optim.AdamW, 1, {"lr": 1e-2}), (None, calque.optim.SGD, 2, {"lr": 0.1, "momentum": 0.9}),
    (False, calque.optim.SGD, 1, {"lr": 0.1, "weight_decay": 0.01, "nesterov": True, "momentum": 0.5}),
    ("checkpoint", calque.optim.SGD, 2, {"lr": 0.1}),
):  # fmt: skip
    SINGLE = calque.float32 if reshard is False else calque.float64
    calque.manual_seed(rank)
    ours = Net(recompute=reshard == "checkpoint")
    calque.manual_seed(0)
    twin = Net()
    reshard = True if reshard == "checkpoint" else reshard
    early = make(ours.parameters(), **options)  # made before the parameters are shared out: they are the same objects
    sharded(ours, reshard)
    whole = dist.DistributedDataParallel(twin)
    own, other = early, make(whole.parameters(), **options)
    for step in range(3):
        norms = []
        for net, optimizer in ((ours, own), (whole, other)):
            optimizer.zero_grad()
            for part in range(parts):
                with whole.no_sync() if net is whole and part < parts - 1 else contextlib.nullcontext():
                    loss_of(net, step, part, parts).backward()
            kinds = (2.0, 3.0, float("inf"))
            norms.append([float(nn.utils.clip_grad_norm_(list(net.parameters()), 1e9, kind)) for kind in kinds])
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
        assert np.allclose(*norms, rtol=1e-6, atol=0), norms
    bound = 1e-6 if reshard is False else 1e-12 if make is calque.optim.SGD else 1e-9  # AdamW divides small differences by small numbers
    nearly(ours.state_dict(), twin.state_dict(), bound)
    states = own.state_dict(), other.state_dict()
    assert list(states[0]["state"]) == list(states[1]["state"]) and states[0]["param_groups"] == states[1]["param_groups"]
    for key, values in states[1]["state"].items():
        nearly(states[0]["state"][key], values, bound)
    ours.eval()
    with calque.no_grad():
        assert np.allclose(np.asarray(ours(X)), np.asarray(twin(X)), rtol=0, atol=bound)
    if size > 1:
        assert sum(p.numel() for p in ours.parameters()) < 0.7 * sum(p.numel() for p in twin.parameters())

# What one has saved another takes up: whole tensors, here and in one process.
again = Net()
sharded(again, True)
optimizer = calque.optim.SGD(again.parameters(), lr=0.1)
again.load_state_dict(twin.state_dict())
nearly(again.state_dict(), twin.state_dict(), 0.0)
Net().load_state_dict(ours.state_dict())
fresh = calque.optim.AdamW(again.parameters(), lr=1e-2)
plain = calque.optim.AdamW(twin.parameters(), lr=1e-2)
for net, o in ((again, fresh), (whole, plain)):
    loss_of(net, 0, 0, 1).backward()
    o.step()
    o.zero_grad()
fresh.load_state_dict(plain.state_dict())
for key, values in plain.state_dict()["state"].items():
    nearly(fresh.state_dict()["state"][key], values, 0.0)

# An infinite gradient on one rank: nobody steps.
scaler, before = calque.amp.GradScaler("cpu"), again.state_dict()
scaler.scale(loss_of(again, 1, 0, 1) * (float("inf") if rank == size - 1 else 1.0)).backward()
scaler.step(optimizer)
scaler.update()
nearly(again.state_dict(), before, 0.0)
assert scaler.get_scale() == 32768.0
optimizer.zero_grad()


class Odd(nn.Module):
    """Hides its result, gives a parameter away, or changes one."""

    def __init__(self, kind):
        super().__init__()
        self.inner, self.kind = nn.Linear(4, 4), kind

    def forward(self, x):
        if self.kind == "write":
            with calque.no_grad():
                self.inner.weight.mul_(2.0)
        y = self.inner(x)
        self.kept = y.sum()
        return (self.inner.weight, y) if self.kind == "gives" else {"a": [y]} if self.kind == "nested" else (lambda: y) if self.kind == "hides" else y


for kind in ("gives", "nested", "hides"):
    odd = dist.fully_shard(Odd(kind), reshard_after_forward=True)
    found = odd(calque.ones(2, 4))
    y = found[1] if kind == "gives" else found["a"][0] if kind == "nested" else found()
    y.sum().backward()
    assert np.allclose(np.asarray(odd.inner.bias.grad), 2.0), odd.inner.bias.grad
    if kind == "gives":
        assert np.isfinite(np.asarray(found[0].detach())).all()
calque.set_default_dtype(calque.float32)
odd = dist.fully_shard(Odd("plain"), reshard_after_forward=True)
odd(calque.ones(2, 4, requires_grad=True).clone())  # parameters are read by a gradient that does not come through the result
try:
    odd.kept.backward()
except RuntimeError as error:
    assert "expected the parameters of Odd to be read in its forward pass or through its results" in str(error)
assert odd.inner.bias.grad is None or odd.inner.bias.grad.tolist() == [2.0] * len(odd.inner.bias)
odd = dist.fully_shard(Odd("write"), reshard_after_forward=True)
refused(lambda: odd(calque.ones(2, 4)), "leaves its parameters as they are")
assert tuple(odd.inner.weight.shape)[0] == -(-4 // size) or rank > 0  # not left whole by an exception
refused(lambda: copy.deepcopy(again), "expected a model whose parameters are whole")
refused(lambda: dist.fully_shard(again), "expected a module that is not shared out yet")
refused(lambda: dist.fully_shard(nn.Linear(2, 2), mp_policy=3), "expected mp_policy=None")
refused(lambda: dist.fully_shard(nn.Linear(2, 2), reshard_after_forward=2), "expected reshard_after_forward=True, False or None")
refused(lambda: again.load_state_dict({**twin.state_dict(), "emb.weight": calque.ones(3, 7)}), "expected the whole parameter of shape [11, 7]")
tied = Net()
dist.fully_shard(tied.emb)
refused(lambda: dist.fully_shard(tied), "head.weight is shared out already as part of another module")
for kind in (calque.optim.LAMB, calque.optim.LARS, calque.optim.Adafactor, calque.optim.LBFGS):
    late = nn.Linear(6, 6)
    optimizer = kind(late.parameters(), lr=0.1)
    dist.fully_shard(late)
    late(calque.ones(1, 6)).sum().backward()
    refused(lambda optimizer=optimizer, late=late: optimizer.step(lambda: late(calque.ones(1, 6)).sum()), "expected whole parameters")
    refused(lambda kind=kind, late=late: kind(late.parameters(), lr=0.1), "expected whole parameters")
if size > 1:
    refused(lambda: dist.fully_shard(nn.Linear(2 + rank, 3)), "expected the same parameters on every rank")


class Outer(nn.Module):
    """Reads the parameters of a module inside without calling it."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = Block(4), nn.Parameter(calque.ones(4))

    def forward(self, x):
        return x * self.scale * self.inner.scale


outer = Outer()
dist.fully_shard(outer.inner)
dist.fully_shard(outer)
refused(lambda: outer(calque.ones(2, 4)).sum().item(), "expected the parameters of Block to be read in its own forward pass")
assert sum(p.numel() for p in outer.parameters()) < 200 and all(p._storage.buffer.array is not None for p in outer.parameters())
refused(lambda: dist.fully_shard(nn.ModuleList([nn.Linear(2, 2)])), "expected a module that computes, got ModuleList")
x = calque.ones(2, 6, requires_grad=True)
refused(lambda: late(x).sum().backward(create_graph=True) or late.weight.grad.sum().backward(), "")

# Memory: what is kept, and the most at any time, of a model of which little is activations.
if "memory" in sys.argv:
    wide, d, figures = [None] * 4, 768, {}
    for kind in ("whole", "stage 2", "stage 3"):
        net = nn.Sequential(*[nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d)) for _ in wide * 2])
        if kind == "whole":
            net = dist.DistributedDataParallel(net)
        else:
            for block in net:
                dist.fully_shard(block, reshard_after_forward=kind == "stage 3")
            dist.fully_shard(net)
        optimizer = calque.optim.AdamW(net.parameters(), lr=1e-3)
        for step in range(3):
            if step == 2:
                calque.memory.reset_peak_memory_stats()
            optimizer.zero_grad()
            net(calque.ones(4, d)).square().mean().backward()
            optimizer.step()
            optimizer.state_dict  # noqa: B018 - nothing is collected
        dist.barrier()
        figures[kind] = calque.memory.memory_allocated(), calque.memory.max_memory_allocated()
        del net, optimizer
    parameters = 16 * d * d * 4
    held, peak = ({kind: f[k] / parameters for kind, f in figures.items()} for k in (0, 1))
    assert held["whole"] > 2.9 and held["stage 3"] < 4 / size + 0.3 and held["stage 2"] < 4 / size + 0.3, held
    assert peak["stage 3"] < 4 / size + 0.6 < peak["stage 2"] < peak["whole"], peak
    if rank == 0:
        print(*(f"{kind}: holds {held[kind]:.2f}, at most {peak[kind]:.2f} times the parameters" for kind in held), sep="; ")
print("all is well")
