"""How batches come from worker processes: in memory that both processes see, which has no name and so cannot be left behind.

A *segment* is one piece of such memory (a `memfd`, or a file without a name where there is none: neither counts against the size of /dev/shm). The
worker collates right into it, and the other process makes tensors of it where it lies. Once nobody holds those tensors the worker hears of it and
uses the segment again, so in a steady loop no memory is asked for, cleared or copied.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import weakref
from collections import deque
from typing import Any

import numpy as np

from calque.base import between

SMALLEST = 1 << 15  # bytes; what is less travels in the message
MOST_NEW = 64  # file descriptors in one message
_KEPT = 8  # segments that wait to be used again
_FEW = 16  # arrays of one batch that have a segment each; more of them share one, as a process may have few files open
_ALIGNED = 64
_HEAD = struct.Struct("<QI")

Flat = np.ndarray[Any, np.dtype[np.uint8]]


class Lost(Exception):
    """The other side is gone."""


def send(sock: socket.socket, content: bytes, handles: list[int] | None = None) -> None:
    """One message, with file descriptors."""
    head = _HEAD.pack(len(content), len(handles or ()))
    try:
        if handles:
            sent = socket.send_fds(sock, [head], handles)
            head = head[sent:]
        sock.sendall(head + content)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Lost from error


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One message, and the file descriptors that came with it, which belong to the caller."""
    handles: list[int] = []
    try:
        head, handles, _, _ = socket.recv_fds(sock, _HEAD.size, MOST_NEW, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        head += _exactly(sock, _HEAD.size - len(head)) if head else b""
        if not head:
            raise Lost
        size, _ = _HEAD.unpack(head)
        return _exactly(sock, size), handles
    except (ConnectionResetError, Lost) as error:
        for handle in handles:
            os.close(handle)
        raise Lost from error


def _exactly(sock: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = sock.recv(min(size - len(content), 1 << 20))
        if not part:
            raise Lost
        content += part
    return bytes(content)


def new_memory(size: int) -> int:
    """A file descriptor of so many bytes of memory without a name."""
    return between.new_memory(size, "[DataLoader] expected room for {} that a worker hands over", "use a smaller batch")


def mapped(handle: int, size: int, *how: int) -> mmap.mmap:
    """Memory of a file descriptor in this process. `how`: flags and protection, as `mmap.mmap` takes them."""
    return between.mapped(handle, size, "[DataLoader] expected room for {} that processes hand over", "use a smaller batch", *how)


class Segment:
    """A piece of shared memory in the worker that made it."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.handle = new_memory(self.size)  # until it is sent
        self.memory: Flat = np.frombuffer(mapped(self.handle, self.size), np.uint8)
        self.address = int(self.memory.ctypes.data)
        self.lent = False  # the other process has a tensor there
        self.used: weakref.ref[Any] | None = None  # an array here that lies in it

    def free(self) -> bool:
        """Whether nobody looks at it."""
        return not self.lent and self.unseen()

    def unseen(self) -> bool:
        """Whether no array of this process lies in it."""
        return self.used is None or self.used() is None

    def lease(self, size: int) -> Flat:
        """Its first bytes, for an array of this process."""
        part: Flat = np.frombuffer(self.memory.data, np.uint8, size)
        self.used = weakref.ref(part)
        return part

    def sent(self) -> None:
        """The other process has it mapped."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


class Segments:
    """The segments of a worker. `returned` may be called by another thread than the rest."""

    def __init__(self) -> None:
        self.all: dict[int, Segment] = {}
        self.dropped: list[int] = []
        self.back: deque[int] = deque()
        self.next = 0

    def returned(self, numbers: list[int]) -> None:
        """The other process does not look at these any more."""
        self.back.extend(numbers)

    def take(self, size: int) -> Segment:
        """A segment that nobody uses, of this size or up to twice it."""
        while self.back:
            found = self.all.get(self.back.popleft())
            if found is not None:
                found.lent = False
        free = [segment for segment in self.all.values() if segment.free()]
        fitting = [segment for segment in free if size <= segment.size <= max(2 * size, mmap.PAGESIZE)]
        if fitting:
            return min(fitting, key=lambda segment: segment.size)
        for segment in free[: max(len(free) - _KEPT, 0)]:
            segment.sent()
            del self.all[segment.number]
            self.dropped.append(segment.number)
        made = Segment(self.next, size)
        self.next += 1
        self.all[made.number] = made
        return made

    def array(self, size: int) -> Flat:
        """Memory for an array that will be handed over."""
        return self.take(size).lease(size)

    def holding(self, memory: Flat) -> Segment | None:
        """The segment that some bytes are the beginning of, if nobody else sees it."""
        address = int(memory.ctypes.data)
        return next((s for s in self.all.values() if s.address == address and not s.lent and s.size >= memory.size), None)

    def pack(self, box: list[Any]) -> tuple[dict[str, Any], list[int]]:
        """The value in a box, which is empty then, as a message: what it is, and where its memory lies."""
        buffers: list[pickle.PickleBuffer] = []

        def apart(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < SMALLEST:
                return True  # in the message
            buffers.append(buffer)
            return False

        text = pickle.dumps(box[0], protocol=5, buffer_callback=apart)
        found: list[tuple[Segment, int, int]] = []  # where each array lies: from an offset on, so many bytes
        if len(buffers) > _FEW:
            found = self._together([np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])
        else:
            for buffer in buffers:
                found.append(self._place(np.frombuffer(buffer.raw(), np.uint8)))
                found[-1][0].lent = True
        box.clear()
        buffers.clear()
        del apart
        # Whoever still holds such an array here (a cache, perhaps) must not see what the other process writes to it.
        found = [(segment if segment.unseen() else self._copied(segment, size), start, size) for segment, start, size in found]
        body: Any = text
        if len(text) >= SMALLEST:
            found.append(self._place(np.frombuffer(text, np.uint8)))
            body = (found[-1][0].number, 0, len(text))
        handles: list[int] = []
        new: list[tuple[int, int]] = []
        for segment in {segment.number: segment for segment, _, _ in found}.values():
            self._lend(segment, handles, new)
        places = [(segment.number, start, size) for segment, start, size in found[: len(found) - (body is not text)]]
        dropped, self.dropped = self.dropped, []
        return {"value": body, "places": places, "new": new, "dropped": dropped}, handles

    def _together(self, arrays: list[Flat]) -> list[tuple[Segment, int, int]]:
        """Many arrays copied into one segment."""
        starts, size = [], 0
        for array in arrays:
            starts.append(size)
            size += -(-array.size // _ALIGNED) * _ALIGNED
        segment = self.take(size)
        segment.lent = True
        for start, array in zip(starts, arrays):
            segment.memory[start : start + array.size] = array
        return [(segment, start, array.size) for start, array in zip(starts, arrays)]

    def _place(self, memory: Flat) -> tuple[Segment, int, int]:
        """The segment where some bytes are, or into which they have been copied."""
        segment = self.holding(memory)
        if segment is None:
            segment = self.take(memory.size)
            segment.memory[: memory.size] = memory
        return segment, 0, memory.size

    def _copied(self, segment: Segment, size: int) -> Segment:
        """Another segment with the same bytes; this one stays with whoever holds it."""
        other = self.take(size)
        other.memory[:size] = segment.memory[:size]
        segment.lent, other.lent = False, True
        return other

    def _lend(self, segment: Segment, handles: list[int], new: list[tuple[int, int]]) -> None:
        segment.lent = True
        if segment.handle >= 0:
            handles.append(segment.handle)
            new.append((segment.number, segment.size))

    def sent(self, message: dict[str, Any]) -> None:
        """A message is on its way: the other process has its own handles."""
        for number, _ in message["new"]:
            self.all[number].sent()


class Mappings:
    """The segments of one worker, in the process that uses them."""

    def __init__(self) -> None:
        self.all: dict[int, mmap.mmap] = {}
        self.leases: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.over: deque[weakref.ref[Any]] = deque()  # arrays that are gone

    def unpack(self, message: dict[str, Any], handles: list[int]) -> Any:
        """The value of a message; its arrays and tensors lie where the worker has written them."""
        self.take(message, handles)
        ends: dict[int, int] = {}
        body = message["value"]
        places = message["places"] if isinstance(body, bytes) else [*message["places"], body]
        for number, start, size in places:
            ends[number] = max(ends.get(number, 0), start + size)
        leases = {number: self.lease(number, end) for number, end in ends.items()}
        buffers = [leases[number][start : start + size] for number, start, size in places]
        text: Any = body if isinstance(body, bytes) else buffers.pop()
        return pickle.loads(text, buffers=buffers)  # noqa: S301 - of our own worker

    def take(self, message: dict[str, Any], handles: list[int]) -> None:
        """Map what is new in a message."""
        for number in message["dropped"]:
            self.all.pop(number, None)
        for (number, size), handle in zip(message["new"], handles):
            self.all[number] = mapped(handle, size)
            os.close(handle)

    def lease(self, number: int, size: int) -> Flat:
        """The first bytes of a segment. When the last array that lies there is gone, the worker may write to it again."""
        part: Flat = np.frombuffer(self.all[number], np.uint8, size)
        lease = weakref.ref(part, self.over.append)  # C code alone: what a signal handler raises in a callback would be lost
        self.leases[id(lease)] = lease, number
        return part

    def given_back(self) -> list[int]:
        """Numbers of segments that the worker may use again, each once."""
        return [self.leases.pop(id(self.over.popleft()))[1] for _ in range(len(self.over))]
