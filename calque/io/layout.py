"""The byte layout of a checkpoint: safetensors, with checksums in its metadata.

    8 bytes     length of the header, little-endian
    header      JSON, then blanks: {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}
    body        the tensors, without holes or overlaps

Source of the format: https://github.com/huggingface/safetensors (README, "Format"). Any safetensors reader opens our files.
Our metadata:

    calque.header_crc32   of the 8 length bytes and the header, computed with its own eight digits set to "0"; always first
    calque.format         version of this layout
    calque.tensor_crc32   eight hexadecimal digits per tensor, in the order of their offsets
    calque.structure      see `structure`

A header that holds one of these four names must satisfy all of it, so a damaged header cannot turn a checkpoint into a plain
file. Later versions keep the place and meaning of calque.header_crc32 and calque.format.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from calque.base.errors import CheckpointError
from calque.base.layout import MOST_DIMS
from calque.io.bounds import MEMORY_ALLOWANCE, PER_ENTRY, PER_TENSOR, Budget, Damaged, Index, parsed_size
from calque.io.codes import DTYPES, code_of
from calque.io.structure import Array

FORMAT_VERSION = 1
MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors format
_MARKS = (b"calque.header_crc32", b"calque.format", b"calque.tensor_crc32", b"calque.structure")
_PREFIX = b'{"__metadata__":{"calque.header_crc32":"'
_CRC_AT = len(_PREFIX)  # where the eight digits of the header's checksum stand


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file; `start` and `end` count bytes from the beginning of the body."""

    name: str
    code: str
    shape: tuple[int, ...]
    start: int
    end: int
    crc: int | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[self.code]


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header: entries in the order of the file's index; `structure` is None for a file of another program."""

    entries: tuple[Entry, ...]
    body_start: int
    structure: str | None

    @property
    def file_size(self) -> int:
        return self.body_start + max((entry.end for entry in self.entries), default=0)


