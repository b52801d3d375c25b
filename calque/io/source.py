"""Bytes of known size, read at any place: what every reader of files stands on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calque.io.bounds import Damaged
from calque.io.structure import Array

_ALIGNMENT = 64
_AHEAD = 1 << 16  # bytes that are read at a time where many small pieces are asked for


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes of known size; `read_at(buffer, position)` fills the buffer or raises Damaged. `descriptor`: the open file, if it is one."""

    size: int
    read_at: Callable[[memoryview, int], None]
    descriptor: int | None = None

    def take(self, start: int, count: int) -> bytes:
        """So many bytes from a place on, or those that are left."""
        buffer = bytearray(min(count, max(self.size - start, 0)))
        self.read_at(memoryview(buffer), start)
        return bytes(buffer)


def of_descriptor(descriptor: int) -> Source:
    """The bytes of an open file."""

    def read_at(buffer: memoryview, position: int) -> None:
        while buffer:
            count = os.preadv(descriptor, [buffer], position)
            if count == 0:
                raise Damaged(f"it ended at byte {position:,} while it was being read")
            buffer, position = buffer[count:], position + count

    return Source(os.fstat(descriptor).st_size, read_at, descriptor)


def of_bytes(given: bytes | memoryview) -> Source:
    """The bytes of something in memory."""
    content = memoryview(given).cast("B")

    def read_at(buffer: memoryview, at: int) -> None:
        buffer[:] = content[at : at + len(buffer)]

    return Source(len(content), read_at)


def aligned(size: int) -> Array:
    """Uninitialised bytes that begin at a multiple of a cache line, as kernels like them."""
    memory: Array = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    offset = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[offset : offset + size]


class Reader:
    """The bytes from `at` to `end` in order; `at` is the place of the next one.

    >>> text = Reader(of_bytes(b"ab12\\nrest"), 2, 9)
    >>> text.line(10), text.take(2), text.at
    (b'12', b're', 7)
    """

    def __init__(self, source: Source, start: int, end: int) -> None:
        self.source, self.end = source, end
        self._chunk, self._place, self._base = b"", 0, start

    @property
    def at(self) -> int:
        return self._base + self._place

    def take(self, count: int) -> bytes:
        """The next bytes, exactly so many."""
        place = self._place
        stop = self._place = place + count
        if stop <= len(self._chunk):
            return self._chunk[place:stop]
        self._place = place
        return self._further(count)

    def _further(self, count: int) -> bytes:
        at = self.at
        if count > self.end - at:
            raise Damaged(f"it ends in the middle of something: {count:,} bytes should stand at byte {at:,}, {max(self.end - at, 0):,} are left")
        if count > _AHEAD:
            self._chunk, self._place, self._base = b"", 0, at + count
            return self.source.take(at, count)
        self._chunk, self._place, self._base = self.source.take(at, min(_AHEAD, self.end - at)), count, at
        return self._chunk[:count]

    def line(self, most: int) -> bytes:
        """The bytes before the next line feed, which is taken too."""
        found = bytearray()
        while (byte := self.take(1)) != b"\n":
            found += byte
            if len(found) > most:
                raise Damaged(f"a line of more than {most:,} characters stands before byte {self.at:,}")
        return bytes(found)
