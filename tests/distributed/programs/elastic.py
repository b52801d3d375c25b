"""Training that survives the death of ranks; run by test_elastic.py. Writes what came out, and which samples the epochs had."""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import calque
import calque.distributed as dist
from calque import nn
from calque.data import DataLoader, TensorDataset

folder, epochs, every, how = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
calque.use_deterministic_algorithms(True)
dist.init_process_group("mpi", timeout=30)
rank, size, gang = dist.get_rank(), dist.get_world_size(), int(os.environ.get("CALQUE_GANG", "0"))
(folder / f"start-{gang}-{rank}").write_text(str(os.getpid()))
calque.manual_seed(rank)
inputs = calque.randn(60, 6, generator=calque.Generator().manual_seed(1))
data = TensorDataset(inputs, (inputs.sum(1) > 0).long(), calque.arange(60))
net = dist.DistributedDataParallel(nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Dropout(0.2), nn.Linear(300, 2)), bucket_cap_mb=0.001)
optimizer = calque.optim.AdamW(net.parameters(), lr=1e-2)
if how == "zero":
    optimizer = dist.ZeroRedundancyOptimizer(net.parameters(), calque.optim.AdamW, lr=1e-2)
schedule = calque.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
loader = DataLoader(data, 5, sampler=dist.DistributedSampler(data, seed=3), num_workers=1 if how == "workers" else 0)
state = dist.State(net=net, optimizer=optimizer, schedule=schedule, loader=loader, epoch=0, step=0, losses=[], seen=[[] for _ in range(epochs)])
restored = state.restore()
assert restored == (gang > 0 and how != "early") or how in ("workers", "zero", "any"), (restored, gang)
while state.epoch < epochs:
    for x, y, ids in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        found = [None] * size
        dist.all_gather_object(found, ids.tolist())
        state.seen[state.epoch] += sorted(k for part in found for k in part)
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        state.losses.append(mean.item())
        state.step += 1
        if how == "shrink" and rank == size - 1 and size > 1 and (gang == 0 and state.step == 3 or gang == 1 and state.step == 4):
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "early" and gang == 0 and rank == 1:
            raise ValueError("before any commit")
        if state.step % every == 0:
            state.commit()
    state.epoch += 1
    state.commit()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
found = [None] * size
dist.all_gather_object(found, digest)
assert len(set(found)) == 1
if rank == 0:
    text = json.dumps({"digest": digest, "losses": state.losses, "seen": state.seen, "gang": gang, "size": size, "step": state.step})
    (folder / "done.json").write_text(text)
