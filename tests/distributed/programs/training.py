"""Training on two ranks, compared in float64 with the same training of one process that has all samples; run by test_training.py."""

import numpy as np

import calque
import calque.distributed as dist
from calque import nn
from calque.distributed import ReduceOp, hooks
from calque.nn import functional as F
from calque.run.buffer import Buffer

dist.init_process_group("mpi", timeout=60)
rank, size = dist.get_rank(), dist.get_world_size()
calque.set_default_dtype(calque.float64)
calque.manual_seed(7)
X, Y = calque.randn(60, 3, 8, 8), calque.randint(0, 4, (60,))


class Net(nn.Module):
    """Convolutions, batch normalisation, a parameter that is used twice, one of another dtype."""

    def __init__(self, norm=True):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.first = nn.Linear(216, 12)
        self.scale = nn.Parameter(calque.ones(12, dtype=calque.float32))
        self.last = nn.Linear(12, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x))).flatten(1)
        return self.last(self.last.weight.sum(0) * F.relu(self.first(x)) * self.scale.double())


def share(lo, hi, r, cut):
    """Rank r's part of samples lo to hi, cut at `cut` in them."""
    return slice(lo, lo + cut) if r == 0 else slice(lo + cut, hi)


def nearly(a, b, bound=1e-12):
    assert len(a) == len(b)
    for name in a:
        x, y = np.asarray(a[name].double()), np.asarray(b[name].double())
        single = a[name].dtype is calque.float32
        assert np.abs(x - y).max(initial=0.0) <= (1e-5 if single else bound) * max(1.0, np.abs(y).max(initial=0.0)), (name, np.abs(x - y).max())


def train(make, rounds, optimizer=calque.optim.SGD, accumulate=1, **options):
    """The same steps here with a share, and with everything: (lo, hi, cut) each."""
    calque.manual_seed(rank)  # other parameters: those of rank 0 are everybody's
    model = make()
    ours = dist.DistributedDataParallel(model, bucket_cap_mb=0.002, weight="samples")
    calque.manual_seed(0)
    whole = make()
    steps = [(ours, True, optimizer(ours.parameters(), **options)), (whole, False, optimizer(whole.parameters(), **options))]
    for k, (lo, hi, cut) in enumerate(rounds):
        last = (k + 1) % accumulate == 0
        for net, split, opt in steps:
            part = share(lo, hi, rank, cut) if split else slice(lo, hi)
            if split and not last:
                with net.no_sync():
                    F.cross_entropy(net(X[part]), Y[part]).backward()
            elif part.stop > part.start:
                F.cross_entropy(net(X[part]), Y[part]).backward()
            if last:
                opt.step()
                opt.zero_grad()
    return ours, whole, steps


