"""Collectives with gradients of `torch.distributed.nn.functional`, of two ranks; gradients.txt is what PyTorch 2.13 prints, in some order."""

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather, all_reduce, all_to_all, all_to_all_single, broadcast, gather, reduce, reduce_scatter, scatter

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


def new(k=0):
    return (torch.arange(2.0) * (rank + 1) + k + 1).requires_grad_()


def show(name, found, *given):
    results = found if isinstance(found, tuple | list) else [found]
    sum(((o * o * (k + 1 + rank)).sum() for k, o in enumerate(results))).backward()
    print(rank, name, [o.detach().tolist() for o in results], [t.grad.tolist() for t in given])


z = new()
show("all_reduce", all_reduce(z), z)
z = new()
show("all_gather", all_gather(z), z)
for r in range(size):
    z = new()
    show(f"broadcast{r}", broadcast(z, r), z)
    z = new()
    o = reduce(z, r)
    if rank == r:
        show(f"reduce{r}", o, z)
    else:  # PyTorch does not say what is in the result here
        (o * 0).sum().backward()
        print(rank, f"reduce{r}", z.grad.tolist())
    z = new()
    g = gather(z, r)
    sum((o * (k + 2)).sum() for k, o in enumerate(g)).backward()
    print(rank, f"gather{r}", [o.tolist() for o in g], z.grad.tolist())
    z = [new(k) for k in range(size)]
    show(f"scatter{r}", scatter(z, r), *z)
z = [new(k) for k in range(size)]
show("reduce_scatter", reduce_scatter(torch.empty(2), z), *z)
z = [new(k) for k in range(size)]
show("all_to_all", all_to_all([torch.empty(2) for _ in range(size)], z), *z)
z = new()
show("a2as", all_to_all_single(torch.empty(2), z), z)
z = (torch.arange(6.0) + rank).view(3, 2).requires_grad_()
sent, received = ([1, 2], [1, 0]) if rank == 0 else ([0, 3], [2, 3])
show("a2av", all_to_all_single(torch.empty(sum(received), 2), z, received, sent), z)
dist.destroy_process_group()
