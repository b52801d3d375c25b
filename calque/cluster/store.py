"""`calque.kvstore.create("dist_sync")` and `create("dist_async")`: a parameter server on the actors of Ray.

Sources: Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (2014), for servers that each hold a part and for bounded
delay (also Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013); MXNet's `kvstore` for names.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError, DistributedError, DTypeError
from calque.base.text import shown, type_name
from calque.cluster.actors import RayPort, ray_of, start
from calque.cluster.link import Link
from calque.cluster.shard import STARTER, array_of, total_of
from calque.functional.creation import from_numpy
from calque.functional.inplace import copy_
from calque.functional.views import detach
from calque.optim.optimizer import check_range
from calque.parallel.store import KVStore, maker_of, pairs
from calque.tensor import read

KINDS = ("dist_sync", "dist_async")


def create(
    kind: str, rank: int | None = None, num_workers: int | None = None, *, servers: int = 2, machines: Sequence[Sequence[int]] | None = None,
    staleness: int | None = None, split: int | None = 1 << 20, snapshot: int = 16, timeout: float = 300.0, job: str = "kvstore",
) -> "ClusterStore":  # fmt: skip
    """Start the servers (`num_workers=`), or join them as a worker (`rank=`)."""
    if kind not in KINDS:
        raise ArgumentError(f"[kvstore] expected one of {', '.join(KINDS)}, got {shown(kind)}")
    if (rank is None) == (num_workers is None):
        raise ArgumentError(
            f"[kvstore] {kind} expected num_workers= where the servers are started, or rank= in a worker, got "
            f"{'neither' if rank is None else 'both'}; "
            f'create("{kind}", num_workers=4) in the program that starts the workers, create("{kind}", rank=0) and so on in them'
        )
    if rank is not None:
        _whole("rank", rank, 0)
        ray = ray_of("kvstore")
        return ClusterStore(ray, _found(ray, kind, job), kind, rank)
    for what, value, least in [("num_workers", num_workers, 1), ("servers", servers, 1), ("snapshot", snapshot, 0)]:
        _whole(what, value, least)
    for what, value in [("staleness", staleness), ("split", split)]:
        if value is not None:
            _whole(what, value, 0)
    if kind == "dist_sync" and staleness is not None:
        raise ArgumentError("[kvstore] expected staleness= for dist_async alone, got it for dist_sync, where no worker is ahead of another")
    check_range("kvstore", "timeout", timeout, 0.0)
    groups = None if machines is None else [list(ranks) for ranks in machines]
    if groups is not None and sorted(rank for ranks in groups for rank in ranks) != list(range(num_workers or 0)):
        raise ArgumentError(f"[kvstore] expected every rank from 0 to {(num_workers or 0) - 1} once in machines, got {groups}")
    options = {
        "kind": kind, "num_workers": num_workers, "servers": servers, "machines": groups, "staleness": staleness, "split": split, "every": snapshot,
        "seconds": float(timeout),
    }  # fmt: skip
    ray = ray_of("kvstore")
    try:
        keeper = start(ray, f"calque-{job}", options)
    except ValueError as error:
        raise DistributedError(f"[kvstore] servers named {shown(job)} are there already; close() them, or choose another job=") from error
    return ClusterStore(ray, keeper, kind, STARTER)


class ClusterStore(KVStore):
    """Tensors by key that servers hold. `rank` is this worker's number, -1 where the servers were started; every method takes one key with its
    value, or a list of keys with a list of values. `push` returns at once; `pull` waits for what it has to see.

    Leave it with `close()`, or use it in a `with` block: others stop waiting for a worker that has left, and where the servers were started
    they end.
    """

    def __init__(self, ray: Any, keeper: Any, kind: str, rank: int) -> None:
        super().__init__(kind)
        self._ray, self._keeper, self.rank = ray, keeper, rank
        self._open, self._unkept = True, False
        node = ray.get_runtime_context().get_node_id()
        options, servers = ray.get(keeper.around.remote(None if rank == STARTER else rank, node))
        if rank >= options["num_workers"]:
            raise ArgumentError(f"[kvstore] expected a rank from 0 to {options['num_workers'] - 1}, got {rank}")
        self.num_workers = options["num_workers"]
        split, every = options["split"], options["every"]
        machine = rank != STARTER and options["machines"] is not None
        self._link = Link([RayPort(ray, server) for server in servers], rank, None if machine else split, 0 if machine else every, options["seconds"])

    def keys(self) -> list[Any]:
        """The keys that were initialised here."""
        return list(self._link.specs)

    def init(self, key: Any, value: Any) -> None:
        """Give a key its shape, and its first value: that of rank 0 (or of whoever started the servers, if that comes first)."""
        self._be_open("init")
        for k, v in pairs("init", key, value):
            if k in self._link.specs:
                raise ArgumentError(f"[kvstore] expected a new key, got {shown(k)}, which was initialised before; use push")
            source = v[0] if isinstance(v, (list, tuple)) else v
            first = array_of(source) if self.rank <= 0 else None
            self._link.init(k, tuple(source.shape), source.dtype.name, first)
        self._unkept = self.rank == 0
        if self.rank == STARTER:
            self._link.settle(safe=True)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Send the values of a key (one tensor, or a list, which is added up first) to the servers. Lists of keys travel together; `priority` is for
        stores of one process."""
        self._link.push(self._entries("push", key, value))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out` (by default into what was pushed), in one call of each server."""
        entries = self._entries("pushpull", key, value)
        self._written(pairs("pushpull", key, value if out is None else out), lambda keys: self._link.push_pull(entries))

    def _entries(self, op: str, key: Any, value: Any) -> list[tuple[Any, Any]]:
        """What is pushed, by key."""
        self._be_open(op)
        if self.rank == STARTER:
            raise ArgumentError("[kvstore] expected push from a worker, got it where servers were started; workers call create(..., rank=0)")
        entries = []
        for k, v in pairs(op, key, value):
            parts = self._fitting(op, k, v)
            dtype = self._link.specs[k][1]
            for part in parts:
                if part.dtype.name != dtype:
                    raise DTypeError(f"[kvstore] {op} expected {dtype}, as key {shown(k)} was initialised with, got {part.dtype.name}; use .to()")
            arrays = [read(detach(part).cpu(), op) for part in parts]  # type: ignore[attr-defined]
            entries.append((k, arrays[0] if len(arrays) == 1 else total_of(arrays)))
        return entries

    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """Write the value of a key into `out` (one tensor, or a list). With "dist_sync" it holds what all workers have pushed as often as this one;
        with "dist_async" what this one has pushed, and of the others what has come."""
        self._be_open("pull")
        self._written(pairs("pull", key, out), self._link.pull)

    def _written(self, wanted: list[tuple[Any, Any]], get: Callable[[list[Any]], list[Any]]) -> None:
        """Write what `get` gives for keys into tensors."""
        found = [(k, self._fitting("pull", k, v)) for k, v in wanted]
        with no_grad():
            for (_, targets), array in zip(found, get([k for k, _ in found]), strict=True):
                made = from_numpy(array)
                for target in targets:
                    copy_(detach(target), made)

    def set_optimizer(self, optimizer: Any) -> None:
        """Let the servers update with this optimizer, as in `KVStore.set_optimizer`. Rank 0's counts, or that of whoever started the servers."""
        self._tell("optimizer", maker_of(optimizer))

    def set_updater(self, updater: Callable[..., Any]) -> None:
        """Let the servers call `updater(key, sum, stored)`. Rank 0's counts, or that of whoever started the servers."""
        if not callable(updater):
            raise ArgumentError(f"[kvstore] expected a function updater(key, sum, stored), got {type_name(updater)}")
        self._tell("updater", updater)

    def set_learning_rate(self, lr: float) -> None:
        """Change the rate of the servers' optimizer. Rank 0's counts, or that of whoever started the servers."""
        check_range("kvstore", "learning rate", lr, 0.0)
        self._tell("rate", lr)

    def pushed(self, key: Any) -> int:
        """How many pushes of a key the servers have from this rank: where a worker that was started again goes on."""
        self._be_open("pushed")
        self._held(key)
        return self._link.pushed(key)

    def wait(self) -> None:
        """Return when the servers have taken what was pushed, and have kept it: from then on it survives both this process and a server."""
        self._be_open("wait")
        self._link.settle(safe=True)

    def traffic(self) -> tuple[int, int]:
        """Bytes of arrays that this process has sent, and received."""
        return self._link.sent, self._link.received

    def machine_traffic(self, machine: int) -> tuple[int, int]:
        """Bytes of arrays that the workers of a machine have sent to the servers together, and received."""
        server = self._ray.get(self._keeper.machine.remote(machine))
        if server is None:
            raise ArgumentError(f"[kvstore] expected the number of a machine from which a worker has come, got {shown(machine)}")
        return tuple(self._ray.get(server.call.remote("traffic", ())))  # type: ignore[return-value]

    def close(self) -> None:
        """Leave. Where the servers were started, they end; what they hold is gone then."""
        if not self._open:
            return
        if self.rank == STARTER:
            self._open = False
            self._ray.get(self._keeper.stop.remote())
            self._ray.kill(self._keeper)
            return
        self._link.tell("leave")
        self._link.settle(safe=True)
        self._open = False

    def __enter__(self) -> "ClusterStore":
        return self

    def __exit__(self, kind: Any, *given: Any) -> None:
        if kind is None or self.rank == STARTER:  # a worker that has failed is waited for until timeout=: it may be started again
            self.close()

    def _held(self, key: Any) -> Any:
        found = self._link.specs.get(key)
        if found is None:
            raise ArgumentError(f"[kvstore] expected an initialised key, got {shown(key)}; call init(key, value) first")
        return _Spec(found[0])

    def _tell(self, name: str, given: Any) -> None:
        self._be_open(name)
        if self.rank <= 0:
            self._link.tell(name, given)
            self._link.settle(safe=True)
            self._unkept = False

    def _be_open(self, op: str) -> None:
        if self._unkept and op != "init":  # what others build on must not be lost with a server while this process is busy
            self._link.settle(safe=True)
            self._unkept = False
        if not self._open:
            raise DistributedError(f"[kvstore] {op} expected an open store, got one after close()")


class _Spec:
    """What a key was initialised with."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def _found(ray: Any, kind: str, job: str) -> Any:
    """The keeper of servers that were started before."""
    try:
        keeper = ray.get_actor(f"calque-{job}")
    except ValueError as error:
        raise DistributedError(
            f"[kvstore] expected servers named {shown(job)}, and nobody has started them; "
            f'call create("{kind}", num_workers=...) before the workers begin'
        ) from error
    there = ray.get(keeper.around.remote(None, ""))[0]["kind"]
    if there != kind:
        raise ArgumentError(f"[kvstore] expected {there}, which is what the servers named {shown(job)} are, got {kind}")
    return keeper


def _whole(what: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ArgumentError(f"[kvstore] expected {what} to be an integer of at least {least}, got {shown(value)}")