def refused(call, *texts):
    """Raises, and says all this."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise SystemExit(f"nothing was wrong with what should say {texts}")


EVEN, UNEVEN = [(0, 16, 8), (16, 32, 8), (32, 48, 8)], [(0, 20, 10), (20, 37, 3), (37, 60, 22)]

# One big batch is what n ranks compute, uneven parts too; every optimizer of the kind that amplifies small differences.
for rounds in (EVEN, UNEVEN):
    for optimizer, options in ((calque.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (calque.optim.AdamW, {"lr": 1e-2})):
        ours, whole, _ = train(lambda: Net(norm=False), rounds, optimizer, **options)
        nearly(ours.module.state_dict(), whole.state_dict(), 1e-12 if optimizer is calque.optim.SGD else 1e-9)
assert len(ours._buckets) > 2 and "module.conv.weight" in ours.state_dict()

# Batch statistics of all samples, as one process has them; running statistics too.
ours, whole, _ = train(lambda: nn.SyncBatchNorm.convert_sync_batchnorm(Net()), UNEVEN[:2], lr=0.1)
calque.manual_seed(0)
plain = Net()
plain_optimizer = calque.optim.SGD(plain.parameters(), lr=0.1)
for lo, hi, _ in UNEVEN[:2]:
    F.cross_entropy(plain(X[lo:hi]), Y[lo:hi]).backward()
    plain_optimizer.step()
    plain_optimizer.zero_grad()
nearly(ours.module.state_dict(), plain.state_dict(), 1e-11)
ours.eval()
plain.eval()
assert np.allclose(np.asarray(ours(X[:5]).detach()), np.asarray(plain(X[:5]).detach()), atol=1e-10)

# Accumulation: two micro-batches per step.
ours, whole, _ = train(lambda: Net(norm=False), [(0, 8, 4), (8, 16, 4), (16, 24, 4), (24, 32, 4)], accumulate=2, lr=0.1)
nearly(ours.module.state_dict(), whole.state_dict())

# A forward pass that stands before `no_sync` is averaged, as in PyTorch; one inside is not, whatever was called before.
calque.manual_seed(0)
ours = dist.DistributedDataParallel(nn.Linear(4, 2))
own = nn.Linear(4, 2)
own.load_state_dict(ours.module.state_dict())
given = X.reshape(len(X), -1)[:8, :4] * (rank + 1)
(own(given).square().sum()).backward()
mean = own.weight.grad.clone()
dist.all_reduce(mean, dist.ReduceOp.AVG)
loss = ours(given).square().sum()
with ours.no_sync():
    loss.backward()
nearly({"w": ours.module.weight.grad}, {"w": mean})
ours.zero_grad()
ours(given).sum()
with ours.no_sync():
    ours(given).square().sum().backward()
nearly({"w": ours.module.weight.grad}, {"w": own.weight.grad})
assert (mean - own.weight.grad).abs().max().item() > 0.1
ours.zero_grad()

# Plain batch normalisation: statistics of each rank's part, and rank 0's are kept.
calque.manual_seed(rank)
ours = dist.DistributedDataParallel(Net())
F.cross_entropy(ours(X[share(0, 16, rank, 8)]), Y[share(0, 16, rank, 8)]).backward()
means = [calque.zeros(6) for _ in range(size)]
dist.all_gather(means, ours.module.norm.running_mean)
assert means[0].tolist() == means[1].tolist()

# Different numbers of batches: whoever is done goes along. Each batch is one of one process that has what both have.
calque.manual_seed(0)
whole = Net(norm=False)
calque.manual_seed(rank)
ours = dist.DistributedDataParallel(Net(norm=False), weight="samples")
batches = [slice(0, 6), slice(6, 12), slice(12, 15)] if rank == 0 else [slice(30, 34)]
with ours.join():
    opt = calque.optim.SGD(ours.parameters(), lr=0.1)
    for part in batches:
        F.cross_entropy(ours(X[part]), Y[part]).backward()
        opt.step()
        opt.zero_grad()
opt = calque.optim.SGD(whole.parameters(), lr=0.1)
for rows in ([*range(6), *range(30, 34)], list(range(6, 12)), list(range(12, 15))):
    F.cross_entropy(whole(X[rows]), Y[rows]).backward()
    opt.step()
    opt.zero_grad()
nearly(ours.module.state_dict(), whole.state_dict())

# The same with an optimizer whose state is shared out: a rank that is done updates its share by the gradients of the others.
calque.manual_seed(0)
whole = Net(norm=False)
calque.manual_seed(0)
ours = dist.DistributedDataParallel(Net(norm=False))
opt = dist.ZeroRedundancyOptimizer(ours.parameters(), calque.optim.AdamW, lr=1e-2)
with dist.Join([ours, opt]):
    for k in range(2 + rank):
        opt.zero_grad()
        F.cross_entropy(ours(X[share(8 * k, 8 * k + 8, rank, 4)]), Y[share(8 * k, 8 * k + 8, rank, 4)]).backward()
        opt.step()
opt = calque.optim.AdamW(whole.parameters(), lr=1e-2)
for k in range(3):
    opt.zero_grad()
    for r in range(2) if k < 2 else [1]:
        (F.cross_entropy(whole(X[share(8 * k, 8 * k + 8, r, 4)]), Y[share(8 * k, 8 * k + 8, r, 4)]) / 2).backward()
    opt.step()
nearly(ours.module.state_dict(), whole.state_dict(), 1e-9)
refused(lambda: dist.Join([3]), "objects of class Joinable")
refused(lambda: dist.Join([ours, dist.DistributedDataParallel(Net(), process_group=dist.new_group([0, 1]))]), "objects of one process group")

# Weights by tokens, and by ranks as in PyTorch.
for weight in ("tokens", "ranks"):
    calque.manual_seed(0)
    w = nn.Linear(3, 1, bias=False)
    ours = dist.DistributedDataParallel(w, weight="ranks" if weight == "ranks" else "samples")
    x, tokens = calque.ones(2, 3) * (rank + 1), 5 if rank == 0 else 15
    if weight == "tokens":
        ours.set_weight(tokens)
    else:
        refused(lambda ours=ours: ours.set_weight(3), "weight='samples'")
    ours(x).mean().backward()
    assert np.allclose(np.asarray(w.weight.grad), (5 * 1 + 15 * 2) / 20 if weight == "tokens" else 1.5)


class Branchy(nn.Module):
    """One branch for each rank, one that nobody takes."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x, branch):
        return (self.a, self.b)[branch](x)


model = Branchy()
ours = dist.DistributedDataParallel(model, find_unused_parameters=True)
ours(calque.ones(4, 2), rank).sum().backward()
assert model.a.weight.grad.tolist() == [[2.0, 2.0]] == model.b.weight.grad.tolist() and model.c.weight.grad is None
model.zero_grad()
ours(calque.ones(4, 2), 0).sum().backward()
assert model.a.weight.grad.tolist() == [[4.0, 4.0]] and model.b.weight.grad is None

