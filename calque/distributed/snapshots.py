"""Memory of whoever starts the ranks of a job, in which each rank keeps its last two commits: it is there when the ranks are not, and goes with the
starter, however that ends. No file, and nothing in /dev/shm.

A slot is an anonymous file in memory that the ranks inherit. Two of each rank are written in turn, the head last, so a rank that dies while it writes
leaves the one before as it was.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib

from calque.base.dataclass import dataclass

_HEAD = struct.Struct("<8sQQIIII")  # mark, number of the commit, bytes, their CRC-32, ranks of the gang, gang, CRC-32 of the head before it
_MARK = b"calque01"
_BEGIN = 64  # of the bytes


@dataclass(frozen=True)
class Commit:
    """One that was found whole. `number`: counted from 1; `size`: ranks that wrote it; `gang`: which start of the job."""

    number: int
    size: int
    gang: int
    slot: int
    nbytes: int


class Snapshots:
    """The slots of `ranks` ranks: descriptors, two of each."""

    def __init__(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors

    @classmethod
    def create(cls, ranks: int) -> Snapshots:
        """New, empty ones."""
        return cls([os.memfd_create(f"calque-commit-{k}", 0) for k in range(2 * ranks)])

    @classmethod
    def from_text(cls, text: str) -> Snapshots:
        """Those of `text`, which has come from `str` of them, by the environment."""
        return cls([int(word) for word in text.split(",")])

    def __str__(self) -> str:
        return ",".join(map(str, self.descriptors))

    def close(self) -> None:
        """Give the memory back, as soon as nobody else has it."""
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.descriptors = []

    def write(self, rank: int, number: int, size: int, gang: int, data: bytes) -> None:
        """Keep a commit of a rank, in the place of the one before the last."""
        slot = self.descriptors[2 * rank + number % 2]
        os.pwrite(slot, bytes(_HEAD.size), 0)  # from here on, until the end, it is none
        os.ftruncate(slot, _BEGIN + len(data))
        done, view = 0, memoryview(data)
        while done < len(data):
            done += os.pwrite(slot, view[done : done + (1 << 28)], _BEGIN + done)
        head = _HEAD.pack(_MARK, number, len(data), zlib.crc32(data), size, gang, 0)[:-4]
        os.pwrite(slot, head + struct.pack("<I", zlib.crc32(head)), 0)

    def found(self, rank: int) -> list[Commit]:
        """The commits of a rank whose head is whole."""
        commits = []
        for slot in self.descriptors[2 * rank : 2 * rank + 2]:
            head = os.pread(slot, _HEAD.size, 0)
            if len(head) == _HEAD.size and head.startswith(_MARK) and struct.unpack("<I", head[-4:])[0] == zlib.crc32(head[:-4]):
                _, number, nbytes, _, size, gang, _ = _HEAD.unpack(head)
                commits.append(Commit(number, size, gang, slot, nbytes))
        return commits

    def newest(self) -> list[Commit]:
        """The newest that all ranks of its gang have, by rank; empty if there is none."""
        for first in sorted(self.found(0), key=lambda commit: -commit.number):
            ranks = [
                next((c for c in self.found(rank) if (c.number, c.size, c.gang) == (first.number, first.size, first.gang)), None)
                for rank in range(first.size)
            ]
            whole = [commit for commit in ranks if commit is not None]
            if len(whole) == first.size:
                return whole
        return []

    def read(self, commit: Commit) -> bytes:
        """Its bytes. Raises OSError if they are not those that were written."""
        parts, done = [], 0
        while done < commit.nbytes:
            part = os.pread(commit.slot, min(1 << 28, commit.nbytes - done), _BEGIN + done)
            if not part:
                break
            parts.append(part)
            done += len(part)
        data = b"".join(parts)
        if zlib.crc32(data) != _HEAD.unpack(os.pread(commit.slot, _HEAD.size, 0))[3] or len(data) != commit.nbytes:
            raise OSError(f"commit {commit.number} is not what was written")
        return data