def plan(arrays: dict[str, Array], structure: str) -> Header:
    """Places of all tensors in a new file: widest element type first, so that every tensor is aligned for its type."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    entries, position = [], 0
    for name, array in ordered:
        code = code_of(array.dtype)
        assert code is not None, "flatten admits only known element types"
        entries.append(Entry(name, code, array.shape, position, position + array.nbytes))
        position += array.nbytes
    text = _header_text(entries, structure, [0] * len(entries))
    header = Header(tuple(entries), 8 + len(text), structure)
    _check_loadable(header)
    return header


def _check_loadable(header: Header) -> None:
    """What the reader would refuse is not written: it looks at the very header, with its own rules, before any file is touched."""
    content = header_bytes(header, [0] * len(header.entries))
    try:
        parse_header(content[:8], content[8 : 8 + header_length(content[:8], header.file_size)], header.file_size)
    except Damaged as error:
        raise CheckpointError(
            f"[save] expected a value that `load` can read again, got one of which it would say: {error}; keep long lists of numbers in tensors "
            "instead of Python lists, many small tensors stacked in one, long texts in files of their own"
        ) from None


def header_bytes(header: Header, crcs: Iterable[int]) -> bytes:
    """The first `header.body_start` bytes of the file, once the checksums of the tensors are known."""
    text = _header_text(header.entries, header.structure or "", crcs)
    prefix = struct.pack("<Q", len(text))
    crc = zlib.crc32(text, zlib.crc32(prefix))
    return prefix + text[:_CRC_AT] + b"%08x" % crc + text[_CRC_AT + 8 :]


def _header_text(entries: Iterable[Entry], structure: str, crcs: Iterable[int]) -> bytes:
    metadata = {
        "calque.header_crc32": "0" * 8,
        "calque.format": str(FORMAT_VERSION),
        "calque.tensor_crc32": "".join(f"{crc:08x}" for crc in crcs),
        "calque.structure": structure,
    }
    index = {e.name: {"dtype": e.code, "shape": e.shape, "data_offsets": [e.start, e.end]} for e in entries}
    text = json.dumps({"__metadata__": metadata, **index}, separators=(",", ":")).encode("ascii")
    return text + b" " * (-len(text) % 8)


def header_length(first: bytes, file_size: int) -> int:
    """Length of the header from the first eight bytes, checked before anything of that size is read."""
    (length,) = struct.unpack("<Q", first)
    if length > file_size - 8:
        raise Damaged(f"its header should take {length:,} bytes but the file ends after {file_size:,}: truncated or damaged")
    if length > MAX_HEADER:
        raise Damaged(f"its header takes {length:,} bytes, the format allows {MAX_HEADER:,}")
    if length < 2:
        raise Damaged(f"its header takes {length} bytes: not a safetensors file")
    return int(length)


def parse_header(first: bytes, text: bytes, file_size: int) -> Header:
    """Check everything the header claims against the size of the file. Raises Damaged."""
    ours = any(mark in text for mark in _MARKS)
    if ours:
        _check_header_crc(first, text)
    body = file_size - 8 - len(text)
    budget = Budget(file_size + MEMORY_ALLOWANCE, f"its header takes {len(text):,} of {file_size:,} bytes")
    try:
        index = Index(text, budget, partial(_entry, body=body))
    except ValueError as error:
        raise Damaged(f"its header is not valid JSON ({error})") from None
    entries, metadata = tuple(index.entries.values()), index.metadata
    del index  # and the text with it
    by_place = sorted(entries, key=lambda e: (e.start, e.end))
    _check_places(by_place, body)
    if not ours:
        _check_memory(file_size, len(text), len(entries), "")
        return Header(entries, 8 + len(text), None)
    version = metadata.get("calque.format", "")
    if version != str(FORMAT_VERSION):
        raise Damaged(
            f"it has format version {version[:20]!r}, this Calque reads version {FORMAT_VERSION}; "
            "update with: pip install --upgrade calque-dl"
        )
    checked = _with_crcs(by_place, metadata.get("calque.tensor_crc32", ""))
    structure = metadata.get("calque.structure", "")
    _check_memory(file_size, len(text), len(checked), structure)
    return Header(checked, 8 + len(text), structure)


def _check_memory(file_size: int, length: int, tensors: int, structure: str) -> None:
    """Whether the values that a header stands for fit beside it. The bytes of the tensors are in the file and count on their own."""
    budget = Budget(file_size + MEMORY_ALLOWANCE, f"its header of {length:,} bytes holds {tensors:,} tensors and a structure of {len(structure):,}")
    budget.take(tensors * (PER_ENTRY + PER_TENSOR) + sys.getsizeof(structure))
    if structure:
        budget.take(parsed_size(structure.encode("utf-8", "surrogatepass")))


def _check_header_crc(first: bytes, text: bytes) -> None:
    stored, view = text[_CRC_AT : _CRC_AT + 8], memoryview(text)
    found = b"%08x" % zlib.crc32(view[_CRC_AT + 8 :], zlib.crc32(b"0" * 8, zlib.crc32(view[:_CRC_AT], zlib.crc32(first))))
    if not text.startswith(_PREFIX) or stored != found:
        raise Damaged(f"its header is damaged (checksum {stored.decode('ascii', 'replace')!r} stored, {found.decode()!r} found)")


def _entry(name: str, value: Any, body: int) -> Entry:
    label = repr(name if len(name) <= 100 else name[:97] + "...")
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise Damaged(f"the entry of tensor {label} does not have exactly dtype, shape and data_offsets")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise Damaged(f"tensor {label} has the element type {str(code)[:20]!r}; known are {', '.join(DTYPES)}")
    if not _are_counts(shape) or len(shape) > MOST_DIMS:
        raise Damaged(f"tensor {label} has an impossible shape {str(shape)[:60]}")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= body:
        raise Damaged(f"tensor {label} has offsets {str(offsets)[:60]}, the body has {body:,} bytes: truncated or damaged")
    size = DTYPES[code].itemsize
    for extent in shape:
        size *= max(extent, 1)
    if size >= 2**63 or (0 if 0 in shape else size) != offsets[1] - offsets[0]:
        raise Damaged(f"tensor {label} of shape {tuple(shape)} and type {code} does not take {offsets[1] - offsets[0]:,} bytes")
    return Entry(name, code, tuple(shape), offsets[0], offsets[1])


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_places(entries: list[Entry], body: int) -> None:
    position = 0
    for entry in entries:
        if entry.start != position:
            what = "overlaps the tensor before it" if entry.start < position else "leaves a hole before it"
            raise Damaged(f"tensor {entry.name[:100]!r} at byte {entry.start:,} {what} (expected byte {position:,})")
        position = entry.end
    if position != body:
        raise Damaged(f"its tensors take {position:,} bytes, its body has {body:,}")


def _with_crcs(entries: list[Entry], text: str) -> tuple[Entry, ...]:
    if len(text) != 8 * len(entries):
        raise Damaged(f"it holds {len(entries)} tensors but {len(text) / 8:g} checksums")
    try:
        for number, entry in enumerate(entries):
            entries[number] = replace(entry, crc=int(text[8 * number : 8 * number + 8], 16))
    except ValueError:
        raise Damaged("its checksums are not hexadecimal numbers") from None
    return tuple(entries)
