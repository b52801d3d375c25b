"""Parameter servers without Ray: the same shards and links, over a carrier that doubles, delays and loses calls, and kills."""

from __future__ import annotations

import asyncio
import functools
import pickle
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import DistributedError
from calque.cluster import link as links
from calque.cluster.link import Gone, Link
from calque.cluster.serving import MachineServing, Serving
from calque.cluster.shard import STARTER, Shard


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made

    async def end() -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), made).result(10)
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


class Carrier:
    """Carries calls to one shard in this process. With `chance` some are doubled, late, or reach a shard that is dead."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Any, every: int, chance: random.Random | None = None) -> None:
        self.loop, self.make, self.every, self.chance = loop, make, every, chance
        self.kept: bytes | None = None
        self.deaths = 0
        self.calls: set[Any] = set()
        self.serving = self.born()

    def born(self) -> Any:
        shard = self.make()
        if not isinstance(shard, Shard):
            return shard

        async def keep(state: dict[str, Any]) -> None:
            written, deaths = pickle.dumps(state), self.deaths
            await asyncio.sleep(0)
            if deaths == self.deaths:
                self.kept = written

        return Serving(shard, keep, self.every, None if self.kept is None else pickle.loads(self.kept))

    def kill(self) -> None:
        async def die() -> None:
            for call in self.calls:
                call.cancel()
            self.calls.clear()
            self.deaths += 1
            self.serving = self.born()

        asyncio.run_coroutine_threadsafe(die(), self.loop).result(10)

    def call(self, method: str, *given: Any, batch: Any = None) -> Any:
        async def once() -> Any:
            lost = False
            if self.chance is not None:
                await asyncio.sleep(self.chance.choice([0, 0, 0.001]))
                lost = self.chance.random() < 0.05
            served, deaths = self.serving, self.deaths
            words = pickle.loads(pickle.dumps(given))
            task = asyncio.ensure_future(getattr(served, method)(*words, *((batch,) if method == "serve" else ())))
            self.calls.add(task)
            try:
                answer = await task
            except asyncio.CancelledError:
                raise Gone("died") from None
            finally:
                self.calls.discard(task)
            if lost or deaths != self.deaths:
                raise Gone("the carrier has lost it")
            return answer

        twice = self.chance is not None and self.chance.random() < 0.3
        calls: list[Future[Any]] = [asyncio.run_coroutine_threadsafe(once(), self.loop) for _ in range(1 + twice)]
        return calls[-1]

    def result(self, ticket: Any, seconds: float) -> Any:
        return ticket.result(seconds)

    def pack(self, batch: list[Any]) -> Any:
        return pickle.loads(pickle.dumps(batch))


def values_of(carriers: list[Carrier], keys: dict[Any, tuple[int, ...]]) -> list[Any]:
    link = Link(carriers, STARTER, 10, carriers[0].every, 5.0)
    for key, shape in keys.items():
        link.init(key, shape, "float32", None)
    return link.pull(list(keys))


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_pushes_count_once_whatever_happens(kind: str, loop: asyncio.AbstractEventLoop, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are doubled, overtake each other and get lost, servers die: the sum is that of what was pushed, and momentum that of as many updates."""
    monkeypatch.setattr(links, "PATIENCE", 0.05)
    chance = random.Random(seed)
    carriers = [Carrier(loop, functools.partial(Shard, kind, range(3)), 2, random.Random(seed + i)) for i in range(2)]
    keys = {"split": (5, 8), 3: (2,), "b": ()}
    start = Link(carriers, STARTER, 10, 2, 20.0)
    for key, shape in keys.items():
        start.init(key, shape, "float32", np.zeros(shape, np.float32))
    start.tell("optimizer", functools.partial(calque.optim.SGD, lr=1.0, momentum=0.5 if kind == "dist_sync" else 0.0))
    start.settle(safe=True)
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            mine = random.Random(seed + 10 + rank)
            link = Link(carriers, rank, 10, 2, 20.0)
            for key, shape in keys.items():
                link.init(key, shape, "float32", None)
            for _ in range(30):
                ones = [(key, np.full(shape, -1.0, np.float32)) for key, shape in keys.items()]
                if mine.random() < 0.15:
                    link.push_pull(ones)
                else:
                    link.push(ones)
                if mine.random() < 0.15:
                    once, again = link.pull(["split", "split"])
                    assert np.array_equal(once, again)
            link.tell("leave")
            link.settle(safe=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.02)
        if carriers[0].deaths + carriers[1].deaths < 12:
            chance.choice(carriers).kill()
    assert not failures, failures
    expected = calque.zeros(1, requires_grad=True)
    optimizer = calque.optim.SGD([expected], lr=1.0, momentum=0.5 if kind == "dist_sync" else 0.0)
    for _ in range(30 if kind == "dist_sync" else 90):
        expected.grad = -calque.ones(1) * (3 if kind == "dist_sync" else 1)
        optimizer.step()
    for carrier in carriers:
        carrier.chance = None
        carrier.kill()  # what is kept at the end is all of it
    for array in values_of(carriers, keys):
        assert np.unique(array).tolist() == expected.detach().tolist()


