"""As the tutorials of FSDP go: a small convolutional network in spawned processes with the wrapper, then `fully_shard` over a mesh. The argument is
the number of processes."""

import functools
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.fully_sharded_data_parallel import BackwardPrefetch, CPUOffload
from torch.distributed.fsdp.wrap import enable_wrap, size_based_auto_wrap_policy, wrap
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = os.environ["PORT"]
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, 1), nn.Conv2d(4, 8, 3, 1)
        self.dropout1 = nn.Dropout(0.0)
        self.fc1, self.fc2 = nn.Linear(128, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(torch.flatten(self.dropout1(x), 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, rank, loader, optimizer, epoch, sampler):
    model.train()
    ddp_loss = torch.zeros(2)
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target, reduction="sum")
        (loss / len(data)).backward()
        optimizer.step()
        ddp_loss[0] += loss.item()
        ddp_loss[1] += len(data)
    dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"Train Epoch: {epoch} \tLoss: {ddp_loss[0] / ddp_loss[1]:.5f}", flush=True)


def test(model, rank, loader):
    model.eval()
    ddp_loss = torch.zeros(3)
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            ddp_loss[0] += F.nll_loss(output, target, reduction="sum").item()
            ddp_loss[1] += output.argmax(dim=1, keepdim=True).eq(target.view_as(output.argmax(dim=1, keepdim=True))).sum().item()
            ddp_loss[2] += len(data)
    dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"Test set: Average loss: {ddp_loss[0] / ddp_loss[2]:.4f}, Accuracy: {int(ddp_loss[1])}/{int(ddp_loss[2])}", flush=True)


def loaders(rank, world_size):
    generator = torch.Generator().manual_seed(4)
    images, labels = torch.randn(96, 1, 12, 12, generator=generator), torch.randint(0, 10, (96,), generator=generator)
    sets = TensorDataset(images[:64], labels[:64]), TensorDataset(images[64:], labels[64:])
    samplers = [DistributedSampler(s, rank=rank, num_replicas=world_size, shuffle=False) for s in sets]
    return samplers, [torch.utils.data.DataLoader(d, batch_size=16 // world_size, sampler=s) for d, s in zip(sets, samplers)]


def fsdp_main(rank, world_size, save_path):
    setup(rank, world_size)
    torch.manual_seed(1)
    samplers, (train_loader, test_loader) = loaders(rank, world_size)
    my_auto_wrap_policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    model = FSDP(
        Net(), auto_wrap_policy=my_auto_wrap_policy, cpu_offload=None, backward_prefetch=BackwardPrefetch.BACKWARD_PRE, device_id=None,
    )  # fmt: skip
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 3):
        train(model, rank, train_loader, optimizer, epoch, samplers[0])
        test(model, rank, test_loader)
        scheduler.step()
    dist.barrier()
    states = model.state_dict()
    if rank == 0:
        torch.save(states, save_path)
    dist.barrier()
    second(rank, world_size, save_path)
    dist.destroy_process_group()


def second(rank, world_size, save_path):
    """`fully_shard`, whose parts are told about prefetching, loads what the wrapper has saved; gradients are added up over two batches."""
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
    assert mesh.size() == world_size and mesh.get_local_rank() == mesh["dp"].get_local_rank() == rank and mesh.shape == (world_size,)
    model = Net()
    for part in (model.conv1, model.fc1):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh["dp"])
    assert isinstance(model, FSDPModule)
    model.fc1.set_modules_to_forward_prefetch([model.conv1])
    model.fc1.set_modules_to_backward_prefetch([model.conv1])
    model.load_state_dict(torch.load(save_path, weights_only=True))
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    _, (train_loader, _) = loaders(rank, world_size)
    batches = list(train_loader)
    for step in range(2):
        total = torch.zeros(1)
        for number, (data, target) in enumerate(batches[2 * step : 2 * step + 2]):
            model.set_requires_gradient_sync(number == 1)
            loss = F.nll_loss(model(data), target)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"{total.item() / world_size:.5f}", flush=True)


if __name__ == "__main__":
    assert CPUOffload is not None and enable_wrap is not None and wrap is not None
    size = int(sys.argv[1])
    mp.spawn(fsdp_main, args=(size, os.environ["SAVED"]), nprocs=size, join=True)
