"""Checkpoints of which every rank writes its share; run by test_checkpoint.py: `save FOLDER`, `load FOLDER` or `killed FOLDER`."""

import os
import signal
import sys

import calque
import calque.distributed as dist
import calque.distributed.checkpoint as dcp
from calque import nn
from calque.io import shards

what, folder = sys.argv[1:3]
dist.init_process_group("mpi", timeout=30)
rank, size = dist.get_rank(), dist.get_world_size()
path = os.path.join(folder, "c.safetensors.index.json")


def made(seed):
    calque.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.BatchNorm1d(13), nn.Linear(13, 5), nn.Linear(5, 5))
    dist.fully_shard(model)
    plain = nn.Sequential(nn.Linear(5, 300), nn.Linear(300, 5))
    return {
        "model": model, "adam": calque.optim.AdamW(model.parameters(), lr=0.01), "plain": plain,
        "zero": dist.ZeroRedundancyOptimizer(plain.parameters(), calque.optim.Adam, lr=0.02), "step": 0, "noise": calque.zeros(3),
        "tied": [plain[0].weight, plain[0].weight],
    }  # fmt: skip


def train(state, steps):
    for _ in range(steps):
        x = (calque.arange(28.0) * 0.1 + state["step"]).sin().reshape(4, 7)
        loss = state["plain"](state["model"](x)).square().mean()
        state["adam"].zero_grad()
        state["zero"].zero_grad()
        loss.backward()
        for p in state["plain"].parameters():
            dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        state["adam"].step()
        state["zero"].step()
        state["step"] += 1
    return loss.item()


state = made(0)
if what == "save":
    train(state, 3)
    state["noise"].fill_(4.0)
    dcp.save(state, checkpoint_id=path)
    files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    assert len(files) == size, files
    sizes = [os.path.getsize(os.path.join(folder, file)) for file in files]
    dcp.save(state, checkpoint_id=path, shard_size=500)  # more files, and those before are gone
    assert len([n for n in os.listdir(folder) if n.endswith(".safetensors")]) > 4 * size and not set(files) & set(os.listdir(folder))
    after = train(state, 2)
    print(f"loss {after!r} shares {max(sizes) / sum(sizes) < (0.75 if size == 2 else 1.1)}")
elif what == "load":
    for value in state["model"].parameters():
        value.data.zero_()
    state.pop("tied")
    dcp.load(state, checkpoint_id=path)
    assert state["step"] == 3 and state["noise"].tolist() == [4.0] * 3
    print(f"loss {train(state, 2)!r}")
    try:
        dcp.load({"other": 1}, checkpoint_id=path)
    except KeyError as error:
        raise SystemExit(str(error)) from None
    except ValueError as error:
        assert "expected 'other' in" in str(error)
elif what == "refused":  # one rank cannot write: all of them say so, and nothing is left
    before = sorted(os.listdir(folder))
    real = shards.write_file

    def fails(*given):
        if rank == size - 1:
            raise calque.base.errors.CheckpointError("no space left")
        real(*given)

    shards.write_file = fails
    try:
        dcp.save(state, checkpoint_id=path)
    except OSError as error:
        assert f"no space left (rank {size - 1} of {size})" in str(error), error
    else:
        raise SystemExit("nothing was wrong")
    dist.barrier()
    assert sorted(os.listdir(folder)) == before
    saving = dcp.async_save(state, checkpoint_id=path)
    for value in state["plain"].parameters():
        value.data.zero_()  # what is saved was copied
    try:
        saving.result()
    except OSError as error:
        assert f"no space left (rank {size - 1} of {size})" in str(error), error
    else:
        raise SystemExit("nothing was wrong")
    dist.barrier()
    assert not [name for name in os.listdir(folder) if name not in before and ".note" not in name], os.listdir(folder)
    dist.barrier()
    shards.write_file = real
    dcp.async_save(state, checkpoint_id=os.path.join(folder, "beside")).result()
    found = calque.load(os.path.join(folder, "beside", "model.safetensors.index.json"))
    assert float(found["plain"]["0.weight"].abs().sum()) == 0
else:  # killed after so many writes of one rank
    who, when = int(sys.argv[3]), int(sys.argv[4])
    train(state, 4)
    files, whole = shards.write_file, shards.write_whole
    left = [when]

    def counted(real):
        def call(*given):
            if rank == who:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            real(*given)

        return call

    shards.write_file, shards.write_whole = counted(files), counted(whole)
    dcp.save(state, checkpoint_id=path, shard_size=500)
print("all is well")
