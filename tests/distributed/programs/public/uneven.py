"""`Join` of PyTorch's tutorial on uneven inputs: a counter of the user's, a model with running statistics, no_sync, and errors, of two ranks;
uneven.txt is what PyTorch 2.13 prints, in some order."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel as DDP


class CounterJoinHook(JoinHook):
    def __init__(self, counter, sync_max_count):
        self.counter = counter
        self.sync_max_count = sync_max_count

    def main_hook(self):
        t = torch.zeros(1, device=self.counter.device)
        dist.all_reduce(t)

    def post_hook(self, is_last_joiner):
        if not self.sync_max_count:
            return
        rank = dist.get_rank(self.counter.process_group)
        common_rank = self.counter.find_common_rank(rank, is_last_joiner)
        if rank == common_rank:
            self.counter.max_count = self.counter.count.detach().clone()
        dist.broadcast(self.counter.max_count, src=common_rank)


class Counter(Joinable):
    def __init__(self, device, process_group):
        super().__init__()
        self.device = device
        self.process_group = process_group
        self.count = torch.tensor([0], device=device).float()
        self.max_count = torch.tensor([0], device=device).float()

    def __call__(self):
        Join.notify_join_context(self)
        t = torch.ones(1, device=self.device).float()
        dist.all_reduce(t)
        self.count += t

    def join_hook(self, **kwargs):
        return CounterJoinHook(self, kwargs.get("sync_max_count", False))

    @property
    def join_device(self):
        return self.device

    @property
    def join_process_group(self):
        return self.process_group

    def find_common_rank(self, rank, to_consider):
        common_rank = torch.tensor([rank if to_consider else -1], device=self.device)
        dist.all_reduce(common_rank, op=dist.ReduceOp.MAX, group=self.process_group)
        return common_rank.item()


def numbers(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


dist.init_process_group("gloo")
rank = dist.get_rank()
x, y = numbers(rank + 9, 80, 4), numbers(rank + 19, 80, 2)


def loss(model, k):
    return (model(x[k * 4 : k * 4 + 4]) - y[k * 4 : k * 4 + 4]).square().mean()


def total(model):
    return f"{sum(p.detach().double().abs().sum().item() for p in model.parameters()):.4f}"


def started(model):
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(numbers(k, *p.shape) * 0.1)
    return DDP(model)


counter = Counter(torch.device("cpu"), dist.group.WORLD)
with Join([counter], sync_max_count=True):
    for _ in range(5 + rank):
        counter()
print(rank, int(counter.count.item()), int(counter.max_count.item()))

for options in ({}, {"divide_by_initial_world_size": False}):
    model = started(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)))
    optimizer, counter = torch.optim.SGD(model.parameters(), lr=0.1), Counter(torch.device("cpu"), dist.group.WORLD)
    with Join([model, counter], **options):
        for k in range(3 + 4 * rank):
            optimizer.zero_grad()
            if k % 2:
                with model.no_sync():
                    loss(model, k).backward()
            else:
                found = loss(model, k)
                found.backward()
                optimizer.step()
                print(rank, k, f"{found.item():.4f}")
            counter()
    means = [f"{v:.4f}" for v in model.module[1].running_mean.tolist()]
    print(rank, "trained", total(model), int(counter.count.item()), means)

for more in (2, 1):
    try:
        with Join([model], throw_on_early_termination=True):
            for k in range(3 + more * rank):
                optimizer.zero_grad()
                loss(model, k).backward()
                optimizer.step()
    except RuntimeError:
        print(rank, "stopped at", k)
with Join([model], enable=False):
    for k in range(3):
        optimizer.zero_grad()
        loss(model, k).backward()
        optimizer.step()
print(rank, "went on", total(model))
try:
    Join([])
except ValueError:
    print(rank, "nothing takes part")
dist.barrier()
dist.destroy_process_group()
