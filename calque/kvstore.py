"""MXNet's name for key-value stores: `calque.kvstore.create("device")`.

>>> import calque
>>> calque.kvstore.create("device").type
'device'
"""

from __future__ import annotations

from typing import Any

from calque.parallel import store as _devices
from calque.parallel.store import KVStore

__all__ = ["KVStore", "create"]


def create(name: str = "local", **options: Any) -> KVStore:
    """A store of tensors by key.

    name: "local" adds up on the CPU and "device" on the device of the stored value, for the devices of one process. "dist_sync" and "dist_async" are
    parameter servers on Ray, for many processes and machines: `num_workers=n` starts the servers, in the program that starts the workers
    (inside `ray.init()`), and `rank=r` joins them in worker r. With "dist_sync" an update is the sum of one push of every worker; with
    "dist_async" each push is one.

    Options where servers are started: `servers=2`, how many hold a part of the keys each; `split=1 << 20`, arrays of more elements are divided over
    all servers (None: never); `machines=[[0, 1], [2, 3]]`, the ranks of each machine, whose pushes are added up there and travel as one;
    `staleness=None`, by how many pushes of a key a worker may be ahead of the slowest when it pulls ("dist_async"); `snapshot=16`, after how many
    batches of each worker a server's state is kept by another process, so that a server that dies goes on without losing or doubling a push (0:
    never; a server that dies is an error then); `timeout=300`, seconds after which a pull that waits for others says for whom. `job="kvstore"`
    tells servers apart, in workers as well.

    Raises ArgumentError for what it does not know, MissingExtraError without Ray, DistributedError where there is no cluster.

    >>> import calque
    >>> kv = calque.kvstore.create("local")
    >>> kv.init(3, calque.ones(2))
    >>> kv.push(3, [calque.ones(2), calque.ones(2) * 4])
    >>> out = calque.zeros(2)
    >>> kv.pull(3, out=out)
    >>> out
    tensor([5., 5.])
    """
    if isinstance(name, str) and name.startswith("dist"):
        from calque.cluster.store import create as of_cluster

        return of_cluster(name, **options)
    if options:
        raise TypeError(f"[kvstore] expected {', '.join(options)} for 'dist_sync' or 'dist_async' alone, got it for {name!r}")
    return _devices.create(name)
