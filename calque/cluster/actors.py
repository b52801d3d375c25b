"""Servers as Ray actors, and who starts them. Ray is imported where it is needed.

Source of what is caught here: Ray's documentation, "Fault tolerance for actors": an actor with `max_restarts` is built anew by its constructor.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import numpy as np

from calque.base.errors import DistributedError
from calque.base.extras import need
from calque.cluster.link import Gone, Link
from calque.cluster.serving import MachineServing, Serving
from calque.cluster.shard import Operation, Shard

LARGE = 100_000  # bytes from which Ray puts an argument into its store; what is put there once can be sent again


def ray_of(what: str) -> Any:
    """Ray, connected to a cluster."""
    ray = need("ray", "ray", "ray", what)
    if not ray.is_initialized():
        raise DistributedError(f"[{what}] expected a cluster of Ray, and this process is in none; call ray.init() first")
    return ray


class RayPort:
    """Calls of one actor. inside: from another actor, whose event loop Ray takes to be blocked by any `get`."""

    def __init__(self, ray: Any, handle: Any, inside: bool = False) -> None:
        self._ray, self._handle, self._inside = ray, handle, inside

    def call(self, method: str, *given: Any, batch: Any = None) -> Any:
        """Begin a call."""
        try:
            ref = self._handle.call.remote(method, given, batch)
            return ref.future() if self._inside else ref
        except self._ray.exceptions.RayActorError as error:
            return error

    def result(self, ticket: Any, seconds: float) -> Any:
        """Wait for what a call gives."""
        errors = self._ray.exceptions
        try:
            if isinstance(ticket, Exception):
                raise ticket
            return ticket.result(seconds) if self._inside else self._ray.get(ticket, timeout=seconds)
        except errors.ActorUnavailableError as error:
            raise Gone(str(error)) from error
        except errors.RayActorError as error:
            gone = Gone(str(error))
            gone.forever = "RESTARTING" not in str(error) and self._is_dead()
            raise gone from error
        except errors.GetTimeoutError as error:
            raise TimeoutError from error

    def pack(self, batch: list[Operation]) -> Any:
        """A copy of the batch, or where Ray has it: its arrays may be those of tensors that change."""
        size = sum(getattr(given, "nbytes", 0) for operation in batch for given in operation)
        if size > LARGE:
            return self._ray.put(batch)
        return [tuple(given.copy() if isinstance(given, np.ndarray) else given for given in operation) for operation in batch]

    def _is_dead(self) -> bool:
        """Whether the actor is not going to be started again."""
        try:
            self._handle.alive.remote().future().result(30.0)
        except (self._ray.exceptions.ActorUnavailableError, TimeoutError):
            return False
        except self._ray.exceptions.RayActorError:
            return True
        return False


class Server:
    """The actor of one shard; it begins with what it has kept in a former life."""

    def __init__(self, keeper: str, index: int, kind: str, members: list[int], staleness: int | None, word: str, every: int) -> None:
        self._keeper, self._index, self._every = keeper, index, every
        self._shard = Shard(kind, members, staleness, word)
        self._life = secrets.token_hex(8)
        self._begin: asyncio.Task[Serving] | None = None

    async def alive(self) -> bool:
        """Whether it is there."""
        return True

    async def call(self, method: str, given: tuple[Any, ...], batch: Any = None) -> Any:
        """A method of `Serving`. A batch is an argument of its own: Ray sends what is in its store only then."""
        if self._begin is None:
            self._begin = asyncio.get_running_loop().create_task(self._begun())
        serving = await asyncio.shield(self._begin)
        return await getattr(serving, method)(*given, *(() if method != "serve" else (batch,)))

    async def _begun(self) -> Serving:
        ray = need("ray", "ray", "ray", "kvstore")
        keeper, pickled = ray.get_actor(self._keeper), ray.cloudpickle
        kept = await keeper.kept.remote(self._index, self._life)

        async def keep(state: dict[str, Any]) -> None:
            await keeper.keep.remote(self._index, self._life, pickled.dumps(state))

        return Serving(self._shard, keep, self._every, None if kept is None else pickled.loads(kept))


class MachineServer(Server):
    """The actor that adds up what the workers of a machine push."""

    def __init__(self, servers: list[Any], machine: int, ranks: list[int], options: dict[str, Any]) -> None:
        self._servers, self._machine, self._ranks, self._options = servers, machine, ranks, options
        self._begin = None

    async def _begun(self) -> Serving:
        ray, options = need("ray", "ray", "ray", "kvstore"), self._options
        ports = [RayPort(ray, server, inside=True) for server in self._servers]
        link = await asyncio.to_thread(Link, ports, self._machine, options["split"], options["every"], options["seconds"], 64)
        return MachineServing(self._ranks, link)


class Keeper:
    """The actor that knows all servers and holds what they have kept; it starts those of machines, on the machine of the worker that comes first."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._ray = need("ray", "ray", "ray", "kvstore")
        self.options = options
        self._kept: dict[int, bytes] = {}
        self._lives: dict[int, str] = {}
        self._servers: list[Any] = []
        self._machines: dict[int, tuple[str, Any]] = {}

    def begin(self, servers: list[Any]) -> None:
        """Take down who serves."""
        self._servers = servers

    def keep(self, index: int, life: str, state: bytes) -> None:
        """Hold the state of a server. What one has sent before it died does not replace that of its successor."""
        if self._lives.get(index) == life:
            self._kept[index] = state

    def kept(self, index: int, life: str) -> bytes | None:
        """The state that a server has kept last; another life of it begins."""
        self._lives[index] = life
        return self._kept.get(index)

    def around(self, rank: int | None, node: str) -> tuple[dict[str, Any], list[Any]]:
        """What a worker has to know: the options, and whom it talks to."""
        groups = self.options["machines"]
        machine = next((i for i, ranks in enumerate(groups or []) if rank in ranks), None)
        if machine is None:
            return self.options, self._servers
        if machine not in self._machines:
            place = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            actor = self._ray.remote(MachineServer).options(num_cpus=0, max_concurrency=1000, scheduling_strategy=place)
            self._machines[machine] = (node, actor.remote(self._servers, machine, groups[machine], self.options))
        where, server = self._machines[machine]
        if where != node:
            raise DistributedError(f"[kvstore] expected ranks {groups[machine]} on one machine, as machines= says, and rank {rank} is on another one")
        return self.options, [server]

    def machine(self, number: int) -> Any:
        """Who serves the workers of a machine; None before the first of them has come."""
        return self._machines.get(number, ("", None))[1]

    def stop(self) -> None:
        """End the servers."""
        for server in [server for _, server in self._machines.values()] + self._servers:
            self._ray.kill(server)


def start(ray: Any, name: str, options: dict[str, Any]) -> Any:
    """Start the keeper and the servers; they end with this process."""
    keeper = ray.remote(Keeper).options(name=name, num_cpus=0).remote(options)
    groups = options["machines"]
    members = list(range(len(groups) if groups else options["num_workers"]))
    every = options["every"]
    actor = ray.remote(Server).options(num_cpus=0, max_concurrency=1000, max_restarts=-1 if every else 0, scheduling_strategy="SPREAD")
    word = "machine" if groups else "rank"
    servers = [actor.remote(name, i, options["kind"], members, options["staleness"], word, every) for i in range(options["servers"])]
    ray.get([keeper.begin.remote(servers), *(server.alive.remote() for server in servers)])
    return keeper
