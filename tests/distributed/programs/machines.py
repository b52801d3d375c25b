"""Training on two machines; run by test_two_machines.py. Mode `train` trains to the end; in `lost` rank 1 waits in the middle to be killed, or for
its link to be cut, once it has told so by a file."""

import sys
import time
from pathlib import Path

import calque
import calque.distributed as dist
from calque import nn

mode, folder = sys.argv[1], Path(sys.argv[2])
dist.init_process_group("mpi", timeout=60 if mode == "train" else 8, flight_folder=str(folder))
rank, size = dist.get_rank(), dist.get_world_size()
calque.set_default_dtype(calque.float64)
calque.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 1))
model = dist.DistributedDataParallel(net) if size > 1 else net
optimizer = calque.optim.SGD(model.parameters(), lr=0.01)
x = calque.sin(calque.arange(64.0 * 32).reshape(32, 64))
y = x.sum(1, keepdim=True)
for step in range(10):
    loss = (model(x[rank::size]) - y[rank::size]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    value = mean.item()  # on both: neither is ahead
    if rank == 0:
        print(f"{value:.10f}", flush=True)
    if mode == "lost" and step == 4 and rank == 1:
        (folder / "there").write_text("")
        time.sleep(60)
