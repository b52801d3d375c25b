"""Names that programs take from `torch.distributed` beside collectives: meshes, groups of neighbours, lists of objects, zero redundancy, hooks,
`join`. Four ranks, or two; prints nothing but a line at the end."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _get_default_group
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
assert _get_default_group() is dist.group.WORLD and dist.get_node_local_rank() == rank
mine, every = dist.new_subgroups(size // 2)
half = rank // (size // 2) * (size // 2)
assert len(every) == 2 and dist.get_process_group_ranks(mine) == list(range(half, half + size // 2))
total = torch.tensor([float(rank)])
dist.all_reduce(total, group=mine)
assert total.item() == sum(dist.get_process_group_ranks(mine))
try:
    dist.new_subgroups(size + 1)
except ValueError as error:
    assert "a whole number that divides" in str(error)
odd, _ = dist.new_subgroups_by_enumeration([[r for r in range(size) if r % 2 == k] for k in range(2)])
assert odd.size() == size // 2 and dist.get_pg_count() >= 5

mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
assert mesh.mesh.tolist() == torch.arange(size).reshape(2, -1).tolist() and mesh.ndim == 2 and mesh.size(0) == 2
assert mesh.get_coordinate() == (rank // (size // 2), rank % (size // 2)) and mesh.get_rank() == rank
column, row = mesh["replicate"], mesh["shard"]
assert dist.get_process_group_ranks(column.get_group()) == [rank % (size // 2), rank % (size // 2) + size // 2]
assert row.get_local_rank() == rank % (size // 2) and mesh.get_group("shard") is row.get_group() and len(mesh.get_all_groups()) == 2
assert mesh["replicate", "shard"] == mesh and repr(row).startswith("DeviceMesh('cpu', [")
first = DeviceMesh("cpu", [0])
assert first.get_coordinate() == ((0,) if rank == 0 else None) and DeviceMesh.from_group(mine, "cpu").size() == size // 2
for wrong, text in (
    (lambda: mesh.get_group(), "expected mesh_dim, as the mesh has 2 dimensions"), (lambda: mesh["other"], "one of the names"),
    (lambda: init_device_mesh("cpu", (size + 1,)), f"expected a mesh of the {size} ranks"), (lambda: DeviceMesh("cpu", [0, 0]), "different ranks"),
    (lambda: DeviceMesh("cuda", [0]), "device_type 'cpu'"), (lambda: DeviceMesh("cpu", [0], mesh_dim_names=("a", "b")), "1 different names"),
    (lambda: mesh["shard", "replicate"], "in the order of"), (lambda: DeviceMesh.from_group(3, "cpu"), "expected a process group"),
    (lambda: dist.fsdp.fully_shard(nn.Linear(2, 2), mesh=mesh), "a mesh of one dimension"),
):  # fmt: skip
    try:
        wrong()
    except (ValueError, RuntimeError) as error:
        assert text in str(error), error
    else:
        raise SystemExit(f"nothing was wrong: {text}")

things = [{"a": rank, "t": torch.arange(3)}, "x"]
if rank == 0:
    dist.send_object_list(things, dst=1)
elif rank == 1:
    found = [None, None]
    assert dist.recv_object_list(found, src=0) == 0 and found[0]["a"] == 0 and found[0]["t"].tolist() == [0, 1, 2] and found[1] == "x"

torch.manual_seed(0)
model = DDP(nn.Linear(4, 2))


def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return dist.all_reduce(bucket.buffer().div_(size), async_op=True).get_future().then(lambda done: done.value()[0])


model.register_comm_hook(None, hook)
with model.join():  # a rank that is done goes along with zeros, through the hook as well
    for _ in range(3 + rank):
        model.zero_grad()
        model(torch.full((2, 4), float(rank + 1))).sum().backward()
assert torch.allclose(model.module.bias.grad, torch.full((2,), 2.0 * (size - rank) / size)), model.module.bias.grad
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
optimizer.step()
assert default_hooks.allreduce_hook is not None and dist.supports_complex(dist.ReduceOp.SUM) and not dist.supports_complex(dist.ReduceOp.MAX)
try:
    dist.all_reduce(torch.ones(2), op="no")
except (dist.DistError, ValueError, TypeError):
    pass
try:
    import torch.distributed.rpc as rpc

    rpc.init_rpc("worker", rank=rank, world_size=size)
except NotImplementedError as error:
    assert "torch.distributed.rpc" in str(error), error
else:
    raise SystemExit("rpc is there")
print("all is well", file=sys.stdout, flush=True)
dist.destroy_process_group()
