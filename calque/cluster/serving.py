"""The calls that a server answers: who calls, in which order batches are taken, what a pull waits for, and when the state is kept."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from calque.cluster.link import Link
from calque.cluster.shard import STARTER, Operation, Shard, total_of

Reply = tuple[Any, ...]  # ("ok", number kept, arrays) | ("new", life, number taken) | ("late", text) | ("error", text)

REMEMBERED = 8  # times the size of all values: what members have to remember of large pushes, until a state is kept early


class Serving:
    """Serves a shard. `keep(state)` stores its state elsewhere, `kept` is what was stored when it lived before; it is kept after `every` batches of
    each member, never if 0. Methods run in one event loop, so nothing changes between two of their waits."""

    def __init__(self, shard: Shard, keep: Callable[[dict[str, Any]], Awaitable[Any]], every: int, kept: dict[str, Any] | None = None) -> None:
        self.shard, self._keep, self._every = shard, keep, every
        if kept is not None:
            shard.restore(kept)
        self.life = secrets.token_hex(8)  # another one after each restart: what was said to the last one is not known here
        self.kept = dict(shard.taken)
        self._since = self._bytes = self._held = 0
        self._trouble = ""
        self._changed = asyncio.Condition()
        self._storing = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()

    async def join(self, member: int, caller: str) -> Reply:
        """A process becomes this member, in place of the one that was it before."""
        if member != STARTER and member not in self.shard.members:
            return ("error", f"[kvstore] expected one of {self.shard.who(*self.shard.members)}, got {member}")
        self.shard.callers[member] = caller
        await self._store()
        return self._whereabouts(member)

    async def hello(self, member: int, caller: str) -> Reply:
        """What has been taken from a member that was here before."""
        return self._stranger(member, caller) or self._whereabouts(member)

    async def pushed(self, member: int, key: Any) -> int:
        """How many pushes of a key have come from a member."""
        return self.shard.pushed(member, key)

    async def serve(
        self, member: int, caller: str, life: str, number: int, keys: list[Any] | None, seconds: float, safe: bool, batch: list[Operation] | None,
    ) -> Reply:  # fmt: skip
        """Take batch `number` (None: all up to `number` are there), keep the state if `safe`, and give the values of `keys` as soon as they may be
        pulled. Whatever is called twice has the effect of one call."""
        if stranger := self._stranger(member, caller):
            return stranger
        if life != self.life:
            return self._whereabouts(member)
        shard, before = self.shard, number - (batch is not None)
        arrays: list[Any] = []
        try:
            async with asyncio.timeout(seconds):
                await self._until(lambda: shard.taken.get(member, 0) >= before)
                if batch is not None and shard.taken.get(member, 0) == before:
                    await self._take(member, number, batch)
                if safe and (not self._every or self.kept.get(member, 0) < number):
                    await self._store()
                if keys is not None:
                    await self._until(lambda: bool(shard.failed) or not shard.lacks(member, keys))
                    arrays = [] if shard.failed else await self._values(member, keys)
        except TimeoutError:
            return ("late", f"after {seconds:g} s {shard.lacks(member, keys or []) or 'the server has not answered'}")
        if shard.failed or (safe and self._trouble):
            return ("error", shard.failed or self._trouble)
        return ("ok", self.kept.get(member, 0), arrays)

    async def _values(self, member: int, keys: list[Any]) -> list[Any]:
        return self.shard.values(member, keys)

    async def _take(self, member: int, number: int, batch: list[Operation]) -> None:
        self.shard.take(member, number, batch)
        self._since += 1
        self._bytes += sum(getattr(given, "nbytes", 0) for operation in batch for given in operation)
        if not self._every:
            self.kept[member] = number
        elif self._since >= self._every * len(self.shard.members) or self._bytes >= max(REMEMBERED * self._held, 1 << 22):
            self._since = self._bytes = 0
            task = asyncio.get_running_loop().create_task(self._store())
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        async with self._changed:
            self._changed.notify_all()

    async def _store(self) -> None:
        if not self._every:
            return
        async with self._storing:
            state = self.shard.state()
            try:
                await self._keep(state)
            except Exception as error:
                self._trouble = f"[kvstore] the state of a server cannot be kept: {type(error).__name__}: {str(error)[:300]}"
            else:
                self.kept, self._trouble = state["taken"], ""
                self._held = sum(value.nbytes for value in state["values"].values())

    async def _until(self, met: Callable[[], bool]) -> None:
        if not met():
            async with self._changed:
                await self._changed.wait_for(met)

    def _stranger(self, member: int, caller: str) -> Reply | None:
        if self.shard.callers.get(member) == caller:
            return None
        return ("error", f"[kvstore] another process has joined as {self.shard.who(member)}; a rank is one process at a time")

    def _whereabouts(self, member: int) -> Reply:
        return ("new", self.life, self.shard.taken.get(member, 0))


class _Inside(Shard):
    """The shard of a machine: what its workers push is added up here and goes to the servers as the push of one member."""

    def __init__(self, ranks: list[int], link: Link) -> None:
        super().__init__("dist_sync", ranks)
        self.link = link

    def round(self, key: Any) -> int:
        """How many sums of a key have gone to the servers."""
        return self._rounds.get(key, 0)

    def _has(self, key: Any) -> bool:
        return key in self._shapes

    def _do_init(self, member: int, key: Any, shape: tuple[int, ...], dtype: str, value: Any) -> None:
        self._shapes.setdefault(key, ((shape, dtype), self.who(member)))
        self.link.init(key, shape, dtype, value)  # the servers compare shapes, and take the first value

    def _do_leave(self, member: int) -> None:
        super()._do_leave(member)
        if not self._active():
            self.link.tell("leave")

    def _do_optimizer(self, member: int, make: Callable[..., Any]) -> None:
        self.link.tell("optimizer", make)

    def _do_updater(self, member: int, updater: Callable[..., Any]) -> None:
        self.link.tell("updater", updater)

    def _do_rate(self, member: int, lr: float) -> None:
        self.link.tell("rate", lr)

    def _add_up(self, key: Any, parts: list[Any]) -> None:
        self.link.push([(key, total_of(parts))])


class MachineServing(Serving):
    """Serves the workers of one machine. What they pull after the same push is fetched from the servers once."""

    def __init__(self, ranks: list[int], link: Link) -> None:
        self._inside = _Inside(ranks, link)
        super().__init__(self._inside, self._nowhere, 0)
        self._fetched: dict[Any, tuple[int, set[int], Any]] = {}

    async def traffic(self) -> tuple[int, int]:
        """Bytes of arrays that went to the servers, and that came from them."""
        return self._inside.link.sent, self._inside.link.received

    async def _nowhere(self, state: dict[str, Any]) -> None:
        """A machine that dies takes its workers along, so its sums are not kept."""

    async def _store(self) -> None:
        await asyncio.to_thread(self._inside.link.settle, True)

    async def _values(self, member: int, keys: list[Any]) -> list[Any]:
        missing = []
        for key in keys:
            known = self._fetched.get(key)
            if known is None or known[0] != self._inside.round(key) or member in known[1]:  # who pulls again wants what is new
                self._fetched[key] = (self._inside.round(key), set(), asyncio.get_running_loop().create_future())
                missing.append(key)
            self._fetched[key][1].add(member)
        waiting = [self._fetched[key][2] for key in keys]
        if missing:
            futures = [self._fetched[key][2] for key in missing]
            try:
                for future, array in zip(futures, await asyncio.to_thread(self._inside.link.pull, missing), strict=True):
                    future.set_result(array)
            except Exception as error:
                self.shard.failed = self.shard.failed or str(error)
                for future in futures:
                    future.set_result(None)
        return [await future for future in waiting]
