"""`spawn` of the same file, and source A's way with an address; run by test_collectives.py."""

import sys

import calque
import calque.distributed as dist


def worker(rank, words, port):
    if port:
        dist.init_process_group(backend="gloo", init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
    else:
        dist.init_process_group()
    assert dist.get_rank() == rank and words == ["a", "b"]
    t = calque.ones(1) * (rank + 1)
    dist.all_reduce(t)
    assert t.item() == 3
    if not port and rank == 1:
        raise ValueError("a word")
    dist.barrier()
    sys.stdout.write("done\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "0":
        dist.spawn(worker, (["a", "b"], 0), nprocs=2)
    else:
        calque.install_as_torch()
        import torch

        torch.multiprocessing.spawn(worker, (["a", "b"], int(sys.argv[1])), nprocs=2)
