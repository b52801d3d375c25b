"""As the first tutorial of `DistributedDataParallel` goes: a toy model in spawned processes, then one that is saved by the first and loaded by all.
`SIZE` in the environment is the number of processes."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = os.environ["PORT"]
    acc = torch.accelerator.current_accelerator()
    backend = torch.distributed.get_default_backend_for_device(acc if acc is not None else torch.device("cpu"))
    dist.init_process_group(backend, rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def batch(rank, world_size):
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(20, 10, generator=generator), torch.randn(20, 5, generator=generator)
    return x[rank::world_size], y[rank::world_size]


def show(loss, rank, world_size):
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"{total.item() / world_size:.6f}", flush=True)


def demo_basic(rank, world_size):
    setup(rank, world_size)
    torch.manual_seed(0)
    ddp_model = DDP(ToyModel().to(torch.device("cpu")), device_ids=None, output_device=None)
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.1)
    x, y = batch(rank, world_size)
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_fn(ddp_model(x), y)
        loss.backward()
        optimizer.step()
        show(loss, rank, world_size)
    cleanup()


def demo_checkpoint(rank, world_size):
    setup(rank, world_size)
    torch.manual_seed(rank)  # all of them load what the first one has saved
    ddp_model = DDP(ToyModel())
    path = tempfile.gettempdir() + "/model_" + os.environ["PORT"] + ".checkpoint"
    if rank == 0:
        torch.save(ddp_model.state_dict(), path)
    dist.barrier()
    with torch.no_grad():
        for p in ddp_model.parameters():
            p.zero_()
    ddp_model.load_state_dict(torch.load(path, map_location=torch.device("cpu"), weights_only=True))
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.1)
    x, y = batch(rank, world_size)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp_model(x), y)
        loss.backward()
        optimizer.step()
        show(loss, rank, world_size)
    dist.barrier()
    if rank == 0:
        os.remove(path)
    cleanup()


def run_demo(demo_fn, world_size):
    mp.spawn(demo_fn, args=(world_size,), nprocs=world_size, join=True)


if __name__ == "__main__":
    size = int(sys.argv[1])
    run_demo(demo_basic, size)
    run_demo(demo_checkpoint, size)