# Half the bytes: rounded twice. A hook of the user's.
for hook, bits in (
    (hooks.allreduce_hook, 52), (hooks.fp16_compress_hook, 10), (hooks.bf16_compress_hook, 7),
    (hooks.fp16_compress_wrapper(hooks.allreduce_hook), 10),
    (hooks.bf16_compress_wrapper(hooks.allreduce_hook), 7), ("own", 52),
):  # fmt: skip
    calque.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 3))
    ours = dist.DistributedDataParallel(model)
    seen = []

    def own(seen, bucket):
        seen.append((bucket.index(), bucket.is_last(), len(bucket.parameters())))
        t = bucket.buffer() / size
        return dist.all_reduce(t, async_op=True).result()

    ours.register_comm_hook(*((seen, own) if hook == "own" else (None, hook)))
    calque.manual_seed(10)
    inputs = calque.randn(8, 30)
    ours(inputs[4 * rank : 4 * rank + 4]).square().mean().backward()
    got = [np.asarray(p.grad) for p in model.parameters()]
    calque.manual_seed(0)
    alone = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 3))
    alone(inputs).square().mean().backward()
    for mine, p in zip(got, alone.parameters()):
        wanted = np.asarray(p.grad)
        assert np.abs(mine - wanted).max() <= 4 * 2.0**-bits * np.abs(wanted).max() + 1e-7 * (bits < 20)
    both = [calque.zeros(40, 30) for _ in range(size)]
    dist.all_gather(both, calque.from_numpy(got[0].copy()))
    assert both[0].tolist() == both[1].tolist()  # the same bits on all ranks
assert seen == [(0, True, 4)]
ours = dist.DistributedDataParallel(nn.Linear(2, 1))
ours.register_comm_hook(None, hooks.noop_hook)
ours(calque.ones(1, 2) * (1 + rank)).sum().backward()
assert ours.module.weight.grad.tolist() == [[1.0 + rank] * 2]  # nothing travels

# The module itself, past the wrapper: every rank counts alike.
calque.manual_seed(0)
model = nn.Linear(2, 1)
ours = dist.DistributedDataParallel(model)
model(calque.ones(4, 2) * (1 + 2 * rank)).mean().backward()
assert model.weight.grad.tolist() == [[2.0, 2.0]]

# Optimizers whose state is shared out do what one does alone, through a schedule and a checkpoint.
for kind, options in ((calque.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}), (calque.optim.SGD, {"lr": 0.1, "momentum": 0.9})):
    calque.manual_seed(0)
    whole = Net(norm=False)
    calque.manual_seed(rank)
    ours = dist.DistributedDataParallel(Net(norm=False), weight="samples")
    pairs = [(ours, dist.ZeroRedundancyOptimizer(ours.parameters(), kind, **options)), (whole, kind(whole.parameters(), **options))]
    schedules = [calque.optim.lr_scheduler.StepLR(opt, 2, 0.5) for _, opt in pairs]
    for k in range(6):
        if k == 3:
            pairs[0][1].consolidate_state_dict(1)
            saved = [pairs[0][1].state_dict() if rank == 1 else None]
            dist.broadcast_object_list(saved, 1)
            fresh = dist.ZeroRedundancyOptimizer(ours.parameters(), kind, **options)
            fresh.load_state_dict(saved[0])
            wanted = pairs[1][1].state_dict()
            assert list(saved[0]["state"]) == list(wanted["state"]) and saved[0]["param_groups"][0]["params"] == wanted["param_groups"][0]["params"]
            pairs[0], schedules[0] = (ours, fresh), calque.optim.lr_scheduler.StepLR(fresh, 2, 0.5, last_epoch=2)
            alone = kind(whole.parameters(), **options)
            alone.load_state_dict(wanted)
            pairs[1], schedules[1] = (whole, alone), calque.optim.lr_scheduler.StepLR(alone, 2, 0.5, last_epoch=2)
        for (net, opt), schedule in zip(pairs, schedules):
            part = share(10 * k, 10 * k + 10, rank, 4) if net is ours else slice(10 * k, 10 * k + 10)
            opt.zero_grad()
            F.cross_entropy(net(X[part]), Y[part]).backward()
            opt.step()
            schedule.step()
    nearly(ours.module.state_dict(), whole.state_dict(), 1e-9)
    held = [sum(t.numel() for values in opt.state.values() for t in values.values() if hasattr(t, "numel")) for _, opt in pairs]
    sums = [None] * size
    dist.all_gather_object(sums, held[0])
    assert min(sums) > 0 and sum(sums) == held[1], (sums, held)

