"""Zip archives without compression, as `torch.save` writes them: where each member stands. Members are found by name;
nothing is unpacked to a disk.

Source of the format: PKWARE's APPNOTE.TXT, sections 4.3 and 4.4; 64-bit sizes are 4.5.3.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from calque.io.bounds import Damaged
from calque.io.source import Source

_END, _END64, _LOCATOR, _CENTRAL, _LOCAL = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x01\x02", b"PK\x03\x04"
_CENTRAL_SIZE, _LOCAL_SIZE = 46, 30
_MOST_UNPACKED = 16  # bytes that one byte of an archive may become, beyond the allowance
_ALLOWANCE = 61 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive: `start` is where its bytes are, `packed` how many stand there; `crc` is 0 where none was computed."""

    name: str
    start: int
    packed: int
    size: int
    crc: int
    deflated: bool


def members(source: Source) -> dict[str, Member]:
    """The members of an archive by name. Raises Damaged for sizes and places that contradict each other or the file."""
    count, size, start = _directory(source)
    if not 0 <= start <= start + size <= source.size:
        raise Damaged(f"its directory of {size:,} bytes should begin at byte {start:,}: truncated or damaged")
    text, found, at = source.take(start, size), {}, 0
    for _ in range(min(count, size // _CENTRAL_SIZE + 1)):
        if text[at : at + 4] != _CENTRAL:
            break
        fields = struct.unpack_from("<4s6H3I5H2I", text.ljust(at + _CENTRAL_SIZE, b"\0"), at)
        flags, method, crc, packed, unpacked, name_size, extra_size, comment = (fields[n] for n in (3, 4, 7, 8, 9, 10, 11, 12))
        behind = at + _CENTRAL_SIZE
        name = text[behind : behind + name_size].decode("utf-8", "replace")
        extra = text[behind + name_size : behind + name_size + extra_size]
        unpacked, packed, place = _wide(extra, unpacked, packed, fields[16])
        at = behind + name_size + extra_size + comment
        if name.endswith("/") and not unpacked:
            continue
        if name in found:
            raise Damaged(f"its archive holds {name[:80]!r} twice")
        if flags & 1 or method not in (0, 8):
            raise Damaged(f"{name[:80]!r} in it is encrypted or compressed by method {method}; only stored and deflated members are read")
        if place + _LOCAL_SIZE + packed > start or method == 0 and packed != unpacked:
            raise Damaged(f"{name[:80]!r} in it should take {packed:,} bytes from byte {place:,} on: truncated or damaged")
        found[name] = Member(name, place, packed, unpacked, crc, method == 8)
    if len(found) > count or at != size:
        raise Damaged(f"its directory should list {count:,} members, it lists {len(found):,}")
    return _checked(found, source.size)


def _directory(source: Source) -> tuple[int, int, int]:
    """(members, bytes, place) of the directory, from the record at the end of the file."""
    tail_size = min(source.size, 22 + 65535)
    tail = source.take(source.size - tail_size, tail_size)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        raise Damaged("the directory of its zip archive is missing: truncated?")
    count, size, start = struct.unpack_from("<HII", tail, at + 10)
    locator = source.size - tail_size + at - 20
    if locator >= 0 and source.take(locator, 4) == _LOCATOR:
        (end64,) = struct.unpack("<Q", source.take(locator + 8, 8))
        record = source.take(end64, 56) if end64 <= source.size else b""
        if len(record) < 56 or record[:4] != _END64:
            raise Damaged("the 64-bit directory of its zip archive is damaged")
        count, size, start = struct.unpack_from("<QQQ", record, 32)
    return count, size, start


def _wide(extra: bytes, *sizes: int) -> list[int]:
    """Sizes and places of 64 bits, where those of 32 bits say that they stand in the extra field."""
    result, at = list(sizes), 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            field, place = extra[at + 4 : at + 4 + length], 0
            for n, size in enumerate(sizes):
                if size == 0xFFFFFFFF and place + 8 <= len(field):
                    (result[n],) = struct.unpack_from("<Q", field, place)
                    place += 8
        at += 4 + length
    return result


def _checked(found: dict[str, Member], size: int) -> dict[str, Member]:
    """Members must not overlap, nor unpack to very much more than the archive: small files must not become large memory."""
    unpacked = sum(member.size for member in found.values())
    if unpacked > _MOST_UNPACKED * size + _ALLOWANCE:
        raise Damaged(f"its {size:,} bytes would unpack to {unpacked:,}, more than can be read safely")
    end = 0
    for member in sorted(found.values(), key=lambda m: m.start):
        if member.start < end:
            raise Damaged(f"{member.name[:80]!r} in it overlaps another member")
        end = member.start + _LOCAL_SIZE + member.packed
    return found


def place_of(source: Source, member: Member) -> int:
    """Where the bytes of a member begin, behind its own header."""
    header = source.take(member.start, _LOCAL_SIZE)
    if header[:4] != _LOCAL:
        raise Damaged(f"{member.name[:80]!r} in it does not begin where the directory says")
    name_size, extra_size = struct.unpack_from("<HH", header, 26)
    start = member.start + _LOCAL_SIZE + int(name_size) + int(extra_size)
    name = source.take(member.start + _LOCAL_SIZE, name_size)
    if start + member.packed > source.size or name != member.name.encode("utf-8", "replace"):
        raise Damaged(f"{member.name[:80]!r} in it does not stand where the directory says")
    return start


def read_member(source: Source, member: Member, buffer: memoryview) -> None:
    """Fill a buffer of the member's size with its bytes, checked."""
    start, crc = place_of(source, member), 0
    if member.deflated:
        crc = _inflate(source, member, start, buffer)
    else:
        for at in range(0, member.size, _CHUNK):
            chunk = buffer[at : at + _CHUNK]
            source.read_at(chunk, start + at)
            crc = zlib.crc32(chunk, crc)
    if member.crc and crc != member.crc:
        raise Damaged(f"{member.name[:80]!r} in it is damaged (checksum {member.crc:08x} stored, {crc:08x} found)")


def _inflate(source: Source, member: Member, start: int, buffer: memoryview) -> int:
    machine, filled, crc = zlib.decompressobj(-15), 0, 0
    try:
        for at in range(0, member.packed, _CHUNK):
            text = source.take(start + at, min(_CHUNK, member.packed - at))
            while text and not machine.eof:
                made = machine.decompress(text, max(min(_CHUNK, member.size - filled), 1))
                if filled + len(made) > member.size:
                    raise Damaged(f"{member.name[:80]!r} in it unpacks to more than the {member.size:,} bytes that its directory says")
                buffer[filled : filled + len(made)] = made
                filled, crc, text = filled + len(made), zlib.crc32(made, crc), machine.unconsumed_tail
        while filled < member.size and (made := machine.decompress(b"", member.size - filled)):  # what it had read and not yet handed out
            buffer[filled : filled + len(made)] = made
            filled, crc = filled + len(made), zlib.crc32(made, crc)
    except zlib.error as error:
        raise Damaged(f"{member.name[:80]!r} in it is damaged ({error})") from None
    if filled != member.size:
        raise Damaged(f"{member.name[:80]!r} in it unpacks to {filled:,} bytes instead of {member.size:,}")
    return crc
