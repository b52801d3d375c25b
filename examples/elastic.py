"""A job that goes on when one of its processes dies: calque launch -n 3 --restarts 3 --min 2 examples/elastic.py --kill 2@3,2@3

Process 2 kills itself in step 3, as a machine without power would. All are started anew from the newest commit, which is in memory; a second death
before a new commit costs the gang one process. In the end every sample of every epoch has been trained on.
"""

import argparse
import os
import signal
from collections import Counter

import calque
import calque.distributed as dist
from calque import nn
from calque.data import DataLoader, TensorDataset

SAMPLES = 60


def kill_myself(state, rank, plan):
    """Die where the plan, `rank@step` with commas between, says so, once for each of its entries."""
    deaths = [tuple(int(number) for number in entry.split("@")) for entry in plan.split(",") if entry]
    start = int(os.environ.get("CALQUE_GANG", "0"))
    if start < len(deaths) and deaths[start] == (rank, state.step):
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--every", type=int, default=2, help="steps between commits")
    parser.add_argument("--kill", default="", help="rank@step of the first death, and of those after it, with commas between")
    args = parser.parse_args()
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    calque.manual_seed(0)
    inputs = calque.randn(SAMPLES, 8)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long(), calque.arange(SAMPLES))
    net = dist.DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2)))
    optimizer = calque.optim.AdamW(net.parameters(), lr=0.01)
    loader = DataLoader(data, 5, sampler=dist.DistributedSampler(data))
    state = dist.State(net=net, optimizer=optimizer, loader=loader, epoch=0, step=0, seen=[[] for _ in range(args.epochs)])
    if state.restore() and rank == 0:
        print(f"goes on at epoch {state.epoch}, step {state.step}, with {size} processes", flush=True)
    while state.epoch < args.epochs:
        for x, y, numbers in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            everybodys = [None] * size
            dist.all_gather_object(everybodys, numbers.tolist())
            state.seen[state.epoch] += sorted(number for part in everybodys for number in part)
            state.step += 1
            kill_myself(state, rank, args.kill)
            if state.step % args.every == 0:
                state.commit()
        state.epoch += 1
        state.commit()
    once = all(Counter(epoch) == Counter(range(SAMPLES)) for epoch in state.seen)
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    if rank == 0:
        print(f"{state.step} steps, {size} processes in the end, every sample once in each epoch: {once}, loss {mean.item():.4f}")


if __name__ == "__main__":
    main()