# Gradients travel while the program that makes the others still runs, where there is a core for that, and behind it where there is none.
calque.set_default_dtype(calque.float32)
model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(500, 500), nn.ReLU())])
ours = dist.DistributedDataParallel(model, bucket_cap_mb=0.5)
opt, rows, early, taken = calque.optim.SGD(ours.parameters(), lr=1e-3), calque.randn(3000, 500), Buffer.early, []


def watched(buffer, task):
    found = early(buffer, task)
    taken.append(task is not None and not task.done)
    return found


def step_of_all():
    taken.clear()
    loss = ours(rows).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    loss.item()
    calque.synchronize()
    return sum(taken)


Buffer.early = watched
group = dist.group.WORLD
near, group.near = group.near, type(group.near)(frozenset(), frozenset())  # as if the ranks had a machine each
assert near[:2] == ({0, 1}, {0, 1}) and list(near.processes) == [1 - rank] and not group.crowded()
for _ in range(20):
    enough = calque.tensor(step_of_all() > 5).int()
    dist.all_reduce(enough, ReduceOp.MAX)  # ranks stop together
    if enough.item():
        break
else:
    raise SystemExit(f"no gradient was sent before the backward pass had ended: {taken}")
group.near, cores = near, calque.base.config.settings.threads * size >= calque.base.config.available_cores()
assert group.crowded() == cores and (not cores or step_of_all() == 0)
Buffer.early = early
calque.set_default_dtype(calque.float64)

# A value that is overwritten right after it was sent: the update waits for the collective, which waits for what was there before.
for _ in range(30):
    t = calque.ones(300, 300) * (rank + 1)
    for _ in range(3):
        t = t @ t / 300
    got = [calque.empty(300, 300) for _ in range(size)]
    dist.all_gather(got, t)
    with calque.no_grad():
        t.mul_(0).sub_(1)
    assert (t + 1).abs().max().item() == 0 and [g[1, 1].item() for g in got] == [1.0, 256.0]

# A step that is hybridized runs as it is written, and right.
calque.manual_seed(0)
whole, model = nn.Linear(3, 4), nn.Linear(3, 4)
model.load_state_dict(whole.state_dict())
ours = dist.DistributedDataParallel(model)
opt, other = calque.optim.SGD(ours.parameters(), lr=0.1), calque.optim.SGD(whole.parameters(), lr=0.1)


@calque.compile
def hybrid(x, y):
    loss = F.cross_entropy(ours(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


for k in range(4):
    part = share(10 * k, 10 * k + 10, rank, 5)
    hybrid(X[part][:, 0, 0, :3], Y[part])
    other.zero_grad()
    F.cross_entropy(whole(X[10 * k : 10 * k + 10, 0, 0, :3]), Y[10 * k : 10 * k + 10]).backward()
    other.step()
nearly(model.state_dict(), whole.state_dict())

# What cannot be right is said by every rank before anything was averaged.
several = nn.Sequential(*[nn.Linear(2, 2) for _ in range(1 + rank)])
refused(lambda: dist.DistributedDataParallel(nn.Linear(2, 2 + rank)), "the first that differs is weight (2, 2) float64 on rank 0, weight (3, 2)")
refused(lambda: dist.DistributedDataParallel(several), "rank 0 has 2 and rank 1 has 4", "nothing more on rank 0")
refused(lambda: dist.DistributedDataParallel(nn.ReLU()), "there is nothing to average")
refused(lambda: dist.DistributedDataParallel(nn.Linear(1, 1), device_ids=[0, 1]), "one process for each device")
refused(lambda: dist.DistributedDataParallel(nn.Linear(1, 1), weight="tokens"), "weight='samples' or 'ranks'")
refused(lambda: dist.DistributedDataParallel(nn.Linear(1, 1), bucket_cap_mb=0), "positive number")
refused(lambda: dist.DistributedDataParallel(nn.Linear(1, 1), ordered=True, weight="samples"), "ordered=True with weight='ranks'")
refused(lambda: dist.DistributedDataParallel(nn.Linear(1, 1), ordered=True).register_comm_hook(None, hooks.bf16_compress_hook), "one by one")
refused(lambda: dist.ZeroRedundancyOptimizer(nn.Linear(1, 1).parameters(), calque.optim.LBFGS), "LBFGS, which looks at all of them together")
ours.register_comm_hook(None, hooks.allreduce_hook)
refused(lambda: ours.register_comm_hook(None, hooks.allreduce_hook), "one hook per model")
refused(lambda: dist.DistributedDataParallel(nn.Linear(1, 1), weight="samples").set_weight(-1), "0 or more")
ours = dist.DistributedDataParallel(Branchy(), device_ids=[rank])
loss = ours(calque.ones(1, 2), 0).sum()
refused(loss.backward, "b.weight does not reach the loss (Branchy, ", "training.py:", "c.bias", "find_unused_parameters=True")
print("all is well")
