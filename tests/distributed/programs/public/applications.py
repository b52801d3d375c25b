"""As the tutorial on writing distributed applications goes: processes started by hand, messages, a ring that adds up, gradients averaged by hand.
The argument is the number of processes."""

import os
import sys
from math import ceil
from random import Random

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class Partition:
    def __init__(self, data, index):
        self.data, self.index = data, index

    def __len__(self):
        return len(self.index)

    def __getitem__(self, index):
        return self.data[self.index[index]]


class DataPartitioner:
    def __init__(self, data, sizes, seed=1234):
        self.data, self.partitions = data, []
        rng = Random()
        rng.seed(seed)
        indexes = list(range(len(data)))
        rng.shuffle(indexes)
        for frac in sizes:
            part = int(frac * len(data))
            self.partitions.append(indexes[:part])
            indexes = indexes[part:]

    def use(self, partition):
        return Partition(self.data, self.partitions[partition])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, kernel_size=3), nn.Conv2d(4, 8, kernel_size=3)
        self.fc1, self.fc2 = nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(self.conv2(x)).view(-1, 32)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def messages(rank, size):
    tensor = torch.zeros(1)
    req = None
    if rank == 0 and size > 1:
        tensor += 1
        req = dist.isend(tensor=tensor, dst=size - 1)
    elif rank == size - 1 and size > 1:
        req = dist.irecv(tensor=tensor, src=0)
    if req is not None:
        req.wait()
    assert size == 1 or tensor[0] == (rank in (0, size - 1))
    group = dist.new_group(list(range(size)))
    ones = torch.ones(1)
    dist.all_reduce(ones, op=dist.ReduceOp.SUM, group=group)
    assert ones[0] == size


def allreduce(send, recv):
    """A ring of isend and recv."""
    rank, size = dist.get_rank(), dist.get_world_size()
    send_buff, recv_buff, accum = send.clone(), send.clone(), send.clone()
    left, right = ((rank - 1) + size) % size, (rank + 1) % size
    for i in range(size - 1):
        if i % 2 == 0:
            send_req = dist.isend(send_buff, right)
            dist.recv(recv_buff, left)
            accum[:] += recv_buff[:]
        else:
            send_req = dist.isend(recv_buff, right)
            dist.recv(send_buff, left)
            accum[:] += send_buff[:]
        send_req.wait()
    recv[:] = accum[:]


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def run(rank, size):
    messages(rank, size)
    given, found = torch.full((3,), float(rank + 1)), torch.zeros(3)
    allreduce(given, found)
    assert found.tolist() == [sum(range(1, size + 1))] * 3
    torch.manual_seed(1234)
    generator = torch.Generator().manual_seed(7)
    images, labels = torch.randn(64, 1, 10, 10, generator=generator), torch.randint(0, 10, (64,), generator=generator)
    dataset = [(images[i], int(labels[i])) for i in range(64)]
    bsz = int(64 / float(size))  # everything in one batch, so that the parts of other sizes have the same mean
    partition = DataPartitioner(dataset, [1.0 / size for _ in range(size)]).use(rank)
    train_set = torch.utils.data.DataLoader(partition, batch_size=bsz, shuffle=True)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    num_batches = ceil(len(train_set.dataset) / float(bsz))
    for _ in range(5):
        epoch_loss = 0.0
        for data, target in train_set:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        mean = torch.tensor(epoch_loss / num_batches)
        dist.reduce(mean, 0)
        if rank == 0:
            print(f"{mean.item() / size:.5f}", flush=True)


def init_process(rank, size, fn, backend="gloo"):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = os.environ["PORT"]
    dist.init_process_group(backend, rank=rank, world_size=size)
    fn(rank, size)


if __name__ == "__main__":
    world_size = int(sys.argv[1])
    processes = []
    if "google.colab" in sys.modules:
        mp.get_context("spawn")
    else:
        mp.set_start_method("spawn")
    for rank in range(world_size):
        p = mp.Process(target=init_process, args=(rank, world_size, run))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
    sys.exit(max(abs(p.exitcode) for p in processes))
