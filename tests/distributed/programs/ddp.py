"""An ordinary program for PyTorch: test_training.py runs it here, tests/oracle with PyTorch. It prints the mean losses of all steps."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    many = "WORLD_SIZE" in os.environ
    if many:
        dist.init_process_group(backend="gloo")
    rank, size = (dist.get_rank(), dist.get_world_size()) if many else (0, 1)
    torch.set_default_dtype(torch.float64)
    rows = torch.arange(40 * 6).reshape(40, 6).double()
    inputs, labels = torch.sin(rows), (torch.cos(rows.sum(1)) > 0).long()
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel()).double() * (k + 1)).reshape(p.shape) / 2)
    if many:
        model = DistributedDataParallel(model, device_ids=None)
    dataset = TensorDataset(inputs, labels)
    sampler = DistributedSampler(dataset, size, rank, shuffle=False) if many else None
    loader = DataLoader(dataset, batch_size=8 // size, sampler=sampler, shuffle=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(3):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            loss = loss_function(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            if many:
                dist.all_reduce(mean, op=dist.ReduceOp.SUM)
                mean /= size
            if rank == 0:
                print(f"{mean.item():.12f}", flush=True)
    if many:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
