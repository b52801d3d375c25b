"""The same micro-batches on any number of ranks; run by test_training.py, which compares the bits. An argument: how many micro-batches a step has."""

import hashlib
import sys

import calque
import calque.distributed as dist
from calque import nn

calque.use_deterministic_algorithms(True)
dist.init_process_group("mpi", timeout=60)
rank, size, parts = dist.get_rank(), dist.get_world_size(), int(sys.argv[1])
calque.manual_seed(0)
x = calque.randn(48, 3, 8, 8)
y = (x.sum((1, 2, 3)) > 0).long()
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 40), nn.Tanh(), nn.Linear(40, 2))
ours = dist.DistributedDataParallel(model, bucket_cap_mb=0.01, ordered=True)
optimizer = calque.optim.AdamW(ours.parameters(), lr=1e-2)
mine = parts // size
for step in range(12):
    if step % 3:  # else what is there stays, and is added to
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    order = calque.randperm(48)
    for k in range(mine):
        rows = order[(rank * mine + k) * (48 // parts) :][: 48 // parts]
        ours.require_backward_grad_sync = k == mine - 1
        nn.functional.cross_entropy(ours(x[rows]), y[rows]).backward()
        assert (model[0].weight.grad is None) == (k < mine - 1)
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
if rank == 0:
    print(digest.hexdigest(), nn.functional.cross_entropy(model(x), y).item())
dist.barrier()
