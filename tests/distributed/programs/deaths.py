"""Ranks that communicate until one of them is killed; run by test_collectives.py, which kills it. The others say when they knew it."""

import sys
import time

import calque
import calque.distributed as dist
from calque import nn

mode = sys.argv[1]
dist.init_process_group("mpi", timeout=100)
t = calque.ones({"small": 10, "large": 5_000_000, "steps": 10}[mode])
net = dist.DistributedDataParallel(nn.Linear(300, 300))
x = calque.ones(64, 300)
print("ready", flush=True)
try:
    while True:
        if mode == "steps":
            net(x).square().mean().backward()
            net.module.weight.grad.sum().item()
        dist.all_reduce(t, dist.ReduceOp.AVG)
        t.sum().item()
except RuntimeError as error:
    print("known", time.time(), str(error).split(";")[0], flush=True)
    raise
