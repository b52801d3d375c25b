"""Jobs that cannot begin, or begin wrongly, by one mistake on one rank or on all; run by test_starts.py, which reads what every live rank says."""

import os
import sys
import time

import calque
import calque.distributed as dist
from calque import nn

mode = sys.argv[1]
rank = int(os.environ["RANK"])
if mode == "dies" and rank == 1:
    sys.exit("no such data set")
if mode == "returns" and rank == 1:
    sys.exit(0)
if mode == "late" and rank == 1:
    time.sleep(60)
if mode == "size":
    dist.init_process_group("mpi", world_size=3)
dist.init_process_group("mpi", timeout=4)
if mode == "twice":
    dist.init_process_group("mpi")
torn = rank == 1
if mode == "shape":
    dist.DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5 if torn else 6)))
if mode == "count":
    dist.DistributedDataParallel(nn.Sequential(*[nn.Linear(3, 3) for _ in range(2 + torn)]))
if mode == "dtype":
    dist.DistributedDataParallel(nn.Linear(3, 3).double() if torn else nn.Linear(3, 3))
if mode == "frozen":
    model = nn.Linear(3, 3)
    model.bias.requires_grad_(not torn)
    dist.DistributedDataParallel(model)
if mode == "once":  # one of them wraps the model, and the other goes on without
    model = nn.Linear(3, 3)
    if torn:
        dist.all_reduce(calque.ones(1))
    dist.DistributedDataParallel(model)
if mode == "groups":
    dist.new_group([0] if torn else [0, 1])
if mode == "ends":  # after a call, without the rest of the program
    dist.barrier()
    if torn:
        sys.exit(0)
    total = calque.ones(2)
    dist.all_reduce(total)
    total.tolist()
