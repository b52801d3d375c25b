"""As the recipe of distributed checkpoints goes: `AppState`, states by the names of parameters, saves beside the training, files that one process
reads. Run by torchrun; the argument is a folder."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


class AppState(Stateful):
    def __init__(self, model, optimizer=None):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model_state_dict, optimizer_state_dict = get_state_dict(self.model, self.optimizer)
        return {"model": model_state_dict, "optim": optimizer_state_dict}

    def load_state_dict(self, state_dict):
        set_state_dict(self.model, self.optimizer, model_state_dict=state_dict["model"], optim_state_dict=state_dict["optim"])


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1, self.relu, self.net2 = nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def wrapped(kind, seed):
    torch.manual_seed(seed)
    model = ToyModel()
    model = fully_shard(model) if kind == "fully_shard" else FSDP(model) if kind == "fsdp" else DDP(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model, optimizer, steps, rank, size):
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(8, 16, generator=generator)[rank::size]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().sum() * size
        loss.backward()
        optimizer.step()
    total = loss.detach() / size
    dist.all_reduce(total)
    return total.item()


def run(kind, folder, rank, size):
    model, optimizer = wrapped(kind, 0)
    train(model, optimizer, 3, rank, size)
    dcp.save({"app": AppState(model, optimizer), "step": 3}, checkpoint_id=folder)
    saving = dcp.async_save({"app": AppState(model, optimizer), "step": 3}, storage_writer=dcp.FileSystemWriter(folder + "_async"))
    after = train(model, optimizer, 2, rank, size)
    saving.result()
    for place in (folder, folder + "_async"):
        model, optimizer = wrapped(kind, 1)
        state = {"app": AppState(model, optimizer), "step": 0}
        dcp.load(state, storage_reader=dcp.FileSystemReader(place))
        again = train(model, optimizer, 2, rank, size)
        assert state["step"] == 3 and again == after, (again, after)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert list(whole) == ([] if rank else ["net1.weight", "net1.bias", "net2.weight", "net2.bias"])
    other, _ = wrapped(kind, 5)
    set_model_state_dict(other, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for (name, mine), (_, theirs) in zip(other.named_parameters(), model.named_parameters()):
        assert torch.equal(mine, theirs), name
    if rank == 0:
        print(f"{kind} {after:.5f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, size, folder = dist.get_rank(), dist.get_world_size(), sys.argv[1]
    for kind in ("ddp", "fsdp", "fully_shard"):
        run(kind, os.path.join(folder, kind), rank, size)
    dist.barrier()
    if rank == 0:
        alone = os.path.join(folder, "alone.pt")
        dcp_to_torch_save(os.path.join(folder, "fsdp"), alone)
        found = torch.load(alone, weights_only=True)
        assert found["step"] == 3 and found["app"]["model"]["net2.bias"].shape == (8,)
        group = found["app"]["optim"]["param_groups"][0]
        assert group["params"] == ["net1.weight", "net1.bias", "net2.weight", "net2.bias"] and group["lr"] == 0.1
        print(f"{sum(t.double().sum().item() for t in found['app']['model'].values()):.4f}")
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        torch_save_to_dcp(os.path.join(folder, "alone.pt"), os.path.join(folder, "back"))
        plain = ToyModel()
        state = {"app": {"model": plain.state_dict()}}
        dcp.load(state, checkpoint_id=os.path.join(folder, "back"))
        print(f"{sum(p.double().sum().item() for p in plain.parameters()):.4f}")  # in place: nothing was loaded after that


if __name__ == "__main__":
    main()