def test_the_sum_of_a_round_is_that_of_ranks_in_order() -> None:
    """Whoever comes first: bit for bit what one process adds up."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(100).astype(np.float32) for _ in range(4)]
    wanted = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        shard = Shard("dist_sync", range(4))
        shard.take(0, 1, [("init", "w", (100,), "float32", np.zeros(100, np.float32))])
        for member in order:
            shard.take(member, shard.taken.get(member, 0) + 1, [("push", "w", parts[member])])
        assert np.array_equal(shard.values(0, ["w"])[0], wanted)


def test_a_machine_sends_and_fetches_once_for_all_of_its_workers(loop: asyncio.AbstractEventLoop) -> None:
    """Two machines of three workers: what crosses the network is a third of what workers push and pull."""
    servers = [Carrier(loop, lambda: Shard("dist_sync", range(2), word="machine"), 0) for _ in range(2)]
    inner = [Link(servers, machine, 10, 0, 20.0) for machine in range(2)]
    groups = [[0, 1, 2], [3, 4, 5]]
    machines = [Carrier(loop, functools.partial(MachineServing, ranks, link), 0) for ranks, link in zip(groups, inner, strict=True)]
    links_of = [Link([machines[rank // 3]], rank, None, 0, 20.0) for rank in range(6)]
    got: list[Any] = [None] * 6

    def work(rank: int) -> None:
        link = links_of[rank]
        link.init("w", (20, 2), "float64", np.ones((20, 2)) if rank == 0 else None)
        for step in range(4):
            link.push([("w", np.full((20, 2), float(rank + step)))])
            got[rank] = link.pull(["w"])[0]
        link.tell("leave")
        link.settle(safe=True)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(array is not None and np.unique(array).tolist() == [sum(range(6)) + 6 * 3] for array in got)
    size = 20 * 2 * 8
    assert [link.received for link in links_of] == [4 * size] * 6 and [link.received for link in inner] == [4 * size] * 2
    assert [link.sent for link in inner] == [5 * size, 4 * size]  # the first one has sent the value of rank 0 as well


def test_who_is_too_far_ahead_waits_for_the_slowest() -> None:
    shard = Shard("dist_async", range(2), staleness=2)
    shard.take(0, 1, [("init", "w", (1,), "float32", np.zeros(1, np.float32)), ("optimizer", functools.partial(calque.optim.SGD, lr=1.0))])
    for number in range(2, 5):
        assert not shard.lacks(0, ["w"])
        shard.take(0, number, [("push", "w", np.ones(1, np.float32))])
    assert shard.lacks(0, ["w"]) == "rank 1 is more than 2 pushes of key 'w' behind rank 0, which has made 3" and not shard.lacks(1, ["w"])
    shard.take(1, 1, [("push", "w", np.ones(1, np.float32))])
    assert not shard.lacks(0, ["w"])
    shard.take(0, 5, [("push", "w", np.ones(1, np.float32))] * 5)
    assert shard.lacks(0, ["w"])
    shard.take(1, 2, [("leave",)])
    assert not shard.lacks(0, ["w"])


@pytest.mark.parametrize(
    ("kind", "batches", "words"),
    [
        ("dist_sync", [(1, ("init", "w", (2,), "float32", None))], "key 'w' has no value; rank 0"),
        (
            "dist_sync",
            [(0, ("init", "w", (1,), "float32", np.zeros(1, "f"))), (1, ("push", "w", np.ones(1, "f")))],
            "push 1 of key 'w' is missing from rank 0",
        ),
        ("dist_async", [(0, ("init", "w", (1,), "float32", np.zeros(1, "f"))), (1, ("push", "w", np.ones(1, "f")))], "call set_optimizer"),
        (
            "dist_sync",
            [(0, ("init", "w", (1,), "float32", np.zeros(1, "f"))), (1, ("init", "w", (2,), "float32", None))],
            "float32 of shape (1,) for key 'w'",
        ),
        (
            "dist_sync",
            [(0, ("init", "w", (9,), "float32", np.zeros(5, "f"))), (0, ("optimizer", calque.optim.LAMB))],
            "got LAMB; create the store with split",
        ),
        (
            "dist_sync",
            [(0, ("updater", print)), (0, ("init", "w", (9,), "float32", np.zeros(5, "f")))],
            "got an updater; create the store with split",
        ),
    ],
)
def test_every_rank_hears_what_is_wrong(kind: str, batches: list[Any], words: str, loop: asyncio.AbstractEventLoop) -> None:
    carrier = Carrier(loop, lambda: Shard(kind, range(2)), 1)
    members = [Link([carrier], rank, None, 1, 0.1) for rank in range(2)]
    for rank, batch in batches:
        members[rank]._post(0, [batch])
    members[1].specs["w"] = ((1,), "float32")
    with pytest.raises(DistributedError) as caught:
        members[1].pull(["w"])
    assert words in str(caught.value)


def test_a_rank_is_one_process_and_a_new_one_goes_on(loop: asyncio.AbstractEventLoop) -> None:
    carrier = Carrier(loop, lambda: Shard("dist_async", range(2)), 1)
    old = Link([carrier], 0, None, 1, 5.0)
    old.init("w", (1,), "float32", np.zeros(1, np.float32))
    old.tell("optimizer", functools.partial(calque.optim.SGD, lr=1.0))
    old.push([("w", np.ones(1, np.float32))])
    old.settle(safe=False)
    new = Link([carrier], 0, None, 1, 5.0)
    new.init("w", (1,), "float32", None)
    assert new.pushed("w") == 1
    carrier.kill()
    new.push([("w", np.ones(1, np.float32))])
    assert new.pull(["w"])[0].tolist() == [-2.0]
    with pytest.raises(DistributedError, match="another process has joined as rank 0"):
        old.pull(["w"])
    with pytest.raises(DistributedError, match=r"expected one of rank 0, 1, got 2"):
        Link([carrier], 2, None, 1, 5.0)


def test_what_is_lost_is_an_error(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps nothing, or cannot, does not go on with less than it had."""
    monkeypatch.setattr(links, "SETTLING", 1.0)
    carrier = Carrier(loop, lambda: Shard("dist_sync", range(1)), 0)
    link = Link([carrier], 0, None, 0, 5.0)
    link.init("w", (1,), "float32", np.zeros(1, np.float32))
    link.pull(["w"])
    carrier.kill()
    with pytest.raises(DistributedError, match="another process|lost"):
        link.pull(["w"])

    async def refuse(state: Any) -> None:
        raise OSError("disk full")

    full = Carrier(loop, lambda: Shard("dist_sync", range(1)), 1)
    link = Link([full], 0, None, 1, 5.0)
    full.serving._keep = refuse
    link.init("w", (1,), "float32", np.zeros(1, np.float32))
    with pytest.raises(DistributedError, match="cannot be kept: OSError: disk full"):
        link.settle(safe=True)
