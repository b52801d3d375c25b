"""The members' side: keys are divided over servers, and every batch is remembered until its server has kept it."""

from __future__ import annotations

import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from calque.base.dataclass import dataclass
from calque.base.errors import DistributedError
from calque.cluster.shard import Operation

SETTLING = 60.0  # seconds for which a server that has died may take to be there again
PATIENCE = 1.0  # seconds of waiting after which all servers are asked whether they still have what they were sent
AHEAD = 8  # batches on their way to a server, until one waits for them


class Gone(Exception):
    """The server has died; it may be started again, unless `forever`."""

    forever = False


class Port(Protocol):
    """What carries calls to one server."""

    def call(self, method: str, *given: Any, batch: Any = None) -> Any:
        """Begin a call; what comes back is for `result`."""

    def result(self, ticket: Any, seconds: float) -> Any:
        """Wait for what a call gives. Raises `Gone`, or TimeoutError."""

    def pack(self, batch: list[Operation]) -> Any:
        """A batch as `call` may be given it, more than once, though its arrays change meanwhile."""


@dataclass
class _Line:
    """What is known of one server."""

    port: Port
    life: str = ""
    number: int = 0  # of the newest batch
    log: deque[tuple[int, Any]] = field(default_factory=deque)  # batches that the server has not kept yet
    seen: int = -1  # what the server had taken when it was last asked
    flying: int = 0  # batches sent since it has answered
    lock: Any = field(default_factory=threading.RLock)


