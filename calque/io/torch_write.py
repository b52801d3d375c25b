"""Writing `.pt` files: a zip archive without compression, every storage at a multiple of 64 bytes, as `torch.save` lays it out."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable

import numpy as np

from calque.io.pickle_text import PickleText
from calque.io.structure import Array

_ALIGNMENT = 64
_DATE = (1 << 5) + 1  # the first of January 1980, as in every archive of PyTorch
_FLAGS = (1 << 11) | (1 << 3)  # names are UTF-8; checksum and sizes stand behind the data
_WIDE = 0xFFFFFFFF
_CHUNK = 1 << 20

Write = Callable[[bytes], object]


class TorchFile:
    """What a `.pt` file of a value will hold, and how large it will be about."""

    def __init__(self, value: object, root: str = "archive", objects: bool = False) -> None:
        pickled = PickleText(value, objects)
        identity = f"{zlib.crc32(pickled.text):020d}{len(pickled.text):020d}"
        self.members: list[tuple[str, Array]] = [
            (f"{root}/{name}", np.frombuffer(content, np.uint8))
            for name, content in (
                ("data.pkl", pickled.text), (".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", sys.byteorder.encode()),
            )
        ]  # fmt: skip
        self.members += [(f"{root}/data/{number}", flat) for number, flat in enumerate(pickled.storages)]
        for name, content in (("version", b"3\n"), (".data/serialization_id", identity.encode())):
            self.members.append((f"{root}/{name}", np.frombuffer(content, np.uint8)))

    @property
    def size(self) -> int:
        return sum(flat.nbytes + 2 * len(name) + 256 for name, flat in self.members)

    def write(self, write: Write) -> None:
        """Write the file to a stream."""
        at, directory = 0, []
        for name, flat in self.members:
            entry, at = _write_member(write, at, name.encode(), flat)
            directory.append(entry)
        text = b"".join(directory)
        write(text)
        count, end = len(directory), at + len(text)
        if count >= 0xFFFF or end >= _WIDE:
            write(b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, len(text), at))
            write(b"PK\x06\x07" + struct.pack("<IQI", 0, end, 1))
        write(b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, min(count, 0xFFFF), min(count, 0xFFFF), min(len(text), _WIDE), min(at, _WIDE), 0))


def _write_member(write: Write, at: int, name: bytes, flat: Array) -> tuple[bytes, int]:
    """Write one member at a place; its entry in the directory, and the place behind it."""
    wide = flat.nbytes >= _WIDE
    padding = -(at + 30 + len(name) + 4) % _ALIGNMENT
    extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    write(b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", 45 if wide else 20, _FLAGS, 0, 0, _DATE, 0, 0, 0, len(name), len(extra)) + name + extra)
    crc, data = 0, flat.reshape(-1).view(np.uint8)
    for start in range(0, data.size, _CHUNK):
        chunk = data[start : start + _CHUNK].tobytes()  # a copy, so that a tensor which changes meanwhile cannot part the checksum from the bytes
        crc = zlib.crc32(chunk, crc)
        write(chunk)
    write(b"PK\x07\x08" + struct.pack("<IQQ" if wide else "<III", crc, flat.nbytes, flat.nbytes))
    sizes = b"" if not wide and at < _WIDE else struct.pack("<HHQQQ", 1, 24, flat.nbytes, flat.nbytes, at)
    size, place = (_WIDE, _WIDE) if sizes else (flat.nbytes, at)
    version = 45 if sizes else 20
    fields = (version, version, _FLAGS, 0, 0, _DATE, crc, size, size, len(name), len(sizes), 0, 0, 0, 0, place)
    entry = b"PK\x01\x02" + struct.pack("<HHHHHHIIIHHHHHII", *fields)
    return entry + name + sizes, at + 30 + len(name) + len(extra) + flat.nbytes + (24 if wide else 16)
