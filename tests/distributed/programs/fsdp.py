"""A program for PyTorch that trains with `FullyShardedDataParallel`, by `calque run`; the losses are those of one process."""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

many = int(os.environ.get("WORLD_SIZE", 1)) > 1
if many:
    dist.init_process_group("gloo")
rank, size = (dist.get_rank(), dist.get_world_size()) if many else (0, 1)
torch.manual_seed(0)
x, y = torch.randn(4, 8, 6, 16), torch.randint(0, 5, (4, 8))
for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(96, 5))
    if many and strategy is ShardingStrategy.FULL_SHARD:
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer})
        model = FSDP(model, auto_wrap_policy=policy, sharding_strategy=strategy, use_orig_params=True)
    elif many:
        model = FSDP(model, auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=400), sharding_strategy=strategy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        part = slice(rank * 8 // size, (rank + 1) * 8 // size)
        loss = nn.functional.cross_entropy(model(x[step, part]), y[step, part])
        optimizer.zero_grad()
        loss.backward()
        if many:
            model.clip_grad_norm_(1.0)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        shown = loss.detach().clone()
        if many:
            dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"{strategy.name} {step} {shown.item():.4f}")
    if many:
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)):
            found = model.state_dict()
    else:
        found = model.state_dict()
    if rank == 0:
        print(len(found), f"{sum(float(t.double().sum()) for t in found.values()):.1f}")