class Link:
    """The way of one member to all servers. split: arrays of more elements are divided evenly, a part for each server; None: never. every: how many
    batches come between two times that a server keeps its state; 0: never. seconds: how long a pull waits for others. ahead: how many batches may be
    on their way to a server before one waits for them."""

    def __init__(self, ports: Sequence[Port], member: int, split: int | None, every: int, seconds: float, ahead: int = AHEAD) -> None:
        self.member, self.split, self.every, self.seconds = member, split, every, seconds
        self._ahead = ahead
        self.sent = self.received = 0  # bytes of arrays
        self.specs: dict[Any, tuple[tuple[int, ...], str]] = {}
        self._caller = secrets.token_hex(8)
        self._lines = [_Line(port) for port in ports]
        for line in self._lines:
            self._learn(line, self._answer(line, "join", self._caller))

    def init(self, key: Any, shape: tuple[int, ...], dtype: str, array: Any) -> None:
        """Give a key its shape and, unless None, its first value."""
        self.specs[key] = (shape, dtype)
        flat = None if array is None else array.reshape(-1)
        places = self._places(key)
        for i, start, stop in places:
            part = flat if flat is None or len(places) == 1 else flat[start:stop]
            part = part.reshape(shape) if part is not None and len(places) == 1 else part
            self._post(i, [("init", key, shape, dtype, part)])

    def push(self, entries: list[tuple[Any, Any]]) -> None:
        """Send arrays by key; one batch for each server."""
        for i, batch in self._batches(entries).items():
            self._post(i, batch)

    def push_pull(self, entries: list[tuple[Any, Any]]) -> list[Any]:
        """Send arrays by key, and get the values of the same keys; one call of each server."""
        return self._gathered([key for key, _ in entries], self._batches(entries))

    def _batches(self, entries: list[tuple[Any, Any]]) -> dict[int, list[Operation]]:
        batches: dict[int, list[Operation]] = {}
        for key, array in entries:
            places = self._places(key)
            for i, start, stop in places:
                batches.setdefault(i, []).append(("push", key, array if len(places) == 1 else array.reshape(-1)[start:stop]))
        return batches

    def tell(self, name: str, *given: Any) -> None:
        """Send an operation to all servers."""
        for i in range(len(self._lines)):
            self._post(i, [(name, *given)])

    def pull(self, keys: list[Any]) -> list[Any]:
        """The values of keys, whole. Whoever gets them may not change them."""
        return self._gathered(keys, {})

    def _gathered(self, keys: list[Any], batches: dict[int, list[Operation]]) -> list[Any]:
        """The values of keys after these batches."""
        wanted: dict[int, list[Any]] = {}
        for key in dict.fromkeys(keys):
            for i, _, _ in self._places(key):
                wanted.setdefault(i, []).append(key)
        found: dict[Any, list[Any]] = {key: [] for key in keys}
        for i, arrays in self._ask(wanted, safe=False, batches=batches).items():  # in the order of servers, which is that of the parts
            for key, array in zip(wanted[i], arrays, strict=True):
                found[key].append(array)
                self.received += array.nbytes
        whole = {key: (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(self.specs[key][0]) for key, parts in found.items()}
        return [whole[key] for key in keys]

    def pushed(self, key: Any) -> int:
        """How many pushes of a key the servers have from this member, whichever process it was."""
        i = self._places(key)[0][0]
        self._ask({i: None}, safe=False)
        return int(self._answer(self._lines[i], "pushed", key))

    def settle(self, safe: bool) -> None:
        """Wait until the servers have taken everything and, if `safe`, kept it."""
        self._ask(dict.fromkeys(range(len(self._lines))), safe=safe)

    def is_split(self, key: Any) -> bool:
        """Whether servers hold parts of this key."""
        return len(self._places(key)) > 1

    def _places(self, key: Any) -> list[tuple[int, int, int]]:
        """Which servers hold a key, and from which element to which."""
        shape, _ = self.specs[key]
        size, n = int(np.prod(shape, dtype=np.int64)), len(self._lines)
        if n == 1 or self.split is None or size <= self.split:
            return [(zlib.crc32(repr(key).encode()) % n, 0, size)]
        cuts = [size * i // n for i in range(n + 1)]
        return [(i, cuts[i], cuts[i + 1]) for i in range(n)]

    def _post(self, i: int, batch: list[Operation]) -> None:
        line = self._lines[i]
        with line.lock:
            packed = self._noted(line, batch)
            line.flying += 1
            crowded = line.flying >= self._ahead
            full = bool(self.every) and len(line.log) > max(3 * self.every, self._ahead)
            self._serve(line, line.number, packed, None, False)
        if crowded or full:
            self._ask({i: None}, safe=full)

    def _noted(self, line: _Line, batch: list[Operation]) -> Any:
        """The batch with the next number, which is remembered."""
        self.sent += sum(given.nbytes for operation in batch for given in operation if isinstance(given, np.ndarray))
        line.number += 1
        packed = line.port.pack(batch)
        line.log.append((line.number, packed))
        return packed

    def _serve(self, line: _Line, number: int, packed: Any, keys: Any, safe: bool) -> Any:
        seconds = max(self.seconds, SETTLING) if keys is None else self.seconds  # who pulls waits for others, else for the server alone
        return line.port.call("serve", self.member, self._caller, line.life, number, keys, seconds, safe, batch=packed)

    def _ask(self, wanted: dict[int, Any], safe: bool, batches: dict[int, list[Operation]] | None = None) -> dict[int, list[Any]]:
        """What the servers give for these keys as soon as they have taken all that was sent, and these batches; all of them are asked at once."""
        asked = {}
        for i, keys in wanted.items():
            line = self._lines[i]
            with line.lock:
                packed = self._noted(line, batches[i]) if batches and i in batches else None
                number, flying = line.number, line.flying
                asked[i] = (line, number, flying, self._serve(line, number, packed, keys, safe))
        return {i: self._heard(line, number, flying, ticket, wanted[i], safe) for i, (line, number, flying, ticket) in sorted(asked.items())}

    def _heard(self, line: _Line, number: int, flying: int, ticket: Any, keys: Any, safe: bool) -> list[Any]:
        """The answer to `_ask`; a server that has been started again is first told what it does not know."""
        until = time.monotonic() + self.seconds + SETTLING
        while True:
            try:
                word, *told = line.port.result(ticket, PATIENCE)
            except Gone:
                self._repeat(line, until)
            except TimeoutError as error:
                if time.monotonic() > until:
                    raise DistributedError(f"[kvstore] a server has not answered for {self.seconds + SETTLING:g} s") from error
                self._look_round(until)
                continue
            else:
                if word == "ok":
                    with line.lock:
                        line.flying = max(0, line.flying - flying)
                        while line.log and line.log[0][0] <= told[0]:
                            line.log.popleft()
                    return told[1]  # type: ignore[no-any-return]
                if word != "new":
                    raise DistributedError(told[0] if word == "error" else f"[kvstore] {told[0]}")
                self._repeat(line, until)
            ticket = self._serve(line, number, None, keys, safe)

    def _look_round(self, until: float) -> None:
        """Send again what servers have lost. Who waits at one server for somebody whose push that server has lost would wait for ever if that one
        waits at another server for what this one has lost there."""
        for line in self._lines:
            with line.lock:
                if line.log:
                    life, seen = line.life, line.seen
                    line.seen = self._learn(line, self._answer(line, "hello", self._caller, until=until))
                    if line.life != life or seen == line.seen < line.number:
                        self._repeat(line, until)

    def _repeat(self, line: _Line, until: float) -> None:
        """Ask a server what it has taken, and send what it has not."""
        with line.lock:
            taken = self._learn(line, self._answer(line, "hello", self._caller, until=until))
            if line.number > taken and (not line.log or line.log[0][0] > taken + 1):
                last = line.log[0][0] - 1 if line.log else line.number
                raise DistributedError(
                    f"[kvstore] batches {taken + 1} to {last} are lost: a server died, and what it had not kept "
                    " is not remembered here; begin again from a checkpoint" + ("" if self.every else ", or create the store with snapshot=16")
                )
            for number, packed in line.log:
                if number > taken:
                    self._serve(line, number, packed, None, False)

    def _learn(self, line: _Line, reply: Any) -> int:
        """Take in which life of the server answers, and what it has taken."""
        word, *told = reply
        if word == "error":
            raise DistributedError(told[0])
        line.life = told[0]
        line.number = max(line.number, told[1])
        return int(told[1])

    def _answer(self, line: _Line, method: str, *given: Any, until: float = 0.0) -> Any:
        """The answer to a call that may be made again, though the server dies meanwhile."""
        until = until or time.monotonic() + SETTLING
        while True:
            try:
                return line.port.result(line.port.call(method, self.member, *given), max(1.0, until - time.monotonic()))
            except Gone as error:
                if error.forever or time.monotonic() > until:
                    raise DistributedError(f"[kvstore] a server has died and does not come back: {str(error)[:300]}") from error
                time.sleep(0.05)
            except TimeoutError as error:
                raise DistributedError("[kvstore] a server does not answer; does the cluster have room for it?") from error
