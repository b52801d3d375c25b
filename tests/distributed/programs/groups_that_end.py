"""More groups than MPI has room for at one time, one after the other, and jobs one after the other; run by test_collectives.py."""

import calque
import calque.distributed as dist
from calque.base.errors import DistributedError


def added(t, group=None):
    dist.all_reduce(t, group=group)
    return t


def refused(call):
    try:
        call()
    except DistributedError as error:
        assert "expected a process group that is in use, got number 820" in str(error), error
        return
    raise SystemExit("a group that has ended was used")


for _ in range(2):
    dist.init_process_group("gloo", timeout=60)
    rank = dist.get_rank()
    kept = [dist.new_group([0, 1]) for _ in range(120)]  # so many that what a rank says of them when it goes takes two messages
    for k in range(700):
        group = dist.new_group([0, 1])
        large = k % 50 == 0  # such a call has memory that both ranks map
        assert added(calque.full((50_000 if large else 4,), float(rank + k)), group)[-1].item() == 2 * k + 1
        dist.destroy_process_group(group)
    for other in kept:
        assert added(calque.ones(3), other).tolist() == [2.0] * 3
    refused(lambda group=group: added(calque.ones(3), group))
    refused(lambda group=group, peer=1 - rank: dist.isend(calque.ones(3), peer, group))
    refused(lambda group=group: dist.destroy_process_group(group))

    # What is kept of calls is counted, and bounded.
    for n in range(1500):
        added(calque.ones(n % 750 + 1))
    caches = calque.stats()["caches"]
    messages = ["ways of small messages"] if dist.group.WORLD.shelf is None else []
    for name in ("plans of collectives", "descriptions of collectives", *messages):
        assert caches[name]["entries"] > 0 and caches[name]["bytes"] <= caches[name]["limit"], (name, caches[name])
    dist.destroy_process_group()
    assert calque.stats()["caches"]["plans of collectives"]["entries"] == 0

dist.init_process_group("gloo", timeout=60)
kept = [dist.new_group([0, 1]) for _ in range(300)]
for other in kept:
    added(calque.ones(3), other)
if dist.get_rank() == 1:  # it goes with a message that MPI would not send at once
    raise ValueError("é" * 4000)
dist.barrier()
